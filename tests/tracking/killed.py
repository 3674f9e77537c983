"""Trackers whose process was killed."""

import os

from implicit_models.tracking.recording import SpoolTracker


def leave_as_killed(tracker: SpoolTracker) -> None:
    """Leave a spool as a killed process does: not ended, and locked by nobody.

    The tracker keeps its descriptor, of nothing: were it free, the next file that this process
    opens would have it, and the tracker's samples of the machine's load would be written there.
    """
    assert tracker._descriptor is not None
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, tracker._descriptor)
    os.close(nothing)
