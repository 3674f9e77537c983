"""transformers' own common model tests, pointed at our classes.

They are not part of the package. To run them, check out transformers at the version that is
installed and name the folder:

    TRANSFORMERS_SOURCE=.../transformers pytest tests/language_models/test_transformers_common.py

(they also want the package `parameterized`). What does not apply is in `NOT_APPLICABLE`.
"""

import importlib
import os
import unittest
from pathlib import Path
from typing import Any

import pytest

import tests
from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM, ImplicitLlamaModel
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM, ImplicitMamba2Model
from implicit_models.language_models.cache import CarryCache

SOURCE = os.environ.get("TRANSFORMERS_SOURCE")
pytestmark = pytest.mark.filterwarnings("ignore")
if SOURCE is None:
    pytest.skip("TRANSFORMERS_SOURCE names no checkout of transformers", allow_module_level=True)


# Their modules call themselves `tests` as well.
tests.__path__.append(str(Path(SOURCE, "tests")))
common = importlib.import_module("tests.test_modeling_common")
generation = importlib.import_module("tests.generation.test_utils")
configuration = importlib.import_module("tests.test_configuration_common")

CHECKPOINTING = "blocks are checkpointed by their stack, not by a GradientCheckpointingLayer"
NOT_APPLICABLE = {
    "test_gradient_checkpointing_enable_disable": CHECKPOINTING,
    "test_training_gradient_checkpointing": CHECKPOINTING,
    "test_training_gradient_checkpointing_use_reentrant_false": CHECKPOINTING,
    "test_training_gradient_checkpointing_use_reentrant_true": CHECKPOINTING,
    "test_model_weights_reload_no_missing_tied_weights": "missing weights are an error",
    "test_model_rope_scaling_from_config_1_dynamic": (
        "rotary embeddings that depend on the length of the text are refused"
    ),
    "test_past_key_values_format": "the cache is a carry; it has no layers to look into",
}
MAPPINGS = (common.MODEL_MAPPING_NAMES, common.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
for family, classes in {
    "implicit_mamba2": ("ImplicitMamba2Model", "ImplicitMamba2ForCausalLM"),
    "implicit_llama": ("ImplicitLlamaModel", "ImplicitLlamaForCausalLM"),
}.items():
    for mapping, name in zip(MAPPINGS, classes, strict=True):
        mapping[family] = name  # how the tests know who takes labels


class Tester:
    """What the common tests ask of a model's tester."""

    batch_size, seq_length, is_training = 5, 7, True
    hidden_size, num_hidden_layers, vocab_size = 32, 2, 99
    num_attention_heads, num_key_value_heads = 4, 2

    def __init__(self, family: str, implicit: bool) -> None:
        self.family, self.implicit = family, implicit

    def get_config(self) -> Any:
        common_settings = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "implicit": self.implicit,
            "tie_word_embeddings": False,
            "pad_token_id": 98,
            "bos_token_id": 98,
            "eos_token_id": 98,
            "max_self_iterations": 12,
            "patience": 2,
            "tolerance": 1e-4,
        }
        if self.family == "mamba2":
            return ImplicitMamba2Config(state_size=4, head_dim=8, chunk_size=8, **common_settings)
        return ImplicitLlamaConfig(
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            intermediate_size=48,
            **common_settings,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        size = [self.batch_size, self.seq_length]
        return self.get_config(), {"input_ids": common.ids_tensor(size, self.vocab_size - 1)}


def make(name: str, family: str, implicit: bool, classes: tuple[type, ...]) -> type:
    def set_up(self: Any) -> None:
        self.model_tester = Tester(family, implicit)
        self.config_tester = configuration.ConfigTester(
            self,
            config_class=type(self.model_tester.get_config()),
            common_properties=["hidden_size", "num_hidden_layers"],
            hidden_size=192,
        )

    def check_cache(
        self: Any, batch_size: int, past_key_values: Any, seq_length: int, config: Any
    ) -> None:
        self.assertIsInstance(past_key_values, CarryCache)
        self.assertEqual(past_key_values.get_seq_length(), seq_length)

    def test_config(self: Any) -> None:
        self.config_tester.run_common_tests()

    members: dict[str, Any] = {
        "all_model_classes": classes,
        "pipeline_model_mapping": {},
        "has_attentions": False,
        "test_missing_keys": False,
        "setUp": set_up,
        "test_config": test_config,
        "_check_past_key_values_for_generate": check_cache,
        "__module__": __name__,
    }
    bases = (common.ModelTesterMixin, generation.GenerationTesterMixin, unittest.TestCase)
    for theirs in (*NOT_APPLICABLE, "_check_past_key_values_for_generate"):
        assert any(hasattr(base, theirs) for base in bases), f"transformers has no {theirs}"
    for test, reason in NOT_APPLICABLE.items():
        members[test] = unittest.skip(reason)(lambda self: None)
    return type(name, bases, members)


MAMBA2 = (ImplicitMamba2Model, ImplicitMamba2ForCausalLM)
LLAMA = (ImplicitLlamaModel, ImplicitLlamaForCausalLM)
TestExplicitMamba2 = make("TestExplicitMamba2", "mamba2", False, MAMBA2)
TestImplicitMamba2 = make("TestImplicitMamba2", "mamba2", True, MAMBA2)
TestExplicitLlama = make("TestExplicitLlama", "llama", False, LLAMA)
TestImplicitLlama = make("TestImplicitLlama", "llama", True, LLAMA)
