"""Which numbers are token ids."""

import torch
from torch import Tensor


def check_token_ids(input_ids: Tensor, vocabulary_size: int) -> None:
    """Check that each id is a token's, without waiting for a GPU."""
    if input_ids.device.type == "cuda":
        inside = (input_ids >= 0) & (input_ids < vocabulary_size)
        torch._assert_async(  # type: ignore[attr-defined]
            inside.all(), f"input_ids holds one that is not between 0 and {vocabulary_size - 1}"
        )
    elif input_ids.device.type == "cpu" and input_ids.numel():
        least, most = (int(extreme) for extreme in input_ids.aminmax())
        if least < 0 or most >= vocabulary_size:
            raise ValueError(
                f"input_ids holds {least if least < 0 else most}; token ids must lie between "
                f"0 and {vocabulary_size - 1}"
            )
