import functools
import typing
from dataclasses import dataclass

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tests import shape_checks

checked = shape_checks.jaxtyped(typechecker=beartype)


def test_a_combination_is_checked_once_and_another_anew(monkeypatch: pytest.MonkeyPatch):
    count = 0

    def counted(function, typechecker):
        def check(*args, **kwargs):
            nonlocal count
            count += 1
            return inner(*args, **kwargs)

        inner = original(function, typechecker=typechecker)
        return check

    original = shape_checks._check_every_call
    monkeypatch.setattr(shape_checks, "_check_every_call", counted)

    @checked
    def add(first: Float[Tensor, "B L"], second: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        return first + second

    for shape, so_far in (((2, 3), 1), ((2, 3), 1), ((3, 2), 2), ((2, 3), 2)):
        assert (add(torch.ones(shape), second=torch.ones(shape)) == 2).all()
        assert count == so_far
    add(torch.ones(2, 3), second=torch.ones(2, 3, dtype=torch.float64))
    assert count == 3
    for _ in range(2):
        with pytest.raises(TypeCheckError, match="second"):
            add(torch.ones(2, 3), second=torch.ones(2, 4))


def test_a_result_of_another_shape_is_checked_though_the_arguments_are_known():
    rows = 2

    @checked
    def cut(inputs: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        return inputs[:rows]

    assert cut(torch.ones(2, 3)).shape == (2, 3)
    rows = 1
    for _ in range(2):
        with pytest.raises(TypeCheckError, match="return value"):
            cut(torch.ones(2, 3))
    rows = 2
    assert cut(torch.ones(2, 3)).shape == (2, 3)


def test_a_function_runs_once_a_call_and_may_call_itself():
    calls = []

    @checked
    def fold(inputs: Float[Tensor, " L"]) -> Tensor:
        calls.append(len(inputs))
        return inputs if len(inputs) == 1 else fold(inputs[: len(inputs) // 2])

    for _ in range(2):
        assert fold(torch.ones(4)).shape == (1,)
    assert calls == [4, 2, 1] * 2


def test_values_and_what_containers_hold_are_told_apart():
    @checked
    def take(mode: typing.Literal["a", 1], parts: list[Tensor], names: dict[str, Tensor]) -> None:
        pass

    one = torch.ones(1)
    take("a", [one], {"x": one})
    take(1, [one], {"x": one})
    for wrong in (("b", [one], {}), (2, [one], {}), ("a", [1.0], {}), ("a", [], {2: one})):
        with pytest.raises(TypeCheckError):
            take(*wrong)


def test_what_is_annotated_by_classes_alone_is_told_by_its_type(monkeypatch):
    monkeypatch.setattr(shape_checks, "describe", lambda value: pytest.fail(f"looked at {value}"))

    @checked
    def add(first: Tensor, number: int | None, *, by: float) -> Tensor:
        return first + (number or 0) * by

    for size in range(2):
        assert add(torch.ones(size), size, by=1.0).shape == (size,)
        for wrong in ((1, 1, 1.0), (torch.ones(1), "1", 1.0), (torch.ones(1), 1, "1")):
            with pytest.raises(TypeCheckError):
                add(*wrong[:2], by=wrong[2])  # type: ignore[arg-type]


def test_only_functions_that_ask_for_classes_alone_are_left_alone_after_their_first_calls(
    monkeypatch,
):
    monkeypatch.setattr(shape_checks, "FIRST_CALLS", 4)

    @checked
    def types(*inputs: Tensor | None) -> list[int | None]:
        return [None if each is None else each.numel() for each in inputs]  # type: ignore[union-attr]

    @checked
    def shapes(inputs: Float[Tensor, "B L"]) -> Tensor:
        return inputs

    for length in range(2):
        types(torch.ones(length), None)
        with pytest.raises(TypeCheckError):
            types(torch.ones(length), 1)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        types(1)  # type: ignore[arg-type]
    for length in range(9):
        assert shapes(torch.ones(1, length)).shape == (1, length)
    with pytest.raises(TypeCheckError):
        shapes(torch.ones(9))


def test_functions_that_ask_for_shapes_are_looked_at_in_their_first_calls_of_every_test(
    monkeypatch,
):
    monkeypatch.setattr(shape_checks, "FIRST_CALLS_OF_A_TEST", 3)

    @checked
    def shapes(inputs: Float[Tensor, "B L"]) -> Tensor:
        return inputs

    for _ in range(2):
        shape_checks.begin_test()
        for length in range(2):
            shapes(torch.ones(1, length))
        with pytest.raises(TypeCheckError):
            shapes(torch.ones(9))
        assert shapes(torch.ones(9)).shape == (9,)  # the fourth


def test_decorated_functions_are_told_apart_though_their_code_is_one():
    def decorated(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)

        return checked(call)

    @decorated
    def first(inputs: Float[Tensor, " L"]) -> Tensor:
        return inputs

    @decorated
    def second(inputs: Float[Tensor, "B L"]) -> Tensor:
        return inputs

    first(torch.ones(2))
    with pytest.raises(TypeCheckError):
        second(torch.ones(2))


def test_a_dataclass_is_checked_when_it_is_made():
    @checked
    @dataclass(frozen=True)
    class Pair:
        first: Float[Tensor, " L"]
        second: Float[Tensor, " L"]

    for _ in range(2):
        Pair(torch.ones(2), torch.ones(2))
        with pytest.raises(TypeCheckError, match="second"):
            Pair(torch.ones(2), torch.ones(3))


def test_the_projects_functions_are_checked():
    from implicit_models.kernels.reference import rms_norm

    for _ in range(2):
        rms_norm(torch.ones(2, 3), torch.ones(3), 1e-5)
        with pytest.raises(TypeCheckError, match="weight"):
            rms_norm(torch.ones(2, 3), torch.ones(4), 1e-5)
