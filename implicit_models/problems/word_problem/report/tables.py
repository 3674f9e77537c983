"""Tables of word problems: accuracy, and what it took to get it."""

from collections.abc import Mapping, Sequence

from implicit_models.problems.word_problem.report.results import (
    WordProblemResults,
    chance_by_length,
)
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.table import (
    RESIDUALS,
    SELF_ITERATIONS,
    WORK,
    Table,
    number,
    percent,
    said_of_each,
)

_CHANCE = (
    "Chance is always naming the label that is most frequent among those that the accuracy is of."
)


def accuracy_table(runs: Sequence[WordProblemResults], metric: str) -> Table:
    """Return a table of accuracies at every length."""
    lengths = sorted({length for run in runs for length in run.lengths})
    what = {"accuracy_last_10": "the last 10 tokens", "accuracy": "all positions"}[metric]
    trained = said_of_each(
        {
            name: f"trained on sequences of up to {group[0].training_length} tokens"
            for name, group in group_by_seed(runs).items()
        }
    )
    told = "; ".join(trained)
    told = told.capitalize() if len(trained) == 1 else told
    rows = [
        [
            run.name,
            run.kind,
            *(_tested(_by_length(run.evaluation[metric]), length) for length in lengths),
        ]
        for run in runs
    ]
    tested = [(run.dataset, run.evaluation) for run in runs]
    for name, levels in chance_by_length(tested, metric).items():
        rows.append([name, "", *(_tested(levels, length) for length in lengths)])
    return Table(
        title=f"Accuracy over {what}, by length",
        note=f"{told}. {_CHANCE}"
        + (
            " A blank: this model was not tested at this length."
            if any(run.lengths != lengths for run in runs)
            else ""
        ),
        columns=["run", "kind", *(f"{length} tokens" for length in lengths)],
        rows=rows,
    )


def further_table(runs: Sequence[WordProblemResults]) -> Table:
    """Return a table of the tests with other shares of easy tokens, of runs that have some."""
    lengths = sorted({length for run in runs for length in run.lengths})
    rows, tested = [], {}
    for run in runs:
        for probability, found in run.further_tests.items():
            accuracies = _by_length(found["accuracy_last_10"])
            cells = (_tested(accuracies, length) for length in lengths)
            rows.append([run.name, run.kind, probability, *cells])
            tested.setdefault(probability, []).append((run.dataset, found))
    chances = [
        [name, "", probability, *(_tested(levels, length) for length in lengths)]
        for probability, found in tested.items()
        for name, levels in chance_by_length(found, "accuracy_last_10").items()
    ]
    return Table(
        title="Accuracy over the last 10 tokens, further tests",
        note="Tests in which a token is the identity with another probability than in the first. "
        f"{_CHANCE}",
        columns=["run", "kind", "identity", *(f"{length} tokens" for length in lengths)],
        rows=[*rows, *chances],
    )


def search_table(runs: Sequence[WordProblemResults]) -> Table:
    """Return a table of what the search for fixed points cost."""
    rows = []
    for run in runs:
        evaluation = run.evaluation
        for length in map(str, run.lengths):
            steps = evaluation["self_iterations"][length]
            work = evaluation["evaluations_per_token"][length]
            residual = evaluation["relative_residual"][length]
            radius = evaluation["spectral_radius"].get(length, {})
            damped = evaluation["spectral_radius_damped"].get(length, {})
            rows.append(
                [
                    run.name,
                    *(length, *(number(steps[name]) for name in ("mean", "p50", "p95"))),
                    *(number(work[name]) for name in ("mean", "p95")),
                    *(number(residual[name]) for name in ("mean", "p95", "max")),
                    percent(evaluation["share_converged"][length], 2),
                    *(number(found.get("mean")) for found in (radius, damped)),
                    number(evaluation["seconds"][length]),
                ]
            )
    return Table(
        title="Search for the fixed point",
        note=f"{SELF_ITERATIONS}: here per sequence. {WORK}. {RESIDUALS}. What did not reach the "
        "tolerance was given up after the largest number of evaluations and is counted like the "
        "others. The spectral radius is "
        "that of the cell's Jacobian at a sequence's fixed points, and that of the damped "
        "iteration, on average over a few sequences of the shortest length: below 1 the iteration "
        "converges from nearby.",
        columns=[
            "run",
            "length",
            *("self-iterations, mean", "p50", "p95"),
            *("evaluations per token, mean", "p95"),
            *("residual, mean", "p95", "max"),
            "converged",
            *("spectral radius", "damped"),
            "time (s)",
        ],
        rows=rows,
        num_text_columns=1,
    )


def mode_table(runs: Sequence[WordProblemResults]) -> Table:
    """Compare the three modes; the runs are those that have read sequences in all of them."""
    rows, counts = [], set()
    for run in runs:
        compared = run.evaluation["modes"]
        for length in sorted(compared, key=int):
            num_sequences = compared[length]["num_sequences"]
            counts.add(num_sequences)
            for mode in ("window", "simultaneous", "sequential"):
                found = compared[length][mode]
                steps, work = found["self_iterations"], found["evaluations_per_token"]
                rows.append(
                    [
                        *(run.name, mode, length),
                        percent(found["accuracy_last_10"]),
                        percent(found["window_match"], 2),
                        *(number(steps[name]) for name in ("mean", "p50", "p95")),
                        *(number(work[name]) for name in ("mean", "p95")),
                        number(1e3 * found["seconds"] / num_sequences),
                    ]
                )
    return Table(
        title="Sliding window, simultaneous and sequential mode",
        note=f"The first {', '.join(map(str, sorted(counts)))} sequences of a length. The "
        "simultaneous mode iterates whole sequences, the sequential one token by token. Match is "
        "the share of positions at which a mode predicts what the window does. "
        f"{SELF_ITERATIONS}. {WORK}. The simultaneous and the sequential mode predict the same at "
        "this share of the positions of all lengths: "
        + ", ".join(
            f"{percent(run.evaluation['mode_token_match'], 2)} ({run.name})" for run in runs
        )
        + ".",
        columns=[
            *("run", "mode", "length"),
            *("accuracy, last 10", "match with the window"),
            *("self-iterations, mean", "p50", "p95"),
            *("evaluations per token, mean", "p95"),
            "ms per sequence",
        ],
        rows=rows,
    )


def _by_length(found: Mapping[str, float]) -> dict[int, float]:
    return {int(length): share for length, share in found.items()}


def _tested(shares: Mapping[int, float], length: int) -> str:
    return percent(shares[length]) if length in shares else ""
