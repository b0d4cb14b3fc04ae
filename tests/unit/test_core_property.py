"""Random lives of a shard, judged by `core_world`: nothing lost, early, twice or out of order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from late.model.task import Options
from tests.sizes import Budget
from tests.unit.core_world import SECOND, World
from tests.unit.shared_world import share

KINDS = ["done", "done", "done", "failed", "failed", "snooze", "discard", "died", "not_capable"]


def random_life(
    seed: int,
    steps: int,
    *,
    deaths: bool,
    keys: bool,
    commands: bool = False,
    shared: bool = False,
) -> World:
    """Let a world live for `steps` random steps, then drain it."""
    world = World(seed)
    rng = world.rng
    for _ in range(steps):
        if commands and rng.random() < 0.06:
            random_command(world)
        match rng.randrange(12):
            case 0 | 1:
                for _ in range(rng.randrange(6)):
                    options: dict[str, object] = {}
                    if rng.random() < 0.3:
                        options["delay_us"] = rng.choice([1, SECOND // 8, 3 * SECOND, 30 * SECOND])
                    if rng.random() < 0.2:
                        options["priority"] = rng.choice([-5, 3])
                    if rng.random() < 0.1:
                        options["expires_in_us"] = rng.choice([1, 2 * SECOND])
                    if keys and rng.random() < 0.5:
                        options["ordering_key"] = rng.choice("ab")
                    name = "job" if rng.random() < 0.97 else "stranger"
                    world.enqueue(name, **options)
            case 2 | 3:
                world.read_page()
            case 4 | 5:
                slots = rng.randrange(5)
                world.grant(slots, background=slots // 2)
            case 6:
                world.answer()
            case 7:
                if rng.random() < 0.1:
                    world.fail_answer()
            case 8 | 9:
                if world.running and shared and rng.random() < 0.5:
                    share_some(world, deaths=deaths)
                elif world.running:
                    finish_one(world)
            case 10:
                world.write()
                if rng.random() < 0.8:
                    world.acknowledge()
            case 11:
                world.now_us += rng.choice([1_000, SECOND // 3, 2 * SECOND])
                if deaths and rng.random() < 0.08:
                    world.take_over()
    if deaths and rng.random() < 0.5:
        world.stop()
        world.take_over(died=False)
    # A stranger gets a handler, so that the drain can end.
    world.core.state.policies = {
        **world.core.state.policies,
        "stranger": world.core.state.policies["job"],
    }
    world.take_over()
    world.core.state.policies = {
        **world.core.state.policies,
        "stranger": world.core.state.policies["job"],
    }
    world.drain()
    return world


def random_command(world: World) -> None:
    """Something is asked of a task: any that was committed, one of the same transaction that comes
    after it in the log, or one that nobody knows."""
    rng = world.rng
    kind = rng.choice(["cancel", "cancel", "reschedule", "redrive"])
    body = {"delay_us": rng.choice([0, 1, SECOND, 20 * SECOND])} if kind == "reschedule" else {}
    if rng.random() < 0.05:
        body["group"] = rng.choice(["g", "other"])
    which = rng.random()
    if which < 0.1:
        world.command(kind, f"a{len(world.log) + 2:05d}", **body)
        world.enqueue(delay_us=rng.choice([0, 3 * SECOND, 30 * SECOND]))
    elif which < 0.15:
        world.command(kind, "a99999", **body)
    elif world.log:
        recent = rng.random() < 0.7
        number = rng.randint(max(1, len(world.log) - 20) if recent else 1, len(world.log))
        if world.dead and kind == "redrive":
            number = int(rng.choice(world.dead)[1:])
        world.command(kind, f"a{number:05d}", **body)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@example(seed=902, keys=True, deaths=True)  # a cancel beside a row that moves to another due time
@example(seed=26472812, keys=True, deaths=False)  # a start before the time of the insert, then held
@given(seed=st.integers(0, 2**32), keys=st.booleans(), deaths=st.booleans())
@Budget(3.0, floor=40).limit
def test_commands_do_what_they_say_at_any_point(seed: int, keys: bool, deaths: bool) -> None:
    random_life(seed, 500, deaths=deaths, keys=keys, commands=True)


def finish_one(world: World) -> None:
    attempt = world.rng.choice(world.running)
    kind = world.rng.choice(KINDS)
    after = None
    if kind in ("snooze", "not_capable"):
        after = world.rng.choice([0, SECOND, 5 * SECOND])
    error = "boom" if kind == "failed" else None
    world.finish(attempt, kind=kind, after_us=after, error=error, jitter=world.rng.random())


def share_some(world: World, *, deaths: bool) -> None:
    rng = world.rng
    attempts = rng.sample(world.running, rng.randint(1, len(world.running)))
    fates = ["committed", "committed", "rolled back", "replaced", *(["died"] if deaths else [])]
    share(world, attempts, rng.choice(fates))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), keys=st.booleans(), deaths=st.booleans())
@Budget(3.0, floor=40).limit
def test_shared_transactions_end_each_task_once(seed: int, keys: bool, deaths: bool) -> None:
    random_life(seed, 500, deaths=deaths, keys=keys, commands=True, shared=True)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), keys=st.booleans())
@Budget(3.0, floor=40).limit
def test_a_clean_life_runs_each_attempt_once(seed: int, keys: bool) -> None:
    world = random_life(seed, 400, deaths=False, keys=keys)
    # Each start after the first has a reason that is not the owner's death.
    numbers: dict[str, list[int]] = {}
    for attempt in world.starts:
        numbers.setdefault(attempt.record.task_id, []).append(attempt.number)
    for task_id, seen in numbers.items():
        assert seen == sorted(seen), (task_id, seen)
        assert seen[-1] <= 4 + 1, (task_id, seen)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), keys=st.booleans())
@Budget(3.0, floor=40).limit
def test_deaths_at_any_point_lose_nothing(seed: int, keys: bool) -> None:
    random_life(seed, 500, deaths=True, keys=keys)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
@Budget(3.0, floor=40).limit
def test_tasks_of_one_key_end_in_order(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    for _ in range(600):
        match rng.randrange(9):
            case 0:
                world.enqueue(ordering_key=rng.choice("ab"))
            case 1:
                world.read_page()
            case 2 | 3:
                world.grant(3)
            case 4:
                world.answer()
            case 5 | 6:
                if world.running:
                    finish_one(world)
            case 7:
                world.write()
                world.acknowledge()
            case 8:
                world.now_us += rng.choice([SECOND // 3, 2 * SECOND])
                if rng.random() < 0.05:
                    world.take_over()
    world.drain()
    for key in "ab":
        started = []
        for attempt in world.starts:
            options = msgspec.json.decode(attempt.record.options or "{}", type=Options)
            if options.ordering_key == key and attempt.record.task_id not in started:
                started.append(attempt.record.task_id)
        assert started == sorted(started), key


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_gives_the_same_life(seed: int) -> None:
    lives = [random_life(seed, 200, deaths=True, keys=True) for _ in range(2)]
    traces = [[(a.record.task_id, a.number, a.epoch) for a in w.starts] for w in lives]
    assert traces[0] == traces[1]
