"""Names that `implicit_models` and its engine hand out when they are asked for."""

import importlib.util
import subprocess
import sys

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import implicit_models
from implicit_models import equilibrium
from implicit_models.families.table import FAMILIES, package_of
from implicit_models.lazy_names import places_of_names

PACKAGES = (implicit_models, equilibrium)
NAMES = [(package, name) for package in PACKAGES for name in places_of_names(package.__file__)]

QUICK = """
import sys
import implicit_models.equilibrium
import implicit_models
dir(implicit_models), dir(implicit_models.equilibrium)
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "transformers", "numpy"}, loaded
from implicit_models.equilibrium import Anderson, Phase, Picard, Window, find_fixed_point
assert "torch" in sys.modules and "transformers" not in sys.modules
assert "implicit_models.families" not in sys.modules
from implicit_models import ImplicitLlamaConfig
assert "implicit_models.families.mamba2.family" not in sys.modules
from implicit_models import ImplicitLlamaForCausalLM, ImplicitMamba2ForCausalLM, from_size
model = ImplicitLlamaForCausalLM(from_size("llama-130m", hidden_size=64, num_hidden_layers=1))
assert isinstance(model.config, ImplicitLlamaConfig)
print("quick")
"""


def test_nothing_is_imported_before_it_is_asked_for():
    command = [sys.executable, "-W", "error", "-c", QUICK]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout == "quick\n", found.stderr


@pytest.mark.parametrize(("package", "name"), NAMES, ids=[name for _, name in NAMES])
def test_each_name_is_what_its_module_calls_so(package, name):
    found = getattr(package, name)
    module = importlib.import_module(places_of_names(package.__file__)[name])
    assert found is getattr(module, name)
    assert found.__module__ == module.__name__  # where it is defined, and not where it passes by
    assert name in dir(package)


def test_every_model_and_configuration_of_ours_has_a_name():
    configurations = [
        getattr(implicit_models, name)
        for name in places_of_names(implicit_models.__file__)
        if name.endswith("Config")
    ]
    packages = {each.__module__ for each in configurations}
    assert packages == {
        f"{package}.configuration"
        for package in map(package_of, FAMILIES)
        if importlib.util.find_spec(f"{package}.configuration")
    }
    for configuration in configurations:
        assert type(AutoConfig.for_model(configuration.model_type)) is configuration
        for auto in (AutoModel, AutoModelForCausalLM):
            model = auto._model_mapping.get(configuration, None)
            assert model is None or getattr(implicit_models, model.__name__) is model


def test_an_unknown_name_is_no_attribute():
    for package in PACKAGES:
        assert not hasattr(package, "__wrapped__")
        with pytest.raises(AttributeError, match="has no attribute 'ImplicitLamaConfig'"):
            _ = package.ImplicitLamaConfig
