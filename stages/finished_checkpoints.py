"""What becomes of the checkpoints of a training that has finished.

They stay until DVC has recorded the stage: were they deleted with its last line, a power cut
before that would lose the training, for DVC deletes the outputs of a stage that it did not record
before it runs the stage again. Whether it did is read from ``dvc.lock``, which holds the MD5 of
the stage's metrics, and these hold its wall time. So a stage that starts again after its record
was made (``dvc repro --force``) really trains again, and one that starts without it is done at
once.
"""

import contextlib
import hashlib
import logging
import re
import shutil
from pathlib import Path

from implicit_models.files import write_whole
from stages.training.exclusive import remove_unused

CHECKPOINTS = Path("checkpoints")

_MARK = "finished"

log = logging.getLogger(__name__)


def mark_finished(folder: Path, metrics: Path) -> None:
    """Note in a folder of checkpoints which metrics its training has finished with.

    Where that cannot be written, such as on a full disk, the log has a warning: what was trained is
    there, and the checkpoints stay.
    """
    digest = hashlib.md5(metrics.read_bytes(), usedforsecurity=False)
    try:
        write_whole(folder / _MARK, digest.hexdigest())
    except OSError as error:
        log.warning(
            "%s; the training is done; delete its checkpoints with: rm -r %s", error, folder
        )


def is_finished(folder: Path) -> bool:
    """Return whether the training of a folder of checkpoints has finished."""
    return (folder / _MARK).exists()


def discard_recorded(name: str) -> None:
    """Delete the checkpoints of an entry's trainings that DVC has recorded.

    Those with a mark that is damaged stay.
    """
    lock = Path("dvc.lock")
    text = lock.read_text(encoding="utf-8", errors="replace") if lock.exists() else ""
    recorded = set(re.findall(r"\bmd5: ([0-9a-f]{32})\b", text))
    for mark in list((CHECKPOINTS / name).glob(f"*/*/{_MARK}")):
        metrics = mark.read_text(encoding="utf-8", errors="replace")
        if not re.fullmatch("[0-9a-f]{32}", metrics):
            log.warning(
                "%s is damaged: it holds %.40r, no MD5; the checkpoints beside it stay; delete "
                "them, if their training is done, with: rm -r %s",
                mark,
                metrics,
                mark.parent,
            )
        elif metrics in recorded:
            shutil.rmtree(mark.parent)
            remove_unused(mark.parents[1])
            with contextlib.suppress(OSError):
                mark.parents[2].rmdir()


def name_others(folder: Path) -> None:
    """Log which checkpoints of other trainings lie beside a folder of checkpoints."""
    for other in sorted(folder.parent.glob("*/")):
        if other != folder:
            log.info(
                "%s is left by a training with other parameters, data or code, and is continued "
                "if they return; delete it with: rm -r %s",
                other,
                other,
            )
