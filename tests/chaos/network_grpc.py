"""The network before Spanner's emulator: faults by call."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import grpc

from late.testing.servers import spanner
from tests.chaos.plan import What
from tests.integration.grpc_proxy import GrpcProxy, Rule

THREADS = 48
"""Calls of one process at a time, those included that a black hole holds."""
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class GrpcNetworks:
    """Before the emulator at `host`."""

    def __init__(self, url: str, host: str) -> None:
        self._url, self._host = url, host
        self._made: list[GrpcNetwork] = []

    def __enter__(self) -> GrpcNetworks:
        return self

    def __exit__(self, *_: object) -> None:
        for network in self._made:
            network.close()

    def make(self) -> GrpcNetwork:
        self._made.append(GrpcNetwork(self._url, self._host))
        return self._made[-1]


class GrpcNetwork:
    """One proxy."""

    DELAY_S = 0.05
    RESETS, ABORTS = 4, 3
    """Calls that one such fault hits."""

    def __init__(self, url: str, host: str) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, deque[Rule]] = {"settle": deque(), "Commit": deque(), "": deque()}
        self._held: dict[What, threading.Event] = {}
        self._delay_s = 0.0
        self._answers = 0
        self._proxy = GrpcProxy(host, decide=self._decide, threads=THREADS)
        self._proxy.__enter__()
        self.environment = {"LATE_CHAOS_URL": url, spanner.HOST_VARIABLE: self._proxy.host}

    def begin(self, what: What) -> None:
        with self._lock:
            match what:
                case "reset":
                    self._next[""].extend([Rule("", grpc.StatusCode.UNAVAILABLE)] * self.RESETS)
                case "cut_before":
                    self._next["settle"].append(Rule("", grpc.StatusCode.UNAVAILABLE))
                case "cut_after":
                    self._next["settle"].append(self._lost())
                case "abort":
                    self._next["Commit"].extend([Rule("", grpc.StatusCode.ABORTED)] * self.ABORTS)
                case "delay":
                    self._delay_s = self.DELAY_S
                case "blackhole" | "half_open":
                    self._held[what] = threading.Event()
                case _:
                    raise AssertionError(f"{what}: not a fault of this network")

    def end(self, what: What) -> None:
        with self._lock:
            if what == "delay":
                self._delay_s = 0.0
            elif what in self._held:
                self._held.pop(what).set()

    def close(self) -> None:
        with self._lock:
            for held in self._held.values():
                held.set()
        self._proxy.__exit__(None, None, None)

    def _lost(self) -> Rule:
        """The call happens, its answer does not."""
        self._answers += 1
        return Rule("", _LOST[self._answers % 2], forward=True)

    def _decide(self, method: str, request: Any) -> Rule | None:
        if self._delay_s:
            time.sleep(self._delay_s)
        with self._lock:
            for what, held in self._held.items():
                # A half-open link carries the call and not the answer.
                forward = what == "half_open"
                return Rule("", grpc.StatusCode.UNAVAILABLE, forward=forward, hold=held)
            if method == "Commit":
                tag = request.request_options.transaction_tag
                if tag == "chaos-cut-before":
                    return Rule("", grpc.StatusCode.UNAVAILABLE)
                if tag == "chaos-cut-after":
                    return self._lost()
            for key in ("settle", method, "") if _settles(method, request) else (method, ""):
                if self._next.get(key):
                    return self._next[key].popleft()
        return None


def _settles(method: str, request: Any) -> bool:
    """Whether the call commits a settlement; a takeover, which writes the lease too, is none."""
    if method != "Commit":
        return False
    tables = {m.insert.table or m.insert_or_update.table for m in request.mutations}
    return "late_settlement" in tables and "late_lease" not in tables
