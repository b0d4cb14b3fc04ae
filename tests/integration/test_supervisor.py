"""The parent of several processes: restarts, stalls, rounds of replacement, stops.

Most tests run a small program in place of a worker. It answers health checks as its file says, so
each state of a worker can be had at once. The last one runs real workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from late import config
from late.errors import ConfigError
from late.supervisor import restarts, supervisor
from late.supervisor.run import python_changes
from late.supervisor.supervisor import Supervisor
from late.worker.reload import Reading
from tests.integration.stall_kit import free_port

CHILD = '''
"""Answers health checks from the file `state`; ends when `exit` exists, and on SIGTERM."""
import os, pathlib, signal, socket, sys, threading
here = pathlib.Path(sys.argv[1])
number = os.environ["LATE_PROCESS"]
with open(here / "starts", "a") as starts:
    starts.write(f"{number} {os.getpid()}\\n")
if (here / f"refuse{number}").exists():
    sys.exit(int((here / f"refuse{number}").read_text()))
if (here / "stubborn").exists():
    signal.signal(signal.SIGTERM, lambda *_: None)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
def follow():
    while os.read(int(os.environ["LATE_PARENT_FD"]), 1):
        pass
    (here / f"orphan{number}").touch()
    os._exit(0)
threading.Thread(target=follow, daemon=True).start()
server = socket.socket(fileno=int(os.environ["LATE_HEALTH_FD"]))
while True:
    peer, _ = server.accept()
    asked = peer.recv(4096)
    state = here / f"state{number}"
    text = state.read_text() if state.exists() else "live ready"
    if "silent" in text:
        peer.close()
        continue
    body = (
        f"# TYPE late_x gauge\\nlate_x {number}\\n" if b"/metrics" in asked else
        '{"worker":"w","live":%s,"ready":%s,"stalled":%s}' % (
            str("live" in text).lower(), str("ready" in text).lower(),
            "[]" if "live" in text else '["settle"]')
    )
    peer.sendall(f"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\n{body}".encode())
    peer.close()
'''


class Parent:
    """A parent under test, with the folder that its children look into."""

    def __init__(
        self, folder: Path, count: int, grace_s: float = 20.0, patient: bool = False
    ) -> None:
        (folder / "child.py").write_text(CHILD)
        self.folder = folder
        command = [sys.executable, str(folder / "child.py"), str(folder)]
        self.read = lambda: Reading(config.load({}, grace_s=grace_s))
        self.supervisor = Supervisor(command, count, lambda: self.read(), patient=patient)

    def starts(self) -> list[tuple[int, int]]:
        """(number, pid) of each child that has begun, in order."""
        path = self.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def say(self, number: int, text: str) -> None:
        """Have a child answer so from now on."""
        part = self.folder / "part"
        part.write_text(text)
        part.rename(self.folder / f"state{number}")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  only another process tells
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(
    folder: Path, count: int = 2, grace_s: float = 20.0, patient: bool = False
) -> AsyncIterator[Parent]:
    parent = Parent(folder, count, grace_s, patient)
    await parent.supervisor.start()
    try:
        await until(lambda: parent.supervisor.state().ready)
        yield parent
    finally:
        parent.supervisor.ask_to_stop()
        await parent.supervisor.wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CHECK_S", 0.05)
    monkeypatch.setattr(supervisor, "STALLED_S", 0.2)
    monkeypatch.setattr(supervisor, "SILENT_GRACE_S", 0.2)
    monkeypatch.setattr(restarts, "WAIT_MIN_S", 0.01)
    monkeypatch.setattr(restarts, "WAIT_MAX_S", 0.05)


async def test_a_child_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path) as parent:
        (_, pid), _ = sorted(parent.starts())
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(parent.starts()) == 3)
        await until(lambda: parent.supervisor.state().ready)
        assert parent.starts()[-1][0] == 1
        page = (await parent.supervisor.metrics()).decode()
    assert 'late_x{process="1"} 1\nlate_x{process="2"} 2\n' in page
    assert "late_process_restarts_total 1\n" in page


@pytest.mark.parametrize("stalled", ["stalled", "silent"])
async def test_a_child_that_stalls_is_ended_and_replaced(tmp_path: Path, stalled: str) -> None:
    (tmp_path / "stubborn").touch()
    async with running(tmp_path, grace_s=0.1) as parent:
        parent.supervisor._grace_s = 0.2
        parent.say(2, stalled)
        await until(lambda: parent.supervisor.state().stalled or len(parent.starts()) > 2)
        await until(lambda: len(parent.starts()) == 3)
        parent.say(2, "live ready")
        await until(lambda: parent.supervisor.state().ready)
        assert parent.starts()[-1][0] == 2


async def test_a_child_that_was_never_ready_is_waited_for(tmp_path: Path) -> None:
    """It imports, or waits for its database."""
    parent = Parent(tmp_path, 2)
    parent.say(2, "stalled")
    await parent.supervisor.start()
    await until(lambda: parent.supervisor._states.get(2) and 1 in parent.supervisor._was_ready)
    await asyncio.sleep(0.05 * 10)  # several times as long as a stall may last
    state = parent.supervisor.state()
    assert (state.live, state.ready, state.reason) == (True, False, "not ready: process 2")
    assert state.stalled == ("process 2: settle",)
    assert len(parent.starts()) == 2
    parent.supervisor.ask_to_stop()
    assert await parent.supervisor.wait() == 0


async def test_a_round_replaces_one_after_the_other(tmp_path: Path) -> None:
    async with running(tmp_path, 3) as parent:
        before = dict(parent.starts())
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: len(parent.starts()) == 6 and parent.supervisor.state().ready)
        await until(lambda: parent.supervisor._rolling and parent.supervisor._rolling.done())
        assert [number for number, _ in parent.starts()[3:]] == [1, 2, 3]
        assert not set(before.values()) & {pid for _, pid in parent.starts()[3:]}


async def test_no_child_is_replaced_while_the_settings_are_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, 1) as parent:

        def wrong() -> Reading:
            raise ConfigError("late.toml: no such key: grace")

        right, parent.read = parent.read, wrong
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "late.toml: no such key: grace" in caplog.text)
        assert parent.supervisor._rolling is None
        parent.read = right
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: len(parent.starts()) == 2 and parent.supervisor.state().ready)


async def test_a_round_that_is_asked_for_during_another_one_follows_it(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as parent:
        parent.supervisor.roll()
        await until(lambda: len(parent.starts()) == 3)  # the first has new code of that moment
        parent.supervisor.roll()
        await until(lambda: parent.supervisor._rolling and parent.supervisor._rolling.done())
        assert [number for number, _ in parent.starts()[2:]] == [1, 2, 1, 2]


async def test_a_round_ends_where_a_new_child_does_not_get_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = supervisor._first

    async def until_many_starts(work: Awaitable[object], timeout_s: float) -> bool:
        """Let the time to get ready end after so many starts, however long they take."""
        if timeout_s != supervisor.READY_S:
            return await first(work, timeout_s)
        await until(lambda: starts_of_1() > restarts.FAILURES_MAX * 2)
        return await first(work, 0)

    def starts_of_1() -> int:
        return [number for number, _ in parent.starts()].count(1)

    monkeypatch.setattr(supervisor, "_first", until_many_starts)
    async with running(tmp_path, 2) as parent:
        (tmp_path / "refuse1").write_text("1")  # as after a bad deploy
        parent.supervisor.roll()
        await until(lambda: parent.supervisor._rolling and parent.supervisor._rolling.done())
        numbers = [number for number, _ in parent.starts()]
        assert numbers.count(2) == 1, "it works on with the old code"
        assert starts_of_1() > restarts.FAILURES_MAX * 2, "and keeps the parent from giving up"
        (tmp_path / "refuse1").unlink()
        await until(lambda: parent.supervisor.state().ready)


async def test_a_crash_loop_stops_all_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parent = Parent(tmp_path, 2)
    for number in (1, 2):
        (tmp_path / f"refuse{number}").write_text("7")
    await parent.supervisor.start()
    assert await parent.supervisor.wait() == 7
    # The other child may have been started once more meanwhile.
    assert 0 <= len(parent.starts()) - 2 * restarts.FAILURES_MAX <= 1
    assert "gave up" in caplog.text


async def test_changed_sources_start_all_again_and_wrong_ones_are_waited_for(
    tmp_path: Path,
) -> None:
    source = tmp_path / "service"
    source.mkdir()
    async with running(tmp_path, patient=True) as parent:
        changes = python_changes(source)
        reloading = asyncio.create_task(parent.supervisor.reload_on(changes))

        async def change(starts: int) -> None:
            """Change a file until it is seen: the watch may not have begun yet."""
            async with asyncio.timeout(120):
                while len(parent.starts()) < starts:
                    (source / "tasks.py").write_text(str(time.monotonic_ns()))
                    await asyncio.sleep(0.5)

        await change(4)
        await until(lambda: parent.supervisor.state().ready)
        for number in (1, 2):
            (tmp_path / f"refuse{number}").write_text("1")  # the new code cannot be imported
        await change(len(parent.starts()) + 2)
        for number in (1, 2):
            (tmp_path / f"refuse{number}").unlink()
        await change(len(parent.starts()) + 2)
        await until(lambda: parent.supervisor.state().ready)
        reloading.cancel()


async def test_what_does_not_stop_is_killed(tmp_path: Path) -> None:
    (tmp_path / "stubborn").touch()
    parent = Parent(tmp_path, 2)
    parent.supervisor._grace_s = 0.2
    await parent.supervisor.start()
    await until(lambda: parent.supervisor.state().ready)
    parent.supervisor.ask_to_stop()
    assert await parent.supervisor.wait() == 1
    for _, pid in parent.starts():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


SERVICE = """
import os, time
import late

app = late.App(os.environ["SHOP_URL"])

@app.task()
def note(number: int) -> None:
    with open(os.environ["SHOP_OUT"], "a") as out:
        out.write(f"{number} {os.getpid()}\\n")
"""


def test_real_workers_share_the_tasks_and_stop_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SERVICE)
    url, out = f"sqlite:///{tmp_path}/shop.db", tmp_path / "out"
    environment = os.environ | {"SHOP_URL": url, "SHOP_OUT": str(out), "LATE_URL": url}
    late = [sys.executable, "-m", "late"]
    subprocess.run([*late, "migrate", url], check=True, cwd=tmp_path, capture_output=True)
    port = free_port()
    log = (tmp_path / "log").open("wb")
    parent = subprocess.Popen(
        [*late, "worker", "shop:app", "--processes", "2", "--health-port", str(port), "--log-json"],
        cwd=tmp_path, env=environment, stderr=log,
    )  # fmt: skip

    def get(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as found:
                return str(found.read().decode())
        except OSError:
            return ""

    def wait_for(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert parent.poll() is None
            assert time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(0.05)

    def acquired(number: int) -> bool:
        return f'late_lease_acquired_total{{process="{number}"' in get("/metrics")

    try:
        wait_for(lambda: '"ready":true' in get("/readyz"))
        wait_for(lambda: acquired(1) and acquired(2))
        script = "import shop; from late.outbox import connect\nwith connect(shop.app.url) as tx:"
        script += "\n    shop.app.enqueue_many(tx, [shop.note.call(n) for n in range(64)])"
        subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
        wait_for(lambda: out.exists() and len(out.read_text().splitlines()) >= 64)
        ran = [line.split() for line in out.read_text().splitlines()]
        assert sorted(int(number) for number, _ in ran) == list(range(64))
        assert len({pid for _, pid in ran}) == 2
    finally:
        parent.kill()
        parent.wait()
    lines = _lines_until_both_stopped(Path(log.name))
    log.close()
    assert {line["process"] for line in lines if "process" in line} == {1, 2}


def _lines_until_both_stopped(path: Path) -> list[dict[str, object]]:
    deadline = time.monotonic() + 120
    while True:
        text = path.read_text()
        if text.count("worker stopped") == 2 or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert text.count("worker stopped") == 2, text
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
