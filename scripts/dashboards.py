"""Show the tracked runs in MLflow's user interface on this machine until Ctrl-C.

``MLFLOW_TRACKING_URI`` counts: an SQLite file is served, of a server the address is shown.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser

DEFAULT_STORE = "sqlite:///mlflow.db"


def main() -> int:
    """Serve the SQLite file that the stages write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=5000, help="the first port to try")
    options = parser.parse_args()
    store = os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_STORE
    if not store.startswith("sqlite:"):
        shown = re.sub(r"//[^/@]+@", "//", store)
        print(f"MLFLOW_TRACKING_URI is set: the runs are at {shown}, which is not served here")
        return 0
    port = free_port(options.port)
    address = f"http://127.0.0.1:{port}"
    print("starting MLflow ...", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    server = start_server(port, store)
    try:
        if wait_until_up(server, address):
            print(f"MLflow: {address} (Ctrl-C stops it)", flush=True)
            if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
                webbrowser.open(address)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        stop_group(server)


def free_port(first: int) -> int:
    """Return the first port from `first` on that nobody listens on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    sys.exit(f"error: no free port from {first} to {first + 99}; try: make dashboards PORT=...")


def start_server(port: int, store: str) -> subprocess.Popen:
    """Start MLflow's server as the leader of a process group, for it starts helpers."""
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        store,
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    return subprocess.Popen(command, env=os.environ | settings, start_new_session=True)


def wait_until_up(server: subprocess.Popen, address: str) -> bool:
    """Wait until the server answers; False if it ended instead."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    return False


def stop_group(server: subprocess.Popen, patience: float = 5.0) -> None:
    """End the server and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


if __name__ == "__main__":
    raise SystemExit(main())
