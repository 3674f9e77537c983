"""What the passes over a model keep and need of a GPU's memory, in closed form from its shapes.

Counted is what is kept with the kernels in Triton (`implicit_models.kernels.fused`); in plain
PyTorch it is several times as much.
"""

from typing import Any, cast

from implicit_models.cost.flops import configuration_flops
from implicit_models.equilibrium.phase import Phase
from implicit_models.families.costs import FLOAT32_BYTES, BlockMemory
from implicit_models.families.family import StackFamily, own_family
from implicit_models.language_models.configuration import ImplicitConfig

NUMBER_BYTES = {"float32": FLOAT32_BYTES, "bfloat16": 2}

# Of `predicted_loss`.
TOKENS_AT_ONCE, LOGITS_AT_ONCE = 512, 2**22

_ID_BYTES = 8  # torch embeds 64-bit ids


def block_memory(config: ImplicitConfig, number_bytes: int) -> BlockMemory:
    """Count the bytes of one block, where a number of its activations has so many."""
    return _stack_family(config).block_memory(config, number_bytes)


def kept_bytes(
    config: ImplicitConfig,
    phase: Phase | None,
    *,
    tokens: int,
    precision: str,
    checkpointing: str,
) -> int:
    """Return the bytes that a forward pass keeps of some tokens, from ids to the head's input.

    Weights are not among them, nor is the injection, which is there in any case.
    """
    number = NUMBER_BYTES[precision]
    width, layers = config.hidden_size, config.num_hidden_layers
    block = block_memory(config, number)
    last_norm = FLOAT32_BYTES * (width + 1)
    if phase is not None and checkpointing == "iterations":
        iteration = number * width
    elif checkpointing == "blocks":
        iteration = layers * FLOAT32_BYTES * width + last_norm
    else:
        iteration = layers * block.kept + last_norm
    once = _ID_BYTES + number * width  # the ids, and what the head reads
    num_iterations = 1
    if phase is not None:
        num_iterations = gradient_steps(phase)
        once += 2 * number * width + FLOAT32_BYTES  # the embeddings, and their norm
    return tokens * (once + num_iterations * iteration)


def loss_bytes(config: ImplicitConfig, tokens: int, number: int) -> int:
    """Return what `predicted_loss` holds at once besides what it reads."""
    width, vocabulary = config.hidden_size, config.num_embeddings
    at_once = min(tokens, max(TOKENS_AT_ONCE, LOGITS_AT_ONCE // vocabulary))
    # Logits in the precision and in float32, their exponentials, and the gradient in the precision.
    rounded = 2 * number if number < FLOAT32_BYTES else 0
    pieces = at_once * vocabulary * (2 * FLOAT32_BYTES + rounded)
    head = vocabulary * width * (FLOAT32_BYTES + (number if rounded else 0))
    return pieces + head + tokens * width * FLOAT32_BYTES


def evaluated_again_bytes(
    config: ImplicitConfig, phase: Phase | None, block: BlockMemory, checkpointing: str
) -> int:
    """Return the bytes of a token that are kept for a while where something is evaluated again."""
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
    return matrices + _stack_family(config).count_unmultiplied(config)


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
            f"the phase's gradient is {type(gradient).__name__}; a training is planned with one "
            "that does not solve in the backward pass, as Unrolled and Phantom"
        )
    return gradient.num_steps


def _stack_family(config: ImplicitConfig) -> StackFamily[Any]:
    return cast(StackFamily[Any], own_family(config))
