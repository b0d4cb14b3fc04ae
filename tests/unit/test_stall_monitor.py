"""The lookout's thread, and what is answered on the health port."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from late.errors import ConfigError
from late.events import Emitter, Event
from late.worker.watch.health import CONNECTIONS_MAX, Health, State, answer
from late.worker.watch.progress import Duty
from late.worker.watch.stall_monitor import StallMonitor

TIMEOUT_S = 120


class Post:
    """A lookout in a thread, over the loop of the test."""

    def __init__(self, stall_s: float) -> None:
        self.duties = [Duty("settle", False, 0)]
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.changed = threading.Semaphore(0)
        emitter = Emitter()
        emitter.subscribe(self._listen)
        self.stall_monitor = StallMonitor(
            stall_s,
            lambda: self.duties,
            reachable=lambda: True,
            on_change=lambda stalled: self.changed.release(),
            emitter=emitter,
        )

    def _listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))


@contextmanager
def in_thread(*runs: Any) -> Iterator[None]:
    loop = asyncio.new_event_loop()

    async def live() -> None:
        await asyncio.gather(*[run() for run in runs])

    made = loop.create_task(live())

    def work() -> None:
        try:
            loop.run_until_complete(made)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(made.cancel)
        thread.join(TIMEOUT_S)


async def test_a_loop_that_is_blocked_is_noticed_and_so_is_its_end() -> None:
    post = Post(stall_s=0.2)
    post.stall_monitor.watch(asyncio.get_running_loop())
    with in_thread(post.stall_monitor.run):
        # The classic: a call that blocks, in a coroutine. Only the other thread can end it here.
        assert post.changed.acquire(timeout=TIMEOUT_S)
        assert post.stall_monitor.stalled == {"answer"}
        assert post.heard == [("stalled", {"duties": "answer"})]
        assert await asyncio.to_thread(post.changed.acquire, timeout=TIMEOUT_S)
        assert post.heard[1] == ("stall_over", {})


async def test_a_duty_that_is_left_undone_is_noticed_while_the_loop_answers() -> None:
    post = Post(stall_s=0.2)
    post.duties = [Duty("settle", True, 3), Duty("start", False, 0)]
    post.stall_monitor.watch(asyncio.get_running_loop())
    with in_thread(post.stall_monitor.run):
        # On a busy machine this loop may be late as well, for a moment.
        while post.stall_monitor.stalled != {"settle"}:
            assert await asyncio.to_thread(post.changed.acquire, timeout=TIMEOUT_S)


def test_what_is_asked_of_a_blocked_loop_does_not_pile_up() -> None:
    asked: list[Any] = []

    class Blocked:
        def call_soon_threadsafe(self, callback: Any) -> None:
            asked.append(callback)

    post = Post(stall_s=0.04)
    post.stall_monitor.watch(Blocked())  # type: ignore[arg-type]
    with in_thread(post.stall_monitor.run):
        assert post.changed.acquire(timeout=TIMEOUT_S)
        time.sleep(0.1)  # ten looks
    assert len(asked) == 1


# ------------------------------------------------------------------ the health port

LIVE = State("w-1", live=True, ready=True)
UNREADY = State("w-1", live=True, ready=False, reason="it stops")
STALLED = State("w-1", live=False, ready=False, stalled=("answer",), reason="it stalls")


def status_of(line: str, state: State) -> int:
    return int(answer(line.encode(), state).split()[1])


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/healthz?verbose=1"])
def test_live_is_who_gets_on(path: str) -> None:
    assert [status_of(f"GET {path} HTTP/1.1", s) for s in (LIVE, UNREADY, STALLED)] == [
        200, 200, 503,
    ]  # fmt: skip


def test_ready_is_who_may_work() -> None:
    states = (LIVE, UNREADY, STALLED)
    assert [status_of("GET /readyz HTTP/1.1", state) for state in states] == [200, 503, 503]


@pytest.mark.parametrize(
    ("line", "status"),
    [("GET / HTTP/1.1", 404), ("POST /livez HTTP/1.1", 405), ("", 405), ("\xff\xfe", 405)],
)
def test_anything_else_is_refused(line: str, status: int) -> None:
    assert status_of(line, LIVE) == status


def test_a_head_has_no_body() -> None:
    assert answer(b"HEAD /livez HTTP/1.1", LIVE).endswith(b"\r\n\r\n")


def test_it_answers_over_http_with_the_reason() -> None:
    states = [LIVE]
    health = Health("127.0.0.1", 0, lambda: states[0])
    where = f"http://127.0.0.1:{health.port}"
    with in_thread(health.run):
        with urlopen(f"{where}/livez", timeout=TIMEOUT_S) as reply:
            assert json.load(reply)["worker"] == "w-1"
        states[0] = STALLED
        with pytest.raises(HTTPError) as caught:
            urlopen(Request(f"{where}/livez", headers={"X": "y" * 1000}), timeout=TIMEOUT_S)
        with caught.value as refused:
            assert refused.code == 503
            assert json.load(refused)["stalled"] == ["answer"]
    health.close()
    health.close()


def test_connections_that_say_nothing_make_room_for_a_probe() -> None:
    import socket

    health = Health("127.0.0.1", 0, lambda: LIVE)
    with in_thread(health.run):
        silent = [
            socket.create_connection(("127.0.0.1", health.port)) for _ in range(CONNECTIONS_MAX)
        ]
        try:
            # One more is answered, and the oldest is closed for it without an answer.
            with urlopen(f"http://127.0.0.1:{health.port}/livez", timeout=TIMEOUT_S) as reply:
                assert reply.status == 200
            silent[0].settimeout(TIMEOUT_S)
            assert silent[0].recv(100) == b""
        finally:
            for each in silent:
                each.close()
    health.close()


def test_a_port_that_is_taken_is_a_wrong_setting() -> None:
    health = Health("127.0.0.1", 0, lambda: LIVE)
    with pytest.raises(ConfigError, match=f"health_port={health.port}: .*choose a free port"):
        Health("127.0.0.1", health.port, lambda: LIVE)
    health.close()
