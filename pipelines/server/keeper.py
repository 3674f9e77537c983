"""Run a command for as long as standard input stays open; then end it and all that it started.

Run by path, as the leader of a process group, with a pipe of its parent's as standard input. The
kernel closes that pipe however the parent ends, so that a server never outlives who wanted it.
"""

import os
import signal
import subprocess
import sys
import threading
import time

PATIENCE = 10.0  # seconds between asking and killing


def main() -> int:
    """Run the command of the arguments; return its exit status."""
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, close_fds=False)
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    # It ends when the command does, which whoever signals the group has asked as well.
    signal.signal(signal.SIGTERM, lambda *_: None)
    return command.wait()


def end_with_the_parent() -> None:
    """Wait for the end of standard input, then for that of the group, but not for ever."""
    # Not by way of sys.stdin, whose lock the end of the interpreter would wait for.
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(PATIENCE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
