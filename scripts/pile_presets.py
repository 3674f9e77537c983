"""Write conf/preset/pile_*.yaml from a template and a table of sizes, both in conf/templates.

    python scripts/pile_presets.py

They are files of their own because their entries are named for the model: Hydra's defaults list
interpolates the config that is included, but not the package that it is placed in.
"""

import argparse
from pathlib import Path
from string import Template

import yaml

CONFIGURATION = Path(__file__).resolve().parents[1] / "conf"


def contents(configuration: Path = CONFIGURATION) -> dict[str, str]:
    """Return the content of each preset by its name."""
    templates = configuration / "templates"
    template = Template((templates / "pile_preset.yaml").read_text(encoding="utf-8"))
    table = yaml.safe_load((templates / "pile_sizes.yaml").read_text(encoding="utf-8"))
    found = {}
    for size, row in table["sizes"].items():
        for family, common in table["families"].items():
            name = f"{family}_{size}".replace(".", "_")
            model = {"family": family} | row[family] | common["model"]
            run = f"runs.pile_implicit_{name}"
            steps, decay = f"{run}.bounded.total_training_steps", f"{run}.free.decay_steps"
            found[f"pile_{size}_{family}"] = template.substitute(
                name=name,
                title=common["title"],
                parameters=size.upper(),
                model=_on_one_line(model),
                same_model=_same({key: f"{run}.model.{key}" for key in model}),
                same_optimisation=_same({"learning_rate": f"{run}.optimisation.learning_rate"}),
                same_bounded=_same({"total_training_steps": steps}),
                same_training=_same({"num_training_steps": steps, "decay_steps": decay}),
                learning_rate=row["learning_rate"],
                max_steps=common["max_steps"],
            )
    return found


def write(configuration: Path = CONFIGURATION) -> None:
    """Write the presets of every size in the table."""
    for name, content in contents(configuration).items():
        path = configuration / "preset" / f"{name}.yaml"
        path.write_text(content, encoding="utf-8")


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
