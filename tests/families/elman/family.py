from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from implicit_models.backbones.linear import NormalisedWeight
from implicit_models.backbones.stack import Block
from implicit_models.families.costs import FLOAT32_BYTES, BlockMemory, Work
from implicit_models.families.family import StackFamily, count_weight
from implicit_models.families.registration import register_models
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.trunk import ImplicitModel
from tests.families.elman.configuration import ElmanConfig


@dataclass(frozen=True)
class Shape:
    d_model: int
    d_projection: int


class Carry(NamedTuple):
    state: Tensor

    @property
    def by_sequence(self) -> Tensor:
        return self.state

    def select(self, rows: Tensor) -> "Carry":
        return Carry(self.state[rows])


class Trail(NamedTuple):
    states: Tensor  # (B, 1 + L, S), the one before the tokens first

    def carry(self, counts: Tensor | None = None) -> Carry:
        if counts is None:
            return Carry(self.states[:, -1])
        return Carry(self.states[torch.arange(len(counts)), counts])


class Weights(NamedTuple):
    input: Tensor
    recurrent: Tensor
    output: Tensor


class ElmanMixer(nn.Module):
    def __init__(self, config: ElmanConfig) -> None:
        super().__init__()
        width, state, normalised = (
            config.hidden_size,
            config.state_size,
            config.weight_normalisation,
        )
        self.shape = Shape(width, state)
        self.in_proj = NormalisedWeight(state, width, normalised=normalised)
        self.recurrent = NormalisedWeight(state, state, normalised=normalised)
        self.out_proj = NormalisedWeight(width, state, normalised=normalised)

    def reset_parameters(self) -> None:
        self.in_proj.reset(self.shape.d_model**-0.5)
        self.recurrent.reset(0.5 * self.shape.d_projection**-0.5)
        self.out_proj.reset(0.5 * self.shape.d_projection**-0.5)

    def weights(self) -> Weights:
        parts = (self.in_proj, self.recurrent, self.out_proj)
        return Weights(*(part.effective() for part in parts))

    def initial_carry(self, batch: int) -> Carry:
        return Carry(self.in_proj.weight.new_zeros(batch, self.shape.d_projection))

    def positions(self, carry: Carry | None, length: int) -> None:
        return None

    def forward(
        self,
        hidden: Tensor,
        injection: Tensor | None,
        carry: Carry | None,
        weights: Weights,
        positions: None,
    ) -> tuple[Tensor, Trail | None]:
        projected = hidden @ weights.input.T
        projected = projected if injection is None else projected + injection
        states = [self.initial_carry(len(hidden)).state if carry is None else carry.state]
        for token in projected.unbind(1):
            states.append(torch.tanh(token + states[-1] @ weights.recurrent.T))
        mixed = torch.stack(states[1:], dim=1) @ weights.output.T
        return mixed, None if carry is None else Trail(torch.stack(states, dim=1))


class ElmanModel(ImplicitModel):
    config_class = ElmanConfig

    @staticmethod
    def block(config: ElmanConfig) -> Block:
        return Block(ElmanMixer(config), None, config.rms_norm_eps)


class ElmanForCausalLM(ImplicitForCausalLM, GenerationMixin):
    config_class = ElmanConfig
    trunk_class = ElmanModel


@dataclass(frozen=True)
class ElmanFlops:
    num_layers: int
    width: int
    state: int

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        each = 2 * self.state * (2 * self.width + self.state)
        return Work(self.num_layers * each * length, 0.0)

    def carry(self, length: int) -> float:
        return 0.0

    def last_products(self, length: int) -> float:
        return 2 * self.num_layers * self.state * self.width * length


class ElmanFamily(StackFamily[ElmanConfig]):
    model_class = ElmanForCausalLM

    def make_configuration(self, **fields: Any) -> ElmanConfig:
        return ElmanConfig(**fields)

    def sizes(self, parameters: Any) -> dict[str, Any]:
        return {"state_size": parameters.d_state}

    def of_size(self, parameters: Any, vary: str, number: int) -> Any:
        if vary == "depth":
            return parameters.replace(num_layers=number)
        return parameters.replace(d_model=number, d_state=number)

    def projection_width(self, config: ElmanConfig) -> int:
        return config.state_size

    def count_block(self, config: ElmanConfig) -> int:
        width, state = config.hidden_size, config.state_size
        sizes = ((state, width), (state, state), (width, state))
        return width + sum(count_weight(config, *size) for size in sizes)

    def stack_flops(self, config: ElmanConfig) -> ElmanFlops:
        return ElmanFlops(config.num_hidden_layers, config.hidden_size, config.state_size)

    def block_memory(self, config: ElmanConfig, number_bytes: int) -> BlockMemory:
        stream, state = FLOAT32_BYTES * config.hidden_size, number_bytes * config.state_size
        return BlockMemory(
            injection=state, kept=2 * stream + 2 * state, search=stream, backward=stream
        )


FAMILY = ElmanFamily()
register_models(ElmanConfig, ElmanForCausalLM, ElmanModel)
