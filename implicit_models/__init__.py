"""Implicit language models: fixed points of ordinary Mamba2 and Llama stacks.

Importing this makes the models known to transformers' Auto classes, as soon as those or the
models are imported; parameters can so be read without waiting for transformers and torch.
"""

import sys

from wrapt import when_imported

__version__ = "0.1.0"

_OURS = "implicit_models.language_models.modelling"
_LSTM = "implicit_models.language_models.recurrent"


def _is_being_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and getattr(module.__spec__, "_initializing", False)


@when_imported("transformers.models.auto.configuration_auto")
def _register_configurations(module: object) -> None:
    from implicit_models.language_models.registration import register_configurations

    register_configurations()


@when_imported("transformers.models.auto.modeling_auto")
def _import_models(module: object) -> None:
    # Whoever imports the models may be the one who imports this; then they are not ready yet.
    if not (_is_being_imported(_OURS) or _is_being_imported(_LSTM)):
        __import__(_LSTM)


@when_imported(_OURS)
def _register_ours(module: object) -> None:
    from implicit_models.language_models.registration import register_ours

    register_ours()
    if not _is_being_imported(_LSTM):
        __import__(_LSTM)


@when_imported(_LSTM)
def _register_lstm(module: object) -> None:
    from implicit_models.language_models.registration import register_lstm

    register_lstm()
