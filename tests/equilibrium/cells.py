"""Cells whose fixed points are known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class AffineCell:
    """``f(z) = z @ matrix + offset``, whose fixed point is ``offset @ (1 - matrix)^-1``."""

    matrix: torch.Tensor  # (D, D), or (B, D, D)
    offset: torch.Tensor  # (B, L, D)
    evaluated: list[int] | None = None

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        if self.evaluated is not None:
            self.evaluated.append(value.shape[0])
        return value @ self.matrix + self.offset

    def select(self, rows: torch.Tensor) -> "AffineCell":
        matrix = self.matrix[rows] if self.matrix.dim() == 3 else self.matrix
        return AffineCell(matrix, self.offset[rows], self.evaluated)

    def fixed_point(self) -> torch.Tensor:
        identity = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)
        return self.offset @ torch.linalg.inv(identity - self.matrix)


def affine_cell(contractions: list[float], length: int = 3, width: int = 4) -> AffineCell:
    """A cell whose sequences contract at different rates, in float64."""
    draw = torch.Generator().manual_seed(0)
    batch = len(contractions)
    rotation = torch.linalg.qr(torch.randn(batch, width, width, generator=draw).double())[0]
    matrix = rotation * torch.tensor(contractions, dtype=torch.float64)[:, None, None]
    return AffineCell(matrix, torch.randn(batch, length, width, generator=draw).double())


def solve_by_bisection(contraction: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
    """Return the z of ``z = contraction * sin(z) + constant``, element by element."""
    low, high = constant - 1, constant + 1
    for _ in range(60):
        middle = (low + high) / 2
        is_above = middle > contraction * middle.sin() + constant
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
    return (low + high) / 2


@dataclass
class Trace:
    """The states before each token of a window and after its last: (R, W + 1, D)."""

    states: torch.Tensor

    def carry(self, counts: torch.Tensor | None = None) -> "State":
        if counts is None:
            return State(self.states[:, -1])
        return State(self.states[torch.arange(len(counts)), counts])


@dataclass
class State:
    """What `CausalSineCell` carries."""

    state: torch.Tensor

    def select(self, rows: torch.Tensor) -> "State":
        return State(self.state[rows])


@dataclass
class CausalSineCell:
    """A causal cell in which every operation is elementwise.

    ``f(z)_t = contraction_t sin(z_t) + s_t + offset_t`` with ``s_t = (s_{t-1} + z_{t-1}) / 2``.
    """

    contraction: torch.Tensor  # (B, L)
    offset: torch.Tensor  # (B, L, D)
    state: torch.Tensor | None = None  # (B, D); zeros where None

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self.evaluate(value)[0]

    def evaluate(self, value: torch.Tensor) -> tuple[torch.Tensor, Trace]:
        state = self.state
        if state is None:
            state = self.offset.new_zeros(self.offset.shape[0], self.offset.shape[2])
        states = [state]
        for token in value.unbind(1):
            states.append((states[-1] + token) / 2)
        before = torch.stack(states[:-1], 1) if value.shape[1] else torch.zeros_like(value)
        local = self.contraction[..., None] * value.sin()
        return local + before + self.offset, Trace(torch.stack(states, 1))

    def select(self, rows: torch.Tensor) -> "CausalSineCell":
        state = None if self.state is None else self.state[rows]
        return CausalSineCell(self.contraction[rows], self.offset[rows], state)

    def window(
        self, rows: torch.Tensor, tokens: torch.Tensor, carry: State | None
    ) -> "CausalSineCell":
        state = carry.state if carry else self.select(rows).state
        rows = rows[:, None]
        return CausalSineCell(self.contraction[rows, tokens], self.offset[rows, tokens], state)

    def fixed_point(self) -> torch.Tensor:
        state = self.state
        if state is None:
            state = self.offset.new_zeros(self.offset.shape[0], self.offset.shape[2])
        tokens = [self.offset[:, :0]]
        for t in range(self.offset.shape[1]):
            constant = state + self.offset[:, t]
            token = solve_by_bisection(self.contraction[:, t, None], constant)
            tokens.append(token[:, None])
            state = (state + token) / 2
        return torch.cat(tokens, 1)


def causal_cell(batch: int = 4, length: int = 7, width: int = 2) -> CausalSineCell:
    """A causal cell in float64 whose tokens are of very unequal difficulty."""
    draw = torch.Generator().manual_seed(1)
    contraction = torch.rand(batch, length, generator=draw, dtype=torch.float64) * 0.8
    contraction[:, ::3] = 0.01
    offset = torch.randn(batch, length, width, generator=draw, dtype=torch.float64)
    return CausalSineCell(contraction, offset)


@dataclass
class ScriptedCell:
    """A causal cell whose tokens' absolute residuals are written down beforehand.

    Token t of sequence b stands at the partial sums of ``script[b, t]``, one after another, and
    rests at the last. No token reads another. From a NaN on it is NaN.

    It counts the evaluations of each token.
    """

    script: torch.Tensor  # (B, L, K)
    evaluations: torch.Tensor
    tokens: torch.Tensor | None = None  # (R, W) of the script's rows, as first asked for
    rows: torch.Tensor | None = None

    @classmethod
    def of(cls, script: torch.Tensor) -> "ScriptedCell":
        batch, length = script.shape[:2]
        return cls(script.double(), torch.zeros(batch, length, dtype=torch.int64))

    @property
    def start(self) -> torch.Tensor:
        return torch.zeros(*self.script.shape[:2], 1, dtype=torch.float64)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(self.script)) if self.rows is None else self.rows
        length = self.script.shape[1]
        tokens = self.tokens
        if tokens is None:
            tokens = torch.arange(length).expand(len(rows), -1)
        positions = tokens[:, :1] + torch.arange(tokens.shape[1])
        inside = positions < length
        self.evaluations[rows[:, None].expand_as(tokens)[inside], tokens[inside]] += 1
        script = self.script[rows[:, None], tokens]
        places = torch.cat((torch.zeros_like(script[..., :1]), script.cumsum(-1)), -1)
        here = (places.nan_to_num(torch.inf) < value - 1e-9).sum(-1, keepdim=True)
        here = here.clamp(max=script.shape[-1] - 1)
        return places.gather(-1, here + 1)

    def evaluate(self, value: torch.Tensor) -> tuple[torch.Tensor, Trace]:
        return self(value), Trace(value.new_zeros(value.shape[0], value.shape[1] + 1, 1))

    def select(self, rows: torch.Tensor) -> "ScriptedCell":
        kept = rows if self.rows is None else self.rows[rows]
        return ScriptedCell(self.script, self.evaluations, None, kept)

    def window(self, rows: torch.Tensor, tokens: torch.Tensor, carry: object) -> "ScriptedCell":
        return ScriptedCell(self.script, self.evaluations, tokens, rows)


@dataclass
class ChangingCell:
    """A cell whose value is not of its state's kind."""

    change: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self.change(value)

    def evaluate(self, value: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return self.change(value), None

    def select(self, rows: torch.Tensor) -> "ChangingCell":
        return self

    def window(self, rows: torch.Tensor, tokens: torch.Tensor, carry: Any) -> "ChangingCell":
        return self


CHANGES = [
    (lambda z: z[:, :, :1], r"shape of its state from \(2, 3, 4\) to \(2, 3, 1\)"),
    (lambda z: z[:1], r"shape of its state from \(2, 3, 4\) to \(1, 3, 4\)"),
    (lambda z: z.float(), r"dtype of its state from torch.float64 to torch.float32"),
    (lambda z: z.to("meta"), "device of its state from cpu to meta"),
]
