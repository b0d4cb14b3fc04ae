"""What is decided of a world before it lives: the database, the fleet, the work and the faults.

`Plan.draw(seed)` gives each world another mix (a *swarm*: a world in which everything goes wrong
at once hides what two faults do together).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from late.model.queue_settings import QueueSettings
from late.model.task import NewTask, Options, Schedule, TaskId
from tests.simulator import (
    background,
    budget,
    jumps,
    limit_keys,
    orders,
    resets,
    transactions,
    workflows,
)
from tests.simulator.job import Job
from tests.simulator.jumps import EPOCH_US, Jump
from tests.simulator.orders import Order
from tests.simulator.resets import Reset
from tests.simulator.transactions import Sharing
from tests.simulator.workflows import Flow

Profile = Literal["sqlite", "postgres", "spanner", "cockroach"]
PROFILES: tuple[Profile, ...] = ("sqlite", "postgres", "spanner", "cockroach")
FaultKind = Literal[
    "kill", "pause", "restart", "cut", "deaf", "lose", "repeat", "refuse", "abort", "slow", "busy",
    "storm",
]  # fmt: skip
FAULTS: tuple[FaultKind, ...] = (
    "kill", "pause", "restart", "cut", "deaf", "lose", "repeat", "refuse", "abort", "slow", "busy",
    "storm",
)  # fmt: skip
Fate = Literal["commit", "abort", "unsure"]

HEAL_S = 10.0
"""A fault that lasts longer than that beyond a world's life is ended."""


class Fault(msgspec.Struct, frozen=True):
    """Something goes wrong at `at_s`, for `for_s` where it lasts."""

    at_s: float
    kind: FaultKind
    worker: int = 0
    """Which place of the fleet; the one that works there at that moment."""
    for_s: float = 0.0


class Booking(msgspec.Struct, frozen=True):
    """A producer's transaction: begins at `at_s`, ends `for_s` later."""

    at_s: float
    for_s: float
    fate: Fate
    """`unsure`: the answer to the COMMIT is lost; it was done, or not (`done`)."""
    tasks: tuple[NewTask, ...]
    done: bool = True
    again: tuple[NewTask, ...] = ()
    """The same requests under new ids, for a producer who is unsure and asks again."""

    @property
    def commits(self) -> bool:
        """Whether its tasks are in the log, by this transaction."""
        return self.fate == "commit" or (self.fate == "unsure" and self.done)


class Plan(msgspec.Struct, frozen=True):
    """All that is decided beforehand."""

    seed: int
    profile: Profile
    workers: int
    shards: int
    groups: tuple[str, ...]
    ttl_s: float
    window: int
    live_s: float
    """How long things go on and go wrong."""
    bookings: tuple[Booking, ...]
    schedules: tuple[Schedule, ...]
    faults: tuple[Fault, ...]
    orders: tuple[Order, ...] = ()
    """What is asked of tasks afterwards, in order of time."""
    resets: tuple[Reset, ...] = ()
    settings: QueueSettings = QueueSettings()
    """Of the only queue."""
    jumps: tuple[Jump, ...] = ()
    """Of the database's clock."""
    flows: tuple[Flow, ...] = ()
    sharing: Sharing | None = None
    older: float = 0.0
    """The share of processes that place shards as the version before bounded loads did."""

    @property
    def ends_s(self) -> float:
        """When all has begun and nearly all has ended by itself; the rest is ended then."""
        ends = [booking.at_s + booking.for_s for booking in self.bookings]
        ends += [fault.at_s + fault.for_s for fault in self.faults]
        ends += [order.at_s for order in self.orders]
        return min(max([self.live_s, *ends]), self.live_s + HEAL_S)

    @classmethod
    def draw(cls, seed: int, profile: Profile | None = None) -> Plan:
        """The world of this seed."""
        rng = random.Random(seed)
        shards = rng.choice((1, 2, 4, 8))
        live_s = rng.uniform(4.0, 14.0)
        ttl_s = rng.choice((1.5, 3.0, 6.0))
        workers = rng.randint(1, 4)
        armed = [kind for kind in FAULTS if rng.random() < 0.3]
        drawn = rng.choice(PROFILES) if profile is None else profile
        plan = cls(
            seed=seed,
            profile=drawn if profile is not None else transactions.profile(seed, drawn),
            workers=workers,
            shards=shards,
            groups=("default", "audit")[: rng.choice((1, 1, 2))],
            ttl_s=ttl_s,
            window=rng.choice((12, 30, 200)),
            live_s=live_s,
            bookings=background.lower(seed, _Draw(rng, shards).bookings(live_s)),
            schedules=tuple(_schedules(rng, shards)),
            faults=tuple(_faults(rng, armed, workers, live_s, ttl_s)),
        )
        # By a random of their own, so that the rest of a seed's world is what it was.
        begins = resets.draw(random.Random(seed ^ 0x4E5E7), live_s, plan.groups)
        turned = budget.draw(random.Random(seed ^ 0xB0D6E7))
        jumped = jumps.draw(random.Random(seed ^ 0x7C10C), live_s, plan.profile)
        older = random.Random(seed ^ 0x01DE5).choice((0.0, 0.0, 0.5))
        plan = msgspec.structs.replace(
            plan, orders=_orders(plan), resets=begins, settings=turned, jumps=jumped, older=older,
            flows=() if plan.profile == "cockroach" else workflows.draw(seed, live_s, shards),
        )  # fmt: skip
        booked, turned = limit_keys.limit(seed, plan.bookings, plan.settings)
        plan = msgspec.structs.replace(plan, bookings=booked, settings=turned)
        sharing = transactions.draw(seed)
        if sharing is None or plan.profile not in transactions.PROFILES:
            return plan
        booked, flows = transactions.share(sharing, seed, plan.bookings, plan.flows)
        return msgspec.structs.replace(plan, sharing=sharing, bookings=booked, flows=flows)


class _Draw:
    """Draws producers' transactions."""

    def __init__(self, rng: random.Random, shards: int) -> None:
        self._rng = rng
        self._shards = shards
        self._made = 0
        self._kills = rng.random() < 0.3
        self._odd = rng.choice((0.0, 0.3))
        """The share of tasks whose handlers hang, snooze or have a transaction of their own."""
        self._unique = rng.choice((0.0, 0.0, 0.3))

    def bookings(self, live_s: float) -> list[Booking]:
        rng = self._rng
        found = [self._booking(rng.uniform(0, live_s)) for _ in range(rng.randint(8, 32))]
        return sorted(found, key=lambda booking: booking.at_s)

    def _booking(self, at_s: float) -> Booking:
        rng = self._rng
        long = rng.random() < 0.1
        for_s = rng.uniform(1.0, 8.0) if long else rng.expovariate(100)
        fate = rng.choices(("commit", "abort", "unsure"), (70, 20, 10))[0]
        # A producer's clock is not the database's, and some make their ids long beforehand.
        made_us = EPOCH_US + round((at_s - rng.choice((0, 0, 0.5, -0.2, 70))) * 1e6)
        number = rng.choice((1, 1, 2, 5, 20))
        tasks = tuple(self._task(made_us) for _ in range(number))
        again = tuple(
            msgspec.structs.replace(task, task_id=self._id(made_us, task.shard_id))
            for task in tasks
            if fate == "unsure" and task.unique_key is not None
        )
        return Booking(at_s, for_s, fate, tasks, rng.random() < 0.5, again)  # type: ignore[arg-type]

    def _id(self, made_us: int, shard_id: int) -> TaskId:
        self._made += 1
        high = f"{made_us // 1_000:012x}"
        return TaskId(f"{high[:8]}-{high[8:]}-7{shard_id:03x}-8000-{self._made:012x}")

    def _task(self, made_us: int) -> NewTask:
        rng = self._rng
        shard_id = rng.randrange(self._shards)
        options = Options()
        if rng.random() < 0.3:
            options = Options(
                delay_us=round(rng.expovariate(1) * 1e6) if rng.random() < 0.5 else 0,
                priority=rng.choice((0, 0, 5)),
                ordering_key=f"key-{shard_id}-{rng.randrange(3)}" if rng.random() < 0.5 else None,
                expires_in_us=round(rng.uniform(0.5, 5) * 1e6) if rng.random() < 0.2 else None,
            )
        if rng.random() < self._unique:
            options = msgspec.structs.replace(options, unique_key=f"only-{rng.randrange(8)}")
        odd = rng.random() < self._odd
        job = Job(
            takes_s=rng.choice((0.001, 0.01, 0.1, 0.5)),
            fails=rng.choice((0, 0, 0, 0, 1, 2, 9)),
            kills=rng.choice((1, 2, 99)) if self._kills and rng.random() < 0.01 else 0,
            hangs=rng.choice((0, 0, 1)) if odd else 0,
            snoozes=rng.choice((0, 1, 3)) if odd else 0,
            follows=odd and rng.random() < 0.3,
        )
        return NewTask(
            task_id=self._id(made_us, shard_id),
            shard_id=shard_id,
            queue="default",
            name="job",
            payload=msgspec.json.encode(job),
            headers=None,
            options=None if options == Options() else msgspec.json.encode(options).decode(),
            unique_key=options.unique_key,
            digest="same" if options.unique_key else None,
        )


def _orders(plan: Plan) -> tuple[Order, ...]:
    if plan.profile == "cockroach":
        return ()
    booked = [
        (booking.at_s + booking.for_s, task)
        for booking in plan.bookings
        if booking.fate == "commit"
        for task in booking.tasks
    ]
    found = orders.draw(random.Random(plan.seed ^ 0x0DE5), booked, plan.groups)
    last_s = plan.live_s + HEAL_S
    return tuple(sorted((o for o in found if o.at_s < last_s), key=lambda o: o.at_s))


def _schedules(rng: random.Random, shards: int) -> list[Schedule]:
    found = []
    for number in range(rng.choice((0, 0, 1, 2))):
        rule = rng.choice(("every 1s", "every 2s", "every 5s", "* * * * *"))
        anchor_us = EPOCH_US + rng.randrange(0, 1_000_000)
        found.append(
            Schedule(
                name=f"recurring-{number}",
                shard_id=rng.randrange(shards),
                rule=rule,
                zone="UTC",
                catch_up=rng.choice(("all", "all", "latest", "skip")),
                catch_up_max=100,
                overlap=rng.choice(("allow", "queue", "skip")),
                queue="default",
                task_name="job",
                payload=msgspec.json.encode(Job(takes_s=rng.choice((0.01, 0.3)))),
                options=None,
                anchor_us=anchor_us,
                next_due_at_us=next(dues_us(rule, anchor_us)),
            )
        )
    return found


def dues_us(rule: str, anchor_us: int) -> Iterator[int]:
    """When a world's rule is due, from the first time on: by plain arithmetic, for the judge must
    not ask those whom it judges."""
    if rule == "* * * * *":
        return itertools.count((anchor_us // 60_000_000 + 1) * 60_000_000, 60_000_000)
    step_us = int(rule.removeprefix("every ").removesuffix("s")) * 1_000_000
    return itertools.count(anchor_us + step_us, step_us)


def _faults(
    rng: random.Random, armed: Sequence[FaultKind], workers: int, live_s: float, ttl_s: float
) -> list[Fault]:
    found = [
        Fault(
            at_s=rng.uniform(0.5, live_s),
            kind=kind,
            worker=rng.randrange(workers),
            for_s=rng.choice((0.1, 0.5, 1.2, 3.0)) * ttl_s,
        )
        for kind in armed
        for _ in range(rng.randint(1, 4))
    ]
    return sorted(found, key=lambda fault: fault.at_s)
