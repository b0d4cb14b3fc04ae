"""Limits per key: never more of a key at once, never faster, and no key waits for another one."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from late.model.queue_settings import QueueSettings
from late.model.task import LIMIT_KEY, Record, TaskId
from late.scheduler.limits.key_limits import SWEEP_MIN, KeyLimits, QueueKey
from tests.unit.core_world import SECOND, World, running_ids
from tests.unit.shared_world import share


class KeyWorld(World):
    """Gives tasks a limit key, and judges each start by it."""

    def __init__(self, seed: int = 0) -> None:
        self.key_starts: dict[tuple[str, str], list[int]] = {}
        """By queue and headers: when tasks started since the knobs were last turned."""
        super().__init__(seed)

    def enqueue(
        self, name: str = "job", payload: bytes = b"{}", queue: str = "q",
        limit_key: str | None = None, **options: object,
    ) -> TaskId:  # fmt: skip
        task_id = super().enqueue(name, payload, queue, **options)
        if limit_key is not None:
            headers = msgspec.json.encode({LIMIT_KEY: limit_key}).decode()
            self.log[-1] = msgspec.structs.replace(self.log[-1], headers=headers)
        return task_id

    def turn(self, **queues: QueueSettings) -> None:
        self.key_starts.clear()
        super().turn(**queues)

    def judge_settings(self, record: Record) -> None:
        """Never more of a key at once than it may, and no faster, whoever owns the shard."""
        super().judge_settings(record)
        if record.headers is None or any(s.task_id == record.task_id for s in self.last.suspects):
            return  # it may have been let through when its mark was asked for
        settings, alike = self.queue_settings.get(record.queue), (record.queue, record.headers)
        if settings is None:
            return
        beside = sum((o.record.queue, o.record.headers) == alike for o in self.running)
        assert beside < (settings.key_concurrency or 10**9), "too many of a key at once"
        starts = self.key_starts.setdefault(alike, [])
        starts.append(self.now_us)
        if settings.key_rate is None:
            return
        for before, since_us in enumerate(starts):
            passed_s = (self.now_us - since_us) / SECOND
            most = max(1.0, settings.key_rate) + settings.key_rate * passed_s
            assert len(starts) - before <= most + 1e-6, "too fast for its key"


TWO = QueueSettings(key_concurrency=2)
SHOP = QueueKey("q", "shop-7")


def keys_of(world: KeyWorld) -> Counter[str | None]:
    return Counter(attempt.record.headers for attempt in world.running)


def test_a_key_has_so_many_at_once_and_the_others_go_on() -> None:
    world = KeyWorld()
    world.turn(q=TWO)
    for _ in range(5):
        world.enqueue(limit_key="shop-7")
    others = [world.enqueue(limit_key="shop-8"), world.enqueue(), world.enqueue(queue="free")]
    world.read_page()
    world.grant(20)
    assert sorted(keys_of(world).values()) == [1, 2, 2]
    assert set(others) <= {attempt.record.task_id for attempt in world.running}
    world.finish(world.running[0])
    world.grant(20)
    assert keys_of(world)['{"limit_key":"shop-7"}'] == 2
    world.drain()


def test_a_key_of_one_queue_is_none_of_another() -> None:
    world = KeyWorld()
    world.turn(q=TWO, r=QueueSettings(key_concurrency=1))
    for queue in "qqqrrr":
        world.enqueue(queue=queue, limit_key="shop-7")
    world.read_page()
    world.grant(20)
    assert Counter(attempt.record.queue for attempt in world.running) == {"q": 2, "r": 1}
    world.drain()


def test_a_retry_gives_its_place_to_another_while_it_waits() -> None:
    world = KeyWorld()
    world.turn(q=QueueSettings(key_concurrency=1))
    first, second = (world.enqueue(limit_key="shop-7") for _ in range(2))
    world.read_page()
    world.grant(9)
    world.finish(world.running[0], kind="failed", error="boom")
    world.grant(9)
    assert [attempt.record.task_id for attempt in world.running] == [second]
    world.drain()
    assert first in world.final


def test_a_task_that_ends_in_a_shared_transaction_gives_its_place_on() -> None:
    world = KeyWorld()
    world.turn(q=QueueSettings(key_concurrency=1))
    first, second = (world.enqueue(limit_key="shop-7") for _ in range(2))
    world.read_page()
    world.grant(9)
    assert running_ids(world) == [first]
    assert share(world, [*world.running], "committed")
    world.grant(9)
    assert running_ids(world) == [second]


def test_a_jam_of_one_key_lets_the_log_be_read_on() -> None:
    world = KeyWorld()
    world.turn(q=QueueSettings(key_concurrency=1))
    for _ in range(60):
        world.enqueue(limit_key="shop-7")
    last = world.enqueue(limit_key="shop-8")
    for _ in range(80):
        world.read_page()
        world.grant(8)
        world.write()
        world.acknowledge()
        world.now_us += SECOND // 2
        if any(attempt.record.task_id == last for attempt in world.running):
            break
    else:
        pytest.fail("it waits behind the jam of another key")
    world.drain()


def test_the_rate_of_a_key_wakes_the_loop() -> None:
    world = KeyWorld()
    world.turn(q=QueueSettings(key_rate=2.0))
    world.now_us += 10 * SECOND
    for _ in range(4):
        world.enqueue(limit_key="shop-7")
    world.read_page()
    world.limits.begin({"g": 1}, {"g": 1}, world.now_us)
    world.grant(9)
    assert len(world.running) == 2, "the starts of one second"
    assert world.limits.opens_at_us == world.now_us + SECOND // 2
    world.now_us += SECOND // 2
    world.grant(9)
    assert len(world.running) == 3


def test_a_new_owner_does_not_spend_the_rate_again() -> None:
    world = KeyWorld()
    world.turn(q=QueueSettings(key_rate=1.0))
    for _ in range(4):
        world.enqueue(limit_key="shop-7")
    world.now_us += SECOND
    world.read_page()
    world.grant(9)
    assert len(world.running) == 1
    world.stop()
    world.take_over(died=False)
    while world.answers:
        world.answer()
    world.read_page()
    world.grant(9)
    assert not world.running, "the former owner has used up the second"
    world.now_us += SECOND
    world.grant(9)
    assert len(world.running) == 1
    world.drain()


def test_a_limit_that_is_taken_back_holds_nobody() -> None:
    world = KeyWorld()
    world.turn(q=QueueSettings(key_concurrency=1))
    for _ in range(4):
        world.enqueue(limit_key="shop-7")
    world.read_page()
    world.grant(9)
    assert len(world.running) == 1
    world.turn()
    world.grant(9)
    assert len(world.running) == 4
    world.turn(q=QueueSettings(key_concurrency=1))
    world.drain()
    assert not world.core.state.ready_queues.keys.counted


def test_keys_that_are_quiet_are_forgotten() -> None:
    keys, rate = KeyLimits(), QueueSettings(key_rate=1.0)
    keys.begin(0)
    for number in range(10 * SWEEP_MIN):
        now_us, name, task_id = (1 + number) * SECOND, QueueKey("q", str(number)), TaskId("a")
        keys.begin(now_us)
        assert keys.opens_at_us(name, rate, now_us) == now_us
        keys.start(task_id, name)
        keys.ended(task_id)
        assert len(keys) <= 2 * SWEEP_MIN
    assert not keys.counted


def test_keys_without_a_rate_are_forgotten_at_once() -> None:
    keys = KeyLimits()
    keys.begin(0)
    keys.start(TaskId("a"), SHOP)
    assert keys.running(SHOP) == 1
    keys.undo(TaskId("a"))
    keys.ended(TaskId("a"))
    assert len(keys) == 0


def test_a_clock_that_is_set_back_begins_a_new_term() -> None:
    keys, rate = KeyLimits(), QueueSettings(key_rate=1.0)
    keys.begin(10_000 * SECOND)
    keys.begin(SECOND)
    assert keys.opens_at_us(SHOP, rate, SECOND) == 2 * SECOND
    assert keys.opens_at_us(SHOP, rate, 2 * SECOND) == 2 * SECOND


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
@example(seed=3)
def test_random_lives_of_keys(seed: int) -> None:
    """`KeyWorld` judges each start; all that was enqueued comes to its end."""
    world = KeyWorld(seed)
    rng = world.rng
    choices = [
        QueueSettings(key_concurrency=1),
        QueueSettings(key_concurrency=2, key_rate=3.0),
        QueueSettings(key_rate=0.5),
        QueueSettings(key_concurrency=2, concurrency=3),
    ]  # never none: a limit that is turned on does not count what runs already
    world.turn(q=rng.choice(choices), r=rng.choice(choices))
    for _ in range(300):
        live(world, rng, choices)
    if rng.random() < 0.5:  # else all of it ends under the limits
        world.turn()
    world.drain()


def live(world: KeyWorld, rng: random.Random, choices: list[QueueSettings]) -> None:
    """Let one thing happen."""
    match rng.randrange(12):
        case 0 | 1:
            for _ in range(rng.randrange(5)):
                world.enqueue(queue=rng.choice("qr"), limit_key=rng.choice(["a", "b", None]))
        case 2 | 3:
            world.read_page()
        case 4 | 5:
            world.limits.begin({"g": 1}, {"g": 1}, world.now_us)
            world.grant(rng.randrange(6))
        case 6:
            world.answer()
        case 7 | 8 if world.running:
            kind = rng.choice(["done", "done", "failed", "interrupted"])
            world.finish(rng.choice(world.running), kind=kind, error="boom")
        case 9:
            world.write()
            world.acknowledge()
        case 10:
            world.now_us += rng.choice([SECOND // 8, SECOND])
        case 11 if rng.random() < 0.1:
            world.take_over(died=rng.random() < 0.5)
        case 11 if rng.random() < 0.2:
            world.turn(q=rng.choice(choices), r=rng.choice(choices))
