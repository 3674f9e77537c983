"""Check a whole preset, or params.yaml, before anything runs: one line for each mistake.

    python -m stages.check                        # params.yaml as it is
    python -m stages.check text_small             # conf/preset/text_small.yaml
    python -m stages.check laptop datasets.a5.group=A4xZ5 sweep.word_problem.length=40

Every table is read, and every reference followed: data, runs, sources, models, tokenizers. The
lengths of curriculum, evaluation, sweep and report are held against each data set, and against the
positions of models of Hugging Face. Files that are missing on this machine are named, and the room
on its disk is compared with what data and trainings write. A line names the key, what was found,
what is allowed and the way out. Nothing is written and nothing downloaded.

Exit status: 0 all is well, 2 there are mistakes, or something is missing. `scripts/compose.py`, the
stage `code` of `dvc repro`, flows and sweeps do the same before they begin.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import CompositionError, preset_and_settings
from implicit_models.problems.problem import check_kinds
from stages.check_entries import check_content
from stages.check_findings import Finding, Findings
from stages.check_machine import check_machine
from stages.chosen_parameters import write_parameters
from stages.common import RefusedError

PARAMETERS = Path("params.yaml")


def check(preset: str | None = None, overrides: Sequence[str] = ()) -> list[Finding]:
    """Return what is wrong with a preset of the repository that is the working directory.

    Parameters
    ----------
    preset
        Of conf/preset; None is params.yaml as it is.
    overrides
        Settings on top of it, as after ``dvc exp run -S``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, PARAMETERS.name)
        try:
            source = write_parameters(preset, overrides, path)
        except ParameterError as error:
            return [Finding(str(error))]
        return check_file(path, source)


def check_file(path: Path = PARAMETERS, source: str | None = None) -> list[Finding]:
    """Return what is wrong with a file of parameters.

    Parameters
    ----------
    path
        The file.
    source
        What it is called in messages; None is its path.
    """
    try:
        check_kinds()
    except ParameterError as error:
        return [Finding(line) for line in dict.fromkeys(map(str, error.every()))]
    found = Findings(path, source or str(path))
    check_content(found)
    if not found.mistakes():
        check_machine(found)
    return found.all()


def check_text(text: str, source: str) -> list[Finding]:
    """Return what is wrong with the content of a file of parameters, which messages call so."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, PARAMETERS.name)
        path.write_text(text, encoding="utf-8")
        return check_file(path, source)


def refuse(findings: Iterable[Finding]) -> None:
    """Refuse to go on where something was found with which nothing runs.

    Raises
    ------
    RefusedError
        With a line for each.
    """
    lines = [finding.line for finding in findings if finding.stops]
    if lines:
        raise RefusedError(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what the command line names, print what was found, and return the exit status."""
    options = _options(arguments)
    given = [*([] if options.preset is None else [options.preset]), *options.override]
    preset = None
    if options.given:
        texts = json.load(sys.stdin)
        findings = [each for source in texts for each in check_text(texts[source], source)]
    else:
        try:
            preset, overrides = preset_and_settings(given)
            findings = check(preset, overrides)
        except CompositionError as error:  # two presets
            findings = [Finding(str(error))]
    for finding in dict.fromkeys(findings):
        print(f"{finding.level}: {finding.line}", file=sys.stderr)
    if counts := _counts({finding for finding in findings if finding.stops}):
        print(f"{counts}; nothing was run and nothing written", file=sys.stderr)
        return 2
    what = "given" if options.given else PARAMETERS if preset is None else preset
    print(f"{what}: all is well; nothing that can be known before a run speaks against it")
    return 0


def _counts(stopping: Iterable[Finding]) -> str:
    levels = [finding.level for finding in stopping]
    mistakes, missing = levels.count("error"), levels.count("missing")
    told = [f"{mistakes} mistake{'s' if mistakes > 1 else ''}"] if mistakes else []
    told += [f"{missing} missing on this machine"] if missing else []
    return ", ".join(told)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stages.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("preset", nargs="?", help="of conf/preset; none: params.yaml as it is")
    parser.add_argument("override", nargs="*", help="KEY=VALUE, a setting on top of it")
    parser.add_argument(
        "--given",
        action="store_true",
        help="check what standard input has instead: a JSON object of names, and contents of "
        "params.yaml",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `check | head` ends when head has enough
    sys.exit(main())
