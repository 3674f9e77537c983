"""Strided windows over documents: every token scored once, in a context of bounded length."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Integer


@dataclass(frozen=True, kw_only=True)
class Windows:
    """What is read of which document, and which of its tokens are scored.

    A document of n tokens is preceded by a start token. A window's inputs begin at a place in
    that row (0 is the start token), and its labels one place further on. With a context of 4 and
    a stride of 2, ``S`` the start token and ``^`` what is scored::

        S a b c d e f g        inputs S a b c    labels a b c d
          ^ ^ ^ ^              inputs b c d e    labels     e f
                  ^ ^          inputs d e f      labels       g
                      ^

    Attributes
    ----------
    document
        The document of each window.
    start
        Where its inputs begin.
    length
        Number of its inputs: the context length, or fewer at the document's end.
    num_scored
        The last so many of its labels are scored: those that no window before it has.
    """

    document: Int[np.ndarray, " W"]
    start: Int[np.ndarray, " W"]
    length: Int[np.ndarray, " W"]
    num_scored: Int[np.ndarray, " W"]

    @classmethod
    def over(
        cls, num_tokens: Integer[np.ndarray, " D"], *, context_length: int, stride: int
    ) -> "Windows":
        """Lay windows over documents of these lengths, one document's after another's."""
        if not 1 <= stride <= context_length:
            raise ValueError(
                f"stride is {stride}; it must lie between 1 and context_length, {context_length}"
            )
        beyond = np.maximum(num_tokens - context_length, 0)
        count = 1 + -(-beyond // stride)
        document = np.repeat(np.arange(len(num_tokens)), count)
        number = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
        tokens = num_tokens[document]
        start = number * stride
        end = np.minimum(start + context_length, tokens)
        scored_before = np.where(number > 0, start - stride + context_length, 0)
        return cls(
            document=document,
            start=start,
            length=end - start,
            num_scored=end - scored_before,
        )

    def __len__(self) -> int:
        return len(self.document)

    def read(
        self, window: int, document: Integer[np.ndarray, " n"], start_token: int
    ) -> tuple[Integer[np.ndarray, " L"], Integer[np.ndarray, " L"]]:
        """Return one window's inputs and labels, of which the last `num_scored` are scored."""
        start, length = int(self.start[window]), int(self.length[window])
        labels = np.asarray(document[start : start + length])
        before = [start_token] if start == 0 else document[start - 1 : start]
        return np.concatenate((before, labels[:-1])), labels

    def batches(self, batch_size: int) -> list[Int[np.ndarray, " B"]]:
        """Group windows of equal or neighbouring lengths, the longest first."""
        order = np.argsort(-self.length, kind="stable")
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
