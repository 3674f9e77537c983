from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import (
    ArtifactCreate,
    ArtifactUpdate,
    GlobalConcurrencyLimitCreate,
    GlobalConcurrencyLimitUpdate,
)

from pipelines.cluster.on_node import gpu_slots, read_artifact
from pipelines.running import StoppedError, allow_all, stop_all
from pipelines.server.embedded import prefect_api
from tests.pipelines.tiny import record_of


@pytest.fixture(scope="module")
def client(tmp_path_factory, empty_record) -> Iterator[SyncPrefectClient]:
    folder = tmp_path_factory.mktemp("api")
    record_of(empty_record, folder)
    with prefect_api(folder), get_client(sync_client=True) as client:
        yield client


def active_slots(client: SyncPrefectClient, name: str) -> int:
    limits = client.read_global_concurrency_limits()
    return next(limit.active_slots for limit in limits if limit.name == name)


def test_who_waits_for_slots_can_be_stopped(client, monkeypatch):
    """A node that counts as lost would otherwise keep a stage, and its GPUs, that nobody wants."""
    monkeypatch.setenv("IMPLICIT_MODELS_NODE", "a")
    monkeypatch.setenv("IMPLICIT_MODELS_GPUS", "0,1")
    told = []

    def tell_and_stop(line: str) -> None:
        told.append(line)
        stop_all()

    with gpu_slots(client, 2, told.append):  # the first makes the limit
        assert active_slots(client, "gpus-a") == 2
        try:
            with pytest.raises(StoppedError), gpu_slots(client, 1, tell_and_stop):
                pass
        finally:
            allow_all()
    assert len(told) == 1
    assert "waiting for 1 slots of gpus-a" in told[0]
    assert active_slots(client, "gpus-a") == 0


def test_a_lowered_limit_stays_among_more_than_prefect_lists_at_once(client, monkeypatch):
    monkeypatch.setenv("IMPLICIT_MODELS_NODE", "z")
    monkeypatch.setenv("IMPLICIT_MODELS_GPUS", "0,1,2")
    for number in range(200):
        client.create_global_concurrency_limit(
            GlobalConcurrencyLimitCreate(name=f"gpus-{number}", limit=1)
        )
    with gpu_slots(client, 1, print):
        pass
    client.update_global_concurrency_limit("gpus-z", GlobalConcurrencyLimitUpdate(limit=1))
    with gpu_slots(client, 1, print):
        assert client.read_global_concurrency_limit_by_name("gpus-z").limit == 1


def test_of_several_heartbeats_the_newest_counts(client):
    """A request whose answer is lost is sent again, so that one may lie there that never beats."""

    @flow
    def node() -> None: ...

    run = client.create_flow_run(node)

    def leave(beats: int):
        data = {"beats": beats}
        return client.create_artifact(
            ArtifactCreate(type="heartbeat", flow_run_id=run.id, data=data)
        ).id

    assert read_artifact(client, run.id, "heartbeat") is None
    first, second = leave(1), leave(2)
    for artifact, beats in ((second, 3), (first, 4), (second, 5)):
        client.update_artifact(artifact, ArtifactUpdate(data={"beats": beats}))
        assert read_artifact(client, run.id, "heartbeat") == {"beats": beats}
