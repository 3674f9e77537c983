"""How strongly a cell reacts to its own value: a penalty that trains it down, and a diagnostic."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from implicit_models.equilibrium.cells import CausalCell, Cell, WindowedCell
from implicit_models.equilibrium.checks import check_count, check_positive


@dataclass(frozen=True)
class JacobianPenalty:
    """Add ``weight * |J|_F^2 / (L D)``, averaged over the sequences, to the loss.

    ``J`` is the cell's Jacobian at a sequence's fixed point, L its tokens; the squared Frobenius
    norm is Hutchinson's estimate, the mean of ``|J^T v|^2`` over ``num_samples`` vectors v of
    random signs (Bai et al. 2021). It is differentiable, at the cost of a second backward pass
    through one evaluation.

    Each call draws new signs, from torch's own generator of the CPU: `torch.manual_seed` makes them
    reproducible. With a ``seed`` every call draws the same; who gives one gives each step its own.
    """

    weight: float
    num_samples: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        check_positive("weight", self.weight)
        check_count("num_samples", self.num_samples)

    def __call__(
        self,
        cell: Cell,
        value: Float[Tensor, "B L D"],
        lengths: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the weighted penalty at ``value``, with the gradient of the cell's parameters.

        What lies behind a sequence's ``lengths`` first tokens is padding and does not count; the
        cell must be causal then.
        """
        batch, length, width = value.shape
        differentiable = torch.is_grad_enabled()
        if lengths is None:
            lengths = torch.full((batch,), length, device=value.device)
        lengths = lengths.to(value.device)
        counted = (torch.arange(length, device=value.device) < lengths[:, None])[..., None]
        _refuse_inference_mode()
        draw = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        # Fused attention has no second derivative.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            anchor = value.detach().requires_grad_()
            evaluated = cell(anchor)
            total = evaluated.new_zeros(batch)
            for _ in range(self.num_samples):
                signs = torch.randint(0, 2, evaluated.shape, generator=draw, device="cpu")
                signs = signs.to(evaluated) * 2 - 1
                (product,) = torch.autograd.grad(
                    evaluated,
                    anchor,
                    signs * counted,
                    retain_graph=True,
                    create_graph=differentiable,
                )
                total = total + product.square().sum((1, 2))
            mean = (total / (lengths * width).clamp_min(1)).sum() / max(batch, 1)
            return self.weight * mean / self.num_samples


def spectral_radius(
    cell: Callable[[Tensor], Tensor], value: Float[Tensor, "B L D"], num_iterations: int = 32
) -> Float[Tensor, " B"]:
    """Estimate the spectral radius of a cell's Jacobian at each sequence's ``value``.

    By power iteration with vector-Jacobian products: the geometric mean of the growth over the
    second half of the iterations, which pairs of complex eigenvalues leave nearly unharmed. Below
    1 the plain iteration converges from nearby. 0 where the Jacobian is nilpotent.

    Where many eigenvalues are about as large as the largest, the estimate is a little off, mostly
    too low: of random matrices of width 64, nine in ten come within 5 %, and within 2 % with
    twice the iterations. Every sequence starts from the same random vector, so that its estimate
    does not depend on its place in the batch.

    For a causal cell take `token_spectral_radius`: the Jacobian of a whole sequence is block
    triangular, and vectors may grow L times before its eigenvalues show.
    """
    check_count("num_iterations", num_iterations)
    _refuse_inference_mode()
    with torch.enable_grad():
        anchor = value.detach().requires_grad_()
        evaluated = cell(anchor)
        draw = torch.Generator().manual_seed(0)
        vector = torch.randn(value.shape[1:], generator=draw, dtype=value.dtype).to(value.device)
        vector = vector.expand_as(value)
        growth = value.new_zeros(len(value))
        used = num_iterations - num_iterations // 2
        for iteration in range(num_iterations):
            size = torch.linalg.vector_norm(vector.flatten(1), dim=1)
            vector = vector / size.clamp_min(torch.finfo(size.dtype).tiny)[:, None, None]
            (vector,) = torch.autograd.grad(evaluated, anchor, vector, retain_graph=True)
            if iteration >= num_iterations - used:
                growth = growth + torch.linalg.vector_norm(vector.flatten(1), dim=1).log()
    return (growth / used).exp()


def token_spectral_radius(
    cell: CausalCell,
    value: Float[Tensor, "B L D"],
    num_iterations: int = 32,
    damping: float | Float[Tensor, " B"] = 1.0,
) -> Float[Tensor, "B L"]:
    """Estimate the spectral radius of each token's own block of a causal cell's Jacobian.

    With a ``damping``, of all or of each sequence, it is that of the damped iteration,
    ``1 + damping * (J - 1)``.

    The Jacobian of a causal cell is block triangular, so these are all of its eigenvalues: the
    largest of a sequence's is the spectral radius of the whole. The tokens before each are frozen
    in the carry. ``value`` is usually a fixed point; the statement holds anywhere.
    """
    batch, length = value.shape[:2]
    rows = torch.arange(batch, device=value.device)
    one = torch.ones_like(rows)
    weight = torch.as_tensor(damping, dtype=value.dtype, device=value.device).reshape(-1, 1, 1)
    carry, radii = None, []
    for position in range(length):
        windowed = cell.window(rows, torch.full_like(rows, position)[:, None], carry)
        token = value[:, position : position + 1]

        def step(z: Tensor, windowed: WindowedCell = windowed) -> Tensor:
            return z.lerp(windowed.evaluate(z)[0], weight)

        radii.append(spectral_radius(step, token, num_iterations))
        with torch.no_grad():
            carry = windowed.evaluate(token)[1].carry(one)
    return torch.stack(radii, dim=1) if radii else value.new_zeros(batch, 0)


def _refuse_inference_mode() -> None:
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "a Jacobian cannot be taken under torch.inference_mode(); use torch.no_grad()"
        )
