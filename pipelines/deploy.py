"""Make the work pools and deployments of prefect.yaml on Prefect's server.

    python -m pipelines.deploy            # all of them
    python -m pipelines.deploy gpu-nodes  # one

Run again after a change it changes what is there. Prefect's own ``prefect deploy --all`` does the
same once the pools exist, where IMPLICIT_MODELS_CLONE is not set: it would write that down for all.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from implicit_models.tracking.stores import shown
from pipelines.handing_over import Parser, mistake
from pipelines.server.embedded import check_given_server
from pipelines.server.local_server import ServerError

FILE = Path("prefect.yaml")
TEMPLATES = Path("deploy")  # of pools of Kubernetes: POOL/job_template.json


class DeployError(Exception):
    """What prefect.yaml asks for cannot be had; the message says what to do."""


def main() -> int:
    """Make the pools that are not there, then deploy; return the exit status."""
    parser = Parser(prog="python -m pipelines.deploy", description=__doc__)
    parser.add_argument("names", nargs="*", help="of deployments; none: all of them")
    names = parser.parse_args().names
    try:
        pools = pools_of(FILE, names)
        make_pools(pools)
    except (DeployError, ServerError, OSError, yaml.YAMLError) as error:
        return mistake(error)
    chosen = [word for name in names for word in ("--name", name)] or ["--all"]
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", *chosen]
    # Prefect fills in what is set here; every machine has a clone of its own, and fills that in.
    clone = {"IMPLICIT_MODELS_CLONE": "{{ $IMPLICIT_MODELS_CLONE }}"}
    return subprocess.run(command, env={**os.environ, **clone}).returncode


def pools_of(file: Path, names: list[str]) -> dict[str, str]:
    """Read which work pools deployments use, and of what kind each is.

    A pool is one of processes, or of Kubernetes where there is a template for jobs of its name.

    Raises
    ------
    DeployError
        Where a deployment is not in the file.
    """
    deployments = yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]
    known = [each["name"] for each in deployments]
    for name in names:
        if name not in known:
            raise DeployError(f"{file} has no deployment {name}; it has {', '.join(known)}")
    pools = [each["work_pool"]["name"] for each in deployments if each["name"] in (names or known)]
    return {pool: "kubernetes" if _template(pool).exists() else "process" for pool in pools}


def make_pools(pools: dict[str, str]) -> None:
    """Make the work pools that Prefect's server does not have.

    Raises
    ------
    DeployError, ServerError
        Where there is no server, or it refuses.
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value()
    if not address:
        raise DeployError("PREFECT_API_URL is not set; name the server (docs/servers.md)")
    check_given_server(address)
    try:
        with get_client(sync_client=True) as client:
            there = {pool.name for pool in client.read_work_pools()}
            for name, kind in pools.items():
                if name in there:
                    continue
                template: dict[str, Any] = {}
                if kind != "process":
                    template = {"base_job_template": json.loads(_template(name).read_text())}
                client.create_work_pool(WorkPoolCreate(name=name, type=kind, **template))
                print(f"made the work pool {name} ({kind})")
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        raise DeployError(
            f"{shown(address)} has not made the pools: {error}; mend that, and call again"
        ) from None


def _template(pool: str) -> Path:
    return TEMPLATES / pool / "job_template.json"


if __name__ == "__main__":
    sys.exit(main())
