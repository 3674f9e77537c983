"""Our models under transformers' Auto classes. Doing it twice is harmless."""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, TypeVar

from transformers import PreTrainedConfig

from implicit_models.families.table import FAMILIES, package_of

ConfigClass = TypeVar("ConfigClass", bound=type[PreTrainedConfig])


def registered(config: ConfigClass) -> ConfigClass:
    """Make AutoConfig know a family's configuration; a decorator."""
    from transformers.models.auto.configuration_auto import AutoConfig

    AutoConfig.register(config.model_type, config, exist_ok=True)
    return config


def register_models(
    config: type[PreTrainedConfig],
    language_model: type[Any],
    trunk: type[Any] | None = None,
) -> None:
    """Make AutoModelForCausalLM know a family's language model, and AutoModel its trunk, if any.

    By its name in transformers' table, Trainer's label smoothing knows that labels are shifted.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        AutoModel,
        AutoModelForCausalLM,
    )

    AutoModelForCausalLM.register(config, language_model, exist_ok=True)
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] = language_model.__name__
    if trunk is not None:
        AutoModel.register(config, trunk, exist_ok=True)


def import_configurations() -> None:
    """Import the configurations of all families that have one, which registers them."""
    for package in _own_packages():
        importlib.import_module(f"{package}.configuration")


def import_models() -> None:
    """Import the models of all families that have a configuration, which registers them."""
    for package in _own_packages():
        importlib.import_module(f"{package}.family")


def _own_packages() -> Iterator[str]:
    for package in map(package_of, FAMILIES):
        if importlib.util.find_spec(f"{package}.configuration") is not None:
            yield package
