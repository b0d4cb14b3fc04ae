"""The UDP socket that receives hints of other processes; nothing is ever sent through it.

Packets are taken some at a time with a pause in between, so that a flood of them fills the kernel's
buffer, where they are dropped, and does not block this event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from late.errors import ConfigError
from late.notify.notifier import PACKET_BYTES, Heard, guard, opened

TAKEN_MAX = 32
"""Packets at a time."""
PAUSE_S = 0.001
REPAIR_S = 1.0
"""Pause after an error of the network."""


class HintListener:
    """A socket that is bound when it is made; hints are taken while `run` runs.

    Args:
        secret: packets without its seal are dropped; empty takes any, from this machine only.
        heard: called with the shards that are named, in the loop that `run` is in; must not raise.

    Raises:
        ConfigError: the address cannot be bound, or it needs a secret.
    """

    def __init__(self, host: str, port: int, secret: bytes, heard: Heard) -> None:
        label = f"wake_host={host!r}, wake_port={port}"
        guard(host, secret, label)
        self.host = host
        self._secret = secret
        self._heard = heard
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made: socket.socket | None = None
        try:
            self._socket = made = socket.socket(family, socket.SOCK_DGRAM)
            made.setblocking(False)
            made.bind((host, port))
        except OSError as error:
            if made is not None:
                made.close()
            raise ConfigError(
                f"{label}: {error.strerror or error}; choose a free port, or an address of this"
                " machine"
            ) from None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Take hints until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                first = await loop.sock_recv(self._socket, PACKET_BYTES)
                self._take([first, *self._more()])
                await asyncio.sleep(PAUSE_S)
            except OSError:
                await asyncio.sleep(REPAIR_S)

    def close(self) -> None:
        """Close the socket. Calling it twice is fine."""
        self._socket.close()

    def _more(self) -> list[bytes]:
        found: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(found) < TAKEN_MAX - 1:
                found.append(self._socket.recv(PACKET_BYTES))
        return found

    def _take(self, packets: list[bytes]) -> None:
        named = [shards for p in packets if (shards := opened(p, self._secret)) is not None]
        if not named:
            return
        # Any shard, if one of them says so.
        self._heard(frozenset().union(*named) if all(named) else frozenset())
