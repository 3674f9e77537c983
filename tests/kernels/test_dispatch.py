"""Which kernels run: by the environment, by the device, within a block; and that all agree."""

import dataclasses
import importlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from implicit_models.equilibrium.phase import Phase, bounded_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.kernels import dispatch
from implicit_models.kernels.dispatch import (
    KERNELS,
    VARIABLE,
    Kernels,
    fused_kernels,
    kernels_for,
    native_kernels,
    reference_kernels,
    using,
)
from tests.kernels.twins import DEVICE
from tests.language_models.kinds import model_of, tokens

CPU, META, CUDA = (torch.device(name) for name in ("cpu", "meta", "cuda"))


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing asked for, and nothing decided before the test or after it."""
    monkeypatch.delenv(VARIABLE, raising=False)
    dispatch._chosen.cache_clear()
    yield
    dispatch._chosen.cache_clear()


def named(name: str) -> Kernels:
    try:
        return KERNELS[name]()
    except (ImportError, OSError) as error:
        pytest.skip(f"the {name} kernels do not run here: {error}")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("device", [CPU, META], ids=str)
def test_the_environment_decides(
    name: str,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = named(name)
    monkeypatch.setenv(VARIABLE, name)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # where there is a GPU as well
    with caplog.at_level(logging.INFO, dispatch.__name__):
        assert kernels_for(device) is expected
    assert expected.name == name
    assert caplog.messages == [f"kernels on {device.type}: {name}, because {VARIABLE} says so"]


@pytest.mark.parametrize("name", ["triton", "Native", " reference"])
def test_kernels_of_an_unknown_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    for _ in range(2):  # a mistake is not remembered as a choice
        with pytest.raises(ValueError) as caught:
            kernels_for(CPU)
        message = str(caught.value)
        assert all(word in message for word in (VARIABLE, repr(name), *KERNELS))
    monkeypatch.setenv(VARIABLE, "reference")
    assert kernels_for(CPU).name == "reference"


def test_the_choice_is_made_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, dispatch.__name__):
        first = kernels_for(CPU)
        monkeypatch.setenv(VARIABLE, "nothing of the kind")
        assert kernels_for(CPU) is first
        assert kernels_for(torch.device("cpu", 0)) is first
    (message,) = caplog.messages
    assert message.startswith(f"kernels on cpu: {first.name}, because ")


def test_a_cpu_runs_those_in_c(caplog: pytest.LogCaptureFixture) -> None:
    expected = named("native")
    with caplog.at_level(logging.INFO, dispatch.__name__):
        assert kernels_for(CPU) is expected
    assert caplog.messages == ["kernels on cpu: native, because they are the fastest for it"]


def test_a_device_that_computes_nothing_runs_the_reference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, dispatch.__name__):
        assert kernels_for(META) is reference_kernels()
    assert caplog.messages == ["kernels on meta: reference, because none faster is known for it"]


@pytest.mark.parametrize("name", ["reference", "native"])
def test_a_model_without_numbers_has_shapes(name: str) -> None:
    model: Any = model_of("mamba2-explicit", dtype=torch.float32)
    model = model.to("meta")
    embedded = torch.empty(2, 5, model.config.hidden_size, device="meta")
    with using(named(name)), torch.no_grad():
        assert model(inputs_embeds=embedded).logits.shape == (2, 5, 31)


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    original = importlib.import_module

    def import_module(name: str, *arguments: Any) -> Any:
        if ".fused." in name:
            raise ModuleNotFoundError("No module named 'triton'")
        return original(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", import_module)
    fused_kernels.cache_clear()
    yield
    fused_kernels.cache_clear()


@pytest.mark.usefixtures("no_triton")
def test_fused_kernels_that_are_asked_for_need_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fused")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match=f"{VARIABLE} is 'fused', but .*'triton'"):
        kernels_for(CPU)


@pytest.mark.usefixtures("no_triton")
def test_a_gpu_without_triton_runs_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, dispatch.__name__):
        assert kernels_for(CUDA) is reference_kernels()
    (message,) = caplog.messages
    assert "kernels on cuda: reference" in message
    assert "the fused ones do not run here: No module named 'triton'" in message


def test_a_gpu_runs_those_in_triton(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fused = Kernels("fused", *(len,) * 4)
    monkeypatch.setattr(dispatch, "fused_kernels", lambda: fused)
    monkeypatch.setattr(dispatch, "_launch", lambda kernels: None)
    with caplog.at_level(logging.INFO, dispatch.__name__):
        assert kernels_for(CUDA) is fused
    assert caplog.messages == ["kernels on cuda: fused, because they are made for it"]
    assert caplog.records[0].levelno == logging.INFO


def test_a_gpu_that_cannot_launch_them_runs_the_reference_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(kernels: Kernels) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(dispatch, "fused_kernels", lambda: Kernels("fused", *(len,) * 4))
    monkeypatch.setattr(dispatch, "_launch", fail)
    assert kernels_for(CUDA) is reference_kernels()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the fused ones do not run here: no kernel image is available" in record.getMessage()


def test_a_block_runs_what_it_asks_for() -> None:
    outer, inner = (Kernels(name, *(len,) * 4) for name in ("outer", "inner"))
    before = kernels_for(CPU)
    with using(outer):
        assert kernels_for(CPU) is kernels_for(META) is outer
        with pytest.raises(KeyError), using(inner):
            assert kernels_for(CPU) is inner
            raise KeyError
        assert kernels_for(CPU) is outer
    assert kernels_for(CPU) is before


def test_a_block_reaches_no_further_than_its_thread() -> None:
    before = kernels_for(CPU)
    with using(Kernels("elsewhere", *(len,) * 4)), ThreadPoolExecutor(1) as pool:
        assert pool.submit(kernels_for, CPU).result() is before


def tracked(kernels: Kernels) -> tuple[Kernels, set[str]]:
    """Return the same kernels, and the names of those that get called."""
    called: set[str] = set()

    def watched(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            called.add(name)
            return getattr(kernels, name)(*arguments)

        return call

    names = [field.name for field in dataclasses.fields(Kernels) if field.name != "name"]
    return Kernels(kernels.name, *map(watched, names)), called


def outcome(kernels: Kernels, kind: str, phase: Phase | None) -> tuple[dict[str, Tensor], set[str]]:
    """Return logits, those of a text in two pieces, and every gradient; and which kernels ran."""
    device = DEVICE if kernels.name == "fused" else CPU
    model: Any = model_of(kind, dtype=torch.float32)
    model = model.to(device)
    text = tokens(2, 7).to(device)
    kernels, called = tracked(kernels)
    steps = {} if phase is None else {"phase": Phase(Picard(0.7), FixedSteps(5), None)}
    with using(kernels):
        found = {"logits": model(text, phase=phase).logits}
        upstream = torch.linspace(-1, 1, found["logits"].numel(), device=device)
        (found["logits"].flatten() * upstream).sum().backward()
        found |= {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
        with torch.no_grad():
            first = model(text[:, :5], use_cache=True, **steps)
            second = model(text[:, 5:6], cache=first.cache, **steps)
            found |= {"first piece": first.logits, "second piece": second.logits}
            found["search"] = model(text, **steps).logits
    return {name: x.detach().cpu() for name, x in found.items()}, called


@pytest.mark.parametrize("name", ["native", pytest.param("fused", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["mamba2-implicit", "mamba2-explicit", "llama-implicit", "llama-explicit"]
)
def test_a_model_is_the_same_with_all_kernels(kind: str, name: str) -> None:
    phase = bounded_phase(2) if kind.endswith("-implicit") else None
    kernels = named(name)
    expected, _ = outcome(reference_kernels(), kind, phase)
    found, called = outcome(kernels, kind, phase)
    mixing = {"mix", "advance"} if kind.startswith("mamba2") else {"causal_attention", "swiglu"}
    assert called >= mixing | {"rms_norm"}
    assert "normed_update" in called or phase is None
    assert found.keys() == expected.keys()
    for part, one in found.items():
        size = expected[part].abs().max().item()
        torch.testing.assert_close(
            one,
            expected[part],
            rtol=1e-4,
            atol=1e-4 * size,
            msg=lambda m, part=part: f"{part}: {m}",
        )


def test_kernels_in_c_are_made_once() -> None:
    assert named("native") is native_kernels()
