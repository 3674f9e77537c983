"""From parameters to a model."""

from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from implicit_models.language_models.configuration import (
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
    LSTMConfig,
    StrictConfig,
)
from implicit_models.language_models.modelling import (
    ImplicitForCausalLM,
    ImplicitLlamaForCausalLM,
    ImplicitMamba2ForCausalLM,
)
from implicit_models.language_models.parameters import ModelParameters
from implicit_models.language_models.recurrent import LSTMLanguageModel
from implicit_models.language_models.sources import (
    SourceError,
    load_source,
    naming_the_source,
    quietly,
)
from implicit_models.language_models.upcycling import upcycle

LanguageModel = PreTrainedModel
LabelAlignment = Literal["next_token", "aligned"]

# The best of docs/benchmarks.md on state tracking, where every token is hard; on text most tokens
# converge in a few iterations wherever they stand, and a wider one wins.
WINDOWS: dict[LabelAlignment, int] = {"aligned": 20, "next_token": 32}


def build(
    parameters: ModelParameters,
    vocabulary_size: int,
    seed: int,
    label_alignment: LabelAlignment = "aligned",
) -> LanguageModel:
    """Build a model.

    Its weights depend on the seed alone, or on the source they are taken from.

    Parameters
    ----------
    label_alignment
        As in `ImplicitConfig`: ``aligned`` for state tracking, ``next_token`` for text.

    Raises
    ------
    SourceError
        Where a source cannot be read, or has another vocabulary.
    """
    if parameters.family == "huggingface":
        return _outside(parameters, vocabulary_size, seed)
    if parameters.family == "upcycled":
        return _upcycled(parameters, vocabulary_size, seed, label_alignment)
    config = configuration(parameters, vocabulary_size, label_alignment)
    classes = {
        "mamba2": ImplicitMamba2ForCausalLM,
        "llama": ImplicitLlamaForCausalLM,
        "lstm": LSTMLanguageModel,
    }
    model = classes[parameters.family](config)  # type: ignore[arg-type]
    model.initialise(seed)
    return model


def configuration(
    parameters: ModelParameters,
    vocabulary_size: int,
    label_alignment: LabelAlignment = "aligned",
) -> StrictConfig:
    """Give the configuration of a model of our own; as `build`."""
    common: dict[str, Any] = {
        "vocab_size": vocabulary_size,
        "num_hidden_layers": parameters.num_layers,
        "initializer_range": parameters.embedding_std,
        "label_alignment": label_alignment,
    }
    if parameters.family == "lstm":
        assert parameters.d_model and parameters.hidden_size
        return LSTMConfig(
            embedding_size=parameters.d_model, hidden_size=parameters.hidden_size, **common
        )
    common |= {
        "hidden_size": parameters.d_model,
        "implicit": parameters.implicit,
        "weight_normalisation": parameters.weight_normalisation,
        "rms_norm_eps": parameters.norm_epsilon,
        "window": WINDOWS[label_alignment],
    }
    if parameters.family == "llama":
        assert parameters.num_heads and parameters.d_feed_forward
        return ImplicitLlamaConfig(
            num_attention_heads=parameters.num_heads,
            num_key_value_heads=parameters.num_key_value_heads,
            head_dim=parameters.head_dim,
            intermediate_size=parameters.d_feed_forward,
            rope_parameters={"rope_type": "default", "rope_theta": parameters.rope_theta},
            **common,
        )
    assert parameters.d_state and parameters.head_dim
    return ImplicitMamba2Config(
        state_size=parameters.d_state,
        expand=parameters.expand,
        head_dim=parameters.head_dim,
        n_groups=parameters.num_groups,
        conv_kernel=parameters.conv_kernel,
        chunk_size=parameters.chunk_length,
        **common,
    )


def num_parameters(model: LanguageModel) -> int:
    """Count a model's parameters, a tied head once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _outside(parameters: ModelParameters, vocabulary_size: int, seed: int) -> LanguageModel:
    """Give a model of transformers, over our vocabulary."""
    source = parameters.source
    assert source is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if parameters.pretrained:
            model = load_source(source)
            _forget_special_tokens(model.config)
            with quietly():
                model.resize_token_embeddings(vocabulary_size)
            embeddings: Any = model.get_input_embeddings()
            embeddings.padding_idx = None  # or one token would not be trained
        else:
            with naming_the_source(source):
                config = AutoConfig.from_pretrained(source)
                _forget_special_tokens(config)
                config.vocab_size = vocabulary_size
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if getattr(model.config, "implicit", False):
        raise SourceError(
            f"the model of {source} is implicit; baselines are explicit: it is an entry of runs"
        )
    _check_causal(model, vocabulary_size, source)
    return model


def _forget_special_tokens(config: PreTrainedConfig) -> None:
    """Take out the ids of tokens that are of another vocabulary."""
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, None)


@torch.no_grad()
def _check_causal(model: LanguageModel, vocabulary_size: int, source: str) -> None:
    """Raise a SourceError where a model sees tokens that are still to come, such as BERT does."""
    were_training = model.training
    tokens = torch.zeros(2, 4, dtype=torch.long)
    tokens[1, -1] = vocabulary_size - 1
    first, other = model.eval()(input_ids=tokens, use_cache=False).logits[:, :-1]
    model.train(were_training)
    if not torch.allclose(first, other, atol=1e-6):
        raise SourceError(
            f"the {type(model).__name__} of {source} sees tokens that are still to come; a "
            "baseline must be a causal language model (some configurations have is_decoder)"
        )


def _upcycled(
    parameters: ModelParameters, vocabulary_size: int, seed: int, label_alignment: LabelAlignment
) -> ImplicitForCausalLM:
    assert parameters.source is not None
    source = load_source(parameters.source)
    if source.config.vocab_size != vocabulary_size:
        raise SourceError(
            f"the model in {parameters.source} has {source.config.vocab_size} tokens, the data set "
            f"{vocabulary_size}; an upcycled model keeps its source's vocabulary"
        )
    try:
        return upcycle(source, seed=seed, label_alignment=label_alignment)
    except SourceError as error:
        raise SourceError(f"{parameters.source} cannot be upcycled: {error}") from None
