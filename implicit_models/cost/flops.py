"""FLOPs of a model, by its family; a multiplication with its addition counts two.

Counted are products of matrices, as ``torch.utils.flop_counter`` counts them where
IMPLICIT_MODELS_KERNELS is ``reference``: of causal attention the whole square, of the scan its
chunks with what fills up the last. What works element by element is not: norms, activations, the
convolution, normalised weights.
"""

from transformers import PreTrainedConfig

from implicit_models.families.costs import ModelFlops
from implicit_models.families.family import family_of, own_family
from implicit_models.language_models.language_model import LanguageModel


def model_flops(model: LanguageModel) -> ModelFlops:
    """Return what a model costs: ours in closed form; others counted once, on a few tokens."""
    return family_of(model.config).flops(model)


def configuration_flops(config: PreTrainedConfig) -> ModelFlops:
    """Return what a model of ours costs, of which there need be no more than the configuration.

    Raises
    ------
    ValueError
        Where the configuration is not one of ours.
    """
    return own_family(config).configuration_flops(config)
