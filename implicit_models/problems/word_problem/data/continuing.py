"""Word problems that go on: products since the first of several sequences."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt

from implicit_models.problems.word_problem.data import groups
from implicit_models.problems.word_problem.data.splits import WordProblem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class ContinuedProducts:
    """Makes the products of a sequence those of all tokens since an earlier one began."""

    table: UInt[np.ndarray, "size size"]

    @classmethod
    def of(cls, data: WordProblem) -> "ContinuedProducts":
        """Return that of a data set's group."""
        return cls(groups.multiplication_table(data.metadata["group"]))

    def __call__(self, labels: "Tensor", before: "Tensor") -> "Tensor":
        """Multiply the product before a sequence, (B,), with each of its own, (B, L)."""
        import torch

        products = self.table[before.cpu().numpy()[:, None], labels.cpu().numpy()]
        return torch.from_numpy(products.astype(np.int64)).to(labels.device)
