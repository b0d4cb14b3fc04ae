"""Connections of one port, bounded in all and for each address. Pure.

When there is no room, a connection without a running request makes it: of the address that has the
most, the one that has been idle for the longest time. So whoever only holds connections shuts out
nobody.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable


class Connection:
    """One connection, as the table of its port knows it."""

    def __init__(self, address: str, close: Callable[[], object]) -> None:
        self.address = address
        self.close = close
        self.is_idle: Callable[[], bool] = lambda: True


class Connections:
    """The connections of one port.

    Args:
        most: connections in all.
        bound: returns how many of them one address may have.
        refused: told of each connection that was refused or closed, by a reason of
            `late/worker/refusals.py`.
    """

    def __init__(
        self, most: int, bound: Callable[[str], int], refused: Callable[[str], object]
    ) -> None:
        self._most = most
        self._bound = bound
        self._refused = refused
        self._by_address: dict[str, OrderedDict[Connection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def admit(self, host: str, close: Callable[[], object]) -> Connection | None:
        """Add a connection, which may close an idle one; None if there is no room for it."""
        address = source_of(host)
        if len(self._by_address.get(address, ())) >= self._bound(address):
            if not self._make_room(address):
                self._refused("address")
                return None
        elif self._count >= self._most:
            fullest = max(self._by_address, key=lambda each: len(self._by_address[each]))
            if not (self._make_room(fullest) or any(map(self._make_room, [*self._by_address]))):
                self._refused("total")
                return None
        made = Connection(address, close)
        self._by_address.setdefault(address, OrderedDict())[made] = None
        self._count += 1
        return made

    def touch(self, connection: Connection) -> None:
        """Note that the connection did something: it is now the last one to go."""
        mine = self._by_address.get(connection.address)
        if mine is not None and connection in mine:
            mine.move_to_end(connection)

    def remove(self, connection: Connection) -> None:
        """Forget the connection. It may be called twice."""
        mine = self._by_address.get(connection.address)
        if mine is not None and connection in mine:
            del mine[connection]
            self._count -= 1
            if not mine:
                del self._by_address[connection.address]

    def _make_room(self, address: str) -> bool:
        """Close the connection of the address that has been idle for the longest time."""
        for each in self._by_address.get(address, ()):
            if each.is_idle():
                self.remove(each)
                each.close()
                self._refused("idle")
                return True
        return False


def bound_of(address: str, most: int) -> int:
    """Return how many of `most` connections one address, as `source_of` gives it, may have.

    All callers behind a proxy have its address. A proxy that is trusted would have all of them.
    """
    return most // 2


def source_of(host: str) -> str:
    """Return what counts as one address: of IPv6, whose users have whole networks, the first half.

    An IPv4 address in the form of IPv6 is the IPv4 address.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
