"""Wake-ups: hints to workers, after a commit, that there are tasks to read.

    with engine.begin() as tx:
        task_id = charge.enqueue(tx, trip.id)
    late.wake(task_id)

Workers of this process get a hint by a call. Those that `LATE_WAKE` names, as
`host:port,host:port`, get a datagram each. A hint changes only the time of a worker's next read, so
lost, repeated, forged, stale or early hints are harmless (`late/tailer/read_hints.py`,
`docs/design/0023-wake-ups.md`).

A datagram is `late1`, the shards as two bytes each (none of them means any shard) and, if there is
a secret, 16 bytes of their HMAC-SHA256. It has no nonce, because a repeated hint is harmless.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import ipaddress
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

from late.errors import ConfigError, InvalidName
from late.model.ids import shard_of

PLACES_VARIABLE = "LATE_WAKE"
SECRET_VARIABLE = "LATE_WAKE_SECRET"  # A name. # nosec B105
SECRET_BYTES_MIN = 16
PLACES_MAX = 64
"""The most addresses that get hints. Workers at further addresses find tasks by polling."""
NAMED_MAX = 64
"""The most shards that a datagram names. If there are more, it names none: any shard."""
PACKET_BYTES = 256
"""A size that no datagram reaches."""
LOOK_UP_EVERY_S = 10.0

Shards: TypeAlias = frozenset[int]
"""Shards that may have something to read. If it is empty, any shard may."""
Heard: TypeAlias = Callable[[Shards], None]

_MAGIC = b"late1"
_SEAL_BYTES = 16
_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]{1,253})):(\d{1,5})\Z")

logger = logging.getLogger("late.notify")


def wake(*task_ids: str) -> None:
    """Tell workers that a transaction was committed.

    Call it after the commit. After an earlier call workers find nothing yet, which costs a few
    reads. It never raises and never blocks, because the transaction is committed already.
    Thread-safe.

    Args:
        task_ids: the tasks that the transaction enqueued. Without ids every worker reads.
    """
    tell(_shards_of(task_ids))


def tell(shards: Shards) -> None:
    """Tell workers that there may be something to read in `shards`; see `wake`."""
    for heard in tuple(_here):
        heard(shards)
    notifier = _notifier(os.environ.get(PLACES_VARIABLE, "").strip(), secret())
    if notifier is not None:
        notifier.tell(shards)


@contextlib.contextmanager
def listening(heard: Heard) -> Iterator[None]:
    """Call `heard` with each hint of this process within the block.

    It runs in the thread that gives the hint, so it must be quick and must not raise.
    """
    _here.add(heard)
    try:
        yield
    finally:
        _here.discard(heard)


_here: set[Heard] = set()
if hasattr(os, "register_at_fork"):  # A forked child does not run the event loops of its parent.
    os.register_at_fork(after_in_child=_here.clear)


class Notifier:
    """Sends hints to the workers at `places`. Thread-safe, and usable after a fork.

    Args:
        places: `host:port`, or several with commas; IPv6 addresses are in brackets. All addresses
            of a name get hints. They are looked up in a thread every ten seconds, so the first
            hints are lost.
        secret: shared with the workers. It may be empty if all places are on this machine.

    Raises:
        ConfigError: a place is not valid, or is on another machine and there is no secret.
    """

    def __init__(self, places: str, secret: bytes = b"") -> None:
        self._secret = secret
        self._places = [_place(text.strip()) for text in places.split(",")]
        for host, port in self._places:
            guard(host, secret, f"{PLACES_VARIABLE}={host}:{port}")
        self._named = not all(_is_address(host) for host, _ in self._places)
        self._looked_up_s = time.monotonic()
        self._addresses: list[tuple[int, Any]] = []
        if self._named:
            self._look_up_aside()
        else:
            self._look_up()

    def tell(self, shards: Shards) -> None:
        """Send one datagram to each place. A datagram that cannot be sent is lost."""
        if self._named and time.monotonic() - self._looked_up_s > LOOK_UP_EVERY_S:
            self._looked_up_s = time.monotonic()
            self._look_up_aside()
        packet = sealed(shards, self._secret)
        for family, address in self._addresses:
            # A new socket costs some microseconds. So none stays open, is shared between threads or
            # is inherited by a fork.
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto(packet, address)

    def _look_up_aside(self) -> None:
        with contextlib.suppress(RuntimeError):  # Too many threads, or the process ends.
            threading.Thread(target=self._look_up, name="late-notify", daemon=True).start()

    def _look_up(self) -> None:
        """Look up the addresses of the places. It blocks until the name server answers.

        If the name server fails, the known addresses stay.
        """
        found: dict[tuple[int, Any], None] = {}
        try:
            for host, port in self._places:
                for family, _, _, _, address in socket.getaddrinfo(
                    host, port, type=socket.SOCK_DGRAM
                ):
                    found[int(family), address] = None
        except (OSError, UnicodeError) as error:  # UnicodeError: it cannot be a host's name.
            logger.warning("the workers to be woken cannot be found: %s", error)
            return
        self._addresses = list(found)[:PLACES_MAX]


def secret() -> bytes:
    """Return the secret of producers and workers from the environment; empty if there is none."""
    return os.fsencode(os.environ.get(SECRET_VARIABLE, "").strip())


def guard(host: str, secret: bytes, label: str) -> None:
    """Refuse a socket for other machines if there is no secret.

    Raises:
        ConfigError: `host` is not this machine and there is no secret, or the secret is too short.
    """
    if secret and len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"{SECRET_VARIABLE} is shorter than {SECRET_BYTES_MIN} bytes")
    if not secret and not _is_loopback(host):
        raise ConfigError(
            f"{label}: hints from or to other machines need {SECRET_VARIABLE}, the same for"
            " producers and workers"
        )


def sealed(shards: Collection[int], secret: bytes) -> bytes:
    """Make the datagram that names `shards`."""
    named = shards if len(shards) <= NAMED_MAX else ()
    body = _MAGIC + b"".join([shard.to_bytes(2, "big") for shard in sorted(named)])
    return body + _seal(body, secret)


def opened(packet: bytes, secret: bytes) -> Shards | None:
    """Return the shards that a datagram names; None if it has another format or seal."""
    end = len(packet) - _SEAL_BYTES if secret else len(packet)
    body = packet[: max(0, end)]
    if not body.startswith(_MAGIC) or (len(body) - len(_MAGIC)) % 2:
        return None
    if not hmac.compare_digest(packet[len(body) :], _seal(body, secret)):
        return None
    named = body[len(_MAGIC) :]
    return frozenset(int.from_bytes(named[at : at + 2], "big") for at in range(0, len(named), 2))


def _seal(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256")[:_SEAL_BYTES] if secret else b""


@functools.lru_cache(maxsize=4)
def _notifier(places: str, secret: bytes) -> Notifier | None:
    """Return the notifier for the workers that the environment names.

    A mistake there is logged once, and not raised, because the caller's transaction has committed.
    """
    if not places:
        return None
    try:
        return Notifier(places, secret)
    except ConfigError as error:
        logger.error("nobody is woken: %s", error)
        return None


def _shards_of(task_ids: Collection[str]) -> Shards:
    try:
        return frozenset(map(shard_of, task_ids))
    except InvalidName:
        return frozenset()


def _place(text: str) -> tuple[str, int]:
    found = _PLACE.match(text)
    port = int(found[3]) if found else 0
    if found is None or not 0 < port < 65_536:
        raise ConfigError(
            f"{PLACES_VARIABLE}: {text[:80]!r} is no place; write host:port,host:port"
        )
    return found[1] or found[2], port


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
