"""A training of few tensors, of every kind that a checkpoint has to do with."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict


class Inner(nn.Module):
    """Tied weights, a buffer, shapes that two and four do not divide, and an unused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.linear = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.rand(3))
        self.unused = nn.Parameter(torch.rand(2, 3))
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("offset", torch.rand(5))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.linear(self.embedding(tokens)) + self.offset
        return self.head(torch.tanh(hidden)) * self.scale.sum()


class Wrapped(nn.Module):
    """What is trained: a module with the model in it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Inner()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)


def build_module(seed: int = 0) -> Wrapped:
    torch.manual_seed(seed)
    return Wrapped()


def build_optimiser(module: nn.Module) -> torch.optim.AdamW:
    matrices = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in module.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, fused=True)


def make_steps(module: nn.Module, optimiser: torch.optim.Optimizer, num: int) -> None:
    for step in range(num):
        tokens = (torch.arange(6).view(2, 3) + step) % 7
        optimiser.zero_grad(set_to_none=True)
        module(tokens).square().mean().backward()
        optimiser.step()


def trained(num_steps: int, seed: int = 0) -> tuple[Wrapped, torch.optim.AdamW]:
    module = build_module(seed)
    optimiser = build_optimiser(module)
    make_steps(module, optimiser, num_steps)
    return module, optimiser


def whole_state(module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Copy the state as torch gathers it, whatever it is spread over."""
    if not optimiser.state:  # torch would have the optimiser make a step
        return {"weights": {k: v.clone() for k, v in module.state_dict().items()}, "moments": {}}
    options = StateDictOptions(full_state_dict=True)
    weights, moments = get_state_dict(module, optimiser, options=options)
    return {
        "weights": {name: tensor.clone() for name, tensor in weights.items()},
        "moments": {
            name: {key: value.clone() for key, value in values.items()}
            for name, values in moments["state"].items()
        },
    }


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare two states to the bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), name
        else:
            assert_same(found[name], value)
