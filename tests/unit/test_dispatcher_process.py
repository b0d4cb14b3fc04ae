"""Child processes: real ones, really killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from late import events
from late.dispatcher.local import process_pool as processes
from late.errors import ConfigError
from late.model.task import Outcome
from tests.unit import dispatcher_process_tasks as tasks
from tests.unit.dispatcher_kit import NOW_US, Rig, Task, attempt, by_id, rig

ALL = [task for task in vars(tasks).values() if isinstance(task, Task)]


async def written(path: Path) -> int:
    """The number in a file that a child writes."""
    async with asyncio.timeout(120):
        while not (path.exists() and path.read_text()):  # noqa: ASYNC110,ASYNC240
            await asyncio.sleep(0.01)
    return int(path.read_text())  # noqa: ASYNC240


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(it: Rig) -> list[int]:
    children = it.dispatcher._target._processes._children
    return [pid for child in children if (pid := child.process.pid) and child.alive]


async def test_a_handler_runs_in_another_process(tmp_path: Path) -> None:
    async with rig(*ALL, process_workers=1) as it:
        (outcome,) = await it.run(attempt("whoami", path=str(tmp_path / "pid")))
        assert outcome.kind == "done", outcome.error
        pid = int((tmp_path / "pid").read_text())
        assert pid != os.getpid()
        # The same child serves the next one.
        await it.run(attempt("whoami", path=str(tmp_path / "pid")))
        assert int((tmp_path / "pid").read_text()) == pid
        assert alive(pid)
    assert not alive(pid)


async def test_outcomes_cross_the_process_boundary() -> None:
    def scrub(text: str) -> str:
        return text.replace("hunter2", "***")

    async with rig(*ALL, process_workers=1, scrub=scrub) as it:
        attempts = {h: attempt("fail", how=h) for h in ("value", "key", "snooze", "exit", "retry")}
        bad = attempt("fail", payload=b"\xff")
        expired = attempt("fail", deadline_us=NOW_US)
        outcomes = by_id(await it.run(*attempts.values(), bad, expired))
    ends = {how: outcomes[one.record.task_id] for how, one in attempts.items()}
    assert ends["value"].kind == "failed"
    assert ends["value"].retryable
    assert (ends["value"].error or "").startswith("ValueError: password=***")
    assert (ends["key"].kind, ends["key"].retryable) == ("failed", False)
    assert (ends["snooze"].kind, ends["snooze"].after_us) == ("snooze", 5_000_000)
    assert (ends["exit"].kind, ends["exit"].retryable) == ("failed", True)
    assert ends["retry"].after_us == 7_000_000
    assert outcomes[bad.record.task_id].reason == "undecodable"
    assert outcomes[expired.record.task_id].kind == "expired"


@pytest.mark.parametrize(("how", "end"), [("exit", "exit code 3"), ("kill", "SIGKILL")])
async def test_a_dying_child_takes_one_attempt_with_it(tmp_path: Path, how: str, end: str) -> None:
    told: list[dict[str, Any]] = []
    unsubscribe = events.default.subscribe(
        lambda _, values: told.append(dict(values)), [events.CHILD_DIED]
    )
    async with rig(*ALL, process_workers=2) as it:
        gate = tmp_path / "gate"
        other = attempt("hold", path=str(tmp_path / "pid"), gate=str(gate))
        it.dispatcher.submit([other])
        await written(tmp_path / "pid")
        (died,) = await it.run(attempt("end_badly", how=how))
        assert died.kind == "died"
        assert end in (died.error or "")
        gate.touch()
        await it.ended(2)
        # And the replacement serves.
        more = [attempt("whoami", path=str(tmp_path / f"{n}")) for n in range(4)]
        outcomes = await it.run(*more)
    unsubscribe()
    assert it.outcomes[1].attempt is other
    assert {o.kind for o in [it.outcomes[1], *outcomes]} == {"done"}
    assert [values["task"] for values in told] == [died.attempt.record.task_id]


async def test_a_child_killed_from_outside_while_idle_is_replaced(tmp_path: Path) -> None:
    async with rig(*ALL, process_workers=1) as it:
        path = str(tmp_path / "pid")
        await it.run(attempt("whoami", path=path))
        first = int((tmp_path / "pid").read_text())
        os.kill(first, signal.SIGKILL)
        outcomes = await it.run(*[attempt("whoami", path=path) for _ in range(3)])
        # The one that was on its way to the dead child may have died with it, no more.
        assert [o.kind for o in outcomes].count("done") >= 2
        assert int((tmp_path / "pid").read_text()) != first


async def test_a_stuck_process_is_killed_and_replaced(tmp_path: Path) -> None:
    async with rig(*ALL, process_workers=1) as it:
        (outcome,) = await it.run(attempt("hang", path=str(tmp_path / "pid")))
        assert outcome.kind == "failed"
        assert (outcome.error or "").startswith("timed out after 2 s")
        assert not it.dispatcher.stuck.count
        (after,) = await it.run(attempt("whoami", path=str(tmp_path / "next")))
        assert after.kind == "done"
        assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_heartbeat_over_the_pipe_extends_the_time_out() -> None:
    async with rig(*ALL, process_workers=1) as it:
        (outcome,) = await it.run(attempt("beat"))
    assert (outcome.kind, outcome.error) == ("done", None)


async def test_the_context_is_that_of_the_attempt(tmp_path: Path) -> None:
    async with rig(*ALL, process_workers=1) as it:
        one = attempt("tell", number=4, path=str(tmp_path / "x"), headers='{"trace": "t1"}')
        await it.run(one)
    assert (tmp_path / "x").read_text() == f"{one.record.task_id} 4 default t1"


async def test_stop_interrupts_a_process_and_kills_it(tmp_path: Path) -> None:
    it = Rig(*ALL, process_workers=1)
    await it.dispatcher.start()
    path, gate = tmp_path / "pid", tmp_path / "never"
    it.dispatcher.submit([attempt("hold", path=str(path), gate=str(gate)) for _ in range(2)])
    pid = await written(path)
    await it.dispatcher.stop(0)
    assert it.kinds == ["interrupted", "interrupted"]
    assert not alive(pid)


async def test_signals_to_the_process_group_do_not_end_a_child(tmp_path: Path) -> None:
    async with rig(*ALL, process_workers=1) as it:
        path, gate = tmp_path / "pid", tmp_path / "gate"
        it.dispatcher.submit([attempt("hold", path=str(path), gate=str(gate))])
        pid = await written(path)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        gate.touch()
        (outcome,) = await it.ended(1)
        assert outcome.kind == "done", outcome.error
        # But a program that a handler starts can be terminated.
        (outcome,) = await it.run(attempt("start_program", path=str(tmp_path / "code")))
        assert outcome.kind == "done", outcome.error
        assert int((tmp_path / "code").read_text()) == -signal.SIGTERM


WORKER = """
import asyncio, sys
from tests.unit.dispatcher_kit import Rig, attempt
from tests.unit.dispatcher_process_tasks import hold

async def main():
    it = Rig(hold, process_workers=1)
    await it.dispatcher.start()
    await it.run(attempt("hold", path=sys.argv[1], gate=sys.argv[1] + ".never"))

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_a_child_ends_with_its_worker(tmp_path: Path) -> None:
    """Also when the worker is killed: another one is about to repeat what the child runs."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(tmp_path / "pid"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert worker.stdout is not None
    await written(tmp_path / "pid")
    worker.kill()
    # The child holds the worker's standard output: its end is that of the child, too.
    assert await asyncio.wait_for(worker.stdout.read(), 120) == b""
    await worker.wait()


async def test_a_child_whose_socket_breaks_is_replaced(tmp_path: Path) -> None:
    async with rig(*ALL, process_workers=1) as it:
        path = tmp_path / "pid"
        it.dispatcher.submit([attempt("hold", path=str(path), gate=str(tmp_path / "never"))])
        pid = await written(path)
        (child,) = it.dispatcher._target._processes._children
        assert child._writer is not None
        child._writer.transport.abort()
        (outcome,) = await it.ended(1)
        assert outcome.kind == "died"
        assert not alive(pid)
        assert (await it.run(attempt("whoami", path=str(tmp_path / "x"))))[0].kind == "done"


async def test_handlers_are_found_through_the_app(tmp_path: Path) -> None:
    named = {"by app": tasks.whoami}
    it = Rig(process_workers=1, app="tests.unit.dispatcher_process_tasks:apps")
    it.dispatcher._handlers = named
    await it.dispatcher.start()
    outcomes = await it.run(attempt("by app", path=str(tmp_path / "pid")))
    await it.dispatcher.stop(0)
    assert [o.kind for o in outcomes] == ["done"], outcomes[0].error


async def test_children_that_cannot_start_hand_the_attempts_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broken deployment costs no attempts, and is not a fork storm."""
    monkeypatch.setattr(processes, "BACKOFF_S", (0.001, 0.01))
    async with rig(*ALL, process_workers=1, app="no.such.module:app") as it:
        outcomes: list[Outcome] = await it.run(attempt("whoami", path="x"), attempt("whoami"))
    assert {(o.kind, o.reason) for o in outcomes} == {("not_capable", "no_process")}
    assert "ModuleNotFoundError" in (outcomes[0].error or "")


async def test_attempts_wait_for_a_child_while_others_are_killed(tmp_path: Path) -> None:
    """Children that attempts kill did start: nothing is handed back, and what is sound runs."""
    killers = [attempt("end_badly", how="kill") for _ in range(5)]
    async with rig(*ALL, process_workers=1) as it:
        outcomes = await it.run(*killers, attempt("whoami", path=str(tmp_path / "pid")))
    assert sorted(o.kind for o in outcomes) == ["died"] * 5 + ["done"]


async def test_a_handler_that_a_child_could_not_find_is_refused_at_start() -> None:
    def local() -> None:
        pass

    it = Rig(Task(local, process=True))
    with pytest.raises(ConfigError, match="top level"):
        await it.dispatcher.start()
    await it.dispatcher.stop(0)


async def test_no_children_without_a_handler_that_wants_one() -> None:
    async def work() -> None:
        pass

    async with rig(Task(work)) as it:
        await it.run(attempt())
        assert pids(it) == []


async def test_stop_right_after_start_leaves_no_child() -> None:
    it = Rig(*ALL, process_workers=2)
    await it.dispatcher.start()
    await it.dispatcher.stop(0)
    assert pids(it) == []
