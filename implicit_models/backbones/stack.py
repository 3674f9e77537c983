"""Pre-norm residual blocks in a row, and the norm after the last."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from implicit_models.backbones.feed_forward import FeedForward, FeedForwardWeights
from implicit_models.kernels.dispatch import kernels_for
from implicit_models.kernels.reference import accumulation_dtype


@runtime_checkable
class MixerCarry(Protocol):
    """What a mixer hands from one piece of a text to the next."""

    @property
    def by_sequence(self) -> Tensor:
        """Some tensor with a row for each sequence, of the same shape in all of a model."""
        ...

    def select(self, rows: Tensor, /) -> "MixerCarry":
        """Return the carry of some of the batch's sequences."""
        ...


@runtime_checkable
class MixerTrail(Protocol):
    """What an evaluation leaves behind, from which the carry after any of its tokens follows."""

    def carry(self, counts: Int[Tensor, " B"] | None = None, /) -> Any:
        """Return the carry after each sequence's first ``counts`` tokens; None means all."""
        ...


@runtime_checkable
class Mixer(Protocol):
    """What mixes the tokens of a block: an ``nn.Module``."""

    @property
    def shape(self) -> Any:
        """Its sizes; among them ``d_model``, and ``d_projection``, the width of the injection."""
        ...

    def weights(self) -> Any:
        """Return the effective weights, for every iteration of a solve."""
        ...

    def initial_carry(self, batch: int, /) -> Any:
        """Return the carry of a sequence's start."""
        ...

    def positions(self, carry: Any, length: int, /) -> Any:
        """Return what the next ``length`` tokens of all blocks share by their positions."""
        ...

    def __call__(
        self, hidden: Tensor, injection: Tensor | None, carry: Any, weights: Any, positions: Any, /
    ) -> tuple[Tensor, Any]:
        """Mix tokens, with the injection added to the input projection's output.

        Returns the mixed tokens and a `MixerTrail`; None in its place without a carry, which means
        a text from its start, whose carry nobody needs.
        """
        ...


Keep = Callable[[Any], Any]


class StackCarry(NamedTuple):
    """The carries of all blocks."""

    blocks: tuple[MixerCarry, ...]

    def select(self, rows: Tensor) -> "StackCarry":
        """Return the carry of some of the batch's sequences."""
        return StackCarry(tuple(block.select(rows) for block in self.blocks))


class StackTrail(NamedTuple):
    """What an evaluation of all blocks leaves behind, to take a carry from."""

    blocks: tuple[MixerTrail, ...]

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> StackCarry:
        """Return the carry after each sequence's first ``counts`` tokens; None means all."""
        return StackCarry(tuple(block.carry(counts) for block in self.blocks))


class BlockWeights(NamedTuple):
    """A block's effective weights, computed once a solve."""

    norm: Float[Tensor, " D"]
    mixer: Any
    feed_forward_norm: Float[Tensor, " D"] | None
    feed_forward: FeedForwardWeights | None


class StackWeights(NamedTuple):
    """All that the evaluations of a solve read of a stack's parameters.

    Nothing else is read: an evaluation that is done again in the backward pass finds the weights of
    the first one, in the precision that they had.
    """

    blocks: tuple[BlockWeights, ...]
    norm: Float[Tensor, " D"]


class Block(nn.Module):
    """``hidden + mixer(norm(hidden))``, then the same with a feed-forward network, if any."""

    def __init__(self, mixer: Mixer, feed_forward: FeedForward | None, norm_epsilon: float) -> None:
        super().__init__()
        self.norm_epsilon = norm_epsilon
        self.norm = nn.Parameter(torch.empty(mixer.shape.d_model))
        self.mixer: Any = mixer
        self.feed_forward = feed_forward
        if feed_forward is not None:
            self.feed_forward_norm = nn.Parameter(torch.empty(mixer.shape.d_model))

    def reset_parameters(self) -> None:
        """Set the norms' weights to 1."""
        nn.init.ones_(self.norm)
        if self.feed_forward is not None:
            nn.init.ones_(self.feed_forward_norm)

    def weights(self) -> BlockWeights:
        """Return the effective weights, for every iteration of a solve."""
        feed_forward = self.feed_forward
        return BlockWeights(
            self.norm,
            self.mixer.weights(),
            None if feed_forward is None else self.feed_forward_norm,
            None if feed_forward is None else feed_forward.weights(),
        )

    def forward(
        self,
        hidden: Float[Tensor, "B L D"],
        injection: Float[Tensor, "B L projection"] | None,
        carry: MixerCarry | None,
        weights: BlockWeights,
        positions: Any,
    ) -> tuple[Float[Tensor, "B L D"], MixerTrail | None]:
        """Apply the block."""
        rms_norm = kernels_for(hidden.device).rms_norm
        normed = rms_norm(hidden, weights.norm, self.norm_epsilon)
        mixed, trail = self.mixer(normed, injection, carry, weights.mixer, positions)
        hidden = hidden + mixed
        if self.feed_forward is not None:
            normed = rms_norm(hidden, weights.feed_forward_norm, self.norm_epsilon)
            hidden = hidden + self.feed_forward(normed, weights.feed_forward)
        return hidden, trail


class Stack(nn.Module):
    """Blocks in a row, then a final root-mean-square norm.

    Called once with no injection it is the explicit backbone; as a function of ``hidden`` with
    the injection fixed it is the implicit model's cell. One injection serves all blocks. Between
    the blocks ``hidden`` is kept in float32 at least.
    """

    def __init__(self, blocks: Sequence[Block], norm_epsilon: float) -> None:
        super().__init__()
        self.norm_epsilon = norm_epsilon
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Parameter(torch.empty(blocks[0].mixer.shape.d_model))

    def reset_parameters(self) -> None:
        """Set the final norm's weight to 1."""
        nn.init.ones_(self.norm)

    @property
    def mixers(self) -> list[Mixer]:
        """The blocks' mixers, in order."""
        return [block.mixer for block in self._blocks()]

    @property
    def d_projection(self) -> int:
        """Width of the injection."""
        return self.mixers[0].shape.d_projection

    def weights(self) -> StackWeights:
        """Return every block's effective weights, for every iteration of a solve."""
        return StackWeights(tuple(block.weights() for block in self._blocks()), self.norm)

    def initial_carry(self, batch: int) -> StackCarry:
        """Return the carry of a sequence's start."""
        return StackCarry(tuple(mixer.initial_carry(batch) for mixer in self.mixers))

    def check_carry(self, carry: StackCarry) -> None:
        """Check that a carry is of such a stack.

        Raises
        ------
        ValueError
            Where it is another model's.
        """
        found, expected = _shapes(carry), self._carry_shapes
        if found != expected:
            raise ValueError(
                f"the carry is of another model: of {_described(found)}, and this one's is of "
                f"{_described(expected)}"
            )

    def positions(self, carry: StackCarry | None, length: int) -> Any:
        """Place the next ``length`` tokens of each sequence, for every iteration of a solve."""
        first: Any = None if carry is None else carry.blocks[0]
        return self.mixers[0].positions(first, length)

    def forward(
        self,
        value: Float[Tensor, "B L D"],
        injection: Float[Tensor, "B L projection"] | None,
        carry: StackCarry | None,
        weights: StackWeights,
        positions: Any,
        *,
        keep: Keep | None = None,
        checkpointing: bool = False,
        hidden_states: list[Tensor] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], tuple[Any, ...]]:
        """Apply all blocks and the final norm.

        Parameters
        ----------
        positions
            What `positions` gives for this carry and as many tokens.
        keep
            What to keep of each block's trail, decided as soon as the block has been applied: a
            trail takes more memory than a carry. The second result holds it; None keeps nothing.
            Without a carry there are no trails.
        checkpointing
            Keep each block's input alone and evaluate the block again in the backward pass.
        hidden_states
            A list that takes the input of each block, and the output.
        """
        inputs = (value, injection, carry, weights, positions)
        hidden, left = self._apply_blocks(*inputs, keep, checkpointing, hidden_states)
        kernels = kernels_for(hidden.device)
        output = kernels.rms_norm(hidden, weights.norm, self.norm_epsilon).to(value.dtype)
        if hidden_states is not None:
            hidden_states.append(output)
        return output, left

    def iterate(
        self,
        value: Float[Tensor, "B L D"],
        injection: Float[Tensor, "B L projection"] | None,
        carry: StackCarry | None,
        weights: StackWeights,
        positions: Any,
        damping: float,
        keep: Keep | None = None,
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L"], tuple[Any, ...]]:
        """Step from ``value`` towards what `forward` gives for it.

        The final norm, the damped step and each token's relative residual are one pass over the
        last block's output. Parameters as in `forward`, without gradient.

        Returns
        -------
        The next iterate, the residual of ``value``, and what ``keep`` kept.
        """
        inputs = (value, injection, carry, weights, positions)
        hidden, left = self._apply_blocks(*inputs, keep, False, None)
        update = kernels_for(hidden.device).normed_update
        following, residual = update(hidden, weights.norm, self.norm_epsilon, value, damping)
        return following, residual.to(value.dtype), left

    def _apply_blocks(
        self,
        value: Tensor,
        injection: Tensor | None,
        carry: StackCarry | None,
        weights: StackWeights,
        positions: Any,
        keep: Keep | None,
        checkpointing: bool,
        hidden_states: list[Tensor] | None,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        carries = carry.blocks if carry is not None else (None,) * len(self.blocks)
        hidden = value.to(accumulation_dtype(value.dtype))
        left = []
        for block, block_carry, block_weights in zip(
            self.blocks, carries, weights.blocks, strict=True
        ):
            if hidden_states is not None:
                hidden_states.append(hidden.to(value.dtype))
            arguments = (hidden, injection, block_carry, block_weights, positions)
            if checkpointing and torch.is_grad_enabled():
                hidden, trail = checkpoint(block, *arguments, use_reentrant=False)
            else:
                hidden, trail = block(*arguments)
            if keep is not None and trail is not None:
                left.append(keep(trail))
            del trail
        return hidden, tuple(left)

    @functools.cached_property
    def _carry_shapes(self) -> list[tuple[int, ...]]:
        return _shapes(self.initial_carry(0))

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


def _shapes(carry: StackCarry) -> list[tuple[int, ...]]:
    return [tuple(block.by_sequence.shape[1:]) for block in carry.blocks]


def _described(shapes: list[tuple[int, ...]]) -> str:
    return f"{len(shapes)} blocks of the shape {shapes[0]}" if shapes else "no block"
