"""Tables of text corpora: perplexity, by domain, by length and by test-time compute."""

from collections.abc import Mapping, Sequence
from typing import Any

from implicit_models.problems.text.report.results import TextResults, mean_of
from implicit_models.reporting.tables.table import (
    SELF_ITERATIONS,
    WORK,
    Table,
    fixed,
    number,
    percent,
    perplexity,
    said_of_each,
)

_SCORES = ("perplexity", "nats/token", "bits/byte", "tokens", "documents")


def perplexity_table(runs: Sequence[TextResults]) -> Table:
    """Return a table of the perplexity of the test text."""
    contexts = sorted({_overall(run)["context_length"] for run in runs})
    strides = sorted({_overall(run)["stride"] for run in runs})
    notes = [
        f"Each scored token is scored once, given at most {_listed(contexts)} tokens before it, in "
        f"windows that move on by {_listed(strides)}.",
        *said_of_each({run.name: _coverage(_overall(run)) for run in runs}),
        *said_of_each({run.name: _errors(_overall(run)) for run in runs}),
    ]
    if any(_overall(run)["num_cut_documents"] for run in runs):
        notes.append("Of the bytes of a cut document as large a share counts as of its tokens.")
    return Table(
        title="Perplexity",
        note=" ".join(notes),
        columns=["run", "kind", *_SCORES],
        rows=[[run.name, run.kind, *_scores(run.evaluation["perplexity"])] for run in runs],
    )


def domain_table(runs: Sequence[TextResults]) -> Table:
    """Return a table of the perplexity of each domain of the test text."""
    return Table(
        title="Perplexity by domain",
        note="As above, for the documents of each domain; where it has but one, the bootstrap is "
        "over its windows.",
        columns=["run", "domain", *_SCORES],
        rows=[
            [run.name, domain, *_scores(found)]
            for run in runs
            for domain, found in sorted(run.evaluation["domains"].items())
        ],
    )


def text_search_table(runs: Sequence[TextResults]) -> Table:
    """Return a table of what the implicit runs' searches took over the whole test text."""
    rows = []
    for run in runs:
        steps = run.evaluation["self_iterations"] or {}
        rows.append(
            [
                run.name,
                *(number(steps.get(name)) for name in ("mean", "p50", "p95")),
                number(mean_of(run.evaluation["evaluations_per_token"])),
                percent(run.evaluation["share_converged"], 2),
            ]
        )
    return Table(
        title="Search for the fixed point",
        note="Self-iterations are here the evaluations of the cell that each token took part in, "
        f"the one that gives the output included. {WORK}. What did not reach the "
        "tolerance was given up after the largest number of evaluations and is counted like the "
        "others.",
        columns=[
            *("run", "self-iterations, mean", "p50", "p95"),
            *("evaluations per token, mean", "converged"),
        ],
        rows=rows,
        num_text_columns=1,
    )


def extrapolation_tables(runs: Sequence[TextResults]) -> list[Table]:
    """Return tables of the same text's perplexity by length, of whole sequences and their ends."""
    lengths = sorted({length for run in runs for length in run.lengths})
    trained = _listed(sorted({run.training_length for run in runs}))

    def table(title: str, note: str, metric: str, error: str | None) -> Table:
        return Table(
            title=title,
            note=note,
            columns=["run", "kind", *(f"{length} tokens" for length in lengths)],
            rows=[
                [run.name, run.kind, *(_at(run, length, metric, error) for length in lengths)]
                for run in runs
            ],
        )

    return [
        table(
            "Length extrapolation: perplexity by length",
            f"The same text, packed to sequences of each length; trained on {trained} tokens. "
            "After ± is the standard error, by bootstrap over the sequences.",
            "perplexity",
            "standard_error",
        ),
        table(
            "Length extrapolation: the last eighth of the sequences",
            "The perplexity of the last eighth of each sequence, which has the most context. They "
            "are other tokens at each length: compare models in a column, not lengths in a row.",
            "perplexity_last",
            None,
        ),
    ]


def text_compute_tables(runs: Sequence[TextResults]) -> list[Table]:
    """Return tables of perplexity and cost against the computation allowed at test time."""
    by_iterations, by_tolerance = [], []
    for run in runs:
        sweep = run.test_time_compute or {}
        for point in sweep.get("self_iterations", ()):
            by_iterations.append(
                [run.name, number(point["self_iterations"]), *_compute_cells(point)]
            )
        for point in sweep.get("tolerance", ()):
            by_tolerance.append(
                [
                    *(run.name, point["mode"], number(point["tolerance"])),
                    *_compute_cells(point),
                    number(mean_of(point["self_iterations"])),
                    number(mean_of(point["evaluations_per_token"])),
                    percent(point["share_converged"], 2),
                    percent(point.get("token_match"), 2),
                ]
            )
    lengths = {
        run.name: f"Sequences of {run.test_time_compute['length']} tokens."
        for run in runs
        if run.test_time_compute
    }
    note = f"{' '.join(said_of_each(lengths))} {SELF_ITERATIONS}"
    shared = ("perplexity", "residual, mean", "time (s)")
    return [
        Table(
            title="Perplexity against the allowed self-iterations",
            note=f"{note}; all of them are used on whole sequences, whatever the residual, which "
            "is that of a sequence's worst token.",
            columns=["run", "self-iterations", *shared],
            rows=by_iterations,
            num_text_columns=1,
        ),
        Table(
            title="Perplexity against the tolerance",
            note=f"{note}. {WORK}. The sliding window leaves a token once it has settled, the "
            "simultaneous mode iterates whole sequences, the sequential one token by token. The "
            "residual is that of a token, in the simultaneous mode of a sequence's worst one. The "
            "last column is the share of tokens after which the same next token is most likely as "
            "in the simultaneous mode.",
            columns=[
                *("run", "mode", "tolerance", *shared),
                *("self-iterations, mean", "evaluations per token, mean", "converged"),
                "as simultaneous",
            ],
            rows=by_tolerance,
        ),
    ]


def _overall(run: TextResults) -> Mapping[str, Any]:
    return run.evaluation["perplexity"]


def _coverage(found: Mapping[str, Any]) -> str:
    """Return a sentence on how much of the test documents was scored."""
    scored, cut = found["num_documents"], found["num_cut_documents"]
    in_all = found["num_documents_in_all"]
    if scored == in_all and not cut:
        return "All tokens of the test documents are scored."
    return (
        f"At most {found['max_tokens']:,} tokens are scored, of {scored:,} of the {in_all:,} test "
        f"documents; documents cut to their beginning: {cut:,}."
    )


def _errors(found: Mapping[str, Any]) -> str:
    return f"After ± is the standard error, by bootstrap over the {found['bootstrap']}."


def _scores(found: Mapping[str, Any]) -> list[str]:
    return [
        perplexity(found["perplexity"], found["standard_error"]),
        fixed(found["nats_per_token"], 4),
        fixed(found["bits_per_byte"], 4),
        f"{found['num_tokens']:,}",
        f"{found['num_documents']:,}",
    ]


def _at(run: TextResults, length: int, metric: str, error: str | None) -> str:
    found = run.evaluation["length_extrapolation"].get(str(length))
    if found is None:
        return ""  # this model was not tested at this length
    return perplexity(found.get(metric), found.get(error) if error else None)


def _compute_cells(point: Mapping[str, Any]) -> list[str]:
    return [
        perplexity(point["perplexity"], point.get("standard_error")),
        number(mean_of(point.get("relative_residual"))),
        number(point["seconds"]),
    ]


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
