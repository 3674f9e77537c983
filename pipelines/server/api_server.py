"""Prefect's API on a socket that the parent has bound, so that nobody else can take its port."""

import argparse
import fcntl
import gc
import socket


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of a bound socket")
    parser.add_argument("--lock", required=True, help="file to lock for the length of the start")
    parser.add_argument("--complete", action="store_true", help="with the UI and every service")
    options = parser.parse_args()
    # Nothing that an import makes is garbage: looking for it is a tenth of the start.
    gc.disable()
    import uvicorn
    from prefect.server.api.server import create_app

    class Server(uvicorn.Server):
        """Starts alone: two that start at once would both create the database's tables."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with open(options.lock, "ab") as starting:
                fcntl.flock(starting, fcntl.LOCK_EX)
                await super().startup(sockets)

    application = create_app(ephemeral=not options.complete, final=True)
    gc.freeze()
    gc.enable()
    configuration = uvicorn.Config(
        application, lifespan="on", log_level="error", timeout_graceful_shutdown=3
    )
    Server(configuration).run(sockets=[socket.socket(fileno=options.socket)])


if __name__ == "__main__":
    main()
