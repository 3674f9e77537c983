"""Models as MLflow's logged models: one for each phase of a training, linked to runs and scores.

Each is known by a tag that names the spool and the phase, so that it is there once, however often
it is sent. The weights of a final model are among its files and nowhere else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.tracking import registry
from implicit_models.tracking.names import TEST

_KEY = "tracking.model"
_TYPE = "language model"


def log_model(
    client: Any,
    entities: Any,
    run: tuple[str, str],
    name: str,
    files: Path | None,
    tags: Mapping[str, str],
    key: str,
    step: int,
) -> Any:
    """Find or make a logged model, with its files, as an output of the run that has trained it.

    Parameters
    ----------
    run
        The experiment's id and the run's.
    files
        The folder of the model; None leaves it without files.
    tags
        Of the model, accepted by MLflow.
    key
        What makes it the same model when it is sent again.
    step
        The training's last.
    """
    experiment_id, run_id = run
    model = _newest(client, experiment_id, {_KEY: key})
    if model is None:
        model = client.create_logged_model(
            experiment_id, name, run_id, tags={**tags, _KEY: key}, model_type=_TYPE
        )
    if str(model.status) != str(entities.LoggedModelStatus.READY):
        if files is not None:
            client.log_model_artifacts(model.model_id, str(files))
        client.finalize_logged_model(model.model_id, entities.LoggedModelStatus.READY)
    outputs = client.get_run(run_id).outputs
    known = {each.model_id for each in outputs.model_outputs} if outputs else set()
    if model.model_id not in known:
        output = entities.LoggedModelOutput(model.model_id, step)
        client.log_outputs(run_id, [output])
    return model


def link_test(client: Any, entities: Any, digest: str, tested: Any) -> None:
    """Link a test to the model that it has tested, and its headline scores with the data.

    Parameters
    ----------
    digest
        Of the model's files.
    tested
        The test's run; the run of its entry has the headline scores.
    """
    entry = client.get_run(tested.data.tags["mlflow.parentRunId"])
    known = {registry.DIGEST: digest, "entry": entry.data.tags["entry"]}
    model = _newest(client, tested.info.experiment_id, known)
    if model is None:
        return
    inputs = tested.inputs
    if model.model_id not in {each.model_id for each in inputs.model_inputs or ()}:
        read = entities.LoggedModelInput(model.model_id)
        client.log_inputs(tested.info.run_id, models=[read])
    datasets = [each.dataset for each in inputs.dataset_inputs]
    data = (datasets[0].name, datasets[0].digest) if datasets else (None, None)
    scores = [
        # As it was sent before, so that the run's own history keeps one row of it.
        entities.Metric(
            name, each.value, each.timestamp, each.step, model.model_id, *data, tested.info.run_id
        )
        for name in entry.data.metrics
        if name.startswith(TEST) and name in tested.data.metrics
        for each in client.get_metric_history(tested.info.run_id, name)
    ]
    if scores:
        client.log_batch(tested.info.run_id, metrics=scores)


def _newest(client: Any, experiment_id: str, tags: Mapping[str, str]) -> Any | None:
    conditions = " AND ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    newest = [{"field_name": "creation_time", "ascending": False}]
    found = client.search_logged_models([experiment_id], conditions, None, 1, newest)
    return next(iter(found), None)
