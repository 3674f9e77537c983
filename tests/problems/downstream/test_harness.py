"""lm-eval's tasks: our numbers are those of its own model of Hugging Face."""

import contextlib
import copy
import dataclasses
import io
import json
import logging
import os
import random
import socket
import subprocess
from pathlib import Path

import datasets
import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

with contextlib.redirect_stderr(io.StringIO()):
    from lm_eval import evaluator
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

from implicit_models.cost.flops import model_flops
from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.families.building import build
from implicit_models.families.conversion import from_transformers
from implicit_models.families.reader import reader_of
from implicit_models.language_models.phases import search_settings
from implicit_models.parameters import ParameterError
from implicit_models.problems.downstream.data.task_files import open_tasks, write_tasks
from implicit_models.problems.downstream.evaluation import continuations, harness
from implicit_models.problems.downstream.evaluation.harness import evaluate_tasks
from implicit_models.problems.downstream.evaluation.harness_model import SharedContextLM
from implicit_models.problems.downstream.evaluation.harness_tasks import HarnessError, load_tasks
from implicit_models.problems.downstream.parameters import BenchmarkParameters, TaskFilesParameters
from implicit_models.problems.downstream.tasks import ACCURACIES, COLUMNS, TASKS
from implicit_models.problems.text.data.tokenisation import load_tokenizer
from tests import warm_python
from tests.cost.counting import count
from tests.language_models.kinds import model_of
from tests.language_models.models import LSTM

VOCABULARY = 257
SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
NEOX = SHARED / "tokenizers" / "gpt-neox-20b" / "20B_tokenizer.json"
WORDS = ("a", "man", "who", "sits", "on", "the", "roof", "in", "the", "rain", "waits", "for", "him")


def sentence(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


def synthetic_items(task: str, draw: random.Random) -> dict:
    """An item under the hub's fields; words of few letters, so that some choices are one token."""
    texts = [sentence(draw, 1, 4) for _ in range(4)]
    choices = {"text": texts, "label": ["A", "B", "C", "D"]}
    ask = sentence(draw, 3, 12)
    return {
        "lambada_openai": {"text": ask},
        "hellaswag": {
            "activity_label": "Waiting",
            "ctx_a": f"{ask}. [title]",
            "ctx_b": "he",
            "endings": texts,
            "label": str(draw.randrange(4)),
        },
        "piqa": {"goal": ask, "sol1": texts[0], "sol2": texts[1], "label": draw.randrange(2)},
        "arc_easy": {"id": "1", "question": ask, "choices": choices, "answerKey": "B"},
        "arc_challenge": {"id": "1", "question": ask, "choices": choices, "answerKey": "A"},
        "winogrande": {
            "sentence": f"{ask} since _ {texts[0]}",
            "option1": "Ann",
            "option2": "Bea",
            "answer": draw.choice("12"),
        },
        "openbookqa": {"id": "1", "question_stem": ask, "choices": choices, "answerKey": "D"},
    }[task]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """Six items of each task."""
    draw, folder = random.Random(0), tmp_path_factory.mktemp("tasks")
    for task in TASKS:
        items = [json.dumps(synthetic_items(task, draw)) for _ in range(6)]
        (folder / f"{task}.jsonl").write_text("\n".join(items) + "\n")
    write_tasks(TaskFilesParameters(source=str(folder)), folder / "written")
    return dict(open_tasks(folder / "written"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> PreTrainedTokenizerFast:
    """Bytes, as a corpus leaves them beside its models."""
    folder = tmp_path_factory.mktemp("tokenizer")
    load_tokenizer("bytes").save(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError(f"asks the network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def llama(vocabulary: int = VOCABULARY, **changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    return (
        LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **(config | changes))).double().eval()
    )


def gpt2(num_positions: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = {"n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=num_positions, **config)).eval()


def own(model, tokenizer, **arguments) -> HFLM:
    """lm-eval's own model."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", **arguments)


def their_results(model, tokenizer, files, folder, limit=None, **arguments) -> dict:
    with harness._quiet():
        report = evaluator.evaluate(
            own(model, tokenizer, **arguments),
            {"tasks": load_tasks(TASKS, files, folder)},
            limit=limit,
            bootstrap_iters=20,
            log_samples=False,
        )
    assert report is not None
    return dict(report["results"])


def assert_equal_results(ours: dict, theirs: dict) -> None:
    """All metrics of all tasks: accuracies exactly, perplexities up to the last digits."""
    assert set(ours) == set(theirs) == set(TASKS)
    for task, metrics in theirs.items():
        assert set(metrics) == set(ours[task])
        for name, value in metrics.items():
            expected = pytest.approx(value, rel=1e-9) if "perplexity" in name else value
            assert ours[task][name] == expected, (task, name)


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt2 of few positions", "lstm"])
def test_explicit_models_score_as_lm_evals_own(files, tokenizer, tmp_path, name, batch_size):
    models = {
        "llama": llama,
        "gpt2": lambda: gpt2(512).double(),
        "gpt2 of few positions": lambda: gpt2(48).double(),  # texts are cut
        "lstm": lambda: build(LSTM, VOCABULARY, 0).double().eval(),
    }
    model = models[name]()
    result = evaluate_tasks(
        model, tokenizer, files, batch_size=batch_size, bootstrap_iters=20, piece_length=16
    )
    assert_equal_results(result.report["results"], their_results(model, tokenizer, files, tmp_path))
    assert set(result.summary.scores) == set(COLUMNS)
    assert (
        result.summary.scores["HellaSwag"] == result.report["results"]["hellaswag"]["acc_norm,none"]
    )
    assert None not in result.summary.scores.values()


@pytest.mark.skipif(not NEOX.exists(), reason="the real files of ../shared/data are not there")
def test_real_files_and_a_real_tokenizer(tmp_path):
    parameters = TaskFilesParameters(source=str(SHARED), limit=4)
    write_tasks(parameters, tmp_path / "tasks")
    load_tokenizer(str(NEOX)).save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    files, model = dict(open_tasks(tmp_path / "tasks")), llama(50_280, hidden_size=8)
    result = evaluate_tasks(model, tokenizer, files, limit=3, bootstrap_iters=20)
    theirs = their_results(model, tokenizer, files, tmp_path, limit=3)
    assert_equal_results(result.report["results"], theirs)
    assert result.report["n-samples"]["piqa"] == {"original": 4, "effective": 3}
    assert result.num_items == dict.fromkeys(ACCURACIES, 3)


def requests_of(files, folder: Path) -> list:
    with harness._quiet():
        tasks = load_tasks(TASKS, files, folder)
        for task in tasks.values():
            task.build_all_requests()
    return [instance for task in tasks.values() for instance in task.instances]


def test_log_likelihoods_agree_per_item(files, tokenizer, tmp_path):
    """Of Hugging Face's Llama, and of ours with its weights."""
    requests, model = requests_of(files, tmp_path), llama()
    theirs = own(model, tokenizer, batch_size=4).loglikelihood(requests, disable_tqdm=True)
    for each in (model, from_transformers(model)):
        ours = SharedContextLM(each, tokenizer, batch_size=7).loglikelihood(requests)
        for (nats, is_greedy), (expected, was_greedy) in zip(ours, theirs, strict=True):
            assert nats == pytest.approx(expected, rel=1e-6)
            assert is_greedy == was_greedy


@pytest.mark.parametrize("kind", ["mamba2-implicit", "llama-implicit"])
def test_implicit_models_share_contexts(files, tokenizer, tmp_path, kind):
    requests = requests_of(files, tmp_path)[::9]
    model = model_of(kind, vocab_size=VOCABULARY, tolerance=1e-5, window=16)
    ours = SharedContextLM(model, tokenizer, batch_size=8)
    shared = ours.loglikelihood(requests)
    alone = SharedContextLM(model, tokenizer, batch_size=8, shares_beginnings=False)
    assert [nats for nats, _ in shared] == pytest.approx(
        [nats for nats, _ in alone.loglikelihood(requests)], rel=1e-3
    )
    assert ours.cost.token_evaluations > ours.cost.num_tokens
    # lm-eval's own model goes through the configuration's search, text by text.
    theirs = own(model, tokenizer, batch_size=1).loglikelihood(requests, disable_tqdm=True)
    assert [nats for nats, _ in shared] == pytest.approx([nats for nats, _ in theirs], rel=1e-3)


def test_rolling_likelihoods_and_generation(tokenizer):
    model = llama()
    texts = [sentence(random.Random(n), 20, 30) for n in range(3)]
    rolling = [Instance("loglikelihood_rolling", {}, (text,), n) for n, text in enumerate(texts)]
    stops = {"until": ["."], "max_gen_toks": 6}
    generated = [Instance("generate_until", {}, (text, stops), n) for n, text in enumerate(texts)]
    found = []
    for each in (
        SharedContextLM(model, tokenizer, max_length=40, batch_size=2),
        own(model, tokenizer, max_length=40, batch_size=2),
    ):
        with harness._quiet():
            found.append((each.loglikelihood_rolling(rolling), each.generate_until(generated)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize(
    "asked",
    [
        {"tolerance": 0.5},
        {"max_self_iterations": 14},
        {"phase": Phase(Picard(), ResidualBelow(1e-2, 14), None, Window(8))},
    ],
)
def test_generation_searches_as_it_was_asked(tokenizer, asked):
    model, passes = model_of("mamba2-implicit", vocab_size=VOCABULARY, window=16), []
    model.register_forward_pre_hook(lambda *given: passes.append(given[-1]), with_kwargs=True)
    request = Instance("generate_until", {}, ("who sits", {"until": ["."], "max_gen_toks": 3}), 0)
    with harness._quiet():
        SharedContextLM(model, tokenizer, max_length=40, **asked).generate_until([request])
    assert len(passes) == 3
    assert all(keywords | asked == keywords for keywords in passes)


def test_interrupted_is_uninterrupted(files, tokenizer, tmp_path, monkeypatch):
    model = model_of("mamba2-implicit", vocab_size=VOCABULARY, tolerance=1e-2, window=16)
    arguments = {"tasks": ["piqa", "lambada_openai"], "batch_size": 3, "bootstrap_iters": 20}
    whole = evaluate_tasks(model, tokenizer, files, **arguments)
    store, score, calls = tmp_path / "store" / "answers", continuations.score, []

    def dying(*given, **named):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(*given, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(continuations, "score", dying)
        evaluate_tasks(model, tokenizer, files, **arguments, store=ScoreStore(store, "a"))
    rest = evaluate_tasks(model, tokenizer, files, **arguments, store=ScoreStore(store, "a"))
    assert rest.report == whole.report
    assert dataclasses.replace(rest.cost, seconds=0) == dataclasses.replace(whole.cost, seconds=0)
    other = evaluate_tasks(model, tokenizer, files, **arguments, store=ScoreStore(store, "b"))
    assert other.cost.flops == whole.cost.flops > 0


@pytest.mark.parametrize("kind", ["llama-explicit", "mamba2-implicit", "transformers"])
def test_tasks_cost_what_torch_counts(files, tokenizer, kind):
    model = llama()
    if kind != "transformers":
        model = model_of(kind, vocab_size=VOCABULARY, tolerance=1e-2, window=32)
    reader_of(model)  # which tries out those of transformers
    model_flops(model)  # which counts them
    arguments = {"tasks": ["piqa", "lambada_openai"], "limit": 3, "bootstrap_iters": 2}
    found = []
    expected = count(lambda: found.append(evaluate_tasks(model, tokenizer, files, **arguments)))
    assert found[0].cost.flops == pytest.approx(expected, rel=0.02)


def test_report_is_json_of_no_machine(files, tokenizer, capsys):
    arguments = {"tasks": ["arc_easy", "lambada_openai"], "limit": 2, "bootstrap_iters": 20}
    result = evaluate_tasks(llama(), tokenizer, files, **arguments)
    text = json.dumps(result.report, allow_nan=False)
    assert str(files["arc_easy"].parent) not in text and "/lm_eval/" not in text
    assert result.report["configs"]["arc_easy"]["dataset_kwargs"] == {
        "data_files": {"test": "arc_easy.jsonl"}
    }
    assert result.report["versions"] == {"arc_easy": 1.0, "lambada_openai": 1.0}
    assert result.report["config"]["limit"] == 2
    assert result.summary.scores["average"] is None
    assert result == dataclasses.replace(
        evaluate_tasks(llama(), tokenizer, files, **arguments), cost=result.cost
    )
    assert capsys.readouterr().out == ""


def test_the_hubs_copies(files, tokenizer, tmp_path, monkeypatch):
    local, asked = datasets.load_dataset, []

    def load_dataset(path, name=None, **arguments):
        asked.append((path, name))
        task = {"baber/piqa": "piqa", "allenai/winogrande": "winogrande"}[path]
        found = local("json", data_files=str(files[task]), cache_dir=str(tmp_path))["train"]
        return datasets.DatasetDict(dict.fromkeys(("train", "validation", "test"), found))

    arguments = {"tasks": ["piqa", "winogrande"], "bootstrap_iters": 20}
    expected = evaluate_tasks(llama(), tokenizer, files, **arguments)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    result = evaluate_tasks(llama(), tokenizer, None, **arguments)
    assert asked == [("baber/piqa", None), ("allenai/winogrande", "winogrande_xl")]
    assert result.summary == expected.summary


def test_texts_that_are_cut_are_told_of(files, tokenizer, caplog):
    with caplog.at_level(logging.WARNING, "implicit_models"):
        evaluate_tasks(llama(), tokenizer, files, tasks=["lambada_openai"], max_length=20)
    assert "4 of 6 texts are longer than max_length, 20 tokens" in caplog.text


def test_models_that_explode_are_told_of(files, tokenizer, caplog):
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[:128].mul_(torch.nan)
    with caplog.at_level(logging.WARNING, "implicit_models"):
        result = evaluate_tasks(model, tokenizer, files, bootstrap_iters=20)
    assert "log-likelihoods are not finite" in caplog.text
    assert result.summary.scores["LAMBADA ppl"] is None
    json.dumps(result.report, allow_nan=False)
    with torch.no_grad():
        model.lm_head.weight.nan_to_num_(0.0).mul_(1e6)
    with pytest.raises(HarnessError, match="perplexity of lambada_openai is larger than"):
        evaluate_tasks(model, tokenizer, files)


def test_mistakes(files, tokenizer, tmp_path):
    with pytest.raises(HarnessError, match="no task 'piqqa'; allowed is lambada_openai"):
        evaluate_tasks(llama(), tokenizer, files, tasks=["piqqa"])
    with pytest.raises(HarnessError, match="task piqa has no file; there are arc_easy"):
        evaluate_tasks(llama(), tokenizer, {"arc_easy": files["arc_easy"]}, tasks=["piqa"])
    with pytest.raises(HarnessError, match="each only once"):
        evaluate_tasks(llama(), tokenizer, files, tasks=["piqa", "piqa"])
    with pytest.raises(HarnessError, match="token 256, the model knows those from 0 to 199"):
        evaluate_tasks(llama(200), tokenizer, files)
    nameless = copy.deepcopy(tokenizer)
    nameless.bos_token = nameless.eos_token = None
    with pytest.raises(HarnessError, match="neither bos_token nor eos_token"):
        evaluate_tasks(llama(), nameless, files)
    with pytest.raises(HarnessError, match="batch_size is 'auto'; allowed is a number"):
        SharedContextLM(llama(), tokenizer, batch_size="auto")
    with pytest.raises(HarnessError, match="given, but this model seeks no fixed point"):
        SharedContextLM(llama(), tokenizer, tolerance=0.1)
    with pytest.raises(HarnessError, match="allowed is 1 to max_length, 3"):
        evaluate_tasks(llama(), tokenizer, files, tasks=["piqa"], max_length=3)


def test_phase_of_a_benchmark():
    parameters = BenchmarkParameters(model="m", tasks="t", tolerance=0.3, patience=70)
    model = model_of("mamba2-implicit", max_self_iterations=50, window=4, damping=0.8)
    phase = search_settings(parameters, model.config).phase()
    assert isinstance(phase, Phase) and isinstance(phase.stopping, ResidualBelow)
    assert (phase.stopping.tolerance, phase.stopping.max_steps) == (0.3, 50)
    assert phase.window is not None and (phase.window.width, phase.window.patience) == (4, 50)
    with pytest.raises(ParameterError, match="patience = 9"):
        BenchmarkParameters(model="m", tasks="t", patience=9, max_steps=8)
    with pytest.raises(ParameterError, match="each only once"):
        BenchmarkParameters(model="m", tasks="t", names=("piqa", "piqa"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf", "implicit"])
def test_the_harnesss_own_command_line(files, tokenizer, tmp_path, name):
    folder = tmp_path / "model"
    model_of("mamba2-implicit", vocab_size=VOCABULARY, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (tmp_path / "local.yaml").write_text(
        "task: local_piqa\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{validation: {files['piqa']}}}}}\n"
        "output_type: multiple_choice\nvalidation_split: validation\n"
        'doc_to_text: "Question: {{goal}}\\nAnswer:"\ndoc_to_target: label\n'
        'doc_to_choice: "{{[sol1, sol2]}}"\n'
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    module = "implicit_models.problems.downstream.evaluation.harness"
    command = ["python", "-m", module, "--model", name]
    command += ["--model_args", f"pretrained={folder}", "--tasks", "local_piqa", "--limit", "3"]
    command += ["--include_path", str(tmp_path), "--device", "cpu", "--batch_size", "2"]
    environment = os.environ | {"PATH": warm_python.before(os.environ["PATH"])}
    project = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, env=environment)
    assert done.returncode == 0, done.stderr
    assert "|local_piqa|" in done.stdout


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ValueError("Tasks not found: piqqa"),
            ["no task piqqa; the closest is piqa (", "arc_easy"],
        ),
        (ConnectionError("Couldn't reach 'piqa'"), ["Couldn't reach 'piqa': ", "TASK.jsonl"]),
        (ValueError("no tokenizer\nis there"), ["error: no tokenizer is there"]),
    ],
)
def test_a_mistake_on_its_command_line_is_one_line(monkeypatch, capsys, error, words):
    def fail():
        raise error

    monkeypatch.setattr(harness, "cli_evaluate", fail)
    assert harness.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)


def test_a_keyword_of_hf_alone_is_told_on_its_command_line(monkeypatch, capsys):
    given = "pretrained=nowhere,revision=main,trust_remote_code=True"
    command = ["lm-eval", "run", "--model", "implicit", "--model_args", given, "--tasks", "piqa"]
    monkeypatch.setattr("sys.argv", command)
    assert harness.main() == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --model implicit takes no revision, trust_remote_code; allowed")
    assert "pretrained, tokenizer, max_length" in line and "phase" not in line
