"""The socket that hints of other processes come in by: one UDP port, and nothing is ever sent.

Packets are taken some at a time with a pause in between, so that a flood of them fills the kernel's
buffer, where they are dropped, and not this event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from late.errors import ConfigError
from late.notify import notifier as waking

TAKEN_MAX = 32
"""Packets at a time."""
PAUSE_S = 0.001
REPAIR_S = 1.0
"""Pause after an error of the network."""


class Ear:
    """Listens from its making on, and hears from `run` on.

    Args:
        secret: packets without its seal are dropped; empty takes any, from this machine only.
        heard: takes the shards that are named, in the loop that `run` is in; must not raise.

    Raises:
        ConfigError: nobody can listen there, or not without a secret.
    """

    def __init__(self, host: str, port: int, secret: bytes, heard: waking.Heard) -> None:
        label = f"wake_host={host!r}, wake_port={port}"
        waking.guard(host, secret, label)
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
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Hear until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                first = await loop.sock_recv(self._socket, waking.PACKET_BYTES)
                self._take([first, *self._more()])
                await asyncio.sleep(PAUSE_S)
            except OSError:
                await asyncio.sleep(REPAIR_S)

    def close(self) -> None:
        """Listen no more. Calling it twice is fine."""
        self._socket.close()

    def _more(self) -> list[bytes]:
        found: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(found) < TAKEN_MAX - 1:
                found.append(self._socket.recv(waking.PACKET_BYTES))
        return found

    def _take(self, packets: list[bytes]) -> None:
        named = [shards for p in packets if (shards := waking.opened(p, self._secret)) is not None]
        if not named:
            return
        # Any shard, if one of them says so.
        self._heard(frozenset().union(*named) if all(named) else frozenset())
