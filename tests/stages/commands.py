"""The modules of the stages, and the tables in which each looks for its entry."""

STAGES = {
    "code": [],
    "prepare": ["datasets", "corpora", "hub_corpora", "tasks", "hub_tasks"],
    "training.train_bounded": ["runs"],
    "training.train_free": ["runs"],
    "training.train_baseline": ["baselines", "matched"],
    "evaluation.sweep_test_time_compute": ["runs"],
    "evaluation.evaluate_benchmarks": [
        *("runs", "upcycled", "baselines", "matched"),
        *("benchmarks", "readings"),
    ],
    "report": [],
}
