"""Failed sign-ins: they are logged, counted, and slowed down for each address.

A token has 256 random bits, so nobody guesses one. What a flood of guesses costs is the work for
each answer, and lines in the log. After a burst, failures of one address are answered "too many"
and not logged. Callers with a valid token are not slowed down: behind a proxy all callers have its
address, and one of them must not lock out the others. Only the page's form for a token is closed
to an address for as long as its bucket is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import monotonic
from urllib.parse import unquote

from late import events
from late.api.access.connections import source_of
from late.api.errors import TooMany
from late.api.limits import Pace

BURST = 10
RATE = 0.5
"""Failures of one address per second, after the burst."""


class FailedSignIns:
    """The failures of each address, in bounded memory."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._pace = Pace(RATE, BURST, clock=clock)

    def check(self, address: str) -> None:
        """Raise `TooMany` if this address has failed too often. It counts nothing."""
        wait_s = self._pace.left_s(_source(address))
        if wait_s:
            raise _too_many(wait_s)

    def add(self, interface: str, address: str, token: str) -> None:
        """Count one failure.

        Args:
            token: the name of the token whose secret was wrong; empty if there is no such token.
                A text that only the caller knows is not logged: it may be a secret in a wrong
                place.

        Raises:
            TooMany: this address has failed too often.
        """
        wait_s = self._pace.wait_s(_source(address))
        if wait_s:
            events.default.emit(events.SIGN_IN_SLOWED, interface=interface)
            raise _too_many(wait_s)
        events.default.emit(
            events.SIGN_IN_FAILED, interface=interface, address=address, token_name=token
        )


def address_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, such as `ipv4:127.0.0.1:1234`."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer[:64]


def _source(address: str) -> str:
    """Return the key of an address, as connections are counted; any text has one."""
    try:
        return source_of(address)[:64]
    except ValueError:
        return address[:64]


def _too_many(wait_s: float) -> TooMany:
    text = f"too many sign-ins from this address have failed: try again in {ceil(wait_s)} s"
    return TooMany(text, wait_s)
