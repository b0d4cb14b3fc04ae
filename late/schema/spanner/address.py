"""The address of a Spanner database, and two needs of the emulator: settings, and one transaction
at a time."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from late.errors import ConfigError

SCHEMES = ("spanner", "spanner+spanner")
_PATH = re.compile(r"projects/([^/?#]+)/instances/([^/?#]+)/databases/([^/?#]+)")
HOST_VARIABLE = "SPANNER_EMULATOR_HOST"
NO_CREDENTIALS = (
    "no Google Cloud credentials: run `gcloud auth application-default login`,"
    f" or set {HOST_VARIABLE} for an emulator"
)
TURN_WAIT_S = 2.0
"""The time that a transaction on the emulator waits for another one of this process to end."""
_turns: dict[str, threading.Lock] = {}


class DatabaseAddress(NamedTuple):
    """The database that a URL names."""

    project: str
    instance: str
    database: str


def place_of(url: str) -> DatabaseAddress:
    """Read `spanner+spanner:///projects/P/instances/I/databases/D`, SQLAlchemy's form.

    Raises:
        ConfigError: the URL has another scheme or form.
    """
    scheme, separator, path = url.partition(":///")
    found = _PATH.fullmatch(path) if separator and scheme in SCHEMES else None
    if found is None:
        raise ConfigError(
            "a Spanner URL is spanner+spanner:///projects/PROJECT/instances/INSTANCE/databases/NAME"
        )
    return DatabaseAddress(*found.groups())


def emulator_settings() -> None:
    """Set the environment of Google's client for an emulator, which allows one transaction per
    session.

    Call it before the client is made. It may be called repeatedly.
    """
    if os.environ.get(HOST_VARIABLE):
        for kind in ("FOR_RW", "PARTITIONED_OPS"):
            os.environ.setdefault(f"GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_{kind}", "false")


@contextmanager
def turn(url: str) -> Iterator[None]:
    """Hold this around a read-write transaction; it has an effect on the emulator only.

    The emulator has one such transaction at a time and aborts a second one, so those of one process
    wait for each other. This is no guarantee: after `TURN_WAIT_S` a transaction starts anyway.
    """
    if not os.environ.get(HOST_VARIABLE):
        yield
        return
    lock = _turns.setdefault(url.partition("?")[0].rpartition(":///")[2], threading.Lock())
    held = lock.acquire(timeout=TURN_WAIT_S)
    try:
        yield
    finally:
        if held:
            lock.release()
