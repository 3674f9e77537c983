"""Results on a corpus and on the downstream tasks as the stages would leave them, made up."""

import json
from pathlib import Path

import numpy as np

from implicit_models.problems.downstream.parameters import BenchmarkParameters
from tests.reporting.synthetic import explicit_entry, implicit_entry, seal, write_rows

LENGTHS = (256, 512, 1024, 2048)
IMPLICIT = ("novels_implicit_mamba2", "novels_implicit_mamba2_seed1")
EXPLICIT = ("novels_mamba2",)
MATCHED = ("novels_mamba2_same_flops",)
_NAMES = (*IMPLICIT, *EXPLICIT, *MATCHED)
BENCHMARKS = {
    "downstream_implicit": "models/novels_implicit_mamba2/final",
    "downstream_llama": "conf/models/llama_tiny",
}
NUM_PARAMETERS = dict(zip(_NAMES, (1_000_000,) * 3 + (500_000,), strict=True))
FLOPS = {  # of the stages of training
    **dict.fromkeys(IMPLICIT, {"train_bounded": 2e14, "train_free": 8e14}),
    EXPLICIT[0]: {"train_baseline": 2.5e14},
    MATCHED[0]: {"train_baseline": 1.02e15},
}
NATS = dict(zip(_NAMES, (1.40, 1.42, 1.55, 1.47), strict=True))  # per token
TEXT = 'It was the best of times, it was "the worst" — of $times$:\r\n\tthe age of wisdom \u4e16. '
TASKS = ("LAMBADA", "HellaSwag", "PIQA", "ARC-E", "ARC-C", "WinoGrande", "OpenbookQA")


def text_parameters(corpus: str = "novels") -> dict:
    """Return the content of a params.yaml of text alone."""
    implicit, explicit = implicit_entry(corpus, length=256), explicit_entry(corpus, length=256)
    match = {"run": IMPLICIT[0], "vary": "steps"}
    return {
        "datasets": {},
        "corpora": {corpus: {"source": "text", "tokenizer": "bytes", "sequence_length": 256}},
        "runs": {name: {**implicit, "seed": seed} for seed, name in enumerate(IMPLICIT)},
        "baselines": dict.fromkeys(EXPLICIT, explicit),
        "matched": {name: {**explicit, "match": match} for name in MATCHED},
        "benchmarks": {name: {"model": m, "tasks": "seven"} for name, m in BENCHMARKS.items()},
    }


def text_benchmarks() -> dict[str, BenchmarkParameters]:
    """Return the entries of the table ``benchmarks``."""
    entries = text_parameters()["benchmarks"]
    return {name: BenchmarkParameters(**entry) for name, entry in entries.items()}


def write_text_results(root: Path) -> None:
    """Write ``results/runs`` below ``root``."""
    for name in (*IMPLICIT, *EXPLICIT, *MATCHED):
        _write(root, name, _files(name, is_implicit=name in IMPLICIT))
    for name, model in BENCHMARKS.items():
        _write(root, name, {"benchmarks.json": json.dumps(_benchmark(model))})


def _write(root: Path, name: str, files: dict[str, str]) -> None:
    folder = root / "results" / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_bytes(text.encode())
    seal(folder)


def perplexity(name: str, position: np.ndarray) -> np.ndarray:
    """Return the perplexity at a position: explicit models get worse past the training length."""
    nats = NATS[name] + 1.5 / np.sqrt(position)
    if name not in IMPLICIT:
        nats = nats + 0.9 * np.log2(np.maximum(position / 256, 1.0))
    return np.exp(nats)


def _files(name: str, *, is_implicit: bool) -> dict[str, str]:
    generator = np.random.default_rng(len(name))
    positions = {n: [p for p in (1, 4, 16, 64, *LENGTHS) if p <= n] for n in LENGTHS}
    by_position = {n: perplexity(name, np.array(found)) for n, found in positions.items()}
    evaluation = {
        "data": "text",
        "kind": "implicit" if is_implicit else "explicit",
        "num_parameters": NUM_PARAMETERS[name],
        "perplexity": _scores(NATS[name], 100_000, 12),
        "domains": {
            "dickens": _scores(NATS[name] - 0.1, 60_000, 8),
            "letters": _scores(NATS[name] + 0.15, 40_000, 4),
        },
        "length_extrapolation": {
            str(n): {
                "perplexity": float(values.mean()),
                "standard_error": 0.05,
                "perplexity_last": float(values[-1]),
                "num_sequences": 16,
                "num_tokens": 16 * n,
            }
            for n, values in by_position.items()
        },
        "self_iterations": {"mean": 9.25, "p50": 8.0, "p95": 17.0} if is_implicit else None,
        "evaluations_per_token": 11.75 if is_implicit else None,
        "share_converged": 0.9987 if is_implicit else None,
        "cost": {
            "flops": 1e12,
            "flops_per_token": 1.25e7 if is_implicit else 2e6,
            "seconds": 8.0,
            "tokens_per_second": 12_500.0,
            "peak_memory_bytes": 600 * 2**20,
            "energy_joules": None,
        },
        "tokens": _shown_tokens(generator, is_implicit=is_implicit),
    }
    files = {
        "evaluation.json": json.dumps(evaluation),
        "evaluation_by_position.csv": write_rows(
            [
                {"length": n, "position": p, "perplexity": float(value)}
                for n, found in positions.items()
                for p, value in zip(found, by_position[n], strict=True)
            ]
        ),
    }
    if is_implicit:
        files["test_time_compute.json"] = json.dumps(_sweep(name))
    return files | _training(name, generator)


def _scores(nats: float, num_tokens: int, num_documents: int) -> dict:
    return {
        "perplexity": float(np.exp(nats)),
        "standard_error": 0.021,
        "nats_per_token": nats,
        "bits_per_byte": nats / float(np.log(2)),
        "num_tokens": num_tokens,
        "num_documents": num_documents,
        "num_bytes": num_tokens,
        "context_length": 256,
        "stride": 128,
        "num_cut_documents": 0,
        "num_documents_in_all": num_documents,
        "max_tokens": None,
        "bootstrap": "documents",
    }


def _shown_tokens(generator: np.random.Generator, *, is_implicit: bool) -> list[dict]:
    """Return bytes one by one; a byte that is not a character decodes to the replacement sign."""
    text = [bytes([byte]).decode("utf-8", errors="replace") for byte in (3 * TEXT).encode()]
    is_hard = np.array([letter in " \n" for letter in [" ", *text[:-1]]])
    nats = np.where(is_hard, 2.4, 0.7) * generator.uniform(0.5, 1.5, len(text))
    return [
        {
            "position": position,
            "token": ord(letter) % 256,
            "text": letter,
            "nats": float(nats[position - 1]),
            "self_iterations": int(4 + 5 * nats[position - 1]) if is_implicit else None,
        }
        for position, letter in enumerate(text, start=1)
    ]


def _sweep(name: str) -> dict:
    modes = {"window": (1.6, 1.0), "simultaneous": (1.0, 1.5), "sequential": (0.9, 0.9)}
    return {
        "length": 256,
        "num_sequences": 16,
        "self_iterations": [
            {
                "self_iterations": n,
                "perplexity": float(np.exp(NATS[name] + 3.0 / n**1.5)),
                "standard_error": 0.03,
                "relative_residual": 1.2 * float(np.exp(-n / 6)) if n > 1 else None,
                "seconds": 0.02 * n,
            }
            for n in (1, 2, 4, 8, 16, 32)
        ],
        "tolerance": [
            {
                "tolerance": tolerance,
                "mode": mode,
                "perplexity": float(np.exp(NATS[name] + 0.4 * tolerance * offset)),
                "standard_error": 0.03,
                "relative_residual": 0.8 * tolerance,
                "self_iterations": {"mean": 8.5, "p50": 8.0, "p95": 12.0},
                "evaluations_per_token": {
                    "mean": factor * (6 - 4 * np.log10(tolerance)),
                    "p50": 8.0,
                    "p95": 12.0,
                },
                "share_converged": 0.995,
                **({} if mode == "simultaneous" else {"token_match": 0.9766}),  # as before it was
                "seconds": 1.5,
            }
            for tolerance in (0.3, 0.1, 0.05, 0.01)
            for mode, (offset, factor) in modes.items()
        ],
    }


def _training(name: str, generator: np.random.Generator) -> dict[str, str]:
    files, step, flops, tokens = {}, 0, 0.0, 0
    for stage, cost in FLOPS[name].items():
        num_steps = {"train_bounded": 200, "train_free": 100}.get(stage, 300)
        first = step
        rows = []
        for _ in range(num_steps // 10):
            step, flops, tokens = step + 10, flops + cost / (num_steps // 10), tokens + 20_480
            loss = NATS[name] + 3.0 * float(np.exp(-step / 60))
            validation = {"validation_loss": loss if step % 50 == 0 else ""}
            rows.append(
                {
                    "step": step,
                    "phase": stage.removeprefix("train_"),
                    "loss": loss * float(np.exp(generator.normal(0, 0.03))),
                    "self_iterations": {"train_bounded": 5, "train_free": 11.5}.get(stage, ""),
                    **validation,
                    "tokens": tokens,
                    "training_flops": flops,
                    "seconds": 0.2 * (step - first),
                }
            )
        summary = {
            "num_tokens": 20_480 * len(rows),
            "training_flops": cost,
            "train_seconds": 0.2 * num_steps,
            "tokens_per_second": 20_480 * len(rows) / (0.2 * num_steps),
            "num_training_steps": num_steps,
            "peak_memory_bytes": 700 * 2**20 if stage != "train_free" else 900 * 2**20,
            "energy_joules": 2500.0,
        }
        files[f"{stage}.json"] = json.dumps(summary)
        files[f"{stage}_history.csv"] = write_rows(rows)
    return files


def _benchmark(model: str) -> dict:
    """Return one of our models without a counterpart in the paper, or one of the paper's size."""
    is_ours = model.startswith("models/")
    scores = {task: 0.25 + 0.05 * index for index, task in enumerate(TASKS)}
    row = {"LAMBADA ppl": 41.5, **scores, "average": float(np.mean(list(scores.values())))}
    published = {
        "D-Pile ppl": 7.99,
        "LAMBADA ppl": 4.95,
        **dict(zip(TASKS, (0.6569, 0.5936, 0.7432, 0.6385, 0.3217, 0.6062, 0.352), strict=True)),
        "average": 0.5589,
    }
    return {
        "model": model,
        "entry": model.split("/")[1] if is_ours else None,
        "kind": "implicit" if is_ours else "explicit",
        "family": "mamba2" if is_ours else "llama",
        "num_parameters": 1_000_000 if is_ours else 1_300_000_000,
        "num_non_embedding_parameters": 900_000,
        "row": row if is_ours else {**row, "PIQA": None, "average": None},
        "standard_errors": dict.fromkeys(row, 0.012),
        "num_items": dict.fromkeys(TASKS, 5153),
        "limit": None,
        "max_length": 2048,
        "published": [] if is_ours else [{"model": "Llama 1.3B", "row": published}],
        "cost": {"seconds": 312.5, "flops": 1e15},
    }
