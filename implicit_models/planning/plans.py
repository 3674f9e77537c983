"""What a training will take, in closed form, before it is begun: memory of a GPU, FLOPs, storage.

The memory is that of the trainer: weights, gradients and AdamW's two moments in float32; with the
precision ``bfloat16`` a forward pass casts the weights once, and what it keeps for the backward
pass has that precision, all but the residual stream between the blocks.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from implicit_models.cost.flops import configuration_flops
from implicit_models.cost.passes import training_flops
from implicit_models.equilibrium.phase import Phase
from implicit_models.families.costs import FLOAT32_BYTES
from implicit_models.families.sizes import count_parameters
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.planning.activations import (
    NUMBER_BYTES,
    block_memory,
    evaluated_again_bytes,
    gradient_steps,
    kept_bytes,
    loss_bytes,
    num_normalised,
)

PARALLELISM = ("ddp", "fsdp")
CHECKPOINTING = ("none", "iterations", "blocks")

# Assumed, not counted: the driver's and the libraries' own memory with NCCL's buffers, and the part
# of a GPU's memory that the allocator can use before fragments leave no room.
RUNTIME_BYTES, USABLE_PART = 2_000_000_000, 0.95

_MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a training is spread over GPUs. Its result depends on none of it, but for rounding.

    Attributes
    ----------
    parallelism
        ``ddp``: every GPU holds everything; ``fsdp``: of weights, gradients and moments a part, but
        all weights and their gradients while it computes.
    micro_batch
        The most sequences that a GPU computes at once; None is its whole share of a step.
    checkpointing
        What is evaluated again in the backward pass: ``none``, ``iterations`` or ``blocks``.
    """

    num_gpus: int = 1
    parallelism: str = "ddp"
    micro_batch: int | None = None
    checkpointing: str = "none"

    def at_once(self, batch_size: int) -> int:
        """Return the sequences of a global batch that a GPU computes at once."""
        share = self.share(batch_size)
        return share if self.micro_batch is None else min(share, self.micro_batch)

    def share(self, batch_size: int) -> int:
        """Return the sequences of a global batch that a GPU computes in all."""
        return -(-batch_size // self.num_gpus)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes of a GPU's memory in a training step.

    All last through the step but the four of which the largest counts: ``search``, ``loss``,
    ``backward`` and ``exchange`` are never there together.

    Attributes
    ----------
    weights, moments
        Of the optimiser, in float32; of ``fsdp`` this GPU's part.
    gathered
        All weights, in float32, where this GPU's own are a part.
    copies
        The weights in the precision that is computed with, where that is another.
    normalised
        Effective weights, where weights are normalised.
    gradients
        In float32; of ``fsdp`` all of them, and this GPU's part of their sum.
    waiting_gradients
        Of ``copies`` and ``normalised``, and of all weights that several iterations read: they wait
        until the last block has added its share.
    injection
        The injection, and the points that the searches of a step have found.
    activations
        What the forward pass keeps for the backward pass.
    search
        The search's iterates, and what its evaluations need on their way.
    loss
        Some tokens' logits, and the gradients of the head and of what it reads.
    backward
        What the backward pass of one block needs on its way, and what it evaluates again.
    exchange
        What is sent to other GPUs, or comes from them.
    runtime
        An assumption: see `RUNTIME_BYTES`.
    """

    weights: int
    moments: int
    gathered: int
    copies: int
    normalised: int
    gradients: int
    waiting_gradients: int
    injection: int
    activations: int
    search: int
    loss: int
    backward: int
    exchange: int
    runtime: int = RUNTIME_BYTES

    @property
    def peak(self) -> int:
        """The most that is there at once."""
        return self._lasting + max(self._moments().values())

    def fits(self, memory_bytes: float) -> bool:
        """Return whether a GPU of so much memory holds it, with some left for fragments."""
        return self.peak <= USABLE_PART * memory_bytes

    @property
    def _lasting(self) -> int:
        weights = self.weights + self.gathered + self.copies + self.normalised
        gradients = self.gradients + self.waiting_gradients
        return self.runtime + weights + self.moments + gradients

    def _moments(self) -> dict[str, int]:
        kept = self.injection + self.activations
        return {
            "search": self.injection + self.search,
            "loss": kept + self.loss,
            "backward": kept + self.backward,
            "exchange": self.exchange,
        }


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What the steps of one phase take.

    Attributes
    ----------
    flops, flops_at_most
        With as many evaluations in each search as are expected, and with as many as it may make.
    """

    num_steps: int
    num_tokens: int
    flops: float
    flops_at_most: float
    memory: MemoryPlan


def most_evaluations(phase: Phase, length: int) -> int:
    """Return the most evaluations that a token's search may make, in sequences of so many tokens.

    In a window its `max_steps` count from when all tokens before it have ended: it is evaluated
    along with each of those that are in the window with it.
    """
    beside = 1 if phase.window is None else min(phase.window.width, length)
    return phase.stopping.max_steps * beside


def plan_training(
    config: ImplicitConfig,
    phase: Phase | None,
    *,
    lengths: Iterable[int],
    batch_size: int,
    precision: str,
    layout: Layout,
    expected_evaluations: float | None = None,
    num_passing: int = 0,
) -> TrainingPlan:
    """Plan training steps that share a phase.

    Parameters
    ----------
    phase
        None for an explicit model.
    lengths
        Of each step's sequences.
    batch_size
        Sequences of a step, on all GPUs together.
    expected_evaluations
        Evaluations of a token in a search, on an average; None for as many as it may make.
    num_passing
        How many of the last steps pass their carry on.

    Raises
    ------
    ValueError
        Where the phase takes no gradient, or one that solves in the backward pass; where there are
        more GPUs than sequences.
    """
    if layout.num_gpus > batch_size:
        raise ValueError(
            f"gpus = {layout.num_gpus} is not allowed; allowed is at most one for each sequence of "
            f"a step, {batch_size}"
        )
    lengths = list(lengths)
    num_tokens = batch_size * sum(lengths)
    phase = _with_checkpointing(phase, layout.checkpointing)
    most = 0 if phase is None else most_evaluations(phase, max(lengths))

    alone = lengths[: len(lengths) - num_passing]

    def flops(evaluations: float) -> float:
        return sum(
            training_flops(
                configuration_flops(config),
                phase,
                lengths=some,
                batch_size=batch_size,
                search_evaluations=evaluations * batch_size * sum(some),
                checkpointing=layout.checkpointing == "blocks",
                passes_carry=passes_carry,
            )
            for some, passes_carry in ((alone, False), (lengths[len(alone) :], True))
        )

    expected = most if expected_evaluations is None else min(most, expected_evaluations)
    return TrainingPlan(
        num_steps=len(lengths),
        num_tokens=num_tokens,
        flops=flops(expected),
        flops_at_most=flops(most),
        memory=plan_memory(
            config,
            phase,
            length=max(lengths),
            batch_size=batch_size,
            precision=precision,
            layout=layout,
        ),
    )


def plan_memory(
    config: ImplicitConfig,
    phase: Phase | None,
    *,
    length: int,
    batch_size: int,
    precision: str,
    layout: Layout,
) -> MemoryPlan:
    """Plan a GPU's memory in a step of sequences of one length; parameters as `plan_training`."""
    count = count_parameters(config).total
    number = NUMBER_BYTES[precision]
    sequences = layout.at_once(batch_size)
    tokens, of_step = sequences * length, layout.share(batch_size) * length
    is_split = layout.parallelism == "fsdp" and layout.num_gpus > 1
    parts = layout.num_gpus if is_split else 1
    part, whole = -(-count // parts) * FLOAT32_BYTES, count * FLOAT32_BYTES
    normalised = number * num_normalised(config) if config.weight_normalisation else 0
    copies = number * count if precision != "float32" else 0
    block = block_memory(config, number)
    width = config.hidden_size
    # The iterates: start, present and next one, those of sequences that have ended; and the
    # injection of those that have not.
    iterates = 4 * number * width + block.injection
    again = evaluated_again_bytes(config, phase, block, layout.checkpointing)
    return MemoryPlan(
        weights=part,
        moments=_MOMENTS * part,
        gathered=whole if is_split else 0,
        copies=copies,
        normalised=normalised,
        gradients=whole + (part if is_split else 0),
        waiting_gradients=copies or normalised or (whole if _is_repeated(phase) else 0),
        injection=tokens * block.injection + of_step * number * width if phase is not None else 0,
        activations=kept_bytes(
            config, phase, tokens=tokens, precision=precision, checkpointing=layout.checkpointing
        ),
        search=tokens * (iterates + block.search) if phase is not None else 0,
        loss=loss_bytes(config, tokens, number),
        backward=tokens * (block.backward + again),
        exchange=whole if is_split else 0,
    )


def fitting_layouts(layout: Layout, batch_size: int, *, is_implicit: bool) -> Iterator[Layout]:
    """Return layouts to try, those first that cost the least time.

    Fewer sequences at once cost nothing as long as they fill the GPU; ``fsdp`` gathers weights
    once a step; checkpointing evaluates the cell once more; more GPUs are dear.
    """
    order = CHECKPOINTING if is_implicit else ("none", "blocks")
    kinds = [kind for kind in order if kind != layout.checkpointing]
    parallelisms = [kind for kind in PARALLELISM if kind != layout.parallelism]
    num_gpus = layout.num_gpus
    while num_gpus <= batch_size:
        wider = dataclasses.replace(layout, num_gpus=num_gpus)
        for checkpointing, parallelism in itertools.product(
            [layout.checkpointing, *kinds],
            [layout.parallelism, *parallelisms] if num_gpus > 1 else [layout.parallelism],
        ):
            sequences = wider.at_once(batch_size)
            while sequences:
                yield dataclasses.replace(
                    wider,
                    micro_batch=sequences,
                    parallelism=parallelism,
                    checkpointing=checkpointing,
                )
                sequences //= 2
        num_gpus *= 2


@dataclass(frozen=True, kw_only=True)
class StoragePlan:
    """Bytes on disk.

    Attributes
    ----------
    checkpoint
        Of a training in progress: weights and both moments.
    model
        The weights in a model's folder.
    """

    checkpoint: int
    model: int


def plan_storage(config: ImplicitConfig) -> StoragePlan:
    """Plan what a training writes, but for headers and tokenizers."""
    model = count_parameters(config).total * FLOAT32_BYTES
    return StoragePlan(checkpoint=model * (1 + _MOMENTS), model=model)


def _is_repeated(phase: Phase | None) -> bool:
    return phase is not None and gradient_steps(phase) > 1


def _with_checkpointing(phase: Phase | None, checkpointing: str) -> Phase | None:
    if phase is None or checkpointing != "iterations":
        return phase
    return phase.with_checkpointing()
