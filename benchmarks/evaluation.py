"""Evaluation: lm-eval's tasks beside its own model, the time of LAMBADA, long texts, FLOPs.

One process on two cores, float32, random weights of about five million parameters, and texts of
made-up words in a BPE that is trained on them; nothing is downloaded.

- The same transformers Llama on the same files, read by lm-eval's own ``HFLM`` and by our
  `SharedContextLM`, in batches of 16 both: four endings of about 15 tokens after a context of 80
  (HellaSwag), and one word after 90 (LAMBADA). Medians of interleaved repeats of lm-eval's whole
  evaluation, files loaded. All log-likelihoods and accuracies are compared.
- Explicit and implicit Mamba2 on LAMBADA: items a second, once, and from that the time of as many
  items as the real one has. The implicit model's input projections are scaled down, so that its
  tokens settle as those of trained ones do; its tolerance is 0.05.
- Peak memory of processes that read 2,048 and 16,384 tokens of a vocabulary of 50,257 in pieces of
  1,024. Implicit models search through a window and give a token up after `MEMORY_STEPS`
  evaluations: what is held does not depend on how many there are.
- FLOPs of `implicit_models.cost` beside torch's counter: reading, reading in pieces and training
  steps, of explicit models and of implicit ones with fixed numbers of self-iterations.
"""

import contextlib
import functools
import io
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from benchmarks import harness
from implicit_models.cost.flops import model_flops
from implicit_models.cost.meter import peak_memory
from implicit_models.cost.passes import step_flops
from implicit_models.cost.reading import Past, reading_flops
from implicit_models.equilibrium.gradients import Phantom
from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.families.conversion import to_transformers
from implicit_models.families.costs import ModelFlops
from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM
from implicit_models.families.lstm.configuration import LSTMConfig
from implicit_models.families.lstm.model import LSTMLanguageModel
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.problems.downstream.evaluation.harness_model import SharedContextLM
from implicit_models.problems.downstream.evaluation.harness_tasks import load_tasks
from implicit_models.problems.text.evaluation.length_extrapolation import (
    evaluate_length_extrapolation,
)
from tests.cost.counting import count

HuggingFaceLM: Any = HFLM  # its decorator hides from type checkers what it is
END = "<|endoftext|>"
VOCABULARY, LARGE_VOCABULARY = 8192, 50_257
BATCH = 16
ACCURACIES = ("acc,none", "acc_norm,none")
LAMBADA_ITEMS = 5153
TOLERANCE = 0.05
SEARCH = {"tolerance": TOLERANCE, "window": 32, "patience": 2}  # as in conf/preset/text_small.yaml
CONTRACTION = 0.3  # of the random input projections, for cells that settle as trained ones do
PIECE, LONG = 1024, (2048, 16_384)
MEMORY_STEPS = 2
OURS = ("mamba2-explicit", "mamba2-implicit", "llama-explicit", "llama-implicit")
KINDS = (*OURS, "llama-transformers", "lstm")
COUNTED_LENGTH, COUNTED_TEXTS, COUNTED_STEPS, COUNTED_GRADIENTS = 300, 2, 5, 4

Measured = tuple[list[dict[str, Any]], dict[str, harness.Bar]]
Tasks = dict[str, Any]


def run(quick: bool) -> harness.Report:
    """Measure all parts."""
    rows: list[dict[str, Any]] = []
    bars: dict[str, harness.Bar] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        texts = Texts(seed=0)
        tasks = texts.tasks(Path(folder), *((8, 16) if quick else (120, 256)))
    for some, judged in (
        _against_lm_eval(texts.tokenizer, tasks, quick),
        _mamba2_on_lambada(texts.tokenizer, tasks["lambada_openai"], quick),
        _memory(quick),
        _flops(quick),
    ):
        rows += some
        bars |= judged
    return harness.Report(rows, bars)


def model_of(kind: str, vocabulary: int = VOCABULARY, small: bool = False) -> PreTrainedModel:
    """Return a model of some five million parameters: ours, transformers' Llama, or an LSTM."""
    family, _, what = kind.partition("-")
    width, layers = (64, 2) if small else (256, 8)
    sizes: dict[str, Any] = {"vocab_size": vocabulary}
    if family == "lstm":
        sizes |= {"embedding_size": width, "hidden_size": 2 * width}
        return LSTMLanguageModel(LSTMConfig(label_alignment="next_token", **sizes)).eval()
    sizes |= {"hidden_size": width, "implicit": what == "implicit", **SEARCH}
    model: ImplicitForCausalLM
    if family == "mamba2":
        sizes |= {"num_hidden_layers": layers, "state_size": 64}
        model = ImplicitMamba2ForCausalLM(ImplicitMamba2Config(**sizes))
    else:
        sizes |= {"num_hidden_layers": layers // 2, "num_attention_heads": width // 64}
        config = ImplicitLlamaConfig(intermediate_size=width * 8 // 3, **sizes)
        model = ImplicitLlamaForCausalLM(config)
    model.initialise(0)
    if what == "implicit":
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if any(part in name for part in ("in_proj", "qkv_proj", "gate_up_proj")):
                    parameter.mul_(CONTRACTION)
    return (to_transformers(model) if what == "transformers" else model).eval()


class Texts:
    """Made-up words with the frequencies of words, their tokenizer, and items of tasks."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "en")]
        words = {"".join(self._draw.choices(syllables, k=1 + n % 4)): None for n in range(9000)}
        self._words = list(words)
        self._frequencies = [1 / rank for rank in range(3, len(words) + 3)]
        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY // 2,  # of half of the words: the rarer half has several tokens
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator((self.text(60) for _ in range(3000)), trainer)
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=library, bos_token=END, eos_token=END
        )

    def text(self, num_words: int) -> str:
        """Draw a text of about so many words, in sentences of nine."""
        count = self._draw.randint(num_words * 3 // 4, num_words * 5 // 4)
        words = self._draw.choices(self._words, self._frequencies, k=count)
        sentences = (" ".join(words[i : i + 9]) for i in range(0, count, 9))
        return ". ".join(sentence.capitalize() for sentence in sentences)

    def tasks(self, folder: Path, num_hellaswag: int, num_lambada: int) -> dict[str, Tasks]:
        """Write items as the hub has them, and let lm-eval load each task."""
        items = {
            "hellaswag": [
                {
                    "activity_label": self.text(2),
                    "ctx_a": f"{self.text(48)}.",
                    "ctx_b": self.text(4).lower(),
                    "endings": [f"{self.text(10).lower()}." for _ in range(4)],
                    "label": str(self._draw.randrange(4)),
                }
                for _ in range(num_hellaswag)
            ],
            "lambada_openai": [{"text": self.text(62)} for _ in range(num_lambada)],
        }
        files = {task: folder / f"{task}.jsonl" for task in items}
        for task, found in items.items():
            files[task].write_text("".join(json.dumps(item) + "\n" for item in found))
        with _quiet():
            return {task: load_tasks([task], files, folder / "cache") for task in items}


def _evaluate(model: Any, tasks: Tasks, limit: int | None = None) -> dict[str, Any]:
    """Return lm-eval's accuracies, and the log-likelihood of every continuation."""
    with _quiet():
        report = evaluator.evaluate(model, {"tasks": tasks}, limit=limit, bootstrap_iters=0)
    found: dict[str, Any] = {**(report or {})}
    ((name, samples),) = found["samples"].items()
    samples = sorted(samples, key=lambda sample: sample["doc_id"])
    metrics = found["results"][name].items()
    return {
        "items": len(samples),
        "accuracies": np.array([value for key, value in metrics if key in ACCURACIES]),
        "nats": np.array([float(each[0]) for one in samples for each in one["filtered_resps"]]),
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep lm-eval's prints, bars and warnings off."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _against_lm_eval(
    tokenizer: PreTrainedTokenizerFast, tasks: Mapping[str, Tasks], quick: bool
) -> Measured:
    """Time lm-eval's whole evaluation with either way to read, and compare what they find."""
    rows, bars = [], {}
    model = model_of("llama-transformers", small=quick)
    repeats = 1 if quick else 3
    for task, required in (("hellaswag", 2.0), ("lambada_openai", 1.0)):
        with _quiet():
            ours = SharedContextLM(model, tokenizer, batch_size=BATCH)
            theirs: Any = HuggingFaceLM(pretrained=model, tokenizer=tokenizer, batch_size=BATCH)
        readers = {"ours": ours, "lm-eval": theirs}
        found: dict[str, dict[str, Any]] = {}

        def evaluate(
            name: str, found: Any = found, readers: Any = readers, task: str = task
        ) -> None:
            found[name] = _evaluate(readers[name], tasks[task])

        calls = {name: functools.partial(evaluate, name) for name in readers}
        seconds = harness.interleaved(calls, repeats)
        for name, one in found.items():
            rows.append(
                {
                    "part": task,
                    "model": f"llama, read by {name}",
                    "parameters": model.num_parameters(),
                    "items": one["items"],
                    "texts": len(one["nats"]),
                    "seconds": seconds[name],
                    "items_per_second": one["items"] / seconds[name],
                    "accuracy": float(one["accuracies"][0]),
                }
            )
        rows[-2]["tokens_read"] = ours.cost.num_tokens // (repeats + 1)
        speed = seconds["lm-eval"] / seconds["ours"]
        bars[f"{task}: speed, ours to lm-eval's"] = harness.at_least(speed, required)
        pair = found["ours"], found["lm-eval"]
        apart = float(np.abs(pair[0]["nats"] / pair[1]["nats"] - 1).max())
        bars[f"{task}: log-likelihoods, furthest apart"] = harness.at_most(apart, 1e-4)
        apart = float(np.abs(pair[0]["accuracies"] - pair[1]["accuracies"]).max())
        bars[f"{task}: accuracies, furthest apart"] = harness.at_most(apart, 0.0)
    return rows, bars


def _mamba2_on_lambada(tokenizer: PreTrainedTokenizerFast, tasks: Tasks, quick: bool) -> Measured:
    """Time our models on LAMBADA, once, after some items that do not count."""
    rows, bars = [], {}
    for kind in OURS[:2]:
        model = model_of(kind, small=quick)
        _evaluate(SharedContextLM(model, tokenizer, batch_size=BATCH), tasks, limit=BATCH)
        reader = SharedContextLM(model, tokenizer, batch_size=BATCH)
        start = time.perf_counter()
        num_items = _evaluate(reader, tasks)["items"]
        seconds, cost = time.perf_counter() - start, reader.cost
        expected = seconds / num_items * LAMBADA_ITEMS
        row = {
            "part": "LAMBADA with our models",
            "model": kind,
            "parameters": model.num_parameters(),
            "items": num_items,
            "tokens_read": cost.num_tokens,
            "seconds": seconds,
            "items_per_second": num_items / seconds,
            "seconds_of_5153_items": expected,
        }
        if cost.num_searches:
            row["evaluations_per_token"] = cost.token_evaluations / cost.num_tokens
            row["share_converged"] = cost.num_converged / cost.num_searches
        rows.append(row)
        bars[f"{kind}: minutes of 5,153 LAMBADA items"] = harness.at_most(expected / 60, 15.0)
    return rows, bars


def _memory(quick: bool) -> Measured:
    """Read long texts, each in a process of its own."""
    rows, bars = [], {}
    for kind in KINDS[1:2] if quick else KINDS:
        peaks = []
        for length in (32, 64) if quick else LONG:
            program = "import sys; from benchmarks.evaluation import read_long_text as r; "
            command = [sys.executable, "-c", f"{program}r(*sys.argv[1:])", kind, str(length)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            peak, seconds = json.loads(done.stdout)
            peaks.append(peak)
            row = {"part": "long texts", "model": kind, "tokens_read": length, "seconds": seconds}
            rows.append(row | {"peak_memory_mib": peak})
        growth = harness.at_most(peaks[1] / peaks[0], 1.5)
        bars[f"{kind}: peak memory, {LONG[1]:,} tokens to {LONG[0]:,}"] = growth
        most = harness.at_most(peaks[1] / 1024, 4.0)
        bars[f"{kind}: peak memory of {LONG[1]:,} tokens, GiB"] = most
    return rows, bars


def read_long_text(kind: str, length: str) -> None:
    """Print the peak memory in MiB of a process that reads a text, and the seconds it took."""
    torch.manual_seed(0)
    model = model_of(kind, LARGE_VOCABULARY)
    phase = None
    if kind.endswith("implicit"):
        window = Window(model.config.window, 1)
        phase = search_phase(TOLERANCE, MEMORY_STEPS, model.config.damping, window)
    draw = np.random.default_rng(0)
    stream = draw.integers(0, LARGE_VOCABULARY, int(length) + 1)
    start = time.perf_counter()
    evaluate_length_extrapolation(
        model,
        stream,
        [int(length)],
        phase=phase,
        batch_size=1,
        piece_length=PIECE,
        generator=draw,
    )
    peak = peak_memory(torch.device("cpu"))
    print(json.dumps([peak / 2**20, time.perf_counter() - start]))


def _flops(quick: bool) -> Measured:
    """Compare closed forms with torch's counter."""
    rows, bars = [], {}
    length, texts = (30 if quick else COUNTED_LENGTH), COUNTED_TEXTS
    tokens = torch.randint(0, VOCABULARY, (texts, length))
    for kind in OURS:
        model = model_of(kind, small=quick)
        flops, phase, training = model_flops(model), None, None
        how: dict[str, Any] = {"length": length, "num_sequences": texts}
        if kind.endswith("implicit"):
            phase = Phase(Picard(model.config.damping), FixedSteps(COUNTED_STEPS), None)
            training = replace(phase, gradient=Phantom(COUNTED_GRADIENTS, model.config.damping))
            how["search_evaluations"] = COUNTED_STEPS * tokens.numel()
        figures = {}
        for what, piece in (("reading", length), ("reading in pieces", length // 3)):
            claimed: list[float] = []
            counted = count(functools.partial(_read, model, flops, tokens, phase, piece, claimed))
            figures[what] = sum(claimed), counted
        counted = count(functools.partial(_step, model, tokens, training))
        figures["training step"] = step_flops(flops, training, **how), counted
        for what, (ours, counted) in figures.items():
            row = {"part": f"FLOPs, {what}", "model": kind, "flops": ours, "flops_counted": counted}
            rows.append(row)
        worst = max(abs(ours / counted - 1) for ours, counted in figures.values())
        bars[f"{kind}: FLOPs, furthest from torch's count"] = harness.at_most(worst, 0.02)
    return rows, bars


@torch.inference_mode()
def _read(
    model: PreTrainedModel,
    flops: ModelFlops,
    tokens: torch.Tensor,
    phase: Phase | None,
    piece: int,
    claimed: list[float],
) -> None:
    """Read texts in pieces, noting what each is said to cost."""
    cache, (texts, length) = None, tokens.shape
    for start in range(0, length, piece):
        some = tokens[:, start : start + piece]
        output = model(some, cache=cache, use_cache=True, phase=phase)
        cache, past = output.cache, Past(lengths=np.full(texts, start), reach=start)
        size = some.shape[1]
        trunk = reading_flops(
            flops, num_sequences=texts, length=size, past=past, search=output.search
        )
        claimed.append(trunk + texts * size * flops.head)


def _step(model: PreTrainedModel, tokens: torch.Tensor, phase: Phase | None) -> None:
    model(tokens, labels=tokens, use_cache=False, phase=phase).loss.backward()


if __name__ == "__main__":
    packages = ("torch", "transformers", "lm_eval", "tokenizers")
    sys.exit(harness.main("evaluation", run, num_cores=2, packages=packages))
