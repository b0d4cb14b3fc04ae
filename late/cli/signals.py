"""Wait for SIGTERM or SIGINT, in commands that serve from threads."""

from __future__ import annotations

import signal
import socket
import threading

STOPS = (signal.SIGTERM, signal.SIGINT)


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set, from now on.

    Call it in the main thread, before saying that the service is up: whoever reads that may send
    the signal at once.
    """
    stop = threading.Event()
    # A handler in Python runs when the main thread next runs Python code. Where the signal comes
    # just before that begins to wait, nothing wakes it up, and it waits for ever. The interpreter
    # writes to this socket wherever the main thread is. It also needs no lock of `stop.wait()`.
    heard, told = socket.socketpair()
    told.setblocking(False)

    def pass_on() -> None:
        with heard, told:  # Both stay open: another file could get the number of a closed one.
            while True:
                if heard.recv(1)[0] in STOPS:
                    stop.set()

    threading.Thread(target=pass_on, name="stop-signal", daemon=True).start()
    for number in STOPS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    return stop
