"""The window: the same fixed point, each token ended by the rule, the work as counted."""

from collections.abc import Callable

import pytest
import torch

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.gradients import Gradient, ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.equilibrium.solvers import BestSoFar, Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow, absolute_residual
from implicit_models.equilibrium.window import Window
from tests.equilibrium.cells import CausalSineCell, ScriptedCell, affine_cell, causal_cell

TIGHT = ResidualBelow(1e-12, 2000)
WIDTHS = [None, 1, 3, 7, 20]


def search(
    cell: CausalSineCell,
    width: int | None,
    lengths: list[int] | None = None,
    sync_every: int | None = None,
) -> Solution:
    return find_fixed_point(
        cell,
        torch.zeros_like(cell.offset),
        Picard(),
        TIGHT,
        window=None if width is None else Window(width),
        lengths=None if lengths is None else torch.tensor(lengths),
        sync_every=sync_every,
    )


# What it finds.


@pytest.mark.parametrize("lengths", [None, [7, 0, 1, 4]])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_finds_the_fixed_point(width: int | None, lengths: list[int] | None) -> None:
    cell = causal_cell()
    solution = search(cell, width, lengths)
    assert (solution.result == Result.CONVERGED).all()
    there = torch.arange(7) < torch.tensor(lengths or [7] * 4)[:, None]
    torch.testing.assert_close(
        solution.value[there], cell.fixed_point()[there], rtol=1e-10, atol=1e-10
    )
    if width is not None:
        assert torch.equal(solution.steps > 0, there)
        assert torch.equal(solution.residual.isfinite(), there)


def test_a_window_narrower_than_its_patience_leaves_little_to_hand_on() -> None:
    # Where nothing is forgotten, what a token has not settled yet is handed on for ever.
    draw = torch.Generator().manual_seed(0)
    offset = torch.randn(8, 300, 8, generator=draw, dtype=torch.float64)
    cell = CausalSineCell(torch.full((8, 300), 0.3, dtype=torch.float64), offset)
    judged = slice(-64, -32)  # before the last window, which needs no patience
    exact = cell.fixed_point()[:, judged]

    def error(width: int, patience: int) -> float:
        window, stopping = Window(width, patience), ResidualBelow(0.01, 64)
        found = find_fixed_point(cell, offset * 0, Picard(0.8), stopping, window=window)
        assert (found.result == Result.CONVERGED).all()
        return ((found.value[:, judged] - exact).norm() / exact.norm()).item()

    assert error(8, 12) < 5e-4 < 2e-3 < min(error(20, 12), error(32, 12))
    assert error(20, 30) < 1e-6  # more patience does more


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0), (0, 0), (1, 1), (1, 7)])
def test_small_shapes(batch: int, length: int, width: int | None) -> None:
    cell = causal_cell(batch, length)
    solution = search(cell, width)
    torch.testing.assert_close(solution.value, cell.fixed_point(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_batch_of_padding_alone_is_left_as_it_is(width: int | None) -> None:
    cell = causal_cell(2)
    solution = search(cell, width, [0, 0])
    assert (solution.result == Result.CONVERGED).all()
    assert solution.value.isfinite().all()


@pytest.mark.parametrize("width", [1, 3, 7])
def test_pieces_find_what_the_whole_finds(width: int) -> None:
    cell = causal_cell()
    whole, pieces, state = search(cell, width).value, [], None
    for first, last in ((0, 3), (3, 4), (4, 7)):
        piece = CausalSineCell(cell.contraction[:, first:last], cell.offset[:, first:last], state)
        pieces.append(search(piece, width).value)
        state = piece.evaluate(pieces[-1])[1].carry().state
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "gradient", [Unrolled(200), Phantom(300, 0.7), ImplicitFunction(Picard(), TIGHT)]
)
def test_every_gradient_after_every_width_is_the_finite_difference(
    gradient: Gradient, width: int | None
) -> None:
    cell = causal_cell(3)
    offset = cell.offset.clone().requires_grad_()
    contraction = cell.contraction.clone().requires_grad_()
    value = search(cell, width).value
    gradient(CausalSineCell(contraction, offset), value).sin().sum().backward()

    draw = torch.Generator().manual_seed(2)
    directions = [
        torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
        for tensor in (contraction, offset)
    ]
    losses = []
    for step in (1e-6, -1e-6):
        moved = CausalSineCell(
            cell.contraction + step * directions[0], cell.offset + step * directions[1]
        )
        losses.append(moved.fixed_point().sin().sum())
    assert contraction.grad is not None and offset.grad is not None
    slope = (contraction.grad * directions[0]).sum() + (offset.grad * directions[1]).sum()
    torch.testing.assert_close(slope, (losses[0] - losses[1]) / 2e-6, rtol=1e-7, atol=1e-7)


# When a token ends.


def follow_the_rule(
    script: torch.Tensor, width: int, patience: int, stopping: ResidualBelow, is_prefix: bool
) -> tuple[list[int], list[int], list[float], int]:
    """Compute steps, results and last residuals of a sequence's tokens, and the depth."""
    length = len(script)
    steps, below, waited, depth, first = [0] * length, [0] * length, 0, 0, 0
    results, residuals = [int(Result.NON_FINITE)] * length, [float("nan")] * length
    while first < length:
        depth, waited = depth + 1, waited + 1
        window = range(first, min(first + width, length))
        for t in window:
            residuals[t] = float(script[t, steps[t]])
            below[t] = below[t] + 1 if residuals[t] < stopping.tolerance else 0
            steps[t] += 1
        if not torch.tensor([residuals[t] for t in window]).isfinite().all():
            break
        settled = 0
        all_below = all(residuals[t] < stopping.tolerance for t in window)
        if all_below and window[-1] == length - 1 and not is_prefix:
            results[first:], first = [int(Result.CONVERGED)] * (length - first), length
        while first + settled < length and below[first + settled] >= patience:
            results[first + settled] = int(Result.CONVERGED)
            settled += 1
        if not settled and waited >= stopping.max_steps:
            results[first], settled = int(Result.OUT_OF_STEPS), 1
        if settled:
            first, waited = first + settled, 0
    committed = [t < first for t in range(length)]
    residuals = [r if c else float("nan") for r, c in zip(residuals, committed, strict=True)]
    return steps, results, residuals, depth


def random_script(batch: int, length: int, seed: int) -> torch.Tensor:
    """Residuals that dip below .1 and rise again; some tokens never settle, one explodes."""
    draw = torch.Generator().manual_seed(seed)
    script = torch.where(torch.rand(batch, length, 400, generator=draw) < 0.6, 0.05, 1.0)
    script[torch.rand(batch, length, generator=draw) < 0.2] = 1.0
    script[1, length // 2, 2:] = torch.nan
    return script.double()


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 3, 8, 9, 30])
@pytest.mark.parametrize("is_prefix", [False, True])
@pytest.mark.parametrize("lengths", [[9, 9, 9, 9], [9, 7, 1, 4], [0, 9, 2, 0]])
def test_tokens_end_as_the_rule_says(
    lengths: list[int], is_prefix: bool, width: int, patience: int
) -> None:
    script = random_script(4, 9, seed=width + 10 * patience)
    cell, stopping = ScriptedCell.of(script), ResidualBelow(0.1, 7, absolute_residual)
    solution = find_fixed_point(
        cell,
        cell.start,
        Picard(),
        stopping,
        window=Window(width, patience),
        lengths=torch.tensor(lengths),
        is_prefix=is_prefix,
    )
    assert solution.value.isfinite().all()
    for row, length in enumerate(lengths):
        steps, results, residuals, depth = follow_the_rule(
            script[row, :length], width, patience, stopping, is_prefix
        )
        assert solution.steps[row, :length].tolist() == steps
        assert solution.result[row, :length].tolist() == results
        assert solution.depth[row] == depth
        torch.testing.assert_close(
            solution.residual[row, :length],
            torch.tensor(residuals, dtype=torch.float64),
            equal_nan=True,
        )
        for t, result in enumerate(results):
            reached = script[row, t, : steps[t]].sum()
            if result != Result.NON_FINITE:
                torch.testing.assert_close(solution.value[row, t, 0], reached)
        assert cell.evaluations[row, :length].tolist() == steps
        assert not solution.steps[row, length:].any()
        assert solution.token_evaluations[row] == sum(steps)


def scripted(*tokens: list[float]) -> tuple[ScriptedCell, Callable[..., Solution]]:
    cell = ScriptedCell.of(torch.tensor([tokens]))

    def solve(max_steps: int, sync_every: int | None = None, **window: int) -> Solution:
        stopping = ResidualBelow(0.1, max_steps, absolute_residual)
        settings = {"window": Window(**window), "sync_every": sync_every}
        return find_fixed_point(cell, cell.start, Picard(), stopping, **settings)

    return cell, solve


@pytest.mark.parametrize(("patience", "steps"), [(1, 2), (2, 5), (3, 9)])
def test_a_dip_below_the_tolerance_does_not_commit(patience: int, steps: int) -> None:
    dipping = [1, 0.01, 1, 0.01, 0.01, 1, 0.01, 0.01, 0.01, 1, 1, 1]
    _, solve = scripted(dipping, [1.0] * 11 + [0.01])
    assert solve(50, width=1, patience=patience).steps[0, 0] == steps


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-12])
@pytest.mark.parametrize("lengths", [None, [7, 3, 1, 4]])
def test_a_window_over_all_that_is_left_ends_as_the_whole_does(
    lengths: list[int] | None, tolerance: float
) -> None:
    cell, num_tokens = causal_cell(4), None if lengths is None else torch.tensor(lengths)
    stopping, start = ResidualBelow(tolerance, 2000), torch.zeros_like(cell.offset)
    whole = find_fixed_point(cell, start, Picard(0.8), stopping, lengths=num_tokens)
    window = Window(7, patience=2000)  # no token ends alone
    slid = find_fixed_point(cell, start, Picard(0.8), stopping, window=window, lengths=num_tokens)
    assert torch.equal(slid.depth, whole.depth)
    for row, length in enumerate(lengths or [7] * 4):
        assert torch.equal(slid.value[row, :length], whole.value[row, :length])


@pytest.mark.parametrize("sync_every", [2, 4, 100])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_looking_seldom_iterates_a_little_more(width: int, sync_every: int) -> None:
    cell, stopping = causal_cell(4), ResidualBelow(1e-6, 200)
    settings = (torch.zeros_like(cell.offset), Picard(0.8), stopping)
    often = find_fixed_point(cell, *settings, window=Window(width, 3), sync_every=1)
    found = find_fixed_point(cell, *settings, window=Window(width, 3), sync_every=sync_every)
    assert (found.result == Result.CONVERGED).all() and (found.residual < 1e-6).all()
    torch.testing.assert_close(found.value, often.value, rtol=0, atol=1e-4)
    assert (found.depth >= often.depth).all()
    assert (found.depth <= often.depth + cell.offset.shape[1] * sync_every).all()
    assert (found.steps <= 7 * 200).all()


@pytest.mark.parametrize("sync_every", [1, 4, 100])
def test_no_token_waits_longer_than_it_may(sync_every: int) -> None:
    _, solve = scripted([1.0] * 40, [1.0] + [0.01] * 39)
    solution = solve(6, width=1, patience=2, sync_every=sync_every)
    assert solution.steps[0, 0] == 6 and solution.result[0, 0] == Result.OUT_OF_STEPS


@pytest.mark.parametrize("sync_every", [1, 4, 100])
def test_a_mate_that_is_given_up_changes_no_others_looks(sync_every: int) -> None:
    settles, never = [1.0] * 3 + [0.01] * 40, [1.0] * 43
    cell = ScriptedCell.of(torch.tensor([[settles], [never]]))
    settings = {"window": Window(1, 2), "sync_every": sync_every}
    stopping = ResidualBelow(0.1, 6, absolute_residual)
    both = find_fixed_point(cell, cell.start, Picard(), stopping, **settings)
    single = ScriptedCell.of(torch.tensor([[settles]]))
    alone = find_fixed_point(single, single.start, Picard(), stopping, **settings)
    for name, tensor in vars(alone).items():
        assert torch.equal(tensor[0], getattr(both, name)[0]), name


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_token_that_never_settles_is_given_up_and_the_next_still_converge(width: int) -> None:
    never, soon = [1.0] * 40, [1.0] + [0.01] * 39
    cell, solve = scripted(soon, never, soon)
    solution = solve(6, width=width, patience=2)
    converged, given_up = int(Result.CONVERGED), int(Result.OUT_OF_STEPS)
    assert solution.result.tolist() == [[converged, given_up, converged]]
    # Waiting is counted from the step at which the token before was committed, the third.
    assert solution.depth.tolist() == [{1: 3 + 6 + 2, 2: 3 + 6 + 1, 3: 3 + 6 + 1}[width]]
    assert torch.equal(solution.steps, cell.evaluations)


@pytest.mark.parametrize("sync_every", [1, 4])
def test_a_token_that_explodes_ends_its_sequence_alone(sync_every: int) -> None:
    cell = causal_cell(3)
    cell.offset[1, 4] = torch.nan
    expected = causal_cell(3).fixed_point()
    for width in (1, 3, 7):
        solution = search(cell, width, sync_every=sync_every)
        assert (solution.result[::2] == Result.CONVERGED).all()
        torch.testing.assert_close(solution.value[::2], expected[::2], rtol=1e-10, atol=1e-10)
        kept = solution.result[1] == Result.CONVERGED
        if sync_every == 1:
            assert kept.tolist() == [t < max(0, 5 - width) for t in range(7)]
        else:  # several may be committed at once, and the window move further
            assert kept[: max(0, 5 - width)].all() and not kept[4:].any()
        assert (solution.result[1, ~kept] == Result.NON_FINITE).all()
        torch.testing.assert_close(
            solution.value[1, kept], expected[1, kept], rtol=1e-10, atol=1e-10
        )
        assert solution.value.isfinite().all()


@pytest.mark.parametrize("width", WIDTHS)
def test_padding_that_explodes_reaches_nothing(width: int | None) -> None:
    cell = causal_cell(2)
    cell.offset[0, 5:] = torch.nan
    cell.contraction[1, 4:], cell.offset[1, 4:] = 1e200, 1e200
    solution = search(cell, width, [5, 4])
    assert (solution.result == Result.CONVERGED).all()
    assert solution.value.isfinite().all()
    expected = causal_cell(2).fixed_point()
    for row, length in enumerate((5, 4)):
        alone = search(causal_cell(2).select(torch.tensor([row])), width, [length])
        assert torch.equal(solution.value[row, :length], alone.value[0, :length])
        torch.testing.assert_close(
            solution.value[row, :length], expected[row, :length], rtol=1e-10, atol=1e-10
        )


# What else is in the batch.


@pytest.mark.parametrize("sync_every", [1, 4])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mates", ["easy", "hard", "exploding", "none"])
def test_batch_mates_change_nothing_to_the_bit(
    mates: str, width: int | None, sync_every: int
) -> None:
    cell = causal_cell()
    together = search(cell, width, sync_every=sync_every)
    other = causal_cell()
    if mates == "none":
        other = other.select(torch.tensor([2]))
    else:
        rest = torch.tensor([0, 1, 3])
        other.contraction[rest] = {"easy": 0.0, "hard": 0.9, "exploding": 1.0}[mates]
        if mates == "exploding":
            other.offset[rest] = 1e300
    changed = search(other, width, sync_every=sync_every)
    row = 0 if mates == "none" else 2
    for name, tensor in vars(together).items():
        assert torch.equal(tensor[2], getattr(changed, name)[row]), name


@pytest.mark.parametrize("width", WIDTHS)
def test_searching_twice_is_the_same_and_touches_nothing(width: int | None) -> None:
    cell, untouched = causal_cell(), causal_cell()
    start = torch.zeros_like(cell.offset)
    window = None if width is None else Window(width)
    first, second = (find_fixed_point(cell, start, Picard(), TIGHT, window=window) for _ in "ab")
    for name, tensor in vars(first).items():
        assert torch.equal(tensor, getattr(second, name)), name
    assert not start.any()
    assert torch.equal(cell.offset, untouched.offset)
    first.value.fill_(7.0)
    assert not start.any()


@pytest.mark.parametrize("width", [1, 3, 20])
def test_the_observer_sees_each_token_while_it_is_searched(width: int) -> None:
    script = random_script(4, 9, seed=5)
    cell, seen = ScriptedCell.of(script), []
    solution = find_fixed_point(
        cell,
        cell.start,
        Picard(),
        ResidualBelow(0.1, 7, absolute_residual),
        window=Window(width, 2),
        observe=lambda step, residual: seen.append((step, residual)),
    )
    assert [step for step, _ in seen] == list(range(1, int(solution.depth.max()) + 1))
    committed = solution.result != Result.NON_FINITE
    torch.testing.assert_close(seen[-1][1][committed], solution.residual[committed])
    assert torch.equal(seen[0][1].isnan(), torch.arange(9).expand(4, -1) >= width)


# Bad input.


@pytest.mark.parametrize("name", ["width", "patience"])
def test_impossible_windows_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; it must be 1 or more"):
        Window(**{"width": 2, "patience": 2} | {name: 0})


@pytest.mark.parametrize(
    ("solver", "stopping", "match"),
    [
        (Anderson(), TIGHT, "Anderson.*token by token, as Picard"),
        (Broyden(), TIGHT, "Broyden.*token by token, as Picard"),
        (BestSoFar(Picard()), TIGHT, "BestSoFar.*token by token, as Picard"),
        (Picard(), FixedSteps(3), "as under ResidualBelow, not FixedSteps"),
    ],
)
def test_what_knows_no_window_is_refused(solver, stopping, match: str) -> None:
    cell = causal_cell()
    with pytest.raises(ValueError, match=match):
        find_fixed_point(cell, cell.offset, solver, stopping, window=Window(3))


def test_a_cell_that_is_not_causal_is_refused() -> None:
    cell = affine_cell([0.5])
    with pytest.raises(ValueError, match="AffineCell has no method `window`"):
        find_fixed_point(cell, cell.offset, Picard(), TIGHT, window=Window(3))
