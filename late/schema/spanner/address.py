"""The address of a Spanner database, the options of its URL, and two needs of the emulator:
settings, and one transaction at a time."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from late.errors import ConfigError

SCHEMES = ("spanner", "spanner+spanner")
_PATH = re.compile(r"projects/([^/?#]+)/instances/([^/?#]+)/databases/([^/?#]+)")
HOST_VARIABLE = "SPANNER_EMULATOR_HOST"
STALENESS_MAX_S = 3_000.0
"""The largest `staleness_s`: Spanner keeps versions for an hour if nobody has set it."""
_LOCATION = re.compile(r"[a-z][a-z0-9-]{0,62}")
TURN_WAIT_S = 2.0
"""The time that a transaction on the emulator waits for another one of this process to end."""
_turns: dict[str, threading.Lock] = {}


class DatabaseAddress(NamedTuple):
    """The database that a URL names."""

    project: str
    instance: str
    database: str


def no_credentials(error: Exception) -> ConfigError:
    """Return the error for credentials that Google's library has not found, or cannot read."""
    why = " ".join(str(error).split()).rstrip(".")
    return ConfigError(
        f"no Google Cloud credentials: {why}. Run `gcloud auth application-default login`, or set"
        f" GOOGLE_APPLICATION_CREDENTIALS; for an emulator {HOST_VARIABLE}"
    )


def place_of(url: str) -> DatabaseAddress:
    """Read `spanner+spanner:///projects/P/instances/I/databases/D`, SQLAlchemy's form, with options
    or without; see `options_of`.

    Raises:
        ConfigError: the URL has another scheme or form.
    """
    scheme, separator, path = url.partition("?")[0].partition(":///")
    found = _PATH.fullmatch(path) if separator and scheme in SCHEMES else None
    if found is None:
        raise ConfigError(
            "a Spanner URL is spanner+spanner:///projects/PROJECT/instances/INSTANCE/databases/NAME"
        )
    return DatabaseAddress(*found.groups())


class UrlOptions(NamedTuple):
    """The options of a Spanner URL, behind its `?`."""

    staleness_s: float = 0.0
    """The largest age of what the tail reads; with 0 its reads are strong."""
    directed: dict[str, Any] | None = None
    """`replica`, as the client takes it: the replicas that are to answer reads. If none of them is
    healthy, another one answers."""


def options_of(url: str) -> UrlOptions:
    """Read `?staleness_s=2&replica=us-east4`.

    A replica is a location, a type (`read_only`, `read_write`), or `LOCATION:TYPE`.

    Raises:
        ConfigError: another option, or a value that none can have.
    """
    found = UrlOptions()
    for name, value in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if name == "staleness_s":
            found = found._replace(staleness_s=_staleness_s(value))
        elif name == "replica":
            found = found._replace(directed=_directed(value))
        else:
            raise ConfigError(
                f"unknown option {name!r} in a Spanner URL: there are staleness_s and replica"
            )
    return found


def _staleness_s(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"staleness_s={text!r} in a Spanner URL is not a number") from None
    if not 0 <= value <= STALENESS_MAX_S:
        raise ConfigError(
            f"staleness_s must be between 0 and {STALENESS_MAX_S:.0f}: older versions are gone"
        )
    return value


def _directed(text: str) -> dict[str, Any]:
    kinds = ("read_only", "read_write")
    location, _, kind = ("", "", text) if text in kinds else text.partition(":")
    if not _LOCATION.fullmatch(location or "x") or kind not in ("", *kinds) or not text:
        raise ConfigError(
            f"replica={text[:80]!r} in a Spanner URL: expected a location such as us-east4,"
            " read_only, read_write, or both as us-east4:read_only"
        )
    wanted = {"location": location, "type_": kind.upper()}
    selection = {name: value for name, value in wanted.items() if value}
    return {"include_replicas": {"replica_selections": [selection]}}


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
