"""Results as the stages would leave them, made up: what each number is can be computed here."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml

from implicit_models.checksums import SUFFIX, write_checksums
from implicit_models.reporting.tables.table import Table
from stages.entries import read_models

LENGTHS = (16, 32, 64, 128)
MAMBA2 = {"family": "mamba2", "num_layers": 1, "d_model": 8, "d_state": 4, "head_dim": 4}
NUM_STEPS = {"train_bounded": 200, "train_free": 800, "train_baseline": 1000}


def parameters() -> dict:
    """Return the content of a params.yaml."""
    implicit, explicit = implicit_entry("a5", length=16), explicit_entry("a5", length=16)
    runs = ("a5_implicit_mamba2", "a5_implicit_mamba2_seed1", "a5_implicit_mamba2_seed2")
    baselines = {
        "a5_mamba2_1_layer": MAMBA2,
        "a5_mamba2_4_layers": MAMBA2 | {"num_layers": 4},
        "a5_lstm": {"family": "lstm", "num_layers": 1, "d_model": 8, "hidden_size": 8},
    }
    return {
        "datasets": {"a5": {"group": "A5", "identity_probability": 0.0}},
        "runs": {name: {**implicit, "seed": seed} for seed, name in enumerate(runs)},
        "baselines": {name: {**explicit, "model": model} for name, model in baselines.items()},
    }


def write_parameters() -> dict[str, Any]:
    """Write them as params.yaml, with all that the report's stage reads, and return them."""
    content = parameters() | {"report": {"success_threshold": 0.99}}
    content["datasets"]["a5"] |= {
        "kind": "word_problem",
        "seed": 0,
        "train": {"num_sequences": 8, "length": 16},
        "validation": {"num_sequences": 4, "length": 16},
        "test": {"num_sequences": 4, "lengths": [64]},
    }
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return content


def implicit_entry(dataset: str, *, length: int) -> dict[str, Any]:
    """Return an entry of ``runs`` of 200 and 800 training steps."""
    lengths = {"minimum": 4, "start": 4, "end": length, "growth_steps": 100}
    free = {
        "tolerance": 0.05,
        "max_steps": 15,
        "phantom_steps": 1,
        "damping": 0.8,
        "decay_steps": 0,
    }
    return {
        "dataset": dataset,
        "seed": 0,
        "model": MAMBA2 | {"implicit": True},
        "optimisation": {
            "learning_rate": 0.001,
            "clip_norm": 1.0,
            "batch_size": 4,
            "warmup_steps": 0,
        },
        "bounded": {"num_training_steps": 200, "num_self_iterations": 2, "lengths": lengths},
        "free": {"num_training_steps": 800, "lengths": lengths, **free},
    }


def explicit_entry(dataset: str, *, length: int) -> dict[str, Any]:
    """Return an entry of ``baselines`` on the same data."""
    implicit = implicit_entry(dataset, length=length)
    training = {"num_training_steps": 1000, "decay_steps": 0}
    return {
        **{key: implicit[key] for key in ("dataset", "seed", "optimisation")},
        "model": MAMBA2,
        "training": training | {"lengths": implicit["free"]["lengths"]},
    }


def tables(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read the entries of the tables of models, as the report's stage does."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
        return read_models(path)


def named(table: Table) -> list[dict[str, str]]:
    """Return the rows of a table of a report, each cell by the name of its column."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def datasets_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the tables of data as the report reads them."""
    tables = ("datasets", "corpora")
    return {
        name: SimpleNamespace(**entry)
        for table in tables
        for name, entry in content.get(table, {}).items()
    }


def _accuracy(name: str, position: np.ndarray) -> np.ndarray:
    """Return the accuracy at a position: where the run loses track, and how fast."""
    reach = {"a5_lstm": 45, "a5_mamba2_1_layer": 2.5, "a5_mamba2_4_layers": 5}
    reach |= {"a5_implicit_mamba2_seed1": 150, "a5_implicit_mamba2_seed2": 21}
    half = reach.get(name, 190)
    return 1 / 60 + (1 - 1 / 60) / (1 + (position / half) ** 8)


def write_results(root: Path) -> None:
    """Write ``results/runs`` below ``root``."""
    content = parameters()
    for table, kind in (("runs", "implicit"), ("baselines", "explicit")):
        for name, entry in content[table].items():
            folder = root / "results" / "runs" / name
            folder.mkdir(parents=True, exist_ok=True)
            files = _files(name, kind, entry.get("seed", 0))
            for file, text in files.items():
                (folder / file).write_text(text)
            seal(folder)


def seal(folder: Path) -> None:
    """Write the checksums of the results in a folder as they are."""
    path = folder / f"tests{SUFFIX}"
    path.unlink(missing_ok=True)
    write_checksums(path, folder.iterdir())


def _files(name: str, kind: str, seed: int) -> dict[str, str]:
    generator = np.random.default_rng([seed, len(name)])
    by_position = {n: _accuracy(name, np.arange(1, n + 1)) for n in LENGTHS}
    implicit = kind == "implicit"
    steps = {str(n): {"mean": 1.4 * n + seed, "p50": 1.3 * n, "p95": 2.0 * n} for n in LENGTHS}
    work = {str(n): {"mean": 23.4 + n / 1000, "p50": 22.0, "p95": 31.5} for n in LENGTHS}
    evaluation = {
        "data": "word_problem",
        "kind": kind,
        "num_parameters": 119_000 + len(name),
        "chance": {
            name: {str(n): 1 / 60 for n in LENGTHS} for name in ("accuracy", "accuracy_last_10")
        },
        "accuracy": {str(n): float(a.mean()) for n, a in by_position.items()},
        "accuracy_last_10": {str(n): float(a[-10:].mean()) for n, a in by_position.items()},
        "self_iterations": steps if implicit else {},
        "evaluations_per_token": work if implicit else {},
        "relative_residual": {
            str(n): {"mean": 0.006, "p50": 0.007, "p95": 0.0095, "max": 0.5} for n in LENGTHS
        }
        if implicit
        else {},
        "share_converged": {str(n): 1 - n / 1280 for n in LENGTHS} if implicit else {},
        "modes": {
            str(n): {
                "num_sequences": 64,
                "token_match": 0.9987,
                "window": _mode(0.99 * a, 1.0, 1.25 * n, 24.5, 0.04 * n),
                "simultaneous": _mode(0.97 * a, 0.9921, 1.2 * n, 1.2 * n, 0.2 * n),
                "sequential": _mode(0.98 * a, 0.9954, 7.0 * n, 7.25, 0.03 * n),
            }
            for n, a in by_position.items()
        }
        if implicit
        else {},
        "mode_token_match": 0.9987 if implicit else None,
        "spectral_radius": {"16": {"mean": 0.771, "p50": 0.764, "p95": 0.9, "max": 0.987}}
        if implicit
        else {},
        "spectral_radius_damped": {"16": {"mean": 0.512, "p50": 0.5, "p95": 0.6, "max": 0.7}}
        if implicit
        else {},
        "past_distance": {str(n): 0.8 * 0.5**n for n in range(17)} if implicit else {},
        "further_tests": {},
        "num_sequences": {str(n): 256 for n in LENGTHS},
        "seconds": {str(n): 0.05 * n for n in LENGTHS},
    }
    files = {
        "evaluation.json": json.dumps(evaluation),
        "evaluation_by_position.csv": write_rows(
            [
                {"length": n, "position": p, "accuracy": float(a)}
                for n, values in by_position.items()
                for p, a in enumerate(np.clip(values + generator.normal(0, 0.01, n), 0, 1), start=1)
            ]
        ),
    }
    stages = ("train_bounded", "train_free") if implicit else ("train_baseline",)
    first = 0
    for stage in stages:
        seconds = {"train_bounded": 21.5, "train_free": 604.25}.get(stage, 30.0 + 7 * len(name))
        files[f"{stage}.json"] = json.dumps(
            {
                "train_seconds": seconds,
                "tokens_per_second": 12_000.0,
                "num_training_steps": NUM_STEPS[stage] * (3 if name == "a5_lstm" else 1),
            }
        )
        files[f"{stage}_history.csv"] = write_rows(_history(stage, first, name, generator))
        first += NUM_STEPS[stage]
    if implicit:
        allowed = [1, 2, 4, 8, 16, 32, 64, 128, 256]
        sweep = [
            {
                "self_iterations": n,
                "accuracy": min(1.0, n / 64 + 0.02),
                "accuracy_last_10": float(1 / 60 + 0.95 / (1 + (48 / n) ** 6)),
                "relative_residual": 1.2 * np.exp(-n / 40) if n > 1 else None,
                "seconds": 0.03 * n,
            }
            for n in allowed
        ]
        tolerance = [
            {
                "tolerance": t,
                "accuracy": 0.99 - t,
                "accuracy_last_10": 0.98 - 1.5 * t,
                "relative_residual": 0.8 * t,
                "share_converged": 1.0,
                "self_iterations": {"mean": 30 - 20 * np.log10(t), "p50": 60.0, "p95": 90.0},
                "evaluations_per_token": {"mean": 9 - 4 * np.log10(t), "p50": 12.0, "p95": 18.0},
                "seconds": 3.2,
            }
            for t in (0.3, 0.1, 0.03, 0.01, 0.003)
        ]
        files["test_time_compute.json"] = json.dumps(
            {
                "length": 64,
                "num_sequences": 128,
                "self_iterations": sweep,
                "tolerance": tolerance,
            }
        )
    return files


def _mode(accuracy: np.ndarray, match: float, steps: float, work: float, seconds: float) -> dict:
    return {
        "accuracy": float(accuracy.mean()),
        "accuracy_last_10": float(accuracy[-10:].mean()),
        "window_match": match,
        "self_iterations": {"mean": steps, "p50": steps, "p95": 1.5 * steps},
        "evaluations_per_token": {"mean": work, "p50": work, "p95": 1.5 * work},
        "share_converged": 1.0,
        "seconds": seconds,
    }


def _history(stage: str, first: int, name: str, generator) -> list[dict]:
    rows = []
    for step in range(first + 10, first + NUM_STEPS[stage] + 1, 10):
        learnt = np.exp(-max(0, step - 200) / 120) if stage == "train_free" else 1.0
        if name == "a5_lstm":
            learnt = np.exp(-max(0, step - 400) / 150)
        loss = (3.9 * learnt + 0.004) * float(np.exp(generator.normal(0, 0.05)))
        rows.append(
            {
                "step": step,
                "phase": stage.removeprefix("train_"),
                "loss": loss,
                "accuracy": float(np.clip(1 - loss / 4.1, 0, 1)),
                "self_iterations": {"train_free": 9 + 7 * (1 - learnt), "train_bounded": 4}.get(
                    stage, ""
                ),
                "validation_accuracy": 0.5 if step % 100 == 0 else "",
            }
        )
    return rows


def write_rows(rows: list[dict]) -> str:
    """Return the content of a CSV file as the stages write it."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
