"""DVC's own files, which it empties and writes anew: one that is killed leaves them cut off.

Every later `dvc repro` then ends with an error. ``python -m pipelines.dvc_files`` sets such files
aside, as flows do before they begin:

``.dvc/tmp/rwlock``
    Which command reads and writes which file. The claims of what was killed are void; DVC sees
    that by itself, unless another process has got the same number since.
``dvc.lock``
    With which inputs each stage has run. DVC finds that again in its run cache
    (``.dvc/cache/runs``), and the outputs in its cache: no stage is run for it.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from implicit_models.parameters.structure import load_plain

_CLAIMS = Path(".dvc", "tmp", "rwlock")
_LOCK = Path("dvc.lock")
_WRITING_SECONDS = 1.0  # by far longer than DVC takes to write one


def set_damaged_aside(root: Path) -> list[str]:
    """Set aside what of DVC's files is cut off; returns, in lines, what was.

    A file counts as cut off when it has been for a second in which nobody has written it.
    """
    said = []
    for name, is_whole in ((_CLAIMS, _is_record), (_LOCK, _is_lock_file)):
        path = root / name
        if not _is_damaged(path, is_whole):
            continue
        before = path.stat().st_mtime_ns
        time.sleep(_WRITING_SECONDS)
        if not _is_damaged(path, is_whole) or path.stat().st_mtime_ns != before:
            continue
        kept = root / ".dvc" / "tmp" / f"{path.name}.damaged"
        kept.parent.mkdir(parents=True, exist_ok=True)
        path.replace(kept)
        said.append(
            f"{name} was cut off by a process that was killed, or has been edited; it is now {kept}"
        )
    return said


def _is_damaged(path: Path, is_whole: Callable[[bytes], bool]) -> bool:
    try:
        return not is_whole(path.read_bytes())
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError, yaml.YAMLError):
        return True


def _is_record(content: bytes) -> bool:
    """Return whether DVC can read its record of claims, and not all of them are void."""
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    try:
        record: Any = SCHEMA(json.loads(content))
    except Invalid:
        return False
    claims = [*record["write"].values(), *itertools.chain(*record["read"].values())]
    return not claims or any(map(_may_be_at_work, claims))


def _may_be_at_work(claim: Mapping[str, Any]) -> bool:
    """Return whether a claim's process may be the one that has made it, or is gone."""
    try:
        command = " ".join(psutil.Process(claim["pid"]).cmdline())
    except psutil.NoSuchProcess:
        return True  # which DVC notices
    except psutil.Error:  # another user's
        return True
    return "python" in command or "dvc" in command


def _is_lock_file(content: bytes) -> bool:
    """Return whether DVC can read the file."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        lock = COMPILED_LOCKFILE_SCHEMA(load_plain(content))
    except Invalid:
        return False
    return isinstance(lock, dict)


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m pipelines.dvc_files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    for line in set_damaged_aside(Path()):
        print(line)
