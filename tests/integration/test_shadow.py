"""Shadows: new code on real tasks, without effects, on every store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import late
from late.control import Control
from late.control.findings.findings import findings
from late.control.groups.comparison import Comparison
from late.control.status import real_groups
from late.errors import ConfigError, Conflict
from late.outbox import connect
from late.testing import drain
from late.worker import shadow
from late.worker.worker import Worker
from tests.conformance.backends import Backend
from tests.integration.effects_kit import do, effects, make_table, select
from tests.integration.shared_kit import business, business_file, effect, until, working
from tests.integration.shared_kit import effects as shared_effects
from tests.integration.test_groups_worker import QUICK
from tests.integration.test_worker import until_read
from tests.support import sqlite

FIRST = late.Retry(max_attempts=1)
FEW = late.Retry(max_attempts=4, base=0.05, cap=0.1)
SECRET = "whsec_" + "bGF0ZS1sYXRlLWxhdGUtbGF0ZS1sYXRl"
OLDER = "select name from late_group where paused = 0"
"""The statement by which older versions find the groups that may be worked."""


@pytest.fixture
def control(url: str) -> Iterator[Control]:
    with Control(url) as made:
        yield made


def rows(backend: Backend, url: str, table: str, where: str = "1 = 1") -> int:
    return int(select(backend, url, f"select count(*) from {table} where {where}")[0][0])


def service(url: str, group: str, *, new: bool = False) -> late.App:
    """A service with handlers of each kind; the `new` one fails at 3 and enqueues more."""
    app = late.App(url, group=group)

    @app.task(queue="later")
    def after(n: int) -> None: ...

    def try_it(ctx: Any, n: int) -> None:
        assert ctx.shadow is new
        if new and n == 3:
            raise ValueError("the new code does not know 3")

    @app.task(retry=FEW, result_ttl=3_600)
    def plain(ctx: late.Context, n: int) -> int:
        with ctx.begin() as tx:
            do(tx, n)
            app.enqueue(tx, after.call(n))
        ctx.enqueue(after.call(n))
        with ctx.once() as tx:
            do(tx, n)
        try_it(ctx, n)
        return n

    @app.task(retry=FEW)
    async def awaited(ctx: late.AsyncContext, n: int) -> None:
        async with ctx.begin() as tx:
            await do(tx, n)
            await app.enqueue(tx, after.call(n))
        async with ctx.once() as tx:
            await do(tx, n)
        try_it(ctx, n)

    return app


def enqueue(app: late.App, name: str, numbers: range, **options: Any) -> list[str]:
    with connect(app.url) as tx:
        return [str(app.enqueue(tx, app.tasks[name].call(n, **options))) for n in numbers]


def enqueue_all(app: late.App, *names: str) -> None:
    with connect(app.url) as tx:
        for name in names:
            app.enqueue(tx, app.tasks[name].call())


def by_name(found: Comparison) -> dict[str, Any]:
    return {each.name: each for each in found.tasks}


def test_a_shadow_leaves_nothing_behind(backend: Backend, url: str, control: Control) -> None:
    """Each kind of handler: the row of the effect, the inbox, the tasks it enqueues, the result."""
    make_table(backend, url)
    control.groups.set_retention(3_600) if control.store != "cockroachdb" else None
    real = service(url, "default")
    control.groups.shadow("try", of="default", start="beginning")
    enqueue(real, "plain", range(1, 6))
    enqueue(real, "awaited", range(1, 6))
    # Spanner may abort a handler's transaction: then it has run again, with one effect more.
    assert drain(real, timeout_s=120, wait_s=5.0)["done"] >= 10 + 5 * 3
    before = (effects(backend, url), rows(backend, url, "late_task"))
    assert len(before[0]) >= 20
    ended = drain(service(url, "try", new=True), timeout_s=120, wait_s=5.0)
    assert (ended["done"], ended["dead"]) == (before[1] - 2, 2)
    assert (effects(backend, url), rows(backend, url, "late_task")) == before
    for table in ("late_inbox", "late_result"):
        assert rows(backend, url, table, "consumer_group = 'try'") == 0
    found = control.groups.compare("try")
    assert {(each.name, each.shadow, each.real) for each in found.differences} == {
        ("plain", "dead", "done"), ("awaited", "dead", "done")
    }  # fmt: skip
    assert all("does not know 3" in each.error for each in found.differences)
    plain = by_name(found)["plain"]
    assert (plain.shadow.done, plain.shadow.dead, plain.real.done) == (4, 1, 5)
    assert (plain.differ, by_name(found)["after"].differ) == (1, 0)
    assert plain.ratio is not None
    assert plain.shadow.p95_s is not None
    assert control.verify().problems == ()


def test_a_handler_cannot_commit(backend: Backend, url: str, control: Control) -> None:
    """Not by `commit()`, by no statement, and by no block of its own."""
    make_table(backend, url)
    control.groups.shadow("try", of="default", start="beginning")
    app = late.App(url, group="try")
    ran: list[str] = []

    @app.task(retry=FIRST)
    def by_method(ctx: late.Context, n: int) -> None:
        with ctx.begin() as tx:
            do(tx, n)
            tx.commit()
            if not hasattr(tx, "execute_update"):
                do(tx, n)
                tx.rollback()
                do(tx, n)
        ran.append("method")

    @app.task(retry=FIRST)
    def by_statement(ctx: late.Context, n: int) -> None:
        with ctx.begin() as tx:
            do(tx, n)
            if not hasattr(tx, "execute_update"):
                tx.execute("/* now */ commit")

    @app.task(retry=FIRST)
    def by_claim(ctx: late.Context, n: int) -> None:
        with connect(url) as tx:
            if ctx.claim(tx):
                do(tx, n)
        with ctx.begin() as tx:
            assert ctx.claim(tx)
            do(tx, n)
        ran.append("claim")

    for name in ("by_method", "by_statement", "by_claim"):
        enqueue(app, name, range(1))
    drain(app, timeout_s=120)
    assert effects(backend, url) == []
    assert sorted(ran) == ["claim", "method"]


def test_what_belongs_to_the_real_group_stays(backend: Backend, url: str, control: Control) -> None:
    """A stage and a unique key end in the real group alone, whoever ran the task first."""
    control.groups.shadow("try", of="default", start="beginning")
    app = late.App(url, group="try")

    @app.task(result_ttl=3_600)
    def first(n: int) -> int:
        return n

    @app.task
    def second(n: int) -> None: ...

    one = first.options(unique_key="one")
    with connect(url) as tx:
        task_id = one.enqueue(tx, 1)
        app.enqueue_workflow(tx, late.chain(first.call(2), second.then(late.RESULT)))
    assert drain(app, timeout_s=120) == {"done": 2}
    assert rows(backend, url, "late_stage", "state = 'waiting'") == 1
    with connect(url) as tx:
        again = one.enqueue(tx, 1)
    assert again == task_id, "the key is still held"


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with business_file(tmp_path) if request.param == "sqlite" else business() as made:
        yield made


def test_a_shared_transaction_is_rolled_back(shared_url: str) -> None:
    app = late.App(shared_url, group="try")
    seen: list[bool] = []

    @app.task(transaction=True, retry=FIRST)
    def charge(ctx: late.Context, n: int) -> None:
        seen.append(ctx.shadow)
        effect(ctx, n)
        if n == 1:
            ctx.tx.execute("commit")
        with ctx.begin():
            effect(ctx, n)

    @app.task(transaction=True, retry=FIRST)
    async def awaited(ctx: late.AsyncContext, n: int) -> None:
        mark = "?" if shared_url.startswith("sqlite") else "%s"
        await ctx.tx.execute(f"insert into effect values ({mark}, {mark})", (ctx.task_id, n))
        if n == 1:
            raise ValueError("no")

    with Control(shared_url) as control:
        control.groups.shadow("try", of="default", start="beginning")
        enqueue(app, "charge", range(3))
        enqueue(app, "awaited", range(3))
        assert drain(app, timeout_s=120) == {"done": 4, "dead": 2}
        assert control.groups.compare("try").tasks[0].shadow.dead == 1
    assert shared_effects(shared_url) == {}
    assert all(seen)


async def test_a_version_that_always_fails_does_not_look_sound(tmp_path: Path) -> None:
    """Its failures are an outage, in which tasks are parked as limited and none ends."""
    url = sqlite.database(tmp_path / "fails.db")
    real = late.App(url)
    real.task(name="charge")(lambda: None)
    new = late.App(url, group="try")

    @new.task(name="charge", retry=late.Retry(base=120, cap=120, jitter="none"))
    def charge() -> None:
        raise ValueError("the new code knows nothing")

    with Control(url) as control:
        control.groups.shadow("try", of="default", start="beginning")
        with connect(url) as tx:
            real.enqueue_many(tx, [real.tasks["charge"].call() for _ in range(20)])
        drain(real, timeout_s=120)

        def failed() -> int:
            return sum(each.shadow.failed for each in control.groups.compare("try").tasks)

        async with working(new):
            await until_read(lambda: failed() >= 7)
        found = control.groups.compare("try")
    assert found.tasks[0].differ == found.tasks[0].shadow.failed
    assert found.unended.n >= found.tasks[0].differ
    assert found.unended.n + found.unread.n == 20
    assert {(each.shadow, each.real) for each in found.differences} == {("retries", "done")}
    assert all("knows nothing" in each.error for each in found.differences)


@pytest.mark.parametrize("queues", [["orders"], None])
async def test_a_task_that_the_shadow_never_read_is_not_compared(
    tmp_path: Path, queues: list[str] | None
) -> None:
    """It waits for a retry in the real group, and its row was pruned before the shadow was made."""
    url = sqlite.database(tmp_path / "never.db")
    app = late.App(url)
    app.task(name="ship", queue="orders")(lambda: None)

    @app.task(queue="mail", retry=late.Retry(base=600, cap=600, jitter="none"))
    def mail() -> None:
        raise ConnectionError

    path = tmp_path / "never.db"
    with Control(url) as control, sqlite3.connect(path, check_same_thread=False) as database:

        async def fail(count: int) -> None:
            """Enqueue a mail, let it fail, and prune its row."""
            parked = "select count(*) from late_timer where reason = 'retry'"
            enqueue_all(app, "mail", "ship")
            async with working(app):
                await until_read(lambda: database.execute(parked).fetchone() == (count,))
            database.execute("delete from late_task where name = 'mail'")
            database.commit()

        await fail(1)
        control.groups.shadow("try", of="default", start="beginning", queues=queues)
        if queues:
            await fail(2)
        new = late.App(url, group="try", strict=False)
        new.task(name="ship", queue="orders")(lambda: None)
        enqueue_all(new, "ship")
        drain(new, timeout_s=120)
        assert control.groups.compare("try").differences == ()


async def test_targets_and_consumers_are_answered_by_a_recorder(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "push.db")
    app = late.App(
        url,
        group="try",
        targets=[late.HttpTarget("bank", "https://bank.invalid/run", secret=SECRET)],
        strict=False,
    )
    app.remote("charge", target="bank")
    app.route("pulled", target="pull")
    with Control(url) as control:
        control.groups.shadow("try", of="default", start="beginning")
        with connect(url) as tx:
            app.enqueue(tx, app.call("charge", {"n": 1}))
            app.enqueue(tx, app.call("anything", {"n": 1}, queue="pulled"))
        async with working(app):
            await until_read(lambda: len(control.groups.compare("try").tasks) == 2)
        assert [each.shadow.done for each in control.groups.compare("try").tasks] == [1, 1]


# --- who may run a shadow -------------------------------------------------------------------------


def test_to_an_older_version_a_shadow_is_paused(
    backend: Backend, url: str, control: Control
) -> None:
    control.groups.shadow("try", of="default")
    assert select(backend, url, OLDER) == [("default",)]
    control.groups.pause("try")
    assert control.groups.get("try").state == "paused"
    control.groups.resume("try")
    assert control.groups.get("try").state == "idle"
    assert select(backend, url, OLDER) == [("default",)]


@pytest.mark.parametrize("statement", [OLDER, "select name from late_group"])
async def test_a_worker_of_an_older_version_never_runs_a_shadow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """It knows nothing of shadows: it would run one as any group, if its statement named it, as
    the second one does."""

    async def nothing(self: shadow.ShadowMode, control: object) -> bool:
        return False

    monkeypatch.setattr("late.store.sqlite.membership.ACTIVE", statement)
    monkeypatch.setattr(shadow.ShadowMode, "begin", nothing)
    monkeypatch.setattr(shadow.ShadowMode, "view", lambda self, membership: membership)
    monkeypatch.setattr(shadow.ShadowMode, "fitting", lambda self, leases: list(leases))
    url = sqlite.database(tmp_path / "older.db")
    app, ran = late.App(url), []

    @app.task
    async def ship(ctx: late.AsyncContext, n: int) -> None:
        ran.append(ctx.group)

    with Control(url) as control:
        control.groups.shadow("try", of="default", start="beginning")
        enqueue(app, "ship", range(3))
        worker = Worker(app, groups=("default", "try"), settings=QUICK)
        await worker.start()
        try:
            wanted = 3 if statement == OLDER else 6
            await until(lambda: len(ran) == wanted)
            # Both groups are in one plan: with the shards of the one it would have the other's.
            assert {group for group, _ in worker.scheduler.cores} == set(ran)
        finally:
            await worker.stop()
    assert ran.count("try") == wanted - 3


async def test_one_worker_serves_shadows_or_real_groups(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "mixed.db")
    app = late.App(url)
    with Control(url) as control:
        control.groups.shadow("try", of="default")
        worker = Worker(app, groups=("default", "try"), settings=QUICK)
        with pytest.raises(ConfigError, match="try is a shadow and default is not"):
            await worker.start()
        with pytest.raises(Conflict, match="is a shadow itself"):
            control.groups.shadow("other", of="try")
        with pytest.raises(ConfigError, match="a speed needs a time"):
            control.groups.shadow("other", of="default", speed=2.0)
        with pytest.raises(ConfigError, match="no shadow"):
            control.groups.compare("default")
        with pytest.raises(Conflict, match="make it anew"):
            control.groups.reset("try", "beginning")


async def test_a_group_that_becomes_a_shadow_is_left_alone(tmp_path: Path) -> None:
    """Its worker was cut off while the group was made anew under its name, and comes back."""
    url = sqlite.database(tmp_path / "anew.db")
    app = late.App(url, group="mail")
    ran: list[bool] = []

    @app.task
    async def ship(ctx: late.AsyncContext, n: int) -> None:
        ran.append(ctx.shadow)

    with Control(url) as control:
        control.groups.create("mail", start="now")
        async with working(app) as worker:
            await until(lambda: bool(worker.scheduler.cores))
            with sqlite3.connect(url.removeprefix("sqlite:///")) as raw:
                raw.execute("update late_group set paused = 2 where name = 'mail'")
            raw.close()
            await until(lambda: not worker.scheduler.cores)
            enqueue(app, "ship", range(2))
            control.groups.all()
        assert ran == []


# --- an end ---------------------------------------------------------------------------------------


def test_a_shadow_has_an_end(url: str, control: Control) -> None:
    """When its time is over it is forgotten, and the log keeps nothing for it."""
    view = control.groups.shadow("try", of="default", keep_s=1.0)
    assert (view.shadow_of, control.groups.shadows()) == ("default", frozenset({"try"}))
    control.groups.shadow("kept", of="default", keep_s=3_600.0)
    while control.now() <= (view.until_us or 0):
        pass
    control.sweep()
    assert [each.name for each in control.groups.all()] == ["default", "kept"]


async def test_no_lane_waits_for_a_shadow(tmp_path: Path) -> None:
    """Keys move when the real groups are done with the old width, whoever works the shadow."""
    url = sqlite.database(tmp_path / "lanes.db")
    app = late.App(url)
    with Control(url) as control:
        control.groups.shadow("try", of="default", start="beginning")
        async with working(app):
            await until_read(lambda: control.groups.get("default").workers == 1)
            control.lanes.resize("default", 4)
            assert control.lanes.layout().extents
            await until_read(lambda: not control.lanes.layout().extents)


def test_findings_leave_a_shadow_out(tmp_path: Path) -> None:
    """What it fails at is for `compare`; that it keeps tasks is for the doctor."""
    url = sqlite.database(tmp_path / "found.db")
    app = service(url, "try", new=True)
    with Control(url) as control:
        control.groups.shadow("try", of="default", start="beginning")
        enqueue(app, "plain", range(3, 4))
        assert [each.what for each in findings(control.look()) if "try" in each.what] == [
            "Nobody works the shadow try"
        ]
        assert drain(app, timeout_s=120, wait_s=5.0)["dead"] == 1
        assert not [each for each in findings(control.look()) if "try" in each.what]
        seen, shadows = control.status.detailed(limit=100), control.groups.shadows()
        assert "try" in seen[1]
        status, signals, paces = real_groups.of_look(*seen, shadows)
        assert {each.group for each in (*status.queues, *status.shards)} <= {"default"}
        assert "try" not in signals
        assert not [key for key in paces if key[0] == "try"]


def test_the_doctor_takes_a_shadow_for_no_group_that_stands_still(tmp_path: Path) -> None:
    """A finding says that it keeps tasks; what it has parked and who owns it is no fault."""
    url = sqlite.database(tmp_path / "doctor.db")
    new = late.App(url, group="try")

    @new.task(name="charge", retry=late.Retry(base=600, cap=600, jitter="none"))
    def charge() -> None:
        raise ValueError

    with Control(url) as control, sqlite3.connect(tmp_path / "doctor.db") as database:

        def checks() -> dict[str, tuple[str, str]]:
            return {each.name: (each.result, each.detail) for each in control.doctor()}

        leases = checks()["leases"]
        control.groups.shadow("try", of="default", start="beginning")
        enqueue_all(new, "charge")
        drain(new, timeout_s=120)
        database.execute("update late_timer set due_at_us = 1")
        database.commit()
        enqueue_all(new, "charge")
        found = checks()
    assert found["leases"] == leases
    assert found["groups"][1].startswith("default (no live worker): ")
    assert found["timers"][0] == "ok"
    assert "Nobody works the shadow try" in found["attention"][1]
