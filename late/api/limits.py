"""Bounds of requests from outside: their size, their time and their rate. Pure."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from late.errors import ConfigError

KIB = 1024
BODY_BYTES = 1024 * KIB + 64 * KIB
"""The body of one request: a payload of 1 MiB and the other fields."""
BATCH_BYTES = 8 * 1024 * KIB + 256 * KIB
OPERATOR_BYTES = 64 * KIB
"""The body of a request of operators that has no payload."""
OPERATOR_CALLS = 4
"""Requests of operators that read or write the database at once, in one process."""
LISTED_MAX = 1_000
"""Dead letters, changes or decisions of one answer."""
MOVED_MAX = 10_000
"""Dead letters that one request moves."""
HEADER_S = 10.0
"""A client has this time to send the head of its request, and again for each part of its body."""
BODY_S = 60.0
"""A client has this time to send the whole body."""
CONNECTIONS = 1_000
"""HTTP and gRPC: connections of each port, if the process may open as many files."""
FILES_RESERVED = 384
"""Files that connections leave to the database, the health check and handlers."""
IDLE_S = 300.0
"""gRPC: a connection without any call is closed after this time."""
RECEIVE_MAX = 100
"""Tasks of one `receive`."""
ANSWERS_MAX = 1_000
QUEUES_MAX = 100
WAIT_S_MAX = 60.0
WAIT_S = 5.0
VISIBILITY_S = 30.0
VISIBILITY_S_MAX = 12 * 3_600.0
AFTER_S_MAX = 7 * 86_400.0
CREDIT_MAX = 1_000
STREAMS = 100
"""gRPC: streams of one connection."""
MESSAGE_BYTES = 9 * 1024 * KIB
"""gRPC: one message; a batch of 8 MiB of payload and the other fields."""
RPCS = 1_000
"""gRPC: calls and streams of one process."""
MESSAGE_S = 30.0
"""gRPC: a client has this time to send one message."""
LOOKAHEAD_BYTES = 64 * KIB
"""gRPC: what is taken in of a message before its caller is admitted."""
RPC_S_MAX = 60.0
"""gRPC: seconds of one call that is not a stream."""
UNSEEN_S = 120.0
"""gRPC: a call that the loop has not seen is cancelled after this time."""
RATE = 2_000.0
"""Requests per second and caller."""
_CALLERS_MAX = 10_000


def connections_of(files: int) -> int:
    """The connections of each port, in a process that may open `files` files."""
    return max(32, min(CONNECTIONS, (files - FILES_RESERVED) // 2))


class Pace:
    """A token bucket per caller.

    Args:
        rate: requests per second.
        burst: requests at once; twice the rate when not given.
    """

    def __init__(
        self,
        rate: float = RATE,
        burst: float | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._rate = rate
        self._burst = 2 * rate if burst is None else burst
        self._clock = clock
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Count one request and return 0, or return the seconds until there is room for it."""
        now = self._clock()
        level, since = self._level.pop(caller, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1
        self._level[caller] = (level - 1 if allowed else level, now)
        if len(self._level) > _CALLERS_MAX:
            self._level.popitem(last=False)
        return 0.0 if allowed else (1 - level) / self._rate

    def left_s(self, caller: str) -> float:
        """Return the seconds until there is room for a request, without counting one."""
        level, since = self._level.get(caller, (self._burst, 0.0))
        return max(0.0, (1 - level) / self._rate - (self._clock() - since)) if level < 1 else 0.0


def loopback(host: str) -> bool:
    """Return True if only this machine can reach a port of `host`."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, tls: bool, auth: bool) -> None:
    """Refuse an address that other machines can reach, unless there are both TLS and tokens.

    Raises:
        ConfigError: the message names what is missing.
    """
    if loopback(host) or (tls and auth):
        return
    missing = " and ".join(
        word
        for word, there in (("TLS (--tls-cert, --tls-key)", tls), ("tokens (--auth)", auth))
        if not there
    )
    raise ConfigError(f"{host[:64]!r} can be reached from other machines: that takes {missing}")
