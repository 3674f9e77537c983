"""Mamba2 on a CPU against transformers' PyTorch path, and each kernel against its twins.

The models are explicit and have the same weights; a forward pass keeps no graph and no cache.
transformers' chunk is the faster of those tried, in each case. The matrix products alone are all
that the reference makes, those of the scan included, with the chunk that makes them fastest, made
again in the same process; those of the projections and the head are timed by themselves as well.
"""

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import harness
from benchmarks.matrix_products import MatrixProducts
from implicit_models.families.conversion import to_transformers
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.kernels.dispatch import (
    Kernels,
    compiled_kernels,
    native_kernels,
    reference_kernels,
    using,
)
from implicit_models.kernels.linear import linear
from implicit_models.kernels.mixer import MixerSettings, MixerWeights

BATCH, LENGTHS, CHUNKS = 8, (64, 256, 1024), (64, 256)
PRODUCT_CHUNKS = (16, 32, 64)
WIDTH, STATE, HEAD, LAYERS, VOCABULARY = 256, 64, 64, 2, 512
# At least so many times transformers' float32 speed, and at most so many times the products alone.
FASTER, FASTER_IN_BFLOAT16, OVER_PRODUCTS = 1.8, 2.5, 1.6


def run(quick: bool) -> harness.Report:
    """Measure all parts."""
    rows: list[dict[str, Any]] = []
    bars: dict[str, harness.Bar] = {}
    repeats = 2 if quick else 15
    for length in LENGTHS[:1] if quick else LENGTHS:
        found, judged = _models(length, repeats if length < 1000 else min(repeats, 9))
        rows += found
        bars |= judged
    rows += _kernels(repeats)
    rows += _few_rows(repeats)
    rows += _cold_starts()
    return harness.Report(rows, bars)


def _models(length: int, repeats: int) -> tuple[list[dict[str, Any]], dict[str, harness.Bar]]:
    """Compare whole models at one length."""
    ours = ImplicitMamba2ForCausalLM(
        ImplicitMamba2Config(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            state_size=STATE,
            head_dim=HEAD,
            num_hidden_layers=LAYERS,
            implicit=False,
        )
    )
    ours.initialise(0)
    theirs = {chunk: _with_chunk(to_transformers(ours), chunk) for chunk in CHUNKS}
    models = {
        ("ours", "float32"): ours,
        ("ours", "bfloat16"): _rough(ours),
        **{(f"transformers, chunk {c}", "float32"): model for c, model in theirs.items()},
        **{(f"transformers, chunk {c}", "bfloat16"): _rough(model) for c, model in theirs.items()},
    }
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (BATCH, length), generator=draw)
    rows: list[dict[str, Any]] = []
    bars: dict[str, harness.Bar] = {}
    for name, make in (("forward", _forward), ("forward + backward", _both)):
        calls = {key: make(model, tokens) for key, model in models.items()}
        for chunk in PRODUCT_CHUNKS:
            with using(reference_kernels()), MatrixProducts() as products:
                make(_with_scan_chunk(ours, chunk), tokens)()
            calls[f"products alone, chunk {chunk}", "float32"] = products.replay()
        with MatrixProducts() as products:
            make(ours, tokens)()
        calls["products of the projections alone", "float32"] = products.replay()
        calls["ours, reference kernels", "float32"] = _with_reference(make(ours, tokens))
        seconds = harness.interleaved(calls, repeats)
        for (model, dtype), time_ in seconds.items():
            rows.append(
                {
                    "part": name,
                    "length": length,
                    "model": model,
                    "dtype": dtype,
                    "milliseconds": time_ * 1e3,
                    "tokens_per_second": BATCH * length / time_,
                }
            )
        theirs_best = min(
            time_ for (model, dtype), time_ in seconds.items()
            if model.startswith("transformers") and dtype == "float32"
        )  # fmt: skip
        precise, rough = seconds["ours", "float32"], seconds["ours", "bfloat16"]
        bars |= {
            f"{name}, {length}: float32, times transformers' speed": harness.at_least(
                theirs_best / precise, FASTER
            ),
            f"{name}, {length}: bfloat16, times transformers' float32 speed": harness.at_least(
                theirs_best / rough, FASTER_IN_BFLOAT16
            ),
            f"{name}, {length}: time over its matrix products alone": harness.at_most(
                precise
                / min(seconds[f"products alone, chunk {c}", "float32"] for c in PRODUCT_CHUNKS),
                OVER_PRODUCTS,
            ),
        }
    rows += _errors(models, tokens)
    return rows, bars


def _errors(models: Mapping[tuple[str, str], Any], tokens: Tensor) -> list[dict[str, Any]]:
    """Return bfloat16's relative error of the logits, and of all gradients together."""
    found = []
    for name in ("ours", f"transformers, chunk {CHUNKS[0]}"):
        outputs = []
        for dtype in ("float32", "bfloat16"):
            model = models[name, dtype]
            model.zero_grad()
            output = model(tokens, labels=tokens, use_cache=False)
            output.loss.backward()
            gradients = [parameter.grad.float().flatten() for parameter in model.parameters()]
            outputs.append((output.logits.detach().float(), torch.cat(gradients)))
        row: dict[str, Any] = {"part": "bfloat16's error", "length": tokens.shape[1], "model": name}
        for kind, exact, rough in zip(("logits", "gradients"), *outputs, strict=True):
            row[f"{kind}_error"] = ((rough - exact).norm() / exact.norm()).item()
        found.append(row)
    return found


def _kernels(repeats: int) -> list[dict[str, Any]]:
    """Time each implementation of the mixer and the norm, alone, on 2,048 tokens."""
    heads = 2 * WIDTH // HEAD
    inner, channels = heads * HEAD, heads * HEAD + 2 * STATE
    draw = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw).requires_grad_()

    projected = normal(BATCH, 256, inner + channels + heads)
    weights = MixerWeights(
        normal(channels, 4), normal(channels), normal(heads), -normal(heads).detach().exp(),
        normal(heads), normal(inner),
    )  # fmt: skip
    hidden, weight = normal(BATCH, 256, WIDTH), normal(WIDTH)

    def mix(kernels: Kernels) -> Tensor:
        return kernels.mix(projected, weights, MixerSettings(1, 1e-5), None, None)

    def norm(kernels: Kernels) -> Tensor:
        return kernels.rms_norm(hidden, weight, 1e-5)

    rows = []
    for name, kernel, leaves in (
        ("mixer", mix, [x for x in (projected, *weights) if x.requires_grad]),
        ("norm", norm, [hidden, weight]),
    ):
        outgoing = torch.randn(kernel(reference_kernels()).shape, generator=draw)
        calls: dict[tuple[str, str], Callable[[], Any]] = {}
        for kernels in (reference_kernels(), compiled_kernels(), native_kernels()):

            def forward(kernel=kernel, kernels=kernels) -> Any:
                with torch.no_grad():
                    return kernel(kernels)

            def both(kernel=kernel, kernels=kernels, leaves=leaves, outgoing=outgoing) -> Any:
                return torch.autograd.grad(kernel(kernels), leaves, outgoing)

            calls["forward", kernels.name] = forward
            calls["forward + backward", kernels.name] = both
        for (part, kernels_name), seconds in harness.interleaved(calls, repeats).items():
            rows.append(
                {
                    "part": f"{name} alone, {part}",
                    "length": 256,
                    "model": kernels_name,
                    "dtype": "float32",
                    "milliseconds": seconds * 1e3,
                }
            )
    return rows


def _few_rows(repeats: int) -> list[dict[str, Any]]:
    """Measure how fast products of few rows read weights that no cache holds."""
    rows = []
    for outputs, inputs in ((1408, 512), (512, 1408), (512, 512), (8192, 512)):
        weights = [torch.randn(outputs, inputs) for _ in range(max(4, 2**25 // outputs // inputs))]
        gigabytes = len(weights) * outputs * inputs * 4 / 1e9
        for num_rows in (1, 2, 4, 8):
            tokens = torch.randn(num_rows, inputs)

            def all_of(function: Callable[..., Any], weights=weights, tokens=tokens) -> Any:
                with torch.no_grad():
                    return [function(tokens, weight) for weight in weights]

            calls = {
                "torch's linear": lambda all_of=all_of: all_of(F.linear),
                "ours": lambda all_of=all_of: all_of(linear),
            }
            for name, seconds in harness.interleaved(calls, repeats).items():
                rows.append(
                    {
                        "part": f"{num_rows} rows times {outputs} x {inputs}",
                        "model": name,
                        "dtype": "float32",
                        "gigabytes_per_second": gigabytes / seconds,
                    }
                )
    return rows


def _cold_starts() -> list[dict[str, Any]]:
    """Time compilation from nothing, each in a process of its own."""
    programs = {
        "native": "from implicit_models.kernels.native.library import library; library()",
        "compiled": (
            "import torch; from implicit_models.kernels import reference;"
            "x, w = torch.randn(2, 9, 8, requires_grad=True), torch.randn(8);"
            "torch.compile(reference.gated_rms_norm, dynamic=True)(x, x, w, 1e-5).sum().backward()"
        ),
    }
    rows = []
    for name, program in programs.items():
        timed = (
            "import time, torch, implicit_models.kernels.dispatch; start = time.perf_counter();"
            f"{program}; print(time.perf_counter() - start)"
        )
        with tempfile.TemporaryDirectory() as folder:
            caches = {"XDG_CACHE_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
            for cache in ("cold", "warm"):
                command = [sys.executable, "-c", timed]
                output = subprocess.run(
                    command, check=True, capture_output=True, text=True, env=os.environ | caches
                )
                seconds = float(output.stdout.split()[-1])
                rows.append({"part": f"{cache} start", "model": name, "seconds": seconds})
    return rows


def _forward(model: Any, tokens: Tensor) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            model(tokens, use_cache=False)

    return call


def _both(model: Any, tokens: Tensor) -> Callable[[], None]:
    def call() -> None:
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()

    return call


def _rough(model: Any) -> Any:
    return copy.deepcopy(model).to(torch.bfloat16)


def _with_reference(call: Callable[[], None]) -> Callable[[], None]:
    def referred() -> None:
        with using(reference_kernels()):
            call()

    return referred


def _with_scan_chunk(model: ImplicitMamba2ForCausalLM, chunk: int) -> Any:
    """Return a copy of a model whose scan has chunks of so many tokens."""
    settings = model.config.to_dict() | {"chunk_size": chunk}
    copied = ImplicitMamba2ForCausalLM(ImplicitMamba2Config.from_dict(settings))
    copied.load_state_dict(model.state_dict())
    return copied


def _with_chunk(model: Any, chunk: int) -> Any:
    model.config.chunk_size = chunk
    for module in model.modules():
        if hasattr(module, "chunk_size"):
            module.chunk_size = chunk
    return model


if __name__ == "__main__":
    sys.exit(harness.main("kernels", run, packages=("torch", "transformers")))
