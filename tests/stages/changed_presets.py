"""Presets that ship, with changes, as the text of a params.yaml."""

import copy
import functools

import yaml

from implicit_models.parameters.composition import compose
from tests.repositories import ROOT
from tests.stages.mistaken_presets import GONE


@functools.cache
def composed(preset: str) -> dict:
    return yaml.safe_load(compose(ROOT, [f"preset={preset}"]))


def changed(preset: str, changes: dict) -> str:
    content = copy.deepcopy(composed(preset))
    for key, value in changes.items():
        *path, last = key.split(".")
        section = functools.reduce(lambda node, name: node[name], path, content)
        if value is GONE:
            del section[last]
        else:
            section[last] = copy.deepcopy(value)
    return yaml.safe_dump(content, sort_keys=False)
