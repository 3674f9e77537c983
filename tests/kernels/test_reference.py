"""The kernels against the plainest loops, and against each other's pieces."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from implicit_models.kernels import reference

BATCH, HEADS, WIDTH, SIZE = 2, 4, 3, 5


def scan_inputs(length: int, groups: int = 1, seed: int = 0) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    return {
        "inputs": normal(BATCH, length, HEADS, WIDTH),
        "time_step": normal(BATCH, length, HEADS),
        "time_step_bias": normal(HEADS),
        "decay_rate": -normal(HEADS).exp(),
        "input_map": normal(BATCH, length, groups, SIZE),
        "output_map": normal(BATCH, length, groups, SIZE),
        "skip": normal(HEADS),
        "initial_state": normal(BATCH, HEADS, WIDTH, SIZE),
    }


def step_by_step(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    state, outputs = tensors["initial_state"], []
    for t in range(tensors["inputs"].shape[1]):
        output, state = reference.state_space_step(
            tensors["inputs"][:, t],
            tensors["time_step"][:, t],
            tensors["time_step_bias"],
            tensors["decay_rate"],
            tensors["input_map"][:, t],
            tensors["output_map"][:, t],
            tensors["skip"],
            state,
        )
        outputs.append(output)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (4, 4), (7, 3), (13, 4), (13, 64)])
def test_scan_equals_the_recurrence(length: int, chunk: int, groups: int) -> None:
    tensors = scan_inputs(length, groups)
    outputs, final = reference.state_space_scan(**tensors, chunk_length=chunk)
    expected, expected_final = step_by_step(tensors)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(final, expected_final)


def test_step_is_the_written_recurrence() -> None:
    tensors = scan_inputs(1)
    output, state = step_by_step(tensors)
    dt = F.softplus(tensors["time_step"][0, 0, 1] + tensors["time_step_bias"][1])
    decay = torch.exp(dt * tensors["decay_rate"][1])
    outer = torch.outer(tensors["inputs"][0, 0, 1], tensors["input_map"][0, 0, 0])
    expected = decay * tensors["initial_state"][0, 1] + dt * outer
    torch.testing.assert_close(state[0, 1], expected)
    output_map, skip = tensors["output_map"][0, 0, 0], tensors["skip"][1]
    expected_output = expected @ output_map + skip * tensors["inputs"][0, 0, 1]
    torch.testing.assert_close(output[0, 0, 1], expected_output)


@pytest.mark.parametrize("chunk", [2, 5, 16])
def test_scan_gradients_are_finite_differences(chunk: int) -> None:
    tensors = scan_inputs(6)
    names = list(tensors)
    leaves = [tensors[name].requires_grad_() for name in names]

    def scan(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, final = reference.state_space_scan(
            **dict(zip(names, values, strict=True)), chunk_length=chunk
        )
        assert final is not None
        return outputs, final

    assert torch.autograd.gradcheck(scan, leaves)


def test_pieces_of_a_scan_equal_the_whole() -> None:
    tensors = scan_inputs(11)
    whole, final = reference.state_space_scan(**tensors, chunk_length=4)
    state, pieces = tensors["initial_state"], []
    for start, end in ((0, 1), (1, 6), (6, 11)):
        cut: dict[str, Any] = {k: v[:, start:end] if v.dim() > 3 or k == "time_step" else v
               for k, v in tensors.items() if k != "initial_state"}  # fmt: skip
        piece, state = reference.state_space_scan(**cut, initial_state=state, chunk_length=4)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    torch.testing.assert_close(state, final)


def test_scan_without_state_starts_at_zero_and_returns_none_unless_asked() -> None:
    tensors = scan_inputs(5)
    zero = torch.zeros_like(tensors.pop("initial_state"))
    expected, _ = reference.state_space_scan(**tensors, initial_state=zero)
    outputs, final = reference.state_space_scan(**tensors, return_final_state=False)
    torch.testing.assert_close(outputs, expected)
    assert final is None


def test_scan_survives_a_long_decay_without_overflow() -> None:
    tensors = {name: tensor.float() for name, tensor in scan_inputs(64).items()}
    tensors["time_step"] = F.softplus(tensors["time_step"]) * 200
    tensors["time_step_bias"] = torch.zeros_like(tensors["time_step_bias"])
    outputs, final = reference.state_space_scan(**tensors, chunk_length=64)
    expected, expected_final = step_by_step(tensors)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(final, expected_final, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_convolution_equals_grouped_conv1d_and_its_pieces(width: int) -> None:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(2, 9, 6, generator=draw, dtype=torch.float64)
    weight = torch.randn(6, width, generator=draw, dtype=torch.float64)
    bias = torch.randn(6, generator=draw, dtype=torch.float64)
    carry = torch.randn(2, width - 1, 6, generator=draw, dtype=torch.float64)

    padded = torch.cat((carry, inputs), 1).transpose(1, 2)
    expected = F.silu(F.conv1d(padded, weight[:, None], bias, groups=6)).transpose(1, 2)
    outputs = reference.causal_convolution(inputs, weight, bias, carry)
    torch.testing.assert_close(outputs, expected)

    first = reference.causal_convolution(inputs[:, :2], weight, bias, carry)
    after = reference.advance_convolution(inputs[:, :2], carry)
    second = reference.causal_convolution(inputs[:, 2:], weight, bias, after)
    torch.testing.assert_close(torch.cat((first, second), 1), expected)
    last = reference.advance_convolution(inputs[:, 2:], after)
    torch.testing.assert_close(last, torch.cat((carry, inputs), 1)[:, 9:])


def test_convolution_without_carry_starts_at_zero() -> None:
    inputs, weight, bias = torch.randn(2, 5, 3), torch.randn(3, 4), torch.randn(3)
    torch.testing.assert_close(
        reference.causal_convolution(inputs, weight, bias),
        reference.causal_convolution(inputs, weight, bias, torch.zeros(2, 3, 3)),
    )


def test_gated_norm_has_unit_mean_square_before_its_weight() -> None:
    inputs, gate = torch.randn(3, 4, 8), torch.randn(3, 4, 8)
    weight = torch.rand(8) + 0.5
    normed = reference.gated_rms_norm(inputs, gate, weight, 0.0) / weight
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(3, 4))
    direction = inputs * gate * torch.sigmoid(gate)
    torch.testing.assert_close(normed, direction / direction.square().mean(-1, True).sqrt())


def test_each_group_of_a_gated_norm_is_normed_by_itself() -> None:
    inputs, gate, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    normed = reference.gated_rms_norm(inputs, gate, weight, 1e-5, num_groups=2)
    halves = [
        reference.gated_rms_norm(inputs[:, half], gate[:, half], weight[half], 1e-5)
        for half in (slice(0, 4), slice(4, 8))
    ]
    torch.testing.assert_close(normed, torch.cat(halves, -1))


def test_autocast_rounds_no_scan() -> None:
    tensors = {name: tensor.float() for name, tensor in scan_inputs(7, 2).items()}
    token = {name: tensors[name][:, 0] for name in ("inputs", "time_step")}
    token |= {f"{name}_map": tensors[f"{name}_map"][:, 0] for name in ("input", "output")}
    shared = {name: tensors[name] for name in ("time_step_bias", "decay_rate", "skip")}
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            scanned = reference.state_space_scan(**tensors, chunk_length=3)
            stepped = reference.state_space_step(**token, **shared, state=tensors["initial_state"])
            after = reference.advance_state(*advance_inputs(tensors))
        found.append((*scanned, *stepped, after))
    for plain, cast in zip(*found, strict=True):
        assert torch.equal(plain, cast)


def advance_inputs(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    names = ("inputs", "time_step", "time_step_bias", "decay_rate", "input_map", "initial_state")
    return [tensors[name] for name in names]
