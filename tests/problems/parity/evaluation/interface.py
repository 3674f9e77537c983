"""How models of parities are tested."""

from pathlib import Path

from implicit_models.cost.meter import Meter
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation import metrics
from implicit_models.evaluation.costs import total_cost
from implicit_models.evaluation.prediction import predict
from implicit_models.evaluation.sweep import Measured
from implicit_models.evaluation.sweep import sweep as sweep_phases
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import num_parameters
from implicit_models.language_models.phases import search_settings
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import load_model
from implicit_models.problems.answers import Evaluated, Swept
from tests.problems.parity.data.interface import split
from tests.problems.parity.parameters import (
    ParityEvaluationParameters,
    ParitySweepParameters,
)


def evaluate(model: Path, data: Path, parameters: ParityEvaluationParameters) -> Evaluated:
    """Return which share of a model's answers is right, by position."""
    loaded, test = load_model(model, default_device()), split(data, "test")
    inputs = test.inputs[: parameters.num_sequences]
    implicit = is_implicit(loaded)
    phase = search_settings(parameters, loaded.config).phase() if implicit else None
    with Meter(loaded.device) as meter:
        found = predict(loaded, inputs, phase=phase, batch_size=8)
    right = metrics.accuracy_by_position(found.labels, test.labels[: parameters.num_sequences])
    content = {
        "data": "parity",
        "kind": "implicit" if implicit else "explicit",
        "num_parameters": num_parameters(loaded),
        "num_sequences": len(inputs),
        "length": inputs.shape[1],
        "parity_accuracy": float(right.mean()),
        "cost": total_cost([(inputs.size, found.flops, found.seconds)], meter.measurement),
    }
    rows = [{"position": place, "score": float(each)} for place, each in enumerate(right, start=1)]
    return Evaluated(
        metrics=content,
        headline={"parity_accuracy": content["parity_accuracy"]},
        files={"evaluation_by_position.csv": rows},
        score=("evaluation.parity_accuracy", content["parity_accuracy"], True),
    )


def sweep(model: Path, data: Path, parameters: ParitySweepParameters) -> Swept:
    """Return which share is right with more self-iterations and with fewer."""
    loaded, test = load_model(model, default_device()), split(data, "test")
    inputs, labels = (each[: parameters.num_sequences] for each in (test.inputs, test.labels))

    def measure(phase: Phase, description: str) -> Measured:
        found = predict(
            loaded, inputs, phase=phase, batch_size=parameters.batch_size, description=description
        )
        assert found.search is not None
        scores = {"accuracy": metrics.accuracy(found.labels, labels)}
        return Measured(
            scores=scores, search=found.search, flops=found.flops, seconds=found.seconds
        )

    result = sweep_phases(measure, parameters, loaded, num_sequences=len(inputs))
    return Swept(result=result, score="accuracy")
