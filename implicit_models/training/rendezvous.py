"""How processes that torchrun starts, and starts again, find each other.

torchrun's agents keep one store for all starts, in which those before have left their addresses
(torch 2.5 to 2.13; the count of restarts, which once kept them apart, is not the same on all
nodes). So the processes of a start agree on a name that nobody has used before.
"""

import os
import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

_TIMEOUT = timedelta(minutes=10)
_SECONDS_BETWEEN_LOOKS = 0.02


def open_store(rank: int, size: int) -> Store | None:
    """Return a store that only the processes of this start use.

    None where torchrun has made one for this start alone.

    Raises
    ------
    TimeoutError
        Where not all of them have come after ten minutes.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=_TIMEOUT)
    return PrefixStore(agree(store, rank, size), store)


def agree(store: Store, rank: int, size: int) -> str:
    """Return the name of this start: the first process makes it up, the others ask for it.

    Each asks with a name of its own, so that no answer to an earlier start is taken for its own.
    """
    if rank:
        own = uuid.uuid4().hex
        store.set(f"asks/{rank}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"knows/{name}/{rank}", "")
        return name
    name, missing = uuid.uuid4().hex, set(range(1, size))
    deadline = time.monotonic() + _TIMEOUT.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"knows/{name}/{other}"]):
                missing.discard(other)
            elif store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"of {size} processes those of rank {', '.join(map(str, sorted(missing)))} have "
                f"not come after {_TIMEOUT.total_seconds():.0f} s; see what they log"
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return name
