"""What a training costs: FLOPs from the iterations really made; time and memory of anything."""

from collections import Counter
from collections.abc import Iterable

from implicit_models.cost.flops import ModelFlops, Work
from implicit_models.cost.meter import Measurement
from implicit_models.equilibrium.gradients import ImplicitFunction
from implicit_models.equilibrium.phase import Phase

# A gradient costs two products for each of the forward pass: one for either factor.
_WITH_GRADIENT = 3

# A training does not keep how often its windows took up a new carry: where a batch's sequences
# slide at different times it is, as measured, mostly once in one and a half to three evaluations.
_EVALUATIONS_PER_CARRY = 2


def step_flops(
    model: ModelFlops,
    phase: Phase | None,
    *,
    length: int,
    num_sequences: int,
    search_evaluations: float = 0.0,
    checkpointing: bool = False,
) -> float:
    """Give the FLOPs of a training step: search, forward and backward pass, penalty.

    Parameters
    ----------
    phase
        The step's; None for an explicit model.
    search_evaluations
        Evaluations of the cell by token that the searches of all sequences made, those with
        gradient not included: the sum of `Solution.token_evaluations`.
    checkpointing
        Whether blocks are evaluated again in the backward pass.

    Raises
    ------
    ValueError
        Where the phase's gradient is an `ImplicitFunction`, which solves in the backward pass
        without telling how long.
    """
    evaluation = model.stack.evaluation(length)
    differentiated, penalty, window = _WITH_GRADIENT * evaluation.total, 0.0, None
    if checkpointing:
        differentiated += evaluation.total - model.stack.last_products(length)
    if phase is not None:
        if phase.gradient is None or isinstance(phase.gradient, ImplicitFunction):
            raise ValueError(
                f"the phase's gradient is {phase.gradient}; the FLOPs of a step follow from "
                "Unrolled and from Phantom"
            )
        if phase.gradient.checkpointing:
            differentiated += evaluation.total
        differentiated *= phase.gradient.num_steps
        window = phase.window.width if phase.window is not None else None
        if phase.penalty is not None:
            penalty = _penalty_flops(evaluation, phase.penalty.num_samples)
    once = length * (model.injection + model.head) * _WITH_GRADIENT
    search = search_evaluations / length * _search_flops(model, length, window)
    return num_sequences * (once + differentiated + penalty) + search


def training_flops(
    model: ModelFlops,
    phase: Phase | None,
    *,
    lengths: Iterable[int],
    batch_size: int,
    search_evaluations: float = 0.0,
    checkpointing: bool = False,
) -> float:
    """Give the FLOPs of training steps that share a phase; parameters as in `step_flops`.

    Validation is not among them.

    Parameters
    ----------
    lengths
        Of each step's sequences.
    search_evaluations
        Of all steps; each step is taken to have made as many of them for a token as any other.
    """
    counts = Counter(lengths)
    num_tokens = batch_size * sum(length * count for length, count in counts.items())
    per_token = search_evaluations / num_tokens if num_tokens else 0.0
    return sum(
        count
        * step_flops(
            model,
            phase,
            length=length,
            num_sequences=batch_size,
            search_evaluations=per_token * batch_size * length,
            checkpointing=checkpointing,
        )
        for length, count in counts.items()
    )


def cost(
    flops: float | None, num_tokens: int, measured: Measurement
) -> dict[str, float | int | None]:
    """Give the costs of a training or an evaluation, None for those that nobody knows."""
    seconds = measured.seconds
    return {
        "flops": flops,
        "flops_per_token": None if flops is None or not num_tokens else flops / num_tokens,
        "seconds": seconds,
        "tokens_per_second": num_tokens / seconds if seconds else None,
        "peak_memory_bytes": measured.peak_memory_bytes,
        "energy_joules": measured.energy_joules,
    }


def _search_flops(model: ModelFlops, length: int, window: int | None) -> float:
    """Give the FLOPs of evaluating each token of a text once in a search, without gradient."""
    stack = model.stack
    if window is None:
        return stack.evaluation(length).total
    starts = range(0, length, window)
    each = sum(stack.evaluation(min(window, length - n), before=n).total for n in starts)
    return each + stack.carry(length) / _EVALUATIONS_PER_CARRY


def _penalty_flops(evaluation: Work, num_samples: int) -> float:
    """Give the FLOPs of a Jacobian penalty and of its gradient.

    One evaluation is differentiated as any other. Each sample's product with the Jacobian costs the
    evaluation again, with no gradient for a weight, and that is differentiated as well.
    """
    sample = _WITH_GRADIENT * (evaluation.weights + 2 * evaluation.mixing)
    return _WITH_GRADIENT * evaluation.total + num_samples * sample
