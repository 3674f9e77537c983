"""Where each kind of problem is. Nothing of it is imported before it is asked for."""

KINDS = {
    "word_problem": "implicit_models.problems.word_problem",
    "text": "implicit_models.problems.text",
    "downstream": "implicit_models.problems.downstream",
    "catbabi": "implicit_models.problems.catbabi",
    "formal_language": "implicit_models.problems.formal_language",
}
"""The package of each kind of problem."""

TABLES: dict[str, str | None] = {
    "datasets": None,
    "corpora": "text",
    "hub_corpora": "text",
    "tasks": "downstream",
    "hub_tasks": "downstream",
}
"""The tables of data in params.yaml, and the kind of their entries that name none."""

TESTED_APART = {"benchmarks": "downstream", "readings": "text"}
"""The tables of models on data that they were not trained on, and the kind of that data."""
