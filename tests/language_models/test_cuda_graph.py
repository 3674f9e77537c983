"""An iteration as a CUDA graph gives what the iteration gives."""

import pytest
import torch

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.kernels import cuda_graph
from implicit_models.kernels.cuda_graph import GraphedCallable
from tests.language_models.kinds import model_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    def ask(value: str) -> None:
        monkeypatch.setenv(cuda_graph.VARIABLE, value)
        cuda_graph._is_asked_for.cache_clear()

    yield ask
    cuda_graph._is_asked_for.cache_clear()


def test_a_graph_is_captured_once_and_its_results_are_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[int] = []

    def double(inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        runs.append(1)
        return (2 * inputs,)

    def capture(self: GraphedCallable, inputs: torch.Tensor) -> object:
        self._inputs, self._outputs = inputs.clone(), double(inputs)

        class Graph:
            def replay(graph) -> None:
                self._outputs[0].copy_(2 * self._inputs)

        return Graph()

    monkeypatch.setattr(GraphedCallable, "_capture", capture)
    graphed = GraphedCallable(double)
    found = [graphed(torch.tensor([float(number)]))[0] for number in range(5)]
    assert torch.cat(found).tolist() == [0, 2, 4, 6, 8]
    assert len(runs) == 2  # once to warm up, once to capture


def test_only_cuda_is_captured_and_only_where_asked(asked) -> None:
    asked("1")
    assert cuda_graph.uses_cuda_graphs(torch.device("cuda")) and not cuda_graph.uses_cuda_graphs(
        torch.device("cpu")
    )
    asked("0")
    assert not cuda_graph.uses_cuda_graphs(torch.device("cuda"))
    asked("yes")
    with pytest.raises(ValueError, match="IMPLICIT_MODELS_CUDA_GRAPHS is 'yes'; allowed are 0"):
        cuda_graph.uses_cuda_graphs(torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")
@pytest.mark.parametrize("kind", ["mamba2-implicit", "llama-implicit"])
def test_a_captured_search_is_the_search(kind: str, asked) -> None:
    model = model_of(kind).cuda()
    text = torch.randint(0, 8, (4, 33), device="cuda")
    found = []
    for value in ("0", "1"):
        asked(value)
        with torch.no_grad():
            cell, start = model.trunk.cell(text)
            found.append(find_fixed_point(cell, start, Picard(0.8), ResidualBelow(1e-4, 64)))
    torch.testing.assert_close(found[1].value, found[0].value, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[1].steps, found[0].steps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")
def test_graphs_take_turns_in_one_memory() -> None:
    weight = torch.randn(512, 512, device="cuda", dtype=torch.float64)
    reserved = []
    for num_rows in (4096, 1024, 2048, 4096) * 3:  # of other sizes, as searches are
        inputs = torch.randn(num_rows, 512, device="cuda", dtype=torch.float64)
        graphed = GraphedCallable(lambda x: (x @ weight + 1,))
        for _ in range(3):
            torch.testing.assert_close(graphed(inputs)[0], inputs @ weight + 1)
        del graphed  # its memory is that of the next
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[4:]) == reserved[3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")
def test_two_graphs_at_once_leave_each_other_alone() -> None:
    """What one computes in between lies where the other's results are."""
    inputs = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    first, second = (
        GraphedCallable(lambda x: ((x + 1).square(),)),
        GraphedCallable(lambda x: (x + 2,)),
    )
    for _ in range(4):
        squares, sums = first(inputs)[0], second(inputs)[0]
        again = first(inputs)[0]
        torch.testing.assert_close(sums, inputs + 2)
        torch.testing.assert_close([squares, again], [(inputs + 1).square()] * 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")
def test_a_capture_that_fails_says_why_and_leaves_the_next_alone() -> None:
    inputs = torch.ones(8, device="cuda")
    waiting = GraphedCallable(lambda x: (x * x.sum().item(),))
    waiting(inputs)
    with pytest.raises(RuntimeError):
        waiting(inputs)  # it asks the host, which a capture does not allow
    graphed = GraphedCallable(lambda x: (x + 1,))
    for _ in range(3):
        assert graphed(inputs)[0].tolist() == [2.0] * 8
