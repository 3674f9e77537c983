"""Word problems that go on: products since the first of several sequences."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt

from implicit_models.problems.word_problem.data import groups
from implicit_models.problems.word_problem.data.splits import WordProblem

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class ContinuedProducts:
    """Makes the products of a sequence those of all tokens since an earlier one began."""

    table: UInt[np.ndarray, "size size"]

    @classmethod
    def of(cls, data: WordProblem) -> "ContinuedProducts":
        """Return that of a data set's group."""
        return cls(groups.multiplication_table(data.metadata["group"]))

    def __call__(self, labels: "torch.Tensor", before: "torch.Tensor") -> "torch.Tensor":
        """Multiply the product before a sequence, (B,), with each of its own, (B, L)."""
        return self._on(labels.device)[before[:, None], labels].long()

    @functools.cache  # noqa: B019 (there are few, and they live as long as the process)
    def _on(self, device: "torch.device") -> "torch.Tensor":
        """Copy the table to a device, where a step does not wait for it."""
        import torch

        return torch.from_numpy(self.table.astype(np.int32)).to(device)
