"""Which model the argument of a command names: an entry of params.yaml, or one of the hub."""

import difflib
from pathlib import Path

from implicit_models.parameters import read_content
from implicit_models.parameters.names import TRAINED


class ModelNameError(ValueError):
    """A name is that of no model."""


def model_source(root: Path, name: str) -> str:
    """Return the folder of an entry's final model, or the name of a model of the hub.

    A name with a slash is taken for the hub's, OWNER/NAME. One without is an entry's; only if a
    model of this name has been downloaded before is it the hub's, as ``gpt2``.

    Raises
    ------
    ModelNameError
        Where it can be neither, or the entry has no model yet.
    """
    final = Path("models", name, "final")
    if (root / final).is_dir():
        return str(final)
    parameters = root / "params.yaml"
    content = read_content(parameters) if parameters.exists() else {}
    stages = {entry: by for table, by in TRAINED.items() for entry in content.get(table) or ()}
    if name in stages:
        raise ModelNameError(
            f"{name} has no model yet, {final} is not there; `dvc repro {stages[name]}@{name}` "
            "makes it"
        )
    folder = Path(name).parent
    if "/" in name and not (root / name).exists() and (root / folder).is_dir():
        there = sorted(each.name for each in (root / folder).iterdir() if each.is_dir())
        raise ModelNameError(
            f"{name} is no folder; {folder} has {', '.join(there) or 'none'} (a model of the hub "
            "is named OWNER/NAME, where there is no folder OWNER)"
        )
    if "/" in name or _is_downloaded(name):
        return name
    closest = difflib.get_close_matches(name, stages, n=3)
    said = f"closest: {', '.join(closest)}" if closest else f"known: {', '.join(stages) or 'none'}"
    raise ModelNameError(
        f"{name} is no entry of params.yaml ({said}) and no folder; a model of the hub is named "
        "OWNER/NAME, such as openai-community/gpt2"
    )


def _is_downloaded(name: str) -> bool:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"models--{name}").is_dir()
