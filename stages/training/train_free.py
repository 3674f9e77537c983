"""Train an implicit model through its free phase, from where the bounded one ended."""

from pathlib import Path

from stages.checked_entries import read_monitoring, read_run
from stages.common import run_stage, run_table
from stages.training.launching import start_processes


def main(name: str) -> None:
    """Write ``models/NAME/final`` and the metrics of the free phase."""
    table = run_table(name)
    run, monitoring = read_run(table, name), read_monitoring(table, name)
    start_processes("train_free", name)

    from implicit_models.training.curriculum import free_segment
    from stages.training.segment import SegmentStage, train_segment

    train_segment(
        SegmentStage(
            stage="train_free",
            table=table,
            name=name,
            entry=run,
            sections={"bounded": run.bounded, "free": run.free},
            monitoring=monitoring,
            segment=free_segment(run.free, run.bounded.steps, run.free_steps),
            output=Path("models", name, "final"),
            earlier="train_bounded",
            start=Path("models", name, "bounded", "training_state.safetensors"),
        )
    )


if __name__ == "__main__":
    run_stage(main, "runs", "upcycled")
