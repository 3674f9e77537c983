"""Train an entry of ``baselines`` or ``matched``."""

from pathlib import Path

from stages.checked_entries import read_baseline, read_monitoring
from stages.common import find_table, run_stage
from stages.entries import MatchedParameters
from stages.training.launching import start_processes


def main(name: str) -> None:
    """Write ``models/NAME/final`` and the metrics of its training."""
    table = find_table(name, ("baselines", "matched"))
    baseline, monitoring = read_baseline(table, name), read_monitoring(table, name)
    start_processes("train_baseline", name)

    from implicit_models.training.curriculum import explicit_segment
    from stages.training.segment import SegmentStage, train_segment

    if isinstance(baseline, MatchedParameters):
        from stages.training.matched import like_its_run

        baseline = like_its_run(name, baseline)
    train_segment(
        SegmentStage(
            stage="train_baseline",
            table=table,
            name=name,
            entry=baseline,
            sections={"training": baseline.training},
            monitoring=monitoring,
            segment=explicit_segment(baseline.training),
            output=Path("models", name, "final"),
        )
    )


if __name__ == "__main__":
    run_stage(main, "baselines", "matched")
