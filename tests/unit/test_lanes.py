"""Lanes that are resized while they work: who may start, and random lives of all their shards."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from late.control.lanes.open_transactions import still_waits
from late.model.lanes import Extent, Gate, Lane, Layout, Left, place
from late.model.task import Attempt, Options, Record, TaskId
from late.payload.command import CLOSED, QUEUE
from tests.unit.core_world import SECOND, World

WIDTHS = (1, 2, 3, 5)
KEYS = "abcd"
_left = msgspec.json.Decoder(Left).decode


def view(version: int, *extents: Extent, shards: int = 8) -> Gate:
    gate = Gate()
    gate.set(Layout((Lane("default", 0, shards, version), Lane("bulk", 100, 8, 0)), extents))
    return gate


def test_a_shard_is_of_the_lane_that_begins_last_below_it() -> None:
    layout = Layout((Lane("bulk", 1024, 2, 3), Lane("default", 0, 8, 0), Lane("mail", 2048, 1, 0)))
    found = [layout.lane_of(shard) for shard in (0, 7, 8, 1023, 1024, 1026, 2047, 2048, 4095)]
    assert found == 4 * ["default"] + 3 * ["bulk"] + 2 * ["mail"]
    assert Layout().lane_of(1024) == "default", "no lane is known yet"


def test_a_task_of_no_version_starts_at_once() -> None:
    assert Gate().opens("g", 3, "k", 0)


def test_what_is_not_known_yet_is_held_back() -> None:
    assert not Gate().opens("g", 3, "k", 1)
    assert not view(1).opens("g", 3, "k", 2)
    assert view(2).opens("g", 3, "k", 2)


def test_a_key_waits_for_its_old_shard_and_no_other() -> None:
    old = place("k", 0, 4)
    closed = Extent(0, 1, 4, tuple(TaskId(f"m{n}") for n in range(4)))
    for left, opens in (
        ({}, False),
        ({("g", old): Left(("k",))}, False),
        ({("g", old): Left(more=True)}, False),
        ({("g", old): Left(("j",))}, True),
        ({("other", old): Left()}, False),
    ):
        gate = view(2, msgspec.structs.replace(closed, left=left))
        assert gate.opens("g", 7 if old != 7 else 6, "k", 2) is opens, left
        assert gate.opens("g", old, "k", 2), "behind its own shard's tasks it stands anyway"
        assert gate.opens("g", 107, "k", 0), "another lane"


def test_the_first_version_was_placed_by_the_apps() -> None:
    """Their `shards=` may be less than the lane's: a key may be in any shard of it."""
    closings = tuple(TaskId(f"m{n}") for n in range(4))
    done = {("g", n): Left() for n in range(4)}
    assert view(1, Extent(0, 0, 4, closings, done)).opens("g", 6, "k", 1)
    for n in range(4):
        gate = view(1, Extent(0, 0, 4, closings, done | {("g", n): Left(("k",))}))
        assert not gate.opens("g", 6, "k", 1)
        assert gate.opens("g", 6, "j", 1)


ANSWERS = st.builds(Left, st.lists(st.sampled_from(KEYS), unique=True).map(tuple), st.booleans())


@given(st.dictionaries(st.tuples(st.sampled_from("gh"), st.integers(0, 3)), ANSWERS))
def test_the_first_version_holds_what_any_other_shard_may_have(
    left: dict[tuple[str, int], Left],
) -> None:
    extent = Extent(0, 0, 4, left=left)
    for group, key, shard_id in itertools.product("gh", KEYS, range(6)):
        others = [left.get((group, n), Left(more=True)) for n in range(4) if n != shard_id]
        held = any(each.more or key in each.keys for each in others)
        assert extent.holds(group, key, shard_id) is held


def test_many_keys_do_not_look_at_each_shard_again() -> None:
    looks = 0

    class Counted(dict[tuple[str, int], Left]):
        def get(self, *asked: Any) -> Any:
            nonlocal looks
            looks += 1
            return super().get(*asked)

        def items(self) -> Any:
            nonlocal looks
            looks += len(self)
            return super().items()

    gate = view(1, Extent(0, 0, 64, left=Counted({("g", n): Left() for n in range(64)})))
    assert all(gate.opens("g", 6, f"k{n}", 1) for n in range(100))
    assert looks <= 2 * 64


class Resizing:
    """All shards of a lane, with producers whose transactions take their time, owners whose view
    of the lane is old, and resizes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shards = [World(seed + n, shard_id=n) for n in range(max(WIDTHS))]
        for world in self.shards:
            world.started = self._watched(world, world.started)  # type: ignore[method-assign]
        self.width, self.version = self.rng.choice(WIDTHS), 0
        self.closed: dict[int, tuple[int, list[TaskId]]] = {}  # version -> (width, closings)
        self.open: list[tuple[int, str, int, int]] = []  # shard, key, version, inserted at
        self.clock = 0
        self.known: dict[tuple[int, str], tuple[str, int, int]] = {}  # key, inserted, committed
        self.inversions: list[str] = []
        self.moved = 0
        for world in self.shards:
            self.look(world)

    def _watched(self, world: World, judge: object) -> object:
        def started(attempt: Attempt) -> None:
            judge(attempt)  # type: ignore[operator]
            self.judge(world, attempt)

        return started

    def judge(self, world: World, attempt: Attempt) -> None:
        """Whatever of its key was committed before it was inserted has ended, in any shard."""
        mine = self.known.get((world.shard_id, attempt.record.task_id))
        if mine is None:
            return
        for (shard, task_id), (key, _, committed) in self.known.items():
            if key == mine[0] and committed < mine[1] and shard != world.shard_id:
                self.moved += 1
                if task_id not in self.shards[shard].final:
                    self.inversions.append(f"{key}: {attempt.record.task_id} before {task_id}")

    # -- producers

    def insert(self) -> None:
        key = self.rng.choice(KEYS)
        self.open.append((place(key, 0, self.width), key, self.version, self.tick()))

    def commit(self) -> None:
        if self.open:
            shard, key, version, inserted = self.open.pop(self.rng.randrange(len(self.open)))
            asked = {"layout": version} if version else {}
            task_id = self.shards[shard].enqueue(ordering_key=key, **asked)
            self.known[shard, task_id] = (key, inserted, self.tick())

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    # -- whoever keeps house

    def resize(self) -> None:
        if len(self.closed) < 3 and all(closings for _, closings in self.closed.values()):
            self.closed[self.version] = (self.width, [])
            self.width = self.rng.choice(WIDTHS)
            self.version += 1

    def keep(self) -> None:
        for version, (width, closings) in list(self.closed.items()):
            if not closings and not any(v <= version for _, _, v, _ in self.open):
                closings += [self.close(n, version) for n in range(width)]
            elif closings and all(
                closing in self.shards[n].results and _left(self.shards[n].results[closing]).nothing
                for n, closing in enumerate(closings)
            ):
                del self.closed[version]

    def close(self, shard: int, version: int) -> TaskId:
        log = self.shards[shard].log
        number = len(log) + 1
        task_id = TaskId(f"a{number:05d}")
        body = msgspec.json.encode({"version": version})
        now_us = self.shards[shard].now_us
        log.append(Record(shard, number, task_id, QUEUE, CLOSED, body, None, None, now_us, number))
        return task_id

    def look(self, world: World) -> None:
        extents = tuple(
            Extent(
                0,
                version,
                width,
                tuple(closings),
                {
                    ("g", n): _left(self.shards[n].results[closing])
                    for n, closing in enumerate(closings)
                    if closing in self.shards[n].results
                },
            )
            for version, (width, closings) in self.closed.items()
        )
        world.gate.set(Layout((Lane("default", 0, self.width, self.version),), extents))

    # -- a life

    def step(self) -> None:
        rng = self.rng
        world = rng.choice(self.shards)
        match rng.randrange(12):
            case 0 | 1:
                self.insert()
            case 2 | 3:
                self.commit()
            case 4:
                world.read_page()
            case 5:
                world.grant(2)
            case 6:
                world.answer()
            case 7:
                if world.running:
                    kind = rng.choice(["done", "done", "done", "failed", "interrupted"])
                    error = "boom" if kind == "failed" else None
                    world.finish(rng.choice(world.running), kind=kind, error=error)
            case 8:
                world.write()
                if rng.random() < 0.8:
                    world.acknowledge()
            case 9:
                self.look(world)
            case 10:
                self.keep()
                if rng.random() < 0.1:
                    self.resize()
            case 11:
                for each in self.shards:
                    each.now_us += rng.choice([SECOND // 10, SECOND])
                if rng.random() < 0.1:
                    world.take_over()

    def drain(self) -> None:
        while self.open:
            self.commit()
        for _ in range(600):
            self.keep()
            for world in self.shards:
                self.look(world)
                world.read_page()
                while world.answers:
                    world.answer()
                world.grant(4)
                for attempt in list(world.running):
                    world.finish(attempt)
                world.write()
                world.acknowledge()
                world.now_us += SECOND // 4
            if not self.closed and not any(world.unsettled() for world in self.shards):
                return
        left = {world.shard_id: sorted(world.unsettled()) for world in self.shards}
        raise AssertionError(f"stuck: {self.closed}, {left}")


def live(seed: int, steps: int = 600) -> Resizing:
    life = Resizing(seed)
    for _ in range(steps):
        life.step()
    life.drain()
    return life


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_key_keeps_its_order_across_resizes(seed: int) -> None:
    """Nothing lost, nothing stuck, no task before another shard's older one of its key."""
    assert live(seed).inversions == []


def test_the_lives_do_move_keys() -> None:
    lives = [live(seed) for seed in range(3)]
    assert all(life.moved and life.version for life in lives)


def test_without_the_gate_the_order_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "opens", lambda *_: True)
    assert any(live(seed).inversions for seed in range(5))


def test_a_closing_alone_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the owner has left must be waited for too."""
    monkeypatch.setattr(Extent, "holds", lambda self, group, key, shard_id: not self.left)
    assert any(live(seed).inversions for seed in range(10))


def looks(seed: int) -> tuple[int, bool]:
    """Transactions that begin, prepare and end while a resize is looked after: how many looks it
    took, and whether any of those that ran at the resize was still there at the end."""
    rng = random.Random(seed)
    running = {f"3/{n}" for n in range(rng.randrange(4))}
    prepared: dict[str, str] = {"prepared/1": "old"} if rng.random() < 0.5 else {}
    old = running | set(prepared.values())
    waits: set[str] | None = None
    for look in range(1, 1000):
        for n in range(rng.randrange(4)):
            running.add(f"4/{look}-{n}")
        seen = frozenset(running)
        for each in sorted(running):  # between the two looks of one, too
            fate = rng.random()
            if fate < 0.3:
                running.discard(each)
            if fate < 0.15:
                prepared[f"prepared/{len(prepared) + look * 100}"] = each
        if rng.random() < 0.5:
            running.add("5/next")
        waits = still_waits(waits, seen, set(prepared))  # type: ignore[arg-type]
        if look > 1 and not waits:
            return look, bool(old & (running | set(prepared.values())))
        # One is always there: whoever waits for a moment without any waits for ever.
        for number in list(prepared)[:-1]:
            if rng.random() < 0.3:
                del prepared[number]
        prepared.setdefault(f"prepared/{look * 100 + 99}", f"6/{look}")
    return 1000, False


@given(seed=st.integers(0, 2**32))
def test_a_closing_waits_for_those_that_ran_at_the_resize_and_not_for_ever(seed: int) -> None:
    took, too_early = looks(seed)
    assert not too_early
    assert took < 200


def test_those_prepared_later_are_not_waited_for() -> None:
    waits = still_waits(None, {"3/1"}, {"prepared/7"})
    assert waits == {"3/1", "prepared/7"}
    assert still_waits(waits, {"3/1", "4/1"}, {"prepared/7", "prepared/9"}) == waits
    gone = still_waits(waits, {"4/1"}, {"prepared/8", "prepared/9"})
    assert gone == {"prepared/8", "prepared/9"}, "3/1 may be one of them, nothing tells"
    assert still_waits(gone, {"4/1"}, {"prepared/9", "prepared/10"}) == {"prepared/9"}
    assert still_waits({"prepared/9"}, {"4/1"}, {"prepared/10"}) == set()
    assert still_waits(set(), {"4/1"}, {"prepared/10"}) == set()


def test_options_without_a_version_are_as_before() -> None:
    assert b"layout" not in msgspec.json.encode(Options(ordering_key="k"))
