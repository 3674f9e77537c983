"""Any causal language model of transformers: read from its source, its FLOPs counted."""

import weakref
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from implicit_models.families.costs import ModelFlops
from implicit_models.families.family import Family, no_memory
from implicit_models.families.huggingface.counted_flops import count_model
from implicit_models.families.huggingface.memory import NoMemory, initial_memory
from implicit_models.language_models.language_model import LabelAlignment, LanguageModel
from implicit_models.language_models.memory import Memory
from implicit_models.language_models.source_names import SourceError
from implicit_models.language_models.sources import load_source, naming_the_source, quietly


class HuggingFaceFamily(Family):
    """Models of transformers: explicit ones, of whatever shape."""

    # As transformers' Mamba and Mamba2 call what is raised to powers of the length.
    exact_weights = ("A_log", "dt_bias", "D")
    reader = "implicit_models.families.huggingface.reader:TransformersReader"

    def __init__(self) -> None:
        # What was counted of each model, as long as it lives.
        self._counted: weakref.WeakKeyDictionary[LanguageModel, ModelFlops] = (
            weakref.WeakKeyDictionary()
        )

    def build(
        self,
        parameters: Any,
        vocabulary_size: int,
        seed: int,
        label_alignment: LabelAlignment,
    ) -> LanguageModel:
        """Build a model of a source's configuration, or load its weights, over our vocabulary."""
        source: str = parameters.source
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            if parameters.pretrained:
                model = _loaded(source, vocabulary_size)
            else:
                with naming_the_source(source):
                    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
                    _forget_special_tokens(config)
                    config.vocab_size = vocabulary_size
                    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if getattr(model.config, "implicit", False):
            raise SourceError(
                f"the model of {source} is implicit; baselines are explicit: it is an entry of runs"
            )
        _check_causal(model, vocabulary_size, source)
        return model

    def initial_memory(self, model: LanguageModel, num_sequences: int) -> Memory:
        """Return the cache of a text's start, where it has a fixed size."""
        try:
            return initial_memory(model, num_sequences)
        except NoMemory as error:
            raise no_memory(model, str(error)) from None

    def flops(self, model: LanguageModel) -> ModelFlops:
        """Return what was counted of a model, on a few tokens and once."""
        found = self._counted.get(model)
        if found is None:
            found = self._counted[model] = count_model(model)
        return found


def _loaded(source: str, vocabulary_size: int) -> LanguageModel:
    model = load_source(source)
    for config in (model.config, model.generation_config):
        _forget_special_tokens(config)
    with quietly():
        model.resize_token_embeddings(vocabulary_size)
    embeddings: Any = model.get_input_embeddings()
    embeddings.padding_idx = None  # or one token would not be trained
    return model


def _forget_special_tokens(config: PreTrainedConfig | GenerationConfig | None) -> None:
    """Take out the ids of tokens that are of another vocabulary."""
    if config is not None:
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


FAMILY = HuggingFaceFamily()
