"""What a training is planned to take, against what it takes."""

import dataclasses
import gc
import itertools
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from implicit_models.cost.flops import configuration_flops
from implicit_models.cost.passes import step_flops
from implicit_models.equilibrium.gradients import ImplicitFunction
from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM
from implicit_models.families.mamba2 import family as mamba2
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.families.sizes import count_parameters, from_size
from implicit_models.kernels.dispatch import Kernels, fused_kernels, reference_kernels, using
from implicit_models.language_models import losses
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.planning import activations
from implicit_models.planning.activations import kept_bytes
from implicit_models.planning.plans import (
    CHECKPOINTING,
    RUNTIME_BYTES,
    USABLE_PART,
    Layout,
    MemoryPlan,
    fitting_layouts,
    most_evaluations,
    plan_memory,
    plan_storage,
    plan_training,
)
from implicit_models.training.precision import InPrecision
from implicit_models.training.progress import Progress
from implicit_models.training.state_file import save_state
from tests.kernels.interpreter import do_no_more_than_is_needed

VOCABULARY = 60
FAMILIES = ("mamba2", "llama")
PHASES: dict[str, Phase | None] = {
    "explicit": None,
    "unrolled": bounded_phase(2),
    "4+1": bounded_phase(4, 1, 0.8),
    "free": free_phase(0.05, 2, 2, 0.8),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIZES = {"mamba2": (1, 16), "llama": (2, 24)}  # sequences, and tokens of each
LARGE = from_size("mamba2-1.3b")


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    """The kernels that a GPU runs, here under Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton is there on Linux only")
    do_no_more_than_is_needed()
    return fused_kernels()


def configuration(family: str, phase: Phase | None, **changes: Any) -> ImplicitConfig:
    common = {
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 2,
        "implicit": phase is not None,
    } | changes
    if family == "mamba2":  # of few heads: Triton's interpreter takes its time for each
        sizes = {"hidden_size": 16, "state_size": 16, "head_dim": 16}
        return ImplicitMamba2Config(**(sizes | common))
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 96}
    return ImplicitLlamaConfig(**(sizes | common))


def model_of(config: ImplicitConfig, checkpointing: str = "none") -> ImplicitForCausalLM:
    is_llama = isinstance(config, ImplicitLlamaConfig)
    model = (ImplicitLlamaForCausalLM if is_llama else ImplicitMamba2ForCausalLM)(config)
    model.initialise(0)
    model.model.gradient_checkpointing = checkpointing == "blocks"
    return model.train()


def checkpointed(phase: Phase | None, checkpointing: str) -> Phase | None:
    if phase is None or checkpointing != "iterations":
        return phase
    gradient: Any = phase.gradient
    return dataclasses.replace(phase, gradient=dataclasses.replace(gradient, checkpointing=True))


def bytes_kept(model: ImplicitForCausalLM, tokens: torch.Tensor, phase: Phase | None) -> int:
    """The bytes that autograd really keeps of a forward pass, weights left out."""
    kept: dict[int, int] = {}
    alive = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(tokens, phase=phase)
    assert output.logits.requires_grad
    return sum(size for place, size in kept.items() if place not in weights)


CASES = [
    (family, name, checkpointing)
    for family, name, checkpointing in itertools.product(FAMILIES, PHASES, CHECKPOINTING)
    if PHASES[name] is not None or checkpointing != "iterations"
]


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("family", "name", "checkpointing"), CASES)
def test_what_is_kept_for_the_backward_pass(
    family: str, name: str, checkpointing: str, precision: str, kernels: Kernels
) -> None:
    phase, tokens = PHASES[name], torch.randint(0, VOCABULARY, SIZES[family])
    config = configuration(family, phase)
    model = model_of(config, checkpointing).to(DTYPES[precision])
    with using(kernels):
        found = bytes_kept(model, tokens, checkpointed(phase, checkpointing))
    kept = {"tokens": tokens.numel(), "precision": precision, "checkpointing": checkpointing}
    planned = kept_bytes(config, phase, **kept)
    if phase is not None and checkpointing == "blocks":
        # Each block keeps the injection, which the plan counts apart.
        planned += injection_bytes(config, tokens.numel(), precision)
    assert planned == pytest.approx(found, rel=0.03)


def injection_bytes(config: ImplicitConfig, tokens: int, precision: str) -> int:
    width = configuration_flops(config).injection // (2 * config.hidden_size)
    return tokens * width * DTYPES[precision].itemsize


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_normalised_weights_are_kept_as_well(family: str, precision: str, kernels: Kernels) -> None:
    tokens = torch.randint(0, VOCABULARY, (1, 16))
    found, counts, planned = [], [], []
    for normalised in (False, True):
        config = configuration(family, PHASES["unrolled"], weight_normalisation=normalised)
        model = model_of(config).to(DTYPES[precision])
        with using(kernels):
            found.append(bytes_kept(model, tokens, PHASES["unrolled"]))
        planned.append(memory_of(config, PHASES["unrolled"], precision=precision).normalised)
        counts.append(count_parameters(config).total)
    # Besides, each row's length, and its scale over that length.
    rows = 2 * DTYPES[precision].itemsize * (counts[1] - counts[0])
    assert planned == [0, found[1] - found[0] - rows]


def memory_of(config: ImplicitConfig, phase: Phase | None, **changes: Any) -> MemoryPlan:
    given = {"length": 16, "batch_size": 8, "precision": "float32", "layout": Layout()}
    return plan_memory(config, phase, **(given | changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name", "checkpointing"),
    [
        ("mamba2", "free", "none"),
        *(case for case in CASES if case[0] == "llama" and case[1] in ("explicit", "free")),
    ],
)
def test_the_peak_of_a_training_step(
    family: str, name: str, checkpointing: str, kernels: Kernels
) -> None:
    """A step in two parts with AdamW; all that torch allocates, from the model on."""
    phase = PHASES[name]
    sequences, length = SIZES[family]
    sizes = {"batch_size": 2 * sequences, "length": length}
    layout = Layout(micro_batch=sequences, checkpointing=checkpointing)
    config = configuration(family, phase)

    def train(precision: str) -> None:
        module = InPrecision(model_of(config, checkpointing), precision)
        optimiser = torch.optim.AdamW(module.parameters(), fused=True)
        for weight in module.parameters():
            weight.grad = torch.zeros_like(weight)
        optimiser.step()  # which makes its state, as the steps before have
        optimiser.zero_grad(set_to_none=True)
        searches = []
        for _ in range(2):
            ids = torch.randint(0, VOCABULARY, SIZES[family])
            output = module(
                input_ids=ids,
                use_cache=False,
                targets=ids,
                num_items_in_batch=2 * ids.numel(),
                phase=checkpointed(phase, checkpointing),
            )
            output.loss.backward()
            searches.append(output.search)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()

    for precision in DTYPES:
        with using(kernels):
            found = peak_of(train, precision)
        planned = plan_memory(config, phase, precision=precision, layout=layout, **sizes)
        # An upper bound: what is added up is not all there at the same moment.
        assert 1.0 <= (planned.peak - planned.runtime) / found < 1.3


class Allocated(TorchDispatchMode):
    """Adds up the tensors that are there at once, of all that are made in its context."""

    def __init__(self) -> None:
        super().__init__()
        self.present = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return made

    def add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.present += storage.nbytes()
            weakref.finalize(storage, self.remove, storage._cdata, storage.nbytes())
            if self.present > self.most:
                gc.collect()  # what nothing reaches but itself is not there, whenever Python looks
                self.most = max(self.most, self.present)

    def remove(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.present -= size


def peak_of(work: Callable[[str], None], precision: str) -> int:
    """Return the most that is there at once; what Triton's interpreter leaves in circles is not."""
    gc.freeze()  # what was there before is not looked through, again and again
    try:
        with Allocated() as allocated:
            work(precision)
    finally:
        gc.unfreeze()
    return allocated.most


@pytest.mark.parametrize("name", ["explicit", "free"])
def test_a_step_leaves_nothing_in_circles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton's interpreter has no part, the peak is the same if nobody collects."""
    config = configuration("llama", PHASES[name])
    ids = torch.randint(0, VOCABULARY, SIZES["llama"])

    def train(precision: str) -> None:
        model = InPrecision(model_of(config), precision)
        with using(reference_kernels()):
            model(input_ids=ids, use_cache=False, targets=ids, phase=PHASES[name]).loss.backward()

    collected = peak_of(train, "float32")
    monkeypatch.setattr(gc, "collect", lambda: 0)
    gc.disable()
    try:
        assert peak_of(train, "float32") == collected
    finally:
        gc.enable()


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("name", ["explicit", "free"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_files_are_those_of_a_real_model(
    family: str, name: str, normalised: bool, tmp_path: Path
) -> None:
    config = configuration(family, PHASES[name], weight_normalisation=normalised)
    model = model_of(config)
    count = sum(weight.numel() for weight in model.parameters())
    memory = memory_of(config, PHASES[name], precision="bfloat16")
    assert memory.weights == memory.gradients == 2 * memory.copies == 4 * count
    assert memory.moments == 8 * count

    optimiser = torch.optim.AdamW(model.parameters())
    with using(reference_kernels()):
        model(torch.ones(1, 3, dtype=torch.long), phase=PHASES[name]).logits.sum().backward()
    optimiser.step()
    storage = plan_storage(config)
    save_state(tmp_path / "state.safetensors", model, optimiser, Progress(1))
    model.save_pretrained(tmp_path / "model")
    written = {
        "state.safetensors": storage.checkpoint,
        "model/model.safetensors": storage.model,
    }
    for path, planned in written.items():
        size = (tmp_path / path).stat().st_size
        header = int.from_bytes((tmp_path / path).read_bytes()[:8], "little") + 8
        state = len(torch.get_rng_state()) + 4 * len(list(model.parameters()))
        assert planned <= size <= planned + header + state


@pytest.mark.parametrize("width", [1, 4, 40])
@torch.no_grad()
def test_no_token_is_evaluated_more_often_than_is_planned(width: int) -> None:
    phase, length = search_phase(1e-12, 6, 0.8, Window(width, 2)), 24
    model = model_of(configuration("mamba2", phase)).eval()
    text = torch.randint(0, model.config.vocab_size, (3, length))
    found = model(text, phase=phase).self_iterations
    assert found.max() <= most_evaluations(phase, length) + phase.num_following
    if 1 < width < length:
        assert found.max() > 3 * phase.stopping.max_steps


def test_the_flops_are_those_of_the_steps() -> None:
    lengths, free = [16, 24, 16, 8], PHASES["free"]
    for family, (name, phase), checkpointing in itertools.product(
        FAMILIES, PHASES.items(), CHECKPOINTING
    ):
        config = configuration(family, phase)
        most = 0 if phase is None else phase.stopping.max_steps
        plan = plan_training(
            config,
            phase,
            lengths=iter(lengths),
            batch_size=6,
            precision="bfloat16",
            layout=Layout(num_gpus=2, checkpointing=checkpointing),
            expected_evaluations=1.5,
        )
        for found, evaluations in ((plan.flops, min(most, 1.5)), (plan.flops_at_most, most)):
            expected = sum(
                step_flops(
                    configuration_flops(config),
                    checkpointed(phase, checkpointing),
                    length=length,
                    num_sequences=6,
                    search_evaluations=evaluations * 6 * length,
                    checkpointing=checkpointing == "blocks",
                )
                for length in lengths
            )
            assert found == pytest.approx(expected, rel=1e-12), (family, name)
        assert (plan.flops < plan.flops_at_most) == (most > 1.5)
        assert (plan.num_steps, plan.num_tokens) == (4, 6 * sum(lengths))
    whole = plan_training(
        configuration("llama", free),
        free,
        lengths=lengths,
        batch_size=6,
        precision="float32",
        layout=Layout(),
    )
    assert whole.flops == whole.flops_at_most


def test_fsdp_holds_a_part_and_gathers_the_whole() -> None:
    alone = memory_of(LARGE, PHASES["free"])
    for num_gpus in (2, 8):
        layout = Layout(num_gpus=num_gpus, parallelism="fsdp", micro_batch=1)
        split = memory_of(LARGE, PHASES["free"], layout=layout)
        assert split.weights == pytest.approx(alone.weights / num_gpus, rel=1e-6)
        assert split.moments == pytest.approx(alone.moments / num_gpus, rel=1e-6)
        assert split.gathered == split.exchange == alone.weights
        assert split.gradients == alone.weights + split.weights
        layout = dataclasses.replace(layout, parallelism="ddp")
        replicated = memory_of(LARGE, PHASES["free"], layout=layout)
        assert replicated.weights == alone.weights and replicated.gathered == 0
    layouts = [Layout(num_gpus=8, parallelism=kind) for kind in ("ddp", "fsdp")]
    peaks = [
        memory_of(LARGE, PHASES["free"], layout=layout, length=2048, batch_size=64).peak
        for layout in layouts
    ]
    assert peaks[1] < peaks[0]
    # One GPU has nobody to share with.
    assert memory_of(LARGE, PHASES["free"], layout=Layout(parallelism="fsdp")) == alone


def test_the_peak_counts_the_largest_moment_alone() -> None:
    names = [field.name for field in dataclasses.fields(MemoryPlan)]
    for values in ((1, 2, 3, 4), (4, 3, 2, 1), (1, 4, 2, 3), (1, 2, 4, 3)):
        moments = dict(zip(("search", "loss", "backward", "exchange"), values, strict=True))
        plan = MemoryPlan(**(dict.fromkeys(names, 0) | moments))
        assert plan.peak == 4
    plan = MemoryPlan(**dict.fromkeys(names, 1))
    assert plan.peak == 11  # all but three of the four moments
    exchange = dataclasses.replace(plan, exchange=100)
    assert exchange.peak == 8 + 100  # neither injection nor activations are there any more
    assert plan.fits(11 / USABLE_PART) and not plan.fits(11)
    assert memory_of(LARGE, None).peak > RUNTIME_BYTES


@pytest.mark.parametrize("phase", [None, PHASES["free"]], ids=["explicit", "free"])
def test_the_layouts_to_try_begin_with_the_one_there_is(phase: Phase | None) -> None:
    first = Layout(num_gpus=4)
    found = list(fitting_layouts(first, 24, is_implicit=phase is not None))
    assert found[0] == dataclasses.replace(first, micro_batch=6)
    assert [layout.micro_batch for layout in found[:3]] == [6, 3, 1]
    assert len(set(found)) == len(found)
    assert {layout.num_gpus for layout in found} == {4, 8, 16}
    assert {layout.parallelism for layout in found} == {"ddp", "fsdp"}
    kinds = {layout.checkpointing for layout in found}
    assert kinds == set(CHECKPOINTING) - (set() if phase else {"iterations"})
    # Fewer sequences at once, and checkpointed blocks, never take more memory.
    config = LARGE if phase else from_size("mamba2-1.3b", implicit=False)
    sizes = {"length": 2048, "batch_size": 24, "precision": "bfloat16"}
    peaks = [memory_of(config, phase, layout=layout, **sizes).peak for layout in found[:3]]
    assert peaks == sorted(peaks, reverse=True)
    blocks = dataclasses.replace(found[0], checkpointing="blocks")
    assert memory_of(config, phase, layout=blocks, **sizes).peak < peaks[0]


def test_a_layout_shares_a_batch_out() -> None:
    assert Layout(num_gpus=3).at_once(8) == Layout(num_gpus=3).share(8) == 3
    assert Layout(num_gpus=3, micro_batch=2).at_once(8) == 2
    assert Layout(num_gpus=3, micro_batch=9).at_once(8) == 3


def test_what_cannot_be_planned_is_refused() -> None:
    gradient = ImplicitFunction(Picard(), ResidualBelow(1e-3, 10))
    for wrong in (None, gradient):
        phase = Phase(Picard(), ResidualBelow(0.1, 4), wrong)
        with pytest.raises(ValueError, match="as Unrolled and Phantom"):
            memory_of(LARGE, phase)
    with pytest.raises(ValueError, match="gpus = 9 is not allowed; .* at most one .*, 8"):
        plan_training(
            LARGE,
            None,
            lengths=[4],
            batch_size=8,
            precision="float32",
            layout=Layout(num_gpus=9),
        )


def test_constants_of_others_are_theirs() -> None:
    assert activations.TOKENS_AT_ONCE == losses._TOKENS_AT_ONCE
    assert activations.LOGITS_AT_ONCE == losses._LOGITS_AT_ONCE
    scan = pytest.importorskip("implicit_models.kernels.fused.scan", reason="needs Triton")
    assert mamba2.TRITON_CHUNK == scan.CHUNK_LENGTH
    assert os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available()
