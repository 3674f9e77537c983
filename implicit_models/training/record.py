"""What a training has done so far, counted step by step."""

import dataclasses
import logging
import math
import time
from collections.abc import Mapping

from implicit_models.cost.meter import peak_memory
from implicit_models.training.definition import Training
from implicit_models.training.distributed import Processes
from implicit_models.training.progress import Progress
from implicit_models.training.step import StepOutcome

log = logging.getLogger(__name__)


class Record:
    """Counts what a segment's training does, from where it goes on.

    Attributes
    ----------
    progress
        How far it has come; all but its seconds, which `now` fills in.
    """

    def __init__(self, training: Training, start: Progress, processes: Processes) -> None:
        self.progress = dataclasses.replace(start, history=list(start.history))
        self._training, self._processes = training, processes
        self._began = time.perf_counter() - start.seconds
        self._logged = self.progress

    def now(self) -> Progress:
        """Return how far the training has come, by this moment."""
        return dataclasses.replace(self.progress, seconds=time.perf_counter() - self._began)

    def add(self, outcome: StepOutcome) -> None:
        """Count a step.

        Raises
        ------
        FloatingPointError
            Where too many steps in a row had to be left out.
        """
        batch, step, before = outcome.batch, self.progress.step, self.progress
        flops = self._training.count_flops(
            batch.num_computed,
            batch.length,
            outcome.search_evaluations,
            self._training.segment.passing_at(step) is not None,
        )
        self.progress = dataclasses.replace(
            before,
            step=step + 1,
            sequences=before.sequences + batch.num_sequences,
            batch_size=batch.num_sequences,
            tokens=before.tokens + batch.num_tokens,
            flops=before.flops + flops,
            skipped_steps=before.skipped_steps + bool(outcome.fault),
            skipped_in_a_row=before.skipped_in_a_row + 1 if outcome.fault else 0,
            carried=outcome.carried,
        )
        if outcome.fault:
            name = self._training.segment.name
            log.warning("step %d (%s) is left out: %s", step, name, outcome.fault)
        in_a_row = self.progress.skipped_in_a_row
        if in_a_row > self._training.optimisation.max_skipped_steps:
            raise FloatingPointError(
                f"{outcome.fault} in step {step} ({self._training.segment.name}), and "
                f"{in_a_row} steps in a row were left out for such reasons; the "
                "weights before them are in the last checkpoint. Lower learning_rate or clip_norm, "
                "or allow more with optimisation.max_skipped_steps"
            )

    def metrics(self) -> dict[str, float]:
        """Return position, speed since this was last asked for, and memory."""
        now, last, processes = self.now(), self._logged, self._processes
        took = now.seconds - last.seconds
        metrics = {"tokens_per_second": (now.tokens - last.tokens) / took}
        if self._training.peak_flops is not None:
            most = self._training.peak_flops * processes.size
            metrics["model_flop_utilisation"] = (now.flops - last.flops) / took / most
        metrics |= {"tokens": now.tokens, "training_flops": now.flops, "seconds": now.seconds}
        metrics |= {"sequences": now.sequences, "skipped_steps": now.skipped_steps}
        metrics["epoch"] = now.sequences / len(self._training.sequences.inputs)
        metrics["peak_memory_bytes"] = peak_memory(processes.device)
        self._logged = now
        return metrics

    def log(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add a row of metrics to the history, and return it.

        What is no number is left out: neither JSON nor the tracking can hold it.
        """
        left_out = [name for name, value in metrics.items() if not math.isfinite(value)]
        if left_out:
            log.warning("not logged, because not finite: %s", ", ".join(left_out))
        row = {name: value for name, value in metrics.items() if name not in left_out}
        place = {"step": self.progress.step, "phase": self._training.segment.name}
        self.progress.history.append(place | row)
        return row
