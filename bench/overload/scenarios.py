"""The four troubles. Each returns figures, and whether it got over its trouble by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import late
from bench.overload.producers import Make, Samples
from bench.overload.service import Service
from bench.overload.stage import Stage
from late.app.task import Call
from late.model.queue_settings import REMOTE
from late.model.task import ENQUEUED, Usage
from late.outbox import connect
from late.store.base import Settlement, SettleResult

STEADY = 100
"""Tasks a second of the outage; the service bears twice as many."""
OFF: dict[str, Any] = {
    "concurrency": 256, "breaker": 1.5, "retry_budget": 1.0, "retry_min": 1_000_000.0,
    "smart_retry": False, "slow_start_s": 0.0,
}  # fmt: skip
"""A target without protection: what a plain queue with retries does."""
ON: dict[str, Any] = {"rate": 140.0, "burst": 10}
"""The defaults of a target, and the rate that its owner allows: 1.4 times the usual."""


async def outage(url: str, *, protected: bool) -> dict[str, Any]:
    """A service browns out for 10 s, is dead for 10 s, and comes back; beside it another queue."""
    with Service() as service:
        target = late.HttpTarget(
            "billing", f"http://127.0.0.1:{service.port}/", concurrency=256, connect_s=1.0
        )
        app, samples = late.App(url, targets=[target]), Samples()
        app.remote(
            "charge", target="billing", queue="billing", timeout_s=1.0,
            retry=late.Retry(max_attempts=12, base=0.2, cap=2.0),
        )  # fmt: skip

        @app.task(queue="mail")
        async def send(at: float) -> None:
            samples.add("mail", at)

        stage = Stage(url, app, {"target:billing": ON if protected else OFF})
        async with stage.open(concurrency=16):
            usage = _Usage(stage)
            began = time.monotonic()
            charged = stage.produce("charge", _charges, STEADY)
            stage.produce("mail", _mails, 20)
            await asyncio.sleep(25.0)  # past the slow start
            slow = time.monotonic()
            service.mood = "slow"
            await asyncio.sleep(10.0)
            service.mood = "dead"
            await asyncio.sleep(10.0)
            service.mood = "well"
            back_s, back = service.now_s, time.monotonic()
            backlog_gone_s = None
            while time.monotonic() - back < 90.0:
                await asyncio.sleep(0.5)
                waiting = charged.number - len(service.seen)
                if waiting > 3 * STEADY:
                    backlog_gone_s = None  # it was not over
                elif waiting <= STEADY and backlog_gone_s is None:
                    backlog_gone_s = time.monotonic() - back
            steady = max(service.calls[second] for second in range(15, 24))
            peak = max(service.calls[second] for second in range(back_s + 1, service.now_s))
            recovered_s = _recovered_s(service, back_s)
            await stage.cease(samples)
            before = samples.p99_ms("mail", slow - 10.0, slow)
            during = samples.p99_ms("mail", slow, time.monotonic())
            lasted_s = time.monotonic() - began
            firsts, retries = usage.attempts()
            dead = stage.dead()
    budget = (REMOTE.retry_budget or 0.0) * firsts + (REMOTE.retry_min or 0.0) * lasted_s
    return {
        "recovery_s": recovered_s,
        "backlog_gone_s": None if backlog_gone_s is None else round(backlog_gone_s, 1),
        "peak_after": round(peak / STEADY, 2),
        "steady_calls_max": steady,
        "retries": retries,
        "retry_budget": round(budget),
        "dead_letters": dead,
        "other_p99_before_ms": before,
        "other_p99_during_ms": during,
        "ok": recovered_s is not None
        and recovered_s <= 60
        and peak <= 1.5 * STEADY
        and retries <= budget
        and dead == 0
        and during <= max(1.5 * before, 100.0),
    }


def _recovered_s(service: Service, back_s: int) -> int | None:
    """Seconds from its return until the service gives a steady second's answers again, nearly all
    of them in time, and goes on doing so; None if it never does."""
    good = [
        service.good[second] >= 0.95 * STEADY
        and service.good[second] >= 0.95 * service.calls[second]
        for second in range(back_s, service.now_s)
    ]
    since = next((n for n in range(len(good)) if all(good[n : n + 5])), None)
    return since if since is not None and since <= len(good) - 5 else None


class _Usage:
    """First and further attempts, from the worker's own settlements."""

    def __init__(self, stage: Stage) -> None:
        self._usage: list[Usage] = []
        store = stage.worker._store
        settle = store.settle

        async def counted(settlements: list[Settlement]) -> list[SettleResult]:
            self._usage += [u for each in settlements for u in each.usage if u.outcome != ENQUEUED]
            return await settle(settlements)

        store.settle = counted  # type: ignore[method-assign, assignment]

    def attempts(self) -> tuple[int, int]:
        ended = sum(u.count for u in self._usage if u.outcome in ("done", "dead"))
        every = sum(u.count for u in self._usage)
        return ended, every - ended


async def flood(url: str, *, protected: bool) -> dict[str, Any]:
    """One tenant enqueues 400 tasks a second for 30 s, more than twice what the slots can do; nine
    others of the same queue, and another queue, go on as always. The slots are what there is too
    little of: a flood that takes the processors, too, would measure the machine."""
    app, samples = late.App(url), Samples()

    @app.task(queue="mail")
    async def send(of: str, at: float) -> None:
        served[of] += 1
        if of != "big":
            samples.add(of, at)
        await asyncio.sleep(0.1)

    @app.task(queue="bell")
    async def ring(at: float) -> None:
        samples.add("ring", at)

    served: Counter[str] = Counter()
    stage = Stage(url, app, {"queue:mail": {"fair_key": "tenant"}} if protected else {})
    async with stage.open(concurrency=16):
        stage.produce("usual", _usual, 45)
        stage.produce("ring", _rings, 20)
        await asyncio.sleep(12.0)
        flood_s = time.monotonic()
        await elsewhere(_flood, url, 400, 30.0)
        until_s = time.monotonic()
        await asyncio.sleep(5.0)
        await stage.cease(samples)
        tenants = [samples.p99_ms("usual", *span) for span in _spans(flood_s, until_s)]
        queues = [samples.p99_ms("ring", *span) for span in _spans(flood_s, until_s)]
    return {
        "tenants_p99_before_ms": tenants[0],
        "tenants_p99_during_ms": tenants[1],
        "other_p99_before_ms": queues[0],
        "other_p99_during_ms": queues[1],
        "flooder_served": served["big"],
        "ok": all(each[1] <= max(1.5 * each[0], 100.0) for each in (tenants, queues)),
    }


def _spans(trouble_s: float, until_s: float) -> list[tuple[float, float]]:
    """The ten seconds before the trouble, and the trouble."""
    return [(trouble_s - 10.0, trouble_s), (trouble_s, until_s)]


def _flood(url: str, rate: int, lasts_s: float) -> None:
    app = late.App(url)

    @app.task(queue="mail")
    async def send(of: str, at: float) -> None: ...

    big = send.options(headers={"tenant": "big"})
    began_s, turns = time.monotonic(), 20
    for turn in range(round(lasts_s * turns)):
        _commit(app, [big.call(of="big", at=0.0) for _ in range(rate // turns)])
        time.sleep(max(0.0, began_s + (turn + 1) / turns - time.monotonic()))


def _charges(app: late.App) -> Make:
    @app.task(queue="billing")
    async def charge(n: int) -> None: ...

    return lambda n, at: charge.call(n=n)


def _mails(app: late.App) -> Make:
    @app.task(queue="mail")
    async def send(at: float) -> None: ...

    return lambda n, at: send.call(at=at)


def _usual(app: late.App) -> Make:
    @app.task(queue="mail")
    async def send(of: str, at: float) -> None: ...

    tenants = [send.options(headers={"tenant": f"t{n}"}) for n in range(9)]
    return lambda n, at: tenants[n % 9].call(of="usual", at=at)


def _rings(app: late.App) -> Make:
    @app.task(queue="bell")
    async def ring(at: float) -> None: ...

    return lambda n, at: ring.call(at=at)


def _sends(app: late.App) -> Make:
    @app.task(queue="mail")
    async def send() -> None: ...

    return lambda n, at: send.call()


def _appointments(url: str, due_in_s: float) -> None:
    app = late.App(url)

    @app.task(queue="bulk")
    async def remind(n: int) -> None: ...

    later = remind.options(delay=due_in_s)
    _commit(app, [later.call(n=n) for n in range(100_000)])


def _commit(app: late.App, calls: list[Call]) -> None:
    with connect(app.url) as tx:
        for start in range(0, len(calls), 1_000):
            app.enqueue_many(tx, calls[start : start + 1_000])


async def elsewhere(work: Callable[..., None], *arguments: Any) -> None:
    """`work(*arguments)` in a process of its own, as producers are: in the worker's they would take
    its processor time."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)


async def stampede(url: str, *, protected: bool) -> dict[str, Any]:
    """100,000 tasks become due in the same second, beside a queue that must not notice."""
    app, samples = late.App(url), Samples()

    @app.task(queue="bulk")
    async def remind(n: int) -> None:
        nonlocal started
        started += 1
        await asyncio.sleep(0.02)

    @app.task(queue="mail")
    async def send(at: float) -> None:
        samples.add("mail", at)
        await asyncio.sleep(0.005)

    knobs = {"queue:bulk": {"concurrency": 8, "spread_s": 60.0}} if protected else {}
    stage = Stage(url, app, knobs)
    due_in_s, started = 40.0, 0
    async with stage.open(concurrency=16):
        began = time.monotonic()
        await elsewhere(_appointments, url, due_in_s)
        stage.produce("mail", _mails, 50)
        await asyncio.sleep(max(0.0, began + due_in_s - 1.0 - time.monotonic()))
        due_s = time.monotonic()
        await asyncio.sleep(30.0)
        until_s = time.monotonic()
        await asyncio.sleep(2.0)
        await stage.cease(samples)
        spans = _spans(due_s, until_s)
        before, during = (samples.p99_ms("mail", *span) for span in spans)
        commits = [samples.commit_p99_ms("mail", *span) for span in spans]
    return {
        "p99_before_ms": before,
        "p99_during_ms": during,
        "ratio": round(during / max(before, 1.0), 2),
        "commit_p99_before_ms": commits[0],
        "commit_p99_during_ms": commits[1],
        "started_of_the_crowd": started,
        "ok": during <= max(1.5 * before, 100.0) and started > 0,
    }


async def slow_database(url: str, *, protected: bool) -> dict[str, Any]:
    """Each settlement takes 2 s longer for 20 s, while tasks come at 500 a second."""
    from late.scheduler import scheduler as scheduling

    app, ran = late.App(url), 0

    @app.task(queue="mail")
    async def send() -> None:
        nonlocal ran
        ran += 1

    stage = Stage(url, app, {})
    brake, scheduling.UNRECORDED_MAX = scheduling.UNRECORDED_MAX, 10**9
    if protected:
        scheduling.UNRECORDED_MAX = brake
    try:
        async with stage.open(concurrency=16, window=10_000):
            store = stage.worker._store
            settle, slow = store.settle, False

            async def slowed(settlements: list[Settlement]) -> list[SettleResult]:
                await asyncio.sleep(2.0 if slow else 0.0)
                return await settle(settlements)

            store.settle = slowed  # type: ignore[method-assign, assignment]
            stage.produce("mail", _sends, 500)
            await asyncio.sleep(10.0)
            slow, most, began = True, 0, time.monotonic()
            backlog = [send.call() for _ in range(40_000)]
            await asyncio.to_thread(stage.enqueue, backlog)
            while time.monotonic() - began < 20.0:
                cores = stage.worker.scheduler.cores.values()
                most = max(most, sum(core.state.pending.repeated for core in cores))
                await asyncio.sleep(0.05)
            slow, back, recovered_s = False, time.monotonic(), None
            while recovered_s is None and time.monotonic() - back < 60.0:
                await asyncio.sleep(0.2)
                if stage.committed - ran < 500:
                    recovered_s = time.monotonic() - back
    finally:
        scheduling.UNRECORDED_MAX = brake
    return {
        "recovery_s": None if recovered_s is None else round(recovered_s, 1),
        "most_that_a_death_repeats": most,
        "ok": recovered_s is not None and most <= brake + 1_000,
    }


SCENARIOS = {
    "outage": outage,
    "flood": flood,
    "stampede": stampede,
    "slow-database": slow_database,
}
