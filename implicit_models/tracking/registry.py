"""Models in MLflow's registry: a version for each set of weights, and the alias ``best``.

Nothing here depends on the order in which stages are sent, or on how often: a version is known
by the digest of its files, a score lies on the run that measured it and on the version, and the
best is read off what lies there.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from implicit_models.tracking.names import TEST
from implicit_models.tracking.spool import Event

BEST = "best"
DIGEST = "dvc.md5"  # tag of versions and of runs

_SCORE, _METRIC = "score", "score.metric"
_HIGHER, _DATASET = "score.higher_is_better", "score.dataset"


def register(
    client: Any,
    name: str,
    digest: str,
    place: tuple[str, str, str | None],
    tags: Mapping[str, str],
) -> str:
    """Make a version of a model that a run has logged, unless its weights have one.

    Parameters
    ----------
    name
        Of the registered model.
    digest
        Of the model's files.
    place
        Where they are, the run that has trained the model, and the logged model's id where the
        store has those.
    tags
        Of the version.

    Returns
    -------
    str
        The version.
    """
    try:
        client.create_registered_model(name)
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
            raise
    version = _find(client, name, digest)
    if version is None:
        source, run_id, model_id = place
        version = client.create_model_version(
            name,
            source,
            run_id,
            tags={**tags, DIGEST: digest},
            await_creation_for=0,
            model_id=model_id,
        )
    return str(version.version)


def score_tags(event: Event) -> dict[str, str]:
    """Return the tags that say what a model has reached; none where it is no finite number."""
    if not math.isfinite(event["value"]):
        return {}
    return {
        _SCORE: repr(event["value"]),
        _METRIC: event["metric"],
        _HIGHER: str(event["higher_is_better"]).lower(),
        _DATASET: event["dataset_digest"] or "",
    }


def rank(client: Any, name: str, digest: str, tags: Mapping[str, str]) -> None:
    """Write what a model has reached on its version, if it has one, and move the alias.

    Parameters
    ----------
    tags
        Of the run that tested it; `score_tags` are among them.
    """
    version = _find(client, name, digest)
    if version is None:
        return
    for key in (_SCORE, _METRIC, _HIGHER, _DATASET):
        client.set_model_version_tag(name, str(version.version), key, tags[key])
    best = _best(client, name, tags)
    if client.get_registered_model(name).aliases.get(BEST) != best:
        client.set_registered_model_alias(name, BEST, best)


def _best(client: Any, name: str, tags: Mapping[str, str]) -> str:
    """Return the best version by a metric on a data set; of equals, the oldest."""
    rivals = (version for version in _versions(client, name) if _is_comparable(version.tags, tags))
    sign = 1 if tags[_HIGHER] == "true" else -1
    best = max(
        rivals, key=lambda version: (sign * float(version.tags[_SCORE]), -int(version.version))
    )
    return str(best.version)


def _is_comparable(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two models have a score by the same metric on the same data."""
    same = (one.get(key) == other[key] for key in (_HIGHER, _DATASET))
    return _SCORE in one and all(same) and _metric(one) == _metric(other)


def _metric(tags: Mapping[str, str]) -> str:
    """Return the metric's name without what it began with, which was not always ``test.``."""
    return tags[_METRIC].removeprefix("evaluation.").removeprefix(TEST)


def _find(client: Any, name: str, digest: str) -> Any | None:
    """Return the oldest version with a digest."""
    found = (version for version in _versions(client, name) if version.tags.get(DIGEST) == digest)
    return min(found, key=lambda version: int(version.version), default=None)


def _versions(client: Any, name: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", page_token=token)
        yield from page
        token = page.token
        if not token:
            return
