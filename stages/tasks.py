"""The downstream tasks on a model's folder, with the costs and the paper's rows of its size."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from implicit_models.cost.flops import model_flops
from implicit_models.cost.meter import Meter
from implicit_models.cost.passes import cost, reading_flops
from implicit_models.data.task_files import open_tasks
from implicit_models.evaluation.harness import benchmark_phase, evaluate_tasks
from implicit_models.evaluation.parameters import BenchmarkParameters
from implicit_models.evaluation.published import SOURCE, published_beside
from implicit_models.language_models.building import num_parameters
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.reading import is_implicit
from implicit_models.language_models.serialisation import load_model
from implicit_models.parameters import ParameterError
from stages.unfinished import FOLDER, evaluation_identity


def evaluate_on_tasks(parameters: BenchmarkParameters) -> tuple[dict[str, Any], dict[str, Any]]:
    """Evaluate; gives the content of ``benchmarks.json``, and the harness's own results."""
    folder, data = Path(parameters.model), Path("data", parameters.tasks)
    files = dict(open_tasks(data))
    names = parameters.names or tuple(files)
    for name in names:
        if name not in files:
            raise ParameterError(f"names holds {name!r}; {data} has {', '.join(files)}")
    model = load_model(folder, default_device())
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    phase = benchmark_phase(model, parameters)
    identity = evaluation_identity(folder, repr(phase), parameters.max_length)
    answers = FOLDER / f"{identity[:16]}.sqlite"
    with Meter(model.device) as meter:
        result = evaluate_tasks(
            model,
            tokenizer,
            files,
            tasks=names,
            phase=phase,
            batch_size=parameters.batch_size,
            max_length=parameters.max_length,
            limit=parameters.limit,
            progress_store=answers,
            identity=identity,
            bootstrap_iters=parameters.bootstrap_samples,
        )
    answers.unlink(missing_ok=True)
    read, family = result.cost, model.config.model_type.removeprefix("implicit_")
    num_texts = max(read.num_texts, 1)
    length = max(1, round(read.num_tokens / num_texts))
    flops = reading_flops(
        model_flops(model),
        length=length,
        num_sequences=num_texts,
        search_evaluations=max(0, read.token_evaluations - read.num_tokens),
        window=phase.window.width if phase and phase.window else None,
        num_logits=round(read.num_scored / num_texts),
    )
    published = published_beside(model.config)
    embeddings: Any = model.get_input_embeddings()
    metrics = {
        "model": parameters.model,
        "kind": "implicit" if is_implicit(model) else "explicit",
        "family": family,
        "num_parameters": num_parameters(model),
        "num_non_embedding_parameters": num_parameters(model) - embeddings.weight.numel(),
        "row": result.summary.scores,
        "standard_errors": result.summary.standard_errors,
        "num_items": result.num_items,
        "published": [row.as_row() for row in published],
        "published_source": SOURCE if published else None,
        "cost": cost(flops, read.num_tokens, meter.measurement),
    }
    return metrics, json.loads(json.dumps(result.report))
