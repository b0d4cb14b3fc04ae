"""The network of one process of a storm, whatever it speaks: a few faults, on and off.

Where the database is a file there is none; where it speaks gRPC the faults happen call by call.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from tests.chaos.plan import What
from tests.chaos.tcp_proxy import Loop, TcpProxy


class Network(Protocol):
    """What lies between one process and the database."""

    environment: dict[str, str]
    """What the process must be started with to come through here."""

    def begin(self, what: What) -> None:
        """Something breaks."""

    def end(self, what: What) -> None:
        """It is as it was; faults that are over by themselves need none."""


class Networks(Protocol):
    """Makes them, all to one database. A context manager."""

    def __enter__(self) -> Networks: ...
    def __exit__(self, *_: object) -> None: ...
    def make(self) -> Network: ...


class Direct:
    """No network: processes open the database as it is."""

    def __init__(self, url: str) -> None:
        self.environment = {"LATE_CHAOS_URL": url}

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None: ...

    def make(self) -> Direct:
        return self

    def begin(self, what: What) -> None:
        raise AssertionError(f"{what}: there is no network")

    def end(self, what: What) -> None: ...


class TcpNetworks:
    """Before a server that PostgreSQL's protocol is spoken with."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._loop = Loop()
        self._made: list[TcpProxy] = []

    def __enter__(self) -> TcpNetworks:
        self._loop.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._made:
            proxy.close()
        self._loop.__exit__()

    def make(self) -> TcpNetwork:
        assert self._url.port is not None
        proxy = TcpProxy(self._loop, self._url.port)
        self._made.append(proxy)
        place = f"{self._url.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}"
        return TcpNetwork(proxy, urlunsplit(self._url._replace(netloc=place)))


class TcpNetwork:
    """One listener."""

    DELAY_S = 0.05

    def __init__(self, proxy: TcpProxy, url: str) -> None:
        self.proxy = proxy
        self.environment = {"LATE_CHAOS_URL": url}

    def begin(self, what: What) -> None:
        match what:
            case "reset":
                self.proxy.reset()
            case "blackhole":
                self.proxy.blackhole(True)
            case "half_open":
                self.proxy.half_open(True)
            case "delay":
                self.proxy.delay(self.DELAY_S)
            case "cut_before" | "cut_after":
                self.proxy.cut_settlement("before" if what == "cut_before" else "after")
            case _:
                raise AssertionError(f"{what}: not a fault of this network")

    def end(self, what: What) -> None:
        match what:
            case "blackhole":
                self.proxy.blackhole(False)
            case "half_open":
                self.proxy.half_open(False)
            case "delay":
                self.proxy.delay(0.0)
