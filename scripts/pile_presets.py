"""Write conf/preset/pile_*.yaml from templates and a table of sizes, all in conf/templates.

    python scripts/pile_presets.py

Each has its models in a file of conf/shared, for presets of several sizes. They are files of their
own because their entries are named for the model: Hydra's defaults list interpolates the config
that is included, but not the package that it is placed in.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml

CONFIGURATION = Path(__file__).resolve().parents[1] / "conf"


def contents(configuration: Path = CONFIGURATION) -> dict[str, str]:
    """Return the content of each file by its path in the configuration."""
    templates = configuration / "templates"
    models, preset = (
        Template((templates / f"pile_{each}.yaml").read_text(encoding="utf-8"))
        for each in ("models", "preset")
    )
    table = yaml.safe_load((templates / "pile_sizes.yaml").read_text(encoding="utf-8"))
    found = {}
    for size, row in table["sizes"].items():
        for family, common in table["families"].items():
            values = _values(size, row, family, common)
            found[f"shared/pile_models_{size}_{family}.yaml"] = models.substitute(values)
            found[f"preset/pile_{size}_{family}.yaml"] = preset.substitute(values)
    return found


def write(configuration: Path = CONFIGURATION) -> None:
    """Write the files of every size in the table."""
    for name, content in contents(configuration).items():
        (configuration / name).write_text(content, encoding="utf-8")


def _values(size: str, row: Mapping[str, Any], family: str, common: Mapping[str, Any]) -> dict:
    """Return what the templates ask for: a size and a family, and their rows of the table."""
    name = f"{family}_{size}".replace(".", "_")
    model = {"family": family} | row[family] | common["model"]
    run = f"runs.pile_implicit_{name}"
    steps, decay = f"{run}.bounded.total_training_steps", f"{run}.free.decay_steps"
    return {
        "name": name,
        "size_and_family": f"{size}_{family}",
        "title": common["title"],
        "parameters": size.upper(),
        "model": _on_one_line(model),
        "same_model": _same({key: f"{run}.model.{key}" for key in model}),
        "same_optimisation": _same({"learning_rate": f"{run}.optimisation.learning_rate"}),
        "same_bounded": _same({"total_training_steps": steps}),
        "same_training": _same({"num_training_steps": steps, "decay_steps": decay}),
        "learning_rate": row["learning_rate"],
        "max_steps": common["max_steps"],
        "test_steps": 4 * common["max_steps"],
        "same_test_steps": f"'${{{run}.evaluation.max_steps}}'",
        "same_test_steps_4_1": f"'${{{run}_4_1.evaluation.max_steps}}'",
    }


def _same(keys: dict[str, str]) -> str:
    """Return values that are those of other keys, whatever these are changed to."""
    return _on_one_line({name: f"${{{key}}}" for name, key in keys.items()})


def _on_one_line(mapping: dict) -> str:
    return yaml.safe_dump(mapping, default_flow_style=True, sort_keys=False, width=2000).strip()


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    write()
