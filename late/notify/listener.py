"""The UDP socket that receives hints from other processes. It never sends.

Packets are read some at a time, with a pause after each group. So too many packets fill the
kernel's buffer, which drops further ones, and do not block this event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from late.errors import ConfigError
from late.notify.notifier import PACKET_BYTES, Heard, guard, opened

TAKEN_MAX = 32
"""The most packets of one group."""
PAUSE_S = 0.001
REPAIR_S = 1.0
"""The pause after an error of the network."""


class HintListener:
    """A socket that is bound at its creation. `run` receives the hints.

    Args:
        secret: packets without its seal are dropped. If it is empty, all packets are accepted, and
            the socket must be for this machine only.
        heard: called with the named shards, in the event loop of `run`; it must not raise.

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
        """The port of the socket."""
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Receive hints until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                first = await loop.sock_recv(self._socket, PACKET_BYTES)
                self._take([first, *self._more()])
                await asyncio.sleep(PAUSE_S)
            except OSError:
                await asyncio.sleep(REPAIR_S)

    def close(self) -> None:
        """Close the socket. It may be called twice."""
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
        # If one packet names no shard, it means any shard, and so does the group.
        self._heard(frozenset().union(*named) if all(named) else frozenset())
