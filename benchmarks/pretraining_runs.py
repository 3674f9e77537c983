"""Trainings that `benchmarks.pretraining` measures, each in a process of its own.

Both trainers see the same sequences from the same file in the same order of batches, on the same
number of threads, in float32, with fused AdamW, the same learning rate and clipping, and a log
every `LOG_EVERY` steps. An optimiser's step is the tick of one clock for both.
"""

import dataclasses
import functools
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from implicit_models.cost.meter import peak_memory
from implicit_models.data.batching import batch_indices
from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.text.data.packing import Packed, pack
from implicit_models.problems.text.data.shards import TokenStream
from implicit_models.training import trainer
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.curriculum import explicit_segment
from implicit_models.training.definition import Training
from implicit_models.training.distributed import Execution, distribute
from implicit_models.training.loading import Loader
from implicit_models.training.optimisation import build_optimiser
from implicit_models.training.parameters import (
    ExplicitParameters,
    MonitoringParameters,
    OptimisationParameters,
)
from implicit_models.training.progress import Progress
from implicit_models.training.sequence_parameters import LengthParameters

LOG_EVERY = 5
HEAD_WIDTH, STATE = 64, 64
# The peer's own default, 256, takes five times as long at the lengths measured here.
PEER_CHUNK = 64
OPTIMISATION = OptimisationParameters(
    learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0, batch_size=1, warmup_steps=10
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training to measure.

    Attributes
    ----------
    tokens
        A file of token ids, that are mapped into memory.
    steps
        Optimiser steps; the first `warm` of them do not count.
    checkpoint_every
        Steps between checkpoints; None for none. Ours alone.
    """

    family: str
    layers: int
    width: int
    vocabulary: int
    length: int
    batch: int
    tokens: str
    steps: int
    warm: int = 2
    checkpoint_every: int | None = None

    @property
    def feed_forward(self) -> int:
        """Width of Llama's feed-forward network: SwiGLU's usual 8/3, rounded up to 16."""
        return -(-self.width * 8 // 3 // 16) * 16


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a training took.

    Attributes
    ----------
    step_seconds
        From one optimiser step to the next, those that were no warm-up.
    waited
        Seconds of all steps that the training waited for its batches.
    seconds
        Of all steps.
    saved_before
        For each checkpoint the index in ``step_seconds`` of the step that comes after it.
    """

    parameters: int
    step_seconds: list[float]
    peak_memory_mib: float
    loss: float
    waited: float = 0.0
    seconds: float = 0.0
    saved_before: list[int] = dataclasses.field(default_factory=list)


def write_tokens(path: Path, vocabulary: int, number: int) -> None:
    """Write random token ids."""
    dtype = np.uint16 if vocabulary <= 2**16 else np.uint32
    np.save(path, np.random.default_rng(0).integers(0, vocabulary, number, dtype=dtype))


def run_ours(setting: Setting) -> Run:
    """Train with the trainer of this repository."""
    parameters = ModelParameters(
        implicit=False,
        num_layers=setting.layers,
        d_model=setting.width,
        weight_normalisation=False,
        **_of_family(setting),
    )
    model = build(parameters, setting.vocabulary, seed=0)
    data, clock, losses = _data(setting), _Clock(), _Losses()
    fixed = LengthParameters(minimum=setting.length, start=setting.length, end=setting.length)
    optimisation = OPTIMISATION.replace(batch_size=setting.batch)
    training = Training(
        segment=explicit_segment(
            ExplicitParameters(num_training_steps=setting.steps, decay_steps=0, lengths=fixed)
        ),
        optimisation=optimisation,
        monitoring=MonitoringParameters(
            log_every=LOG_EVERY,
            validate_every=1000 * LOG_EVERY,
            validation_sequences=1,
            checkpoint_every=setting.checkpoint_every or 10**9,
        ),
        sequences=data,
        batch_size=setting.batch,
        batch_indices=functools.partial(
            batch_indices, batch_size=setting.batch, num_sequences=len(data.inputs), seed=0
        ),
        validate=lambda module, execution: {},
        count_flops=lambda *_: 0.0,
        seed=0,
    )
    loaders = _keep_loaders()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = _NotedCheckpoints(Path(folder), clock)
        progress = trainer.train(
            training,
            Progress(0),
            distribute(model, optimisation.precision, Execution()),
            build_optimiser(model, optimisation),
            checkpoints,
            losses,
        )
    return Run(
        **_measured(model, clock, setting),
        loss=losses.last,
        waited=sum(loader.waited for loader in loaders),
        seconds=progress.seconds,
        saved_before=[step - 1 - setting.warm for step in checkpoints.steps],
    )


def run_peer(setting: Setting) -> Run:
    """Train transformers' own model with its stock Trainer."""
    torch.manual_seed(0)
    model = _peer_model(setting)
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=setting.batch,
            max_steps=setting.steps,
            optim="adamw_torch_fused",
            learning_rate=OPTIMISATION.learning_rate,
            adam_beta1=OPTIMISATION.beta1,
            adam_beta2=OPTIMISATION.beta2,
            weight_decay=OPTIMISATION.weight_decay,
            max_grad_norm=OPTIMISATION.clip_norm,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=OPTIMISATION.warmup_steps,
            logging_steps=LOG_EVERY,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        )
        peer = Trainer(model=model, args=arguments, train_dataset=_PeerData(_data(setting)))
        peer.train()
    loss = [row["loss"] for row in peer.state.log_history if "loss" in row][-1]
    return Run(**_measured(model, clock, setting), loss=float(loss))


def _of_family(setting: Setting) -> dict[str, Any]:
    if setting.family == "mamba2":
        return {"family": "mamba2", "d_state": STATE, "head_dim": HEAD_WIDTH, "expand": 2}
    heads = setting.width // HEAD_WIDTH
    return {"family": "llama", "num_heads": heads, "d_feed_forward": setting.feed_forward}


def _peer_model(setting: Setting) -> PreTrainedModel:
    shared: dict[str, Any] = {
        "vocab_size": setting.vocabulary,
        "hidden_size": setting.width,
        "num_hidden_layers": setting.layers,
        "tie_word_embeddings": True,
        "use_cache": False,
    }
    if setting.family == "mamba2":
        inner = 2 * setting.width
        return Mamba2ForCausalLM(
            Mamba2Config(
                state_size=STATE,
                expand=2,
                head_dim=HEAD_WIDTH,
                num_heads=inner // HEAD_WIDTH,
                n_groups=1,
                chunk_size=PEER_CHUNK,
                **shared,
            )
        )
    shared["attn_implementation"] = "sdpa"
    return LlamaForCausalLM(
        LlamaConfig(
            intermediate_size=setting.feed_forward,
            num_attention_heads=setting.width // HEAD_WIDTH,
            max_position_embeddings=setting.length,
            **shared,
        )
    )


def _data(setting: Setting) -> Packed:
    return pack(TokenStream([np.load(setting.tokens, mmap_mode="r")]), setting.length)


class _PeerData(Dataset):
    """The same rows as a dataset of torch's; the peer shifts labels by itself."""

    def __init__(self, data: Packed) -> None:
        self._rows = data.inputs

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.from_numpy(self._rows[index].astype(np.int64))
        return {"input_ids": tokens, "labels": tokens}


class _Clock:
    """Notes when an optimiser makes a step, whichever it is."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        register_optimizer_step_post_hook(lambda *_: self.ticks.append(time.perf_counter()))


class _Losses:
    last: float

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep the last loss."""
        self.last = metrics["loss"]


class _NotedCheckpoints(CheckpointFolder):
    """Checkpoints of which is noted after which step they are saved."""

    def __init__(self, root: Path, clock: _Clock) -> None:
        super().__init__(root, "benchmark")
        self._clock = clock
        self.steps: list[int] = []

    def save(self, *arguments: Any) -> None:
        """Save."""
        self.steps.append(len(self._clock.ticks))
        super().save(*arguments)


def _keep_loaders() -> list[Loader]:
    """Record the loaders that the trainer makes."""
    kept: list[Loader] = []

    def noted(*arguments: Any) -> Loader:
        kept.append(Loader(*arguments))
        return kept[-1]

    trainer.Loader = noted  # type: ignore[misc]
    return kept


def _measured(
    model: PreTrainedModel | LanguageModel, clock: _Clock, setting: Setting
) -> dict[str, Any]:
    seconds = np.diff(clock.ticks)[setting.warm :].tolist()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "step_seconds": seconds,
        "peak_memory_mib": peak_memory(torch.device("cpu")) / 2**20,
    }


RUNS = {"ours": run_ours, "Trainer": run_peer}


def report_run(who: str, setting: str) -> None:
    """Train, and print what it took; the setting comes as JSON."""
    sys.stdout.write(json.dumps(asdict(RUNS[who](Setting(**json.loads(setting))))) + "\n")
