"""Lists of members: who may own shards, and what an answer that does not come changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import dropwhile
from typing import Any

from late.config import Members
from late.events import Emitter, Event
from late.model.task import Epoch, ShardId
from late.store.base import LeaseView, Membership, WorkerInfo
from late.tailer.discovery import MemberList, addresses, own_name
from late.tailer.membership import member_of, restricted, weights
from late.tailer.ownership import plan

GROUP = "default"
TIMEOUT_S = 20


def fleet(*addresses: str, held_by: str | None = None) -> Membership:
    workers = tuple(WorkerInfo(f"w-{a}", f"{a}:17", (GROUP,)) for a in sorted(addresses))
    shards = tuple(ShardId(shard) for shard in range(32))
    leases = tuple(LeaseView(GROUP, s, f"w-{held_by}", Epoch(1)) for s in shards if held_by)
    return Membership(0, workers, leases, shards)


class Names:
    """A name server."""

    def __init__(self) -> None:
        self.answers: list[Callable[[], Iterable[str]]] = []
        self.asked = threading.Semaphore(0)
        self.more = threading.Event()
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.emitter = Emitter()
        self.emitter.subscribe(self._listen)

    def _listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))

    def look_up(self, name: str) -> Iterable[str]:
        assert name == "late.local"
        self.asked.release()
        return self.answers.pop(0)() if len(self.answers) > 1 else self.answers[0]()

    def members(self, every_s: float = 0.001, **options: Any) -> MemberList:
        return MemberList(
            Members("dns", ("late.local",)), "w-a", look_up=self.look_up, every_s=every_s,
            emitter=self.emitter, **options,
        )  # fmt: skip


def refuse() -> Iterable[str]:
    raise OSError("the name server is down")


@asynccontextmanager
async def looking(members: MemberList) -> AsyncIterator[None]:
    task = asyncio.create_task(members.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  a thread is what is waited for
            await asyncio.sleep(0.002)


async def test_without_a_list_everybody_is_a_member_and_nothing_is_looked_up() -> None:
    members = MemberList(Members(), "w-a")
    await asyncio.wait_for(members.run(), TIMEOUT_S)
    assert members.view(fleet("a", "b")) == fleet("a", "b")


def test_who_is_not_on_the_list_owns_nothing_and_hands_over_what_it_has() -> None:
    view = restricted(fleet("a", "b", "c", held_by="c"), {"a", "b"})
    assert weights(view, GROUP) == {"w-a": 1.0, "w-b": 1.0}
    assert plan("w-c", view, set()).acquire == ()
    mine = {(GROUP, shard) for shard in view.shards}
    assert set(plan("w-c", view, mine).release) == mine
    # And a peer waits for it, because its heartbeat lives.
    assert plan("w-a", view, set()).acquire == ()
    assert plan("w-a", view, set()).awaited


def test_a_member_without_a_heartbeat_strands_nothing() -> None:
    """Given a list of three of which one is dead, the two others own every shard."""
    members = MemberList(Members.parse("static:a,b,dead"), "w-a")
    view = members.view(fleet("a", "b", held_by="dead"))
    taken = [key for me in ("w-a", "w-b") for key in plan(me, view, set()).acquire]
    assert sorted(taken) == [(GROUP, shard) for shard in range(32)]


def test_a_worker_is_told_once_that_it_is_not_on_the_list() -> None:
    names = Names()
    members = MemberList(Members.parse("static:b"), "w-a", emitter=names.emitter)
    for _ in range(3):
        members.view(fleet("a", "b"))
    assert names.heard == [("not_a_member", {"member": "a", "members": "b"})]
    assert members.unlisted == "a"
    members.names = frozenset({"a", "b"})
    members.view(fleet("a", "b"))
    assert members.unlisted == ""


def test_who_is_not_in_the_view_is_told_nothing() -> None:
    names = Names()
    members = MemberList(Members.parse("static:b"), "w-a", emitter=names.emitter)
    assert weights(members.view(fleet("b", "c")), GROUP) == {"w-b": 1.0}
    assert names.heard == []


async def test_who_waits_for_the_first_answer_is_not_told_that_it_is_not_on_the_list() -> None:
    """A healthy worker would warn at each start; and one that is not listed would not show the
    list, because it is told once, before there is one."""
    names = Names()
    names.answers = [lambda: ["b"]]
    # One look-up: the thread of a first one may still end while a second one begins.
    members = names.members(every_s=3_600)
    assert weights(members.view(fleet("a", "b")), GROUP) == {}
    assert names.heard == []
    async with looking(members):
        await until(lambda: members.names == {"b"})
        members.view(fleet("a", "b"))
    assert names.heard == [("not_a_member", {"member": "a", "members": "b"})]


def test_names_and_addresses_are_compared_in_one_form() -> None:
    worker = WorkerInfo("w", "FE80:0:0::1:4711", (GROUP,))
    assert member_of(worker) == "fe80::1"
    assert member_of(WorkerInfo("w", "Host.Example.:1", (GROUP,))) == "host.example"
    assert own_name(Members(), "Host.") == "host"
    assert own_name(Members("dns", ("x",)), None).count(".") == 3


def test_localhost_has_an_address() -> None:
    assert addresses("localhost") <= {"127.0.0.1", "::1"}


async def test_dns_is_asked_again_and_followed() -> None:
    names = Names()
    names.answers = [lambda: ["a"], lambda: ["a", "b"]]
    members = names.members()
    assert weights(members.view(fleet("a", "b")), GROUP) == {}, "nobody before the first answer"
    async with looking(members):
        await until(lambda: members.names == {"a", "b"})
        assert weights(members.view(fleet("a", "b")), GROUP) == {"w-a": 1.0, "w-b": 1.0}


async def test_a_failure_or_an_empty_answer_keeps_the_last_good_one_and_is_told() -> None:
    names = Names()
    names.answers = [lambda: ["a", "b"], refuse, list, refuse]
    members = names.members()

    def texts() -> list[str]:
        # On a slow machine a thread may end after its answer was taken: the next look says so.
        heard = [str(values["error"]) for _, values in names.heard]
        return [text for text in heard if "still under way" not in text]

    async with looking(members):
        await until(lambda: len(texts()) >= 3)
    assert members.names == {"a", "b"}
    assert {name for name, _ in names.heard} == {"members_unknown"}
    assert texts()[:2] == ["the name server is down", "late.local has no addresses"]
    assert names.heard[0][1]["members"] == 2


async def test_a_look_up_that_hangs_costs_one_thread_and_no_answer() -> None:
    names = Names()

    def hang() -> Iterable[str]:
        names.more.wait(TIMEOUT_S)
        return ["late"]

    names.answers = [lambda: ["a"], hang, lambda: ["a", "b"]]
    members = names.members(deadline_s=1.0)

    def texts() -> list[str]:
        # On a slow machine the thread of the first answer may end late: the next look says so.
        heard = [str(values["error"]) for _, values in names.heard]
        return list(dropwhile(lambda text: "still under way" in text, heard))

    async with looking(members):
        await until(lambda: len(texts()) >= 3)
        assert members.names == {"a"}
        assert names.asked.acquire(timeout=1)
        assert names.asked.acquire(timeout=1)
        assert not names.asked.acquire(blocking=False), "no second one beside it"
        assert members._asking is not None
        assert members._asking.daemon, "it keeps no process from its end"
        names.more.set()
        await until(lambda: members.names == {"a", "b"})
    assert texts()[0].startswith("no answer within")
    assert "still under way" in texts()[1]
