"""Implicit language models: fixed points of ordinary Mamba2 and Llama stacks.

Importing this makes the models known to transformers' Auto classes, as soon as those or the
models are imported; parameters can so be read without waiting for transformers and torch. For the
same reason the configurations and models named here are imported when they are asked for. Where
torch is not imported yet, its threads will wait for each other as `threads` says.
"""

import sys
from typing import TYPE_CHECKING

from wrapt import when_imported

from implicit_models.lazy_names import lazy_names
from implicit_models.threads import wait_briefly

if TYPE_CHECKING:
    from implicit_models.families.llama.configuration import (
        ImplicitLlamaConfig as ImplicitLlamaConfig,
    )
    from implicit_models.families.llama.family import (
        ImplicitLlamaForCausalLM as ImplicitLlamaForCausalLM,
    )
    from implicit_models.families.llama.family import ImplicitLlamaModel as ImplicitLlamaModel
    from implicit_models.families.lstm.configuration import LSTMConfig as LSTMConfig
    from implicit_models.families.lstm.model import LSTMLanguageModel as LSTMLanguageModel
    from implicit_models.families.mamba2.configuration import (
        ImplicitMamba2Config as ImplicitMamba2Config,
    )
    from implicit_models.families.mamba2.family import (
        ImplicitMamba2ForCausalLM as ImplicitMamba2ForCausalLM,
    )
    from implicit_models.families.mamba2.family import ImplicitMamba2Model as ImplicitMamba2Model
    from implicit_models.families.sizes import from_size as from_size
    from implicit_models.families.upcycling import upcycle as upcycle

wait_briefly()

__getattr__, __dir__ = lazy_names(__name__)

__version__ = "0.1.0"

_MODELLING = "implicit_models.language_models.modelling"
_FAMILY = "implicit_models.families.family"


def _is_being_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and getattr(module.__spec__, "_initializing", False)


def _import_models(unless: tuple[str, ...]) -> None:
    # Whoever imports what every family needs may be the one who imports this; then it is not ready.
    if not any(map(_is_being_imported, unless)):
        from implicit_models.families.registration import import_models

        import_models()


@when_imported("transformers.models.auto.configuration_auto")
def _after_configurations(module: object) -> None:
    from implicit_models.families.registration import import_configurations

    import_configurations()


@when_imported("transformers.models.auto.modeling_auto")
def _after_auto_classes(module: object) -> None:
    _import_models(unless=(_MODELLING, _FAMILY))


@when_imported(_MODELLING)
def _after_modelling(module: object) -> None:
    _import_models(unless=(_FAMILY,))


@when_imported(_FAMILY)
def _after_families(module: object) -> None:
    _import_models(unless=())
