"""Kubernetes as far as Prefect's worker uses it: jobs and pods behind HTTP, pods as processes.

It knows one namespace and one service account, which may do what the rules of a role say. What it
says and does was seen of Kubernetes 1.20.2 (apiserver, controllers and scheduler; pods were
processes there as well), with one difference, which releases since 1.29 make: a pod that is deleted
is not replaced before it has ended (``podReplacementPolicy``).
"""

import contextlib
import json
import queue
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import psutil
import yaml

NAMESPACE = "default"
GROUPS = {"jobs": "batch", "pods": ""}
KINDS = {"jobs": "Job", "pods": "Pod", "events": "Event", "namespaces": "Namespace"}
GPU = "nvidia.com/gpu"

Object = dict[str, Any]


class Refused(Exception):
    """An answer that is no success: status, reason and message."""


@dataclass
class Cluster:
    """Objects, and who watches them.

    Attributes
    ----------
    folder
        For the logs of pods, PODNAME.log, and the configuration of clients.
    rules
        Of the role that the service account has.
    gpus
        Of the only node.
    secrets
        By name; keys and values.
    images
        By name; what a pod's name gives as working directory and environment.
    """

    folder: Path
    rules: list[Mapping[str, list[str]]]
    gpus: int = 1
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    images: dict[str, Callable[[str], tuple[Path, dict[str, str]]]] = field(default_factory=dict)
    objects: dict[str, dict[str, Object]] = field(default_factory=lambda: {"jobs": {}, "pods": {}})
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    _events: list[tuple[str, Object]] = field(default_factory=list)
    _watchers: list[tuple[str, queue.Queue]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _version: int = 1000

    @contextlib.contextmanager
    def serving(self):
        """Answer on a port of localhost for a block; yield the clients' configuration."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        configuration = self.folder / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": address}}],
            "users": [{"name": "worker", "user": {"token": "none"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "worker"}}],
            "current-context": "fake",
        }
        configuration.write_text(yaml.safe_dump(content))
        try:
            yield configuration
        finally:
            server.shutdown()
            server.server_close()
            for name, process in self.processes.items():
                _kill(name)
                process.wait()

    def log(self, pod: str) -> str:
        """Read what a pod has printed."""
        path = self.folder / f"{pod}.log"
        return path.read_text() if path.exists() else ""

    def names(self, kind: str, phase: str | None = None) -> list[str]:
        """List objects, oldest first; pods in a phase."""
        with self._lock:
            found = list(self.objects[kind].values())
        wanted = [each for each in found if phase in (None, each["status"].get("phase"))]
        return [each["metadata"]["name"] for each in wanted]

    def evict(self, pod: str) -> None:
        """Delete a pod as `kubectl drain` does: SIGTERM to its first process, and time to end."""
        threading.Thread(target=self._end, args=(pod,), daemon=True).start()

    def schedule(self) -> None:
        """Start the pods that have not started and can."""
        for name in self.names("pods", "Pending"):
            self._start(name)

    # What the worker asks for

    def allow(self, verb: str, kind: str, namespace: str | None) -> None:
        """Check that the service account's role allows this, in its namespace."""
        for rule in self.rules:
            if namespace != NAMESPACE:
                break
            if GROUPS.get(kind.split("/")[0], "") not in rule["apiGroups"]:
                continue
            if kind in rule["resources"] and verb in rule["verbs"]:
                return
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        message = (
            f'{kind} is forbidden: the service account cannot {verb} resource "{kind}" {where}'
        )
        self.refused.append(message)
        raise Refused(403, "Forbidden", message)

    def create(self, job: Object) -> Object:
        """Make a job, and its pod."""
        name = job["metadata"]["generateName"] + uuid.uuid4().hex[:5]
        labels = {**job["spec"]["template"].get("metadata", {}).get("labels", {}), "job-name": name}
        template = job["spec"]["template"]
        job = {**job, "metadata": _metadata(name, job["metadata"]["labels"]), "status": {}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": _metadata(f"{name}-{uuid.uuid4().hex[:5]}", labels),
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        self._put("jobs", job)
        self._put("pods", pod)
        self._start(pod["metadata"]["name"])
        return job

    def listing(self, kind: str, selector: str) -> Object:
        """List objects by their labels."""
        with self._lock:
            items = [each for each in self.objects[kind].values() if _fits(each, selector)]
            version = {"resourceVersion": str(self._version)}
        api = "/".join(filter(None, (GROUPS[kind], "v1")))
        return {
            "kind": f"{KINDS[kind]}List",
            "apiVersion": api,
            "metadata": version,
            "items": items,
        }

    def watch(self, kind: str, since: int) -> queue.Queue:
        """Hear of changes after a version."""
        heard: queue.Queue = queue.Queue()
        with self._lock:
            for changed, event in self._events:
                if changed == kind and int(event["object"]["metadata"]["resourceVersion"]) > since:
                    heard.put(event)
            self._watchers.append((kind, heard))
        return heard

    # What controllers, scheduler and kubelet do

    def _put(self, kind: str, content: Object) -> None:
        name = content["metadata"]["name"]
        with self._lock:
            self._version += 1
            content["metadata"]["resourceVersion"] = str(self._version)
            change = "MODIFIED" if name in self.objects[kind] else "ADDED"
            self.objects[kind][name] = content
            event = {"type": change, "object": json.loads(json.dumps(content))}
            self._events.append((kind, event))
            for watched, heard in self._watchers:
                if watched == kind:
                    heard.put(event)

    def _status(self, kind: str, name: str, **status: Any) -> None:
        with self._lock:
            content = self.objects[kind][name]
            content["status"] = {**content["status"], **status}
            self._put(kind, content)

    def _start(self, name: str) -> None:
        with self._lock:
            pod = self.objects["pods"][name]
            (container,) = pod["spec"]["containers"]
            asked = _gpus(pod)
            running = [self.objects["pods"][each] for each in self.names("pods", "Running")]
            if asked > self.gpus - sum(map(_gpus, running)):
                message = f"0/1 nodes are available: 1 Insufficient {GPU}."
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                return self._status("pods", name, conditions=[{**condition, "message": message}])
            if container["image"] not in self.images:
                message = f'failed to pull and unpack image "{container["image"]}": not found'
                waiting = {"reason": "ErrImagePull", "message": message}
                return self._container(name, "Pending", {"waiting": waiting})
            folder, environment = self.images[container["image"]](name)
            environment = {**environment, "HOSTNAME": name}
            for source in container.get("envFrom", []):
                environment |= self.secrets[source["secretRef"]["name"]]
            for variable in container["env"]:
                environment[variable["name"]] = self._value(variable)
            with (self.folder / f"{name}.log").open("wb") as output:
                self.processes[name] = subprocess.Popen(
                    [*container.get("command", []), *container["args"]],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._container(name, "Running", {"running": {"startedAt": _now()}})
        threading.Thread(target=self._wait, args=(name,), daemon=True).start()

    def _value(self, variable: Mapping[str, Any]) -> str:
        if "valueFrom" not in variable:
            return variable["value"]
        key = variable["valueFrom"]["secretKeyRef"]
        return self.secrets[key["name"]][key["key"]]

    def _container(self, name: str, phase: str, state: Object) -> None:
        container = self.objects["pods"][name]["spec"]["containers"][0]
        status = {"name": container["name"], "image": container["image"], "restartCount": 0}
        statuses = [{**status, "ready": phase == "Running", "state": state}]
        self._status("pods", name, phase=phase, containerStatuses=statuses)

    def _wait(self, name: str) -> None:
        process = self.processes[name]
        code = process.wait()
        _kill(name)  # in a container nothing outlives the first process
        phase, reason = ("Failed", "Error") if code else ("Succeeded", "Completed")
        ended = {"exitCode": 128 - code if code < 0 else code, "finishedAt": _now()}
        self._container(name, phase, {"terminated": {**ended, "reason": reason}})
        job = self.objects["pods"][name]["metadata"]["labels"]["job-name"]
        if code:
            failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
            self._status("jobs", job, failed=1, conditions=[failed])
        else:
            complete = {"type": "Complete", "status": "True"}
            self._status("jobs", job, succeeded=1, conditions=[complete])
        self.schedule()

    def _end(self, name: str) -> None:
        pod, process = self.objects["pods"][name], self.processes[name]
        pod["metadata"]["deletionTimestamp"] = _now()
        self._put("pods", pod)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(pod["spec"]["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            process.kill()


def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    """Make the class that answers for a cluster."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("get")

        def do_POST(self) -> None:
            self._answer("create")

        def log_message(self, format: str, *args: Any) -> None: ...

        def _answer(self, verb: str) -> None:
            address = urlparse(self.path)
            options = {name: values[-1] for name, values in parse_qs(address.query).items()}
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            try:
                self._act(verb, address.path.strip("/"), options, body)
            except Refused as refused:
                code, reason, message = refused.args
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
                self._send({**status, "reason": reason, "message": message}, code)

        def _act(self, verb: str, path: str, options: dict[str, str], body: Object | None) -> None:
            if path in _DISCOVERY:
                return self._send(_DISCOVERY[path])
            words = [word for word in path.split("/") if word not in ("api", "apis", "batch", "v1")]
            namespace = None  # of all namespaces
            if words[0] == "namespaces":
                _, namespace, *words = words
            kind, *rest = words
            if verb == "create":
                cluster.allow("create", kind, namespace)
                return self._send(cluster.create(body or {}), 201)
            if not rest:
                verb = "watch" if options.get("watch") in ("true", "True") else "list"
                cluster.allow(verb, kind, namespace)
                selector = options.get("labelSelector", "")
                if verb == "list":
                    return self._send(cluster.listing(kind, selector))
                return self._stream(kind, int(options.get("resourceVersion", 0)), selector)
            cluster.allow("get", "/".join([kind, *rest[1:]]), namespace)
            if rest[0] not in cluster.objects[kind]:
                raise Refused(404, "NotFound", f'{kind} "{rest[0]}" not found')
            if rest[1:] == ["log"]:
                return self._send(cluster.log(rest[0]))
            self._send(cluster.objects[kind][rest[0]])

        def _send(self, content: Object | str, code: int = 200) -> None:
            is_text = isinstance(content, str)
            data = (content if is_text else json.dumps(content)).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if is_text else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, kind: str, since: int, selector: str) -> None:
            heard = cluster.watch(kind, since)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    event = heard.get()
                    if _fits(event["object"], selector):
                        line = json.dumps(event).encode() + b"\n"
                        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    return Handler


def _resources(version: str, *kinds: str) -> Object:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [
        {"name": name, "singularName": "", "namespaced": name != "namespaces", "kind": KINDS[name]}
        for name in kinds
    ]
    resources = [{**each, "verbs": verbs} for each in resources]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


_BATCH = {"groupVersion": "batch/v1", "version": "v1"}
_DISCOVERY: dict[str, Object] = {
    "version": {"major": "1", "minor": "20", "gitVersion": "v1.20.2"},
    "api": {"kind": "APIVersions", "versions": ["v1"]},
    "apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "batch", "versions": [_BATCH], "preferredVersion": _BATCH}],
    },
    "api/v1": _resources("v1", "pods", "events", "namespaces"),
    "apis/batch/v1": _resources("batch/v1", "jobs"),
}


def _metadata(name: str, labels: Mapping[str, str]) -> Object:
    return {
        "name": name,
        "namespace": NAMESPACE,
        "uid": str(uuid.uuid4()),
        "labels": dict(labels),
        "creationTimestamp": _now(),
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _gpus(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))


def _fits(content: Object, selector: str) -> bool:
    labels = content["metadata"]["labels"]
    for term in filter(None, selector.split(",")):
        name, _, value = term.partition("=")
        if name not in labels or (value and labels[name] != value):
            return False
    return True


def _kill(name: str) -> None:
    """Kill a pod's processes, in whatever session they are."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOSTNAME") == name:
                process.kill()
