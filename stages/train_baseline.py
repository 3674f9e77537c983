"""Train an entry of ``baselines``."""

from pathlib import Path

from stages.common import run_stage
from stages.entries import read_baseline, read_monitoring


def main(name: str) -> None:
    """Write ``models/NAME/final`` and the metrics of its training."""
    baseline, monitoring = read_baseline(name), read_monitoring("baselines", name)

    from implicit_models.training.curriculum import explicit_segment
    from stages.training_stage import train_segment

    train_segment(
        stage="train_baseline",
        table="baselines",
        name=name,
        entry=baseline,
        sections={"training": baseline.training},
        monitoring=monitoring,
        segment=explicit_segment(baseline.training),
        output=Path("models", name, "final"),
    )


if __name__ == "__main__":
    run_stage(main, "baselines")
