"""Implicit language models: fixed points of ordinary Mamba2 and Llama stacks.

Importing this makes the models known to transformers' Auto classes, as soon as those or the
models are imported; parameters can so be read without waiting for transformers and torch.
"""

import sys

from wrapt import when_imported

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
