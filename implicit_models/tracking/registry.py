"""Models in MLflow's registry: a version for each set of weights, and the alias ``best``.

Nothing here depends on the order in which stages are sent, or on how often: a version is known
by the digest of its files, a score lies on the run that measured it and on the version, and the
best is read off what lies there.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from implicit_models.tracking.spool import Event

BEST = "best"
DIGEST = "dvc.md5"  # tag of versions and of runs

_SCORE = ("score", "score.metric", "score.higher_is_better", "score.dataset")


def register(
    client: Any, event: Event, run_id: str, tags: Mapping[str, str], scored: Mapping[str, str]
) -> str:
    """Make a version of a model that a run has logged, unless its weights have one.

    Parameters
    ----------
    event
        ``name`` of the registered model, ``digest`` of the model's files and the ``folder`` of
        the run's artifacts where they are.
    tags
        Of the version.
    scored
        Tags of a run that has tested these weights already; empty where none has.

    Returns
    -------
    str
        The version.
    """
    name, digest = event["name"], event["digest"]
    _ensure_model(client, name)
    version = _find(client, name, digest)
    if version is None:
        source = f"{client.get_run(run_id).info.artifact_uri.rstrip('/')}/{event['folder']}"
        version = client.create_model_version(
            name, source, run_id, tags={**tags, DIGEST: digest}, await_creation_for=0
        )
    number = str(version.version)
    if scored and _SCORE[0] not in version.tags:
        _score(client, name, number, scored)
    return number


def score_tags(event: Event) -> dict[str, str]:
    """Give the tags that tell what a model has reached; none where it is no finite number."""
    if not math.isfinite(event["value"]):
        return {}
    values = (
        repr(event["value"]),
        event["metric"],
        str(event["higher_is_better"]).lower(),
        event["dataset_digest"] or "",
    )
    return dict(zip(_SCORE, values, strict=True))


def score(client: Any, event: Event) -> str | None:
    """Write what a model has reached on its version, if it has one, and move the alias.

    Returns
    -------
    str | None
        The version.
    """
    version = _find(client, event["name"], event["digest"])
    if version is None:
        return None
    _score(client, event["name"], str(version.version), score_tags(event))
    return str(version.version)


def _score(client: Any, name: str, version: str, tags: Mapping[str, str]) -> None:
    for key in _SCORE:
        if key in tags:
            client.set_model_version_tag(name, version, key, tags[key])
    if tags:
        best = _best(client, name, tags)
        if best is not None and client.get_registered_model(name).aliases.get(BEST) != best:
            client.set_registered_model_alias(name, BEST, best)


def _best(client: Any, name: str, tags: Mapping[str, str]) -> str | None:
    """Find the best version by a metric on a data set; of equals, the oldest."""
    rivals = [
        version
        for version in _versions(client, name)
        if all(version.tags.get(key) == tags[key] for key in _SCORE[1:])
    ]
    sign = 1 if tags[_SCORE[2]] == "true" else -1
    best = max(
        rivals,
        key=lambda version: (sign * float(version.tags[_SCORE[0]]), -int(version.version)),
        default=None,
    )
    return None if best is None else str(best.version)


def _ensure_model(client: Any, name: str) -> None:
    try:
        client.create_registered_model(name)
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
            raise


def _find(client: Any, name: str, digest: str) -> Any | None:
    """Find the oldest version with a digest."""
    found = [version for version in _versions(client, name) if version.tags.get(DIGEST) == digest]
    return min(found, key=lambda version: int(version.version), default=None)


def _versions(client: Any, name: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", page_token=token)
        yield from page
        token = page.token
        if not token:
            return
