"""Products with a weight, in the order of operands that reads the weight fastest."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Rows up to which a product on a CPU is bound by reading the weight, for which
# ``weight @ rows.T`` reads it one and a half to five times as fast as ``rows @ weight.T``. Measured
# with torch 2.13 and MKL (``python -m benchmarks.kernels``); a weight with more columns than rows
# gains less.
_FEW_ROWS, _FEW_ROWS_OF_A_WIDE_WEIGHT, _FEW_ROWS_OF_A_TALL_WEIGHT = 4, 2, 8


def linear(
    inputs: Float[Tensor, "*rows I"],
    weight: Float[Tensor, "O I"],
    added: Float[Tensor, "*rows O"] | None = None,
) -> Float[Tensor, "*rows O"]:
    """Return ``inputs @ weight.T``, and ``added`` to it in one pass over the result."""
    if _is_bound_by_the_weight(inputs, weight):
        return _of_few_rows(inputs, weight, added)
    if added is None:
        return F.linear(inputs, weight)
    num_outputs, num_inputs = weight.shape
    rows = inputs.reshape(-1, num_inputs)
    rows = torch.addmm(added.reshape(-1, num_outputs), rows, weight.t())
    return rows.view(added.shape)


def _is_bound_by_the_weight(inputs: Tensor, weight: Tensor) -> bool:
    if torch.is_grad_enabled() or inputs.device.type != "cpu" or inputs.dtype != torch.float32:
        return False
    if type(weight) not in (Tensor, nn.Parameter) or torch.is_autocast_enabled("cpu"):
        return False  # a quantised weight, say, knows torch's linear only
    num_outputs, num_inputs = weight.shape
    limit = _FEW_ROWS
    if num_outputs < num_inputs:
        limit = _FEW_ROWS_OF_A_WIDE_WEIGHT
    elif num_outputs >= 2 * num_inputs:
        limit = _FEW_ROWS_OF_A_TALL_WEIGHT
    return 0 < inputs.numel() <= limit * num_inputs


def _of_few_rows(inputs: Tensor, weight: Tensor, added: Tensor | None) -> Tensor:
    rows = inputs.reshape(-1, inputs.shape[-1])
    num_rows = len(rows)
    if num_rows == 1:
        rows = torch.cat((rows, rows))  # two columns are read twice as fast as one
    product = torch.mm(weight, rows.t())[:, :num_rows].t()
    shape = (*inputs.shape[:-1], len(weight))
    if added is None:
        return product.contiguous().view(shape)
    return added + product.reshape(shape)
