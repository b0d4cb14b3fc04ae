"""Waiting for SIGTERM or SIGINT, for commands that serve from threads."""

from __future__ import annotations

import signal
import threading


def stop_event() -> threading.Event:
    """Is set by SIGTERM and SIGINT, from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def until_told() -> None:
    """Wait for one of them."""
    stop_event().wait()
