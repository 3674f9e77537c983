"""Train an implicit model through its bounded phase."""

from pathlib import Path

from stages.checked_entries import read_monitoring, read_run
from stages.common import run_stage, run_table
from stages.training.launching import start_processes


def main(name: str) -> None:
    """Write ``models/NAME/bounded`` and the metrics of the bounded phase."""
    table = run_table(name)
    run, monitoring = read_run(table, name), read_monitoring(table, name)
    start_processes("train_bounded", name)

    from implicit_models.training.curriculum import bounded_segment
    from stages.training.segment import SegmentStage, train_segment

    output = Path("models", name, "bounded")
    train_segment(
        SegmentStage(
            stage="train_bounded",
            table=table,
            name=name,
            entry=run,
            sections={"bounded": run.bounded},
            monitoring=monitoring,
            segment=bounded_segment(run.bounded),
            output=output,
            state=output / "training_state.safetensors",
        )
    )


if __name__ == "__main__":
    run_stage(main, "runs", "upcycled")
