"""Our models under transformers' Auto classes. Doing it twice is harmless."""

from transformers.models.auto.configuration_auto import AutoConfig

from implicit_models.language_models.configuration import (
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
    LSTMConfig,
)


def register_configurations() -> None:
    """Let AutoConfig know our configurations."""
    for config in (ImplicitMamba2Config, ImplicitLlamaConfig, LSTMConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


def register_ours() -> None:
    """Let AutoModel and AutoModelForCausalLM know Mamba2 and Llama."""
    from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM

    from implicit_models.language_models.modelling import (
        ImplicitLlamaForCausalLM,
        ImplicitLlamaModel,
        ImplicitMamba2ForCausalLM,
        ImplicitMamba2Model,
    )

    AutoModel.register(ImplicitMamba2Config, ImplicitMamba2Model, exist_ok=True)
    AutoModel.register(ImplicitLlamaConfig, ImplicitLlamaModel, exist_ok=True)
    AutoModelForCausalLM.register(ImplicitMamba2Config, ImplicitMamba2ForCausalLM, exist_ok=True)
    AutoModelForCausalLM.register(ImplicitLlamaConfig, ImplicitLlamaForCausalLM, exist_ok=True)


def register_lstm() -> None:
    """Let AutoModelForCausalLM know the LSTM."""
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    from implicit_models.language_models.recurrent import LSTMLanguageModel

    AutoModelForCausalLM.register(LSTMConfig, LSTMLanguageModel, exist_ok=True)
