"""What `dvc exp run` would write to params.yaml, composed without running anything."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

CONFIGURATION = "conf"


def compose(root: Path, overrides: Sequence[str]) -> str:
    """Return the content of params.yaml that a repository's configuration composes to.

    Parameters
    ----------
    root
        The repository.
    overrides
        Hydra's, as `dvc exp run -S` takes them.

    Raises
    ------
    hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException
        Where Hydra refuses an override.
    ParameterError
        Where an entry has a name that is not allowed, or a value of the configuration asks for
        more than another value, as ``${oc.env:HOME}`` does.
    """
    import yaml
    from dvc.utils.hydra import compose_and_dump

    from implicit_models.parameters import check_names
    from implicit_models.parameters.structure import check_interpolations

    for file in sorted((root / CONFIGURATION).rglob("*.yaml")):
        check_interpolations(file.read_bytes(), file.relative_to(root))
    with TemporaryDirectory() as folder:
        made = Path(folder) / "params.yaml"
        configuration = str(root.resolve() / CONFIGURATION)
        compose_and_dump(str(made), configuration, None, "config", str(root), list(overrides))
        text = made.read_text(encoding="utf-8")
    check_names(yaml.safe_load(text))
    return text
