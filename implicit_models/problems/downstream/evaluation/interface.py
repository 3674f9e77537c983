"""What stages ask of the evaluation on downstream tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from transformers import AutoTokenizer

from implicit_models.cost.meter import Meter
from implicit_models.cost.passes import cost
from implicit_models.evaluation.evaluation_resume import score_store
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import num_parameters
from implicit_models.language_models.phases import search_settings, search_used
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import load_model
from implicit_models.parameters import ParameterError
from implicit_models.problems.answers import Evaluated
from implicit_models.problems.downstream.data.task_files import open_tasks
from implicit_models.problems.downstream.evaluation.harness import (
    evaluate_tasks,
)
from implicit_models.problems.downstream.evaluation.published import SOURCE, published_beside
from implicit_models.problems.downstream.parameters import BenchmarkParameters

_PACKAGE = "implicit_models.problems.downstream"


class TokenizerMissingError(ValueError):
    """A model's folder has no tokenizer that can be read."""


def evaluate(model: Path, data: Path, parameters: BenchmarkParameters) -> Evaluated:
    """Evaluate on the tasks, with the costs and the paper's rows of the model's size.

    Raises
    ------
    TokenizerMissingError
        Where the model's folder has no tokenizer that can be read.
    """
    files = dict(open_tasks(data))
    names = parameters.names or tuple(files)
    for name in names:
        if name not in files:
            raise ParameterError(
                f"names holds {name!r}, which is not in {data}; there are {', '.join(files)}"
            )
    loaded = load_model(model, default_device())
    tokenizer = load_tokenizer(model)
    store = score_store(_PACKAGE, model, parameters, loaded.device.type)
    phase = search_settings(parameters, loaded.config).phase() if is_implicit(loaded) else None
    with Meter(loaded.device) as meter:
        result = evaluate_tasks(
            loaded,
            tokenizer,
            files,
            tasks=names,
            phase=phase,
            batch_size=parameters.batch_size,
            max_length=parameters.max_length,
            limit=parameters.limit,
            store=store,
            bootstrap_iters=parameters.bootstrap_samples,
        )
    read, measured = result.cost, meter.measurement
    published = published_beside(loaded.config)
    size = num_parameters(loaded)
    around: tuple[Any, ...] = (loaded.get_input_embeddings(), loaded.get_output_embeddings())
    outside = {each.weight for each in around if each is not None}  # one tensor where they are tied
    metrics = {
        "kind": "implicit" if is_implicit(loaded) else "explicit",
        "search": search_used(parameters, loaded),
        "family": loaded.config.model_type.removeprefix("implicit_"),
        "num_parameters": size,
        "num_non_embedding_parameters": size - sum(each.numel() for each in outside),
        "limit": parameters.limit,
        "max_length": result.report["config"]["max_length"],
        "row": result.summary.scores,
        "standard_errors": result.summary.standard_errors,
        "num_items": result.num_items,
        "published": [row.as_row() for row in published],
        "published_source": SOURCE if published else None,
        "cost": cost(read.flops, read.num_tokens, replace(measured, seconds=read.seconds)),
    }
    return Evaluated(
        metrics=metrics,
        headline=_headline(metrics),
        files={"harness.json": result.report},
        discard=store.discard,
    )


def sweep(model: Path, data: Path, parameters: Any) -> NoReturn:
    """Raise a ValueError: no model is swept on tasks."""
    raise ValueError(f"{data} holds the items of tasks; no model is swept on them")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer in a model's folder, as transformers do."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        first = str(error).strip().split("\n")[0]
        raise TokenizerMissingError(
            f"{folder} holds no tokenizer that transformers can load ({first}); downstream tasks "
            "are text: a model of text is saved with its tokenizer: save one there, or "
            "name such a model"
        ) from None


def _headline(metrics: dict[str, Any]) -> dict[str, Any]:
    errors = {f"{column} stderr": each for column, each in metrics["standard_errors"].items()}
    return {**metrics["row"], **errors, "cost": metrics["cost"]}
