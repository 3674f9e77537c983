"""The downstream tasks on a model's folder, with the costs and the paper's rows of its size."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from implicit_models.cost.meter import Meter
from implicit_models.cost.passes import cost
from implicit_models.data.task_files import open_tasks
from implicit_models.evaluation.harness import benchmark_phase, evaluate_tasks
from implicit_models.evaluation.parameters import BenchmarkParameters
from implicit_models.evaluation.published import SOURCE, published_beside
from implicit_models.language_models.language_model import num_parameters
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.reading import is_implicit
from implicit_models.language_models.serialisation import load_model
from implicit_models.parameters import ParameterError
from stages.unfinished import FOLDER, evaluation_identity
from stages.vocabulary import VocabularyError


def evaluate_on_tasks(
    key: str, parameters: BenchmarkParameters
) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Evaluate a model.

    Returns
    -------
    The content of ``benchmarks.json``; the harness's own results; and the file of single answers,
    to be deleted once the others are written.

    Raises
    ------
    VocabularyError
        Where the model's folder has no tokenizer that can be read.
    """
    folder, data = Path(parameters.model), Path("data", parameters.tasks)
    files = dict(open_tasks(data))
    names = parameters.names or tuple(files)
    for name in names:
        if name not in files:
            raise ParameterError(
                f"{key}.names holds {name!r}, which is not in {data}; there are {', '.join(files)}"
            )
    model = load_model(folder, default_device())
    tokenizer = load_tokenizer(folder)
    phase = benchmark_phase(model, parameters)
    identity = evaluation_identity(folder, parameters, model.device.type)
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
    read, measured = result.cost, meter.measurement
    published = published_beside(model.config)
    embeddings: Any = model.get_input_embeddings()
    size = num_parameters(model)
    metrics = {
        "model": parameters.model,
        "kind": "implicit" if is_implicit(model) else "explicit",
        "family": model.config.model_type.removeprefix("implicit_"),
        "num_parameters": size,
        "num_non_embedding_parameters": size - embeddings.weight.numel(),
        "limit": parameters.limit,
        "max_length": result.report["config"]["max_length"],
        "row": result.summary.scores,
        "standard_errors": result.summary.standard_errors,
        "num_items": result.num_items,
        "published": [row.as_row() for row in published],
        "published_source": SOURCE if published else None,
        "cost": cost(read.flops, read.num_tokens, replace(measured, seconds=read.seconds)),
    }
    return metrics, result.report, answers


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer in a model's folder, as transformers do."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        first = str(error).strip().split("\n")[0]
        raise VocabularyError(
            f"{folder} holds no tokenizer that transformers can load ({first}); downstream tasks "
            "are text: a model of text is saved with its tokenizer"
        ) from None
