"""End connections of strangers when a gRPC port fills up.

gRPC accepts by itself, up to a bound, and refuses the next ones. It knows nothing of addresses, and
who only holds connections would shut others out. So this looks at the open sockets of the port, and
ends those from which no call has been admitted, the oldest first, of the address with the most.
A socket is looked at through a copy, so that a number that is used again is harmless. Only Linux
lists them; elsewhere gRPC's own bounds and time limits hold alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from late.api.access.connections import bound_of, source_of
from late.concurrency import in_thread

LOOK_EVERY_S = 0.25
FILES = Path("/proc/self/fd")

Peer = tuple[str, int]
"""Address and port of the other end."""


class Strangers:
    """Watches one port.

    Args:
        most: connections that gRPC accepts there. Strangers may have half of them, and one address
            of them half of these.
        refused: told of those that were ended: the reason and how many.
    """

    def __init__(self, most: int, refused: Callable[[str, int], object]) -> None:
        self._most = most
        self._refused = refused
        self._known: set[Peer] = set()
        self._gone: set[Peer] = set()
        self._since: dict[Peer, int] = {}
        self._looks = 0

    def admitted(self, peer: str) -> None:
        """Note a connection, as gRPC names its other end, of which a call was admitted."""
        _, _, rest = unquote(peer).partition(":")
        host, _, port = rest.rpartition(":")
        if port.isdecimal():
            self._known.add((_plain(host.strip("[]")), int(port)))

    async def run(self, port: int) -> None:
        """Look again and again, until cancelled."""
        while sys.platform == "linux":
            await in_thread(self.look, port)
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, port: int) -> int:
        """Look once; return how many connections were ended."""
        is_full = len(os.listdir(FILES)) >= self._most // 2
        if not is_full and len(self._known) <= 4 * self._most:
            return 0
        open_now: dict[Peer, socket.socket] = {}
        try:
            for peer, copy in _connections(port):
                if peer in open_now:
                    copy.close()  # a copy of another thread
                else:
                    open_now[peer] = copy
            self._looks += 1
            # A connection that was admitted after the look began is missing in it once.
            gone = set(self._known) - open_now.keys()
            self._known -= gone & self._gone
            self._gone = gone
            self._since = {peer: self._since.get(peer, self._looks) for peer in open_now}
            ended = self._surplus([peer for peer in open_now if peer not in self._known])
            for peer in ended:
                with suppress(OSError):
                    open_now[peer].shutdown(socket.SHUT_RDWR)
            return len(ended)
        finally:
            for each in open_now.values():
                each.close()

    def _surplus(self, strangers: list[Peer]) -> list[Peer]:
        """Choose the strangers who have to go."""
        by_source: dict[str, list[Peer]] = {}
        for peer in sorted(strangers, key=lambda each: -self._since[each]):
            by_source.setdefault(source_of(peer[0]), []).append(peer)
        room, ended = self._most // 2, []
        for source, mine in by_source.items():
            while len(mine) > bound_of(source, room):
                ended.append(mine.pop())
        of_address = len(ended)
        while len(strangers) - len(ended) > room:
            ended.append(max(by_source.values(), key=len).pop())
        for reason, count in (("address", of_address), ("total", len(ended) - of_address)):
            if count:
                self._refused(reason, count)
        return ended


def _connections(port: int) -> Iterator[tuple[Peer, socket.socket]]:
    """Give copies of the connected sockets of a port."""
    for name in os.listdir(FILES):
        try:
            if not os.readlink(FILES / name).startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                host, peer_port = copy.getpeername()[:2]
                yield (_plain(host), peer_port), copy
                continue
        except OSError:
            pass  # it listens, or its other end is gone
        copy.close()


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:") if "." in host else host
