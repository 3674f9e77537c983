"""The order of a DAG's stages: parents first, no more at once than there are slots."""

import queue
from collections.abc import Callable, Mapping

from pipelines.dag import Stage

Begin = Callable[[Stage, Callable[[], None]], None]

_LOOK_SECONDS = 0.2


def walk(
    stages: Mapping[str, Stage],
    slots: int,
    begin: Begin,
    *,
    needs_slot: Callable[[Stage], bool],
    stopping: Callable[[], bool],
) -> None:
    """Begin every stage once its parents have ended, in the order of `stages` where it is free.

    Returns when every stage that was begun has ended; where `stopping` becomes true, no other is
    begun.

    Parameters
    ----------
    stages
        By name, parents first.
    slots
        How many run at once, of those that need a slot.
    begin
        Starts a stage and returns at once; calls what it was given when the stage has ended, from
        any thread.
    needs_slot
        Asked when the stage's parents have ended.
    """
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    waiting = dict(stages)
    finished: set[str] = set()
    running: dict[str, bool] = {}
    while True:
        if stopping():
            waiting.clear()
        for name, stage in list(waiting.items()):
            if not finished.issuperset(parent for parent in stage.parents if parent in stages):
                continue
            slot = needs_slot(stage)
            if slot and sum(running.values()) >= slots:
                continue
            del waiting[name]
            running[name] = slot
            begin(stage, lambda name=name: ended.put(name))
        if not running:
            return
        # Signals are heard by the main thread between two looks.
        try:
            name = ended.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        del running[name]
        finished.add(name)
