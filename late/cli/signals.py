"""Wait for SIGTERM or SIGINT, in commands that serve from threads."""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set, from now on.

    Call it before saying that the service is up: whoever reads that may send the signal at once.
    """
    stop = threading.Event()
    # A handler runs in the main thread, perhaps in the middle of `stop.wait()`, which holds the
    # lock that `stop.set()` takes: the process would hang. `SimpleQueue.put` may run at any moment.
    told: SimpleQueue[int] = SimpleQueue()

    def pass_on() -> None:
        told.get()
        stop.set()

    threading.Thread(target=pass_on, name="stop-signal", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.put(number))
    return stop
