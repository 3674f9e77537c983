"""Writing params.yaml: from a preset, and with further seeds. Nothing that was there is lost."""

import contextlib
import fcntl
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from implicit_models.files import write_whole
from implicit_models.parameters.composition import compose
from pipelines import disk
from pipelines.checking import check_parameters
from pipelines.git import git, text_of
from pipelines.seeds import SeedError, with_seeds

PARAMETERS = "params.yaml"
_AT_WORK = (
    "another flow is at work in this repository with other parameters; let it end, or work in a "
    "second clone: `git clone . ../second`"
)


class ParametersError(ValueError):
    """Parameters that cannot be written."""


@contextlib.contextmanager
def parameters_for(
    root: Path,
    preset: str | None = None,
    seeds: Sequence[int] = (),
    overrides: Sequence[str] = (),
    *,
    check: Callable[[], object] | None = None,
) -> Iterator[Path | None]:
    """Write params.yaml from a preset and with further seeds, and keep others from it for a block.

    Of neither preset nor seeds, params.yaml stays as it is. Overrides are settings on top of the
    preset, as `dvc exp run -S` takes them. Where `check`, which is called before the block, ends
    with an error, the old content is put back, unless another flow works with the new one by now;
    standard error says so then.

    Yields
    ------
    Path or None
        Where the old content is kept, if it was lost otherwise: if git has not got it.

    Raises
    ------
    ParametersError
        If other flows of the repository work with the old content.
    ParameterError
        If there is no such preset, or the check finds a mistake in it.
    SeedError
        As `with_seeds`.
    """
    path = root / PARAMETERS
    is_written = preset is not None or bool(seeds)
    wanted = _composed(root, preset, seeds, overrides) if is_written else None
    before = _text(path) if path.exists() else ""
    if wanted is None and before:
        check_parameters(root, {PARAMETERS: before})
    kept = replace_parameters(root, wanted) if wanted is not None else None
    with parameters_in_use(root) as lock:
        if wanted is not None and _text(path) != wanted:
            # Written by another before we held the lock.
            told = "" if kept is None else f"; {kept_words(root, kept)}"
            raise ParametersError(_AT_WORK + told)
        try:
            if check is not None:
                check()
        except BaseException:
            if wanted is not None and before and wanted != before:
                _put_back(root, before, wanted, kept, lock)
            raise
        yield kept


def _put_back(root: Path, before: str, written: str, kept: Path | None, lock: int) -> None:
    """Write the old content again, where nobody else works with what was written.

    Parameters
    ----------
    lock
        The descriptor by which the parameters are in use here.
    """
    path = root / PARAMETERS
    try:
        # Who came in with the same content holds it as well. A refusal may cost us our own: no
        # matter, for nothing is going to run here.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        reason = "another flow works with it by now"
    else:
        if path.exists() and _text(path) == written:
            write_whole(path, before)
            return
        reason = "it has another content by now"
    told = "" if kept is None else f"; {kept_words(root, kept)}"
    print(f"{PARAMETERS} is not put back as it was: {reason}{told}", file=sys.stderr)


def kept_words(root: Path, kept: Path) -> str:
    """Return where the old content is kept, in words."""
    return f"the {PARAMETERS} that was there is kept as {kept.relative_to(root)}"


def replace_parameters(root: Path, content: str) -> Path | None:
    """Write a content that is checked into params.yaml; as `parameters_for` returns and raises."""
    path = root / PARAMETERS
    old = _text(path) if path.exists() else ""
    if content == old:
        return None
    with _lock(root, fcntl.LOCK_EX) as lock:
        if lock is None:
            raise ParametersError(_AT_WORK)
        kept = _keep(root, old)
        write_whole(path, content)
    return kept


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParametersError(
            f"{path.name}: is not UTF-8 ({error}); convert the file, for example with "
            "iconv -t utf-8"
        ) from None


@contextlib.contextmanager
def parameters_in_use(root: Path) -> Iterator[int]:
    """Keep other flows of the repository from writing params.yaml meanwhile.

    Yields the descriptor of the lock: whoever inherits it holds on to it if this process dies.
    """
    # Who writes holds it for an instant.
    with _lock(root, fcntl.LOCK_SH, wait=True) as lock:
        assert lock is not None
        yield lock


def _composed(
    root: Path, preset: str | None, seeds: Sequence[int], overrides: Sequence[str]
) -> str:
    """Return the new content, in the form that `dvc exp run` gives it."""
    import yaml
    from omegaconf import OmegaConf

    if preset is None:
        text = _text(root / PARAMETERS)
    else:
        text = compose(root, [f"preset={preset}", *overrides])
    name = PARAMETERS if preset is None else f"conf/preset/{preset}.yaml"
    if seeds:
        try:
            parameters = with_seeds(yaml.safe_load(text), seeds)
        except SeedError:
            raise
        except Exception:  # entries of another form: the check says which
            check_parameters(root, {name: text})
            raise
        text = OmegaConf.to_yaml(OmegaConf.create(parameters))
    check_parameters(root, {name: text})
    return text


def _keep(root: Path, old: str) -> Path | None:
    if not old or _is_committed(root, old):
        return None
    digest = hashlib.sha256(old.encode()).hexdigest()[:12]
    kept = _folder(root) / f"params-{digest}.yaml"
    write_whole(kept, old)
    return kept


def _is_committed(root: Path, content: str) -> bool:
    try:
        committed = git(root, "show", f"HEAD:./{PARAMETERS}")
    except FileNotFoundError:  # there is no git here
        return False
    return committed.returncode == 0 and text_of(committed.stdout) == content


@contextlib.contextmanager
def _lock(root: Path, kind: int, *, wait: bool = False) -> Iterator[int | None]:
    """Hold the lock on params.yaml, shared or alone, by a descriptor; None where others have it."""
    with (_folder(root) / "in_use.lock").open("a+") as file:
        try:
            fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
        except OSError as error:
            if not disk.has_no_flock(error):
                raise
            raise ParametersError(f"{_folder(root)}: {disk.NO_FLOCK}") from None
        else:
            yield file.fileno()


def _folder(root: Path) -> Path:
    folder = root / ".dvc" / "tmp" / "parameters"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
