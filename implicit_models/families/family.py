"""What the rest of the library asks of a family of models, so that nobody asks which one it is.

A family is a package: see `implicit_models.families.table`, whose one entry makes it known.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from transformers import PreTrainedConfig

from implicit_models.families.costs import (
    BlockMemory,
    ModelFlops,
    ParameterCount,
    Past,
    StackFlops,
)
from implicit_models.families.peer import Peer
from implicit_models.families.table import OTHERS, package_of
from implicit_models.language_models.configuration import ImplicitConfig, StrictConfig
from implicit_models.language_models.language_model import LabelAlignment, LanguageModel
from implicit_models.language_models.memory import Memory
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.parameters import STATE_SEARCH
from implicit_models.language_models.pretrained import StrictPreTrainedModel
from implicit_models.language_models.source_names import SourceError

Config = TypeVar("Config", bound=StrictConfig)
StackConfig = TypeVar("StackConfig", bound=ImplicitConfig)

# On text most tokens converge in a few iterations wherever they stand, and a wide window wins.
WINDOWS: dict[LabelAlignment, int] = {"aligned": STATE_SEARCH["window"], "next_token": 32}


class Family(ABC):
    """A family of causal language models.

    Attributes
    ----------
    exact_weights
        Last parts of the names of weights that stay in the precision they are kept in, where the
        others are cast to a coarser one.
    recasts_blocks
        Whether blocks that are evaluated again in the backward pass (activation checkpointing)
        compute in the precision that the others were cast to.
    peers
        The models of transformers that ours can be made of, and made into.
    reader
        Where the class of `Reader` of its models is, as ``module:class``. Only what scores texts
        imports it, so that no training depends on it.
    """

    exact_weights: tuple[str, ...] = ()
    recasts_blocks: bool = False
    peers: tuple[Peer, ...] = ()
    reader: str

    @abstractmethod
    def build(
        self,
        parameters: Any,
        vocabulary_size: int,
        seed: int,
        label_alignment: LabelAlignment,
    ) -> LanguageModel:
        """Build a model; its weights depend on the seed alone, or on the source they come from.

        Raises
        ------
        SourceError
            Where a source cannot be read, or does not fit.
        """

    @abstractmethod
    def flops(self, model: LanguageModel) -> ModelFlops:
        """Return what a model of this family costs."""

    def initial_memory(self, model: LanguageModel, num_sequences: int) -> Memory:
        """Return what a model remembers before the first token.

        Raises
        ------
        SourceError
            Where it remembers nothing, or more with every token.
        """
        memory = getattr(model, "initial_cache", lambda _: None)(num_sequences)
        if isinstance(memory, Memory) and memory.tensors():
            return memory
        raise no_memory(model, "it remembers nothing, or more with every token")

    def has_model_of(self, config: PreTrainedConfig) -> bool:
        """Return whether a configuration is of this family, or of its peer in transformers."""
        of_peers = [peer.model_class.config_class for peer in self.peers]
        return type(config) in of_peers or family_of(config) is self


class OwnFamily(Family, Generic[Config]):
    """A family of which everything follows from the parameters, before there is a model.

    Attributes
    ----------
    model_class
        The language model of a configuration.
    """

    model_class: type[StrictPreTrainedModel]

    @abstractmethod
    def configuration(
        self, parameters: Any, vocabulary_size: int, label_alignment: LabelAlignment
    ) -> Config:
        """Return the configuration that a section ``model`` means."""

    @abstractmethod
    def configuration_flops(self, config: Config) -> ModelFlops:
        """Return what a model of this configuration costs, in closed form."""

    @abstractmethod
    def count_parameters(self, config: Config) -> ParameterCount:
        """Count the parameters of a model of this configuration, in closed form."""

    @abstractmethod
    def of_size(self, parameters: Any, vary: str, number: int) -> Any:
        """Return the parameters of the model that is the ``number``-th, from 1 on, by its size.

        This is what ``vary`` means, ``depth`` or ``width``. All else is as it was, and sizes grow
        with the number.
        """

    def build(
        self,
        parameters: Any,
        vocabulary_size: int,
        seed: int,
        label_alignment: LabelAlignment,
    ) -> LanguageModel:
        """Build a model of the seed's weights."""
        config = self.configuration(parameters, vocabulary_size, label_alignment)
        model = self.model_class(config)
        model.initialise(seed)
        return model

    def flops(self, model: LanguageModel) -> ModelFlops:
        """Return what follows from the model's configuration."""
        return self.configuration_flops(model.config)  # type: ignore[arg-type]


class StackFamily(OwnFamily[StackConfig]):
    """A family of blocks in our stack: explicit, or iterated to a fixed point.

    Attributes
    ----------
    published_sizes
        The sizes of the paper's pretraining, by name, as fields of the configuration.
    """

    recasts_blocks = True
    reader = "implicit_models.families.stack_reader:StackReader"
    model_class: type[ImplicitForCausalLM]
    published_sizes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    @abstractmethod
    def sizes(self, parameters: Any) -> dict[str, Any]:
        """Return the fields of the configuration that are the family's own."""

    @abstractmethod
    def make_configuration(self, **fields: Any) -> StackConfig:
        """Return a configuration of the family's class."""

    def resized(self, size: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a published size with some changed.

        What follows from a changed field is changed with it, unless it is given as well.
        """
        return {**size, **changes}

    @abstractmethod
    def projection_width(self, config: StackConfig) -> int:
        """Return the width of a block's input projection, and of the injection."""

    @abstractmethod
    def count_block(self, config: StackConfig) -> int:
        """Count the parameters of one block."""

    @abstractmethod
    def stack_flops(self, config: StackConfig) -> StackFlops:
        """Return what the blocks cost, in closed form."""

    @abstractmethod
    def block_memory(self, config: StackConfig, number_bytes: int) -> BlockMemory:
        """Count a block's bytes, where a number of its activations has so many."""

    def past(self, carry: Any) -> Past | None:
        """Return what a block's carry holds; None where no later token costs more because of it."""
        return None

    def count_unmultiplied(self, config: StackConfig) -> int:
        """Count the weights of all blocks that may be normalised, but are in no matrix product."""
        return 0

    def configuration(
        self, parameters: Any, vocabulary_size: int, label_alignment: LabelAlignment
    ) -> StackConfig:
        """Return the configuration of what all these families have, and of their own sizes."""
        return self.make_configuration(
            vocab_size=vocabulary_size,
            num_hidden_layers=parameters.num_layers,
            hidden_size=parameters.d_model,
            implicit=parameters.implicit,
            initializer_range=parameters.embedding_std,
            label_alignment=label_alignment,
            weight_normalisation=parameters.weight_normalisation,
            rms_norm_eps=parameters.norm_epsilon,
            window=WINDOWS[label_alignment],
            **self.sizes(parameters),
        )

    def configuration_flops(self, config: StackConfig) -> ModelFlops:
        """Return what the blocks cost, the injection and the head."""
        width = config.hidden_size
        injection = 2 * width * self.projection_width(config) if config.implicit else 0
        return ModelFlops(
            head=2 * width * config.num_embeddings,
            injection=injection,
            stack=self.stack_flops(config),
        )

    def count_parameters(self, config: StackConfig) -> ParameterCount:
        """Count the parameters of embedding, blocks and injection."""
        width, projection = config.hidden_size, self.projection_width(config)
        injection = width + count_weight(config, projection, width) + projection
        return ParameterCount(
            embedding=config.num_embeddings * width * (1 if config.tie_word_embeddings else 2),
            stack=config.num_hidden_layers * self.count_block(config) + width,
            injection=injection if config.implicit else 0,
        )


def count_weight(config: ImplicitConfig, rows: int, columns: int) -> int:
    """Count the numbers of a weight, with a scale for each row where it is normalised."""
    return rows * (columns + config.weight_normalisation)


def no_memory(model: LanguageModel, why: str) -> SourceError:
    """Return the error of a model that cannot pass a carry on."""
    return SourceError(
        f"a {type(model).__name__} hands nothing of a fixed size to the texts that follow: {why}; "
        "carry = 'passed' is not allowed; allowed is 'reset', or a model with a state "
        "(mamba2, lstm, llama with sliding_window)"
    )


def initial_memory(model: LanguageModel, num_sequences: int) -> Memory:
    """Return what a model remembers before the first token; see `Family.initial_memory`."""
    return family_of(model.config).initial_memory(model, num_sequences)


def family_named(name: str) -> Family:
    """Return the family of this name."""
    return importlib.import_module(f"{package_of(name)}.family").FAMILY


def family_of(config: PreTrainedConfig) -> Family:
    """Return the family of a model of this configuration."""
    return family_named(getattr(type(config), "family", OTHERS))


def own_family(config: PreTrainedConfig) -> OwnFamily[Any]:
    """Return the family of a configuration that is one of ours.

    Raises
    ------
    ValueError
        Where it is none of ours.
    """
    family = family_of(config)
    if not isinstance(family, OwnFamily):
        raise ValueError(
            f"the configuration is a {type(config).__name__}; parameters and FLOPs follow from a "
            "configuration of ours: of any other model take model_flops(model)"
        )
    return family
