"""Weights to and from transformers' own models: the same numbers under other names."""

import copy

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from implicit_models.families.family import StackFamily, family_named, family_of
from implicit_models.families.peer import Joined, Peer
from implicit_models.families.table import FAMILIES
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.source_names import SourceError


def from_transformers(source: PreTrainedModel) -> ImplicitForCausalLM:
    """Return a model of transformers as our explicit model, weight for weight.

    Raises
    ------
    SourceError
        Where it is of no class that ours can be made of, or has a part that ours have not.
    """
    family, peer = _family_like(source)
    try:
        config = peer.our_configuration(source.config)
    except StrictDataclassError as error:
        raise SourceError(f"ours cannot have the source's sizes: {error.__cause__}") from error
    theirs = source.state_dict()
    converted = family.model_class(config).to(source.dtype)  # type: ignore[arg-type]
    ours = converted.state_dict()
    taken: set[str] = set()
    with torch.no_grad():
        for rule in peer.rules(config):
            if isinstance(rule, Joined):
                ours[rule.ours].copy_(torch.cat([theirs[name] for name in rule.theirs]))
                taken |= set(rule.theirs)
            else:
                ours[rule.ours].copy_(rule.our_shape(theirs[rule.theirs]))
                taken.add(rule.theirs)
    left = sorted(theirs.keys() - taken)
    if left:
        raise SourceError(f"the model has weights that ours have not: {', '.join(left)}")
    converted.generation_config = copy.deepcopy(source.generation_config)
    return converted.to(source.device).eval()  # type: ignore[arg-type]


def to_transformers(model: ImplicitForCausalLM) -> PreTrainedModel:
    """Return our explicit model as that of transformers, weight for weight.

    Raises
    ------
    ValueError
        Where the model is implicit, its weights are normalised, or its family is none of
        transformers': there they have no place.
    """
    config = model.config
    peer = next((each for each in family_of(config).peers if each.is_like(config)), None)
    if config.implicit or config.weight_normalisation:
        what = "implicit" if config.implicit else "of normalised weights"
        raise ValueError(f"the model is {what}; transformers' own models are not")
    if peer is None:
        raise ValueError(f"transformers has no model like a {type(model).__name__}")
    theirs_class, rules = peer.model_class, peer.rules(config)
    converted = theirs_class(peer.their_configuration(config)).to(model.dtype)  # type: ignore[arg-type]
    ours, theirs = model.state_dict(), converted.state_dict()
    rows = config.vocab_size
    with torch.no_grad():
        for rule in rules:
            if isinstance(rule, Joined):
                sizes = [len(theirs[name]) for name in rule.theirs]
                for name, part in zip(rule.theirs, ours[rule.ours].split(sizes), strict=True):
                    theirs[name].copy_(part)
            else:
                tensor = ours[rule.ours]
                if rule.ours in ("model.embed_tokens.weight", "lm_head.weight"):
                    tensor = tensor[:rows]
                theirs[rule.theirs].copy_(rule.their_shape(tensor))
    converted.generation_config = copy.deepcopy(model.generation_config)
    return converted.to(model.device).eval()  # type: ignore[arg-type]


def _family_like(source: PreTrainedModel) -> tuple[StackFamily, Peer]:
    """Return the family whose peer a model of transformers is of."""
    names = []
    for family in map(family_named, FAMILIES):
        if not isinstance(family, StackFamily):
            continue
        for peer in family.peers:
            if isinstance(source, peer.model_class):
                return family, peer
            names.append(peer.model_class.__name__)
    raise SourceError(
        f"the model is a {type(source).__name__}; it must be transformers' "
        f"{', '.join(sorted(names))}, or an explicit model of ours"
    )
