"""What the passes over a model keep and need of a GPU's memory, in closed form from its shapes.

Counted is what is kept with the kernels in Triton (`implicit_models.kernels.fused`); in plain
PyTorch it is several times as much.
"""

from dataclasses import dataclass

from implicit_models.cost.flops import LlamaFlops, Mamba2Flops, configuration_flops
from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.configuration import (
    ImplicitConfig,
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
)

NUMBER_BYTES = {"float32": 4, "bfloat16": 2}
FLOAT32 = NUMBER_BYTES["float32"]

# Of the scan in Triton, whose module wants that installed, and of `predicted_loss`.
SCAN_CHUNK = 64
TOKENS_AT_ONCE, LOGITS_AT_ONCE = 512, 2**22

_ID_BYTES = 8  # torch embeds 64-bit ids


@dataclass(frozen=True, kw_only=True)
class BlockMemory:
    """Bytes for each token that one block takes.

    Attributes
    ----------
    injection
        Of the injection that all blocks share.
    kept
        What its evaluation keeps for the backward pass.
    search
        What its evaluation holds at once where nothing is kept.
    backward
        What its backward pass holds at once besides.
    """

    injection: int
    kept: int
    search: int
    backward: int

    @classmethod
    def of(cls, config: ImplicitConfig, number: int) -> "BlockMemory":
        """Count a block's bytes, a number of its activations having ``number`` of them."""
        if isinstance(config, ImplicitLlamaConfig):
            return cls._llama(config, number)
        assert isinstance(config, ImplicitMamba2Config)
        return cls._mamba2(config, number)

    @classmethod
    def _mamba2(cls, config: ImplicitMamba2Config, number: int) -> "BlockMemory":
        shape = configuration_flops(config).stack
        assert isinstance(shape, Mamba2Flops)
        width, inner, projection = shape.d_model, shape.d_inner, shape.d_projection
        channels = inner + 2 * shape.maps
        stream = FLOAT32 * width
        # In turn: projected, convolved, scanned and normed.
        mixer = number * (projection + channels + 2 * inner)
        norms = FLOAT32 * (1 + config.n_groups)
        states = FLOAT32 * inner * shape.state_size // SCAN_CHUNK
        injection = number * projection
        return cls(
            injection=injection,
            kept=stream + number * width + mixer + norms,
            search=2 * stream + number * width + mixer + states,
            # The projection's gradient comes in parts and is joined; states and their gradients.
            backward=2 * stream + 2 * injection + mixer + 2 * states,
        )

    @classmethod
    def _llama(cls, config: ImplicitLlamaConfig, number: int) -> "BlockMemory":
        shape = configuration_flops(config).stack
        assert isinstance(shape, LlamaFlops)
        width, inner, projection = shape.d_model, shape.d_inner, shape.d_projection
        stream, injection = FLOAT32 * width, number * projection
        attention = number * (projection + inner) + FLOAT32 * config.num_attention_heads
        # Gate, its SiLU, up, and the product.
        feed_forward = 4 * number * shape.d_feed_forward
        norms = 2 * (FLOAT32 + number * width)
        most = max(attention + injection, feed_forward)  # before and after the rotation
        return cls(
            injection=injection,
            kept=2 * stream + norms + attention + feed_forward,
            search=2 * stream + number * width + most,
            backward=2 * stream + injection + most,
        )


def kept_bytes(
    config: ImplicitConfig,
    phase: Phase | None,
    *,
    tokens: int,
    precision: str,
    checkpointing: str,
) -> int:
    """Give the bytes that a forward pass keeps of some tokens, from their ids to the head's input.

    Weights are not among them, nor is the injection, which is there in any case.
    """
    number = NUMBER_BYTES[precision]
    width, layers = config.hidden_size, config.num_hidden_layers
    block = BlockMemory.of(config, number)
    last_norm = FLOAT32 * (width + 1)
    if phase is not None and checkpointing == "iterations":
        iteration = number * width
    elif checkpointing == "blocks":
        iteration = layers * FLOAT32 * width + last_norm
    else:
        iteration = layers * block.kept + last_norm
    once = _ID_BYTES + number * width  # the ids, and what the head reads
    num_iterations = 1
    if phase is not None:
        num_iterations = gradient_steps(phase)
        once += 2 * number * width + FLOAT32  # the embeddings, and their norm
    return tokens * (once + num_iterations * iteration)


def loss_bytes(config: ImplicitConfig, tokens: int, number: int) -> int:
    """Give what `predicted_loss` holds at once besides what it reads."""
    width, vocabulary = config.hidden_size, config.num_embeddings
    at_once = min(tokens, max(TOKENS_AT_ONCE, LOGITS_AT_ONCE // vocabulary))
    # Logits in the precision and in float32, their exponentials, and the gradient in the precision.
    rounded = 2 * number if number < FLOAT32 else 0
    pieces = at_once * vocabulary * (2 * FLOAT32 + rounded)
    head = vocabulary * width * (FLOAT32 + (number if rounded else 0))
    return pieces + head + tokens * width * FLOAT32


def evaluated_again_bytes(
    config: ImplicitConfig, phase: Phase | None, block: BlockMemory, checkpointing: str
) -> int:
    """Give the bytes of a token that are kept for a while where something is evaluated again."""
    if checkpointing == "blocks":
        return block.kept
    if checkpointing == "iterations" and phase is not None:
        return config.num_hidden_layers * block.kept
    return 0


def num_normalised(config: ImplicitConfig) -> int:
    """Count the numbers of all weights that may be normalised."""
    flops = configuration_flops(config)
    # Each number of a matrix multiplies a token once, and adds to something.
    matrices = int(flops.stack.evaluation(1).weights + flops.injection) // 2
    if isinstance(flops.stack, Mamba2Flops):
        assert isinstance(config, ImplicitMamba2Config)
        channels = flops.stack.d_inner + 2 * flops.stack.maps
        matrices += config.num_hidden_layers * channels * config.conv_kernel
    return matrices


def gradient_steps(phase: Phase) -> int:
    """Count the iterations that are differentiated.

    Raises
    ------
    ValueError
        Where the phase takes no gradient, or one that solves in the backward pass.
    """
    gradient = phase.gradient
    if gradient is None or gradient.max_products:
        raise ValueError(
            f"the phase's gradient is {gradient}; a training is planned with one that does not "
            "solve in the backward pass, as Unrolled and Phantom"
        )
    return gradient.num_steps
