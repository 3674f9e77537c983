"""One experiment, from a preset to its results, as a function."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.dvc_files import set_damaged_aside
from pipelines.presets import kept_words, parameters_for, parameters_in_use
from pipelines.results import ExperimentResults, read_results
from pipelines.terminal_process import run_in_terminal


class ExperimentError(RuntimeError):
    """A reproduction that has not come to its end; the message says what to do."""


def run_experiment(
    preset: str,
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (),
    root: Path | str = ".",
) -> ExperimentResults:
    """Compose params.yaml from a preset, bring everything up to date by `dvc repro`, and read it.

    What is up to date already is not run again. DVC and the stages print to standard output and
    standard error, as in a terminal; a params.yaml that git has not got is kept, and standard error
    says where.

    Parameters
    ----------
    preset
        The name of a file in conf/preset.
    overrides
        Settings on top of it, as `dvc exp run -S` takes them: ``"runs.NAME.seed=1"``.
    seeds
        Have every model under each of these.
    root
        The repository.

    Raises
    ------
    ParametersError, ParameterError, SeedError
        Where preset, overrides or seeds are not allowed; params.yaml is then as it was.
    ExperimentError
        Where a stage has failed.
    ResultsError
        Where there are no results after all.
    """
    root = Path(root).resolve()
    with parameters_for(root, preset, seeds, overrides) as kept:
        if kept is not None:
            print(kept_words(root, kept), file=sys.stderr)
        status = reproduce(root)
    if status:
        raise ExperimentError(
            f"dvc repro ended with status {status}, and said above why; corrected and called "
            "again, it goes on from there"
        )
    return read_results(root)


def reproduce(root: Path, targets: Sequence[str] = ()) -> int:
    """Run `dvc repro` with this Python and this terminal; return its exit status."""
    for line in set_damaged_aside(root):
        print(line, file=sys.stderr)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with parameters_in_use(root) as lock:
        return run_in_terminal(
            [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", *targets],
            cwd=root,
            environment={**os.environ, "PATH": path},
            keep_open=[lock],
            is_dvc=True,
        )
