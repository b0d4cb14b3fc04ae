"""What each role of `late roles sql` may do on PostgreSQL, and what it may not."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

import late
from late.cli import main
from late.contrib.fastapi import lifespan
from late.control import Control, Filter
from late.control.status import old_transactions
from late.control.views import Check
from late.errors import ConfigError
from late.model.ids import new_id
from late.outbox import connect
from late.schema.roles import ROLES, _sessions, script
from late.testing import drain
from late.web.models.overview import Overview, overview
from tests.servers import drop_database, migrated_database, postgres_url

PREFIX = f"late_t{secrets.token_hex(4)}_"
PATIENCE_S = 60.0
As = Callable[[str], str]


@pytest.fixture
def owner() -> Iterator[str]:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made
    with closing(_connect(made)) as connection:
        for role in ROLES:
            connection.execute(f"drop owned by {PREFIX}{role}")
            connection.execute(f"drop role {PREFIX}{role}")
    drop_database(admin, made)


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


@pytest.fixture
def as_(owner: str) -> As:
    """The owner's URL, but with the rights of a role."""
    with closing(_connect(owner)) as connection:
        for _ in range(2):  # as after each migration
            connection.execute(script(prefix=PREFIX))
    mark = "&" if "?" in owner else "?"
    return lambda role: f"{owner}{mark}options=-crole%3D{PREFIX}{role}"


def refuses(url: str, *statements: str) -> None:
    with closing(_connect(url)) as connection:
        for statement in statements:
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement)


def test_an_enqueuer_puts_tasks_in_and_gets_nothing_out(owner: str, as_: As) -> None:
    app, ran = late.App(owner), []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    with connect(as_("enqueuer")) as tx:
        app.enqueue_many(tx, [note.call(1), note.options(unique_key="k").call(2)])
        first = note.options(unique_key="j", unique_for=60).enqueue(tx, 3)
        assert note.options(unique_key="j").enqueue(tx, 3) == first
        note.options(ordering_key="o").enqueue(tx, 5)
        tx.execute("""select late_enqueue('note', '{"n": 4}')""")
    columns = "insert into late_task (shard_id, task_id, queue, name, payload"
    values = f"values (0, '{new_id(0)}', 'default', 'note', '{{}}'"
    refuses(
        as_("enqueuer"),
        # A forged position is never delivered, a forged time confuses its order and delay.
        f"{columns}, xid) {values}, '3')",
        f"{columns}, created_at_us) {values}, 1)",
        f"insert into late_task_default {columns[21:]}) {values})",
        f"{columns}) {values}) returning xid",
        "select payload from late_task",
        "select count(*) from late_task_default",
        "delete from late_task",
        "update late_task set queue = 'x'",
        "truncate late_task",
        "select * from late_timer",
        "select * from late_dead",
        "select * from late_settlement",
        "insert into late_inbox values ('default', gen_random_uuid(), 1)",
        "select * from late_token",
        "update late_queue set knobs = '{}'",
        "select held from late_queue",
        "select late_admit('default', null)",
        "create table mine (id int)",
    )
    assert drain(app) == {"done": 5}
    assert sorted(ran) == [1, 2, 3, 4, 5]


async def test_a_service_asks_how_its_tasks_ended_and_reads_no_payload(owner: str, as_: As) -> None:
    app = late.App(as_("service"))

    @app.task(result_ttl=60)
    def double(n: int) -> int:
        return 2 * n

    @app.task(retry=late.Retry(max_attempts=1))
    def fail() -> None:
        raise ValueError("no")

    async with lifespan(app)(None):
        with connect(app.url) as tx:
            first, second = double.enqueue(tx, 4), fail.enqueue(tx)
        assert await app.handle(first).astate() in ("logged", "open")
        app_of_owner = late.App(owner)
        for task in (double, fail):
            app_of_owner.task(name=task.name, result_ttl=60, retry=task.retry)(task.fn)
        await asyncio.to_thread(drain, app_of_owner)
        assert await app.handle(first).result() == 8
        assert await app.handle(second).astate() == "dead"
        failure = app.handle(second).failure()
        assert failure is not None
        assert (failure.name, failure.attempts) == (fail.name, 1)
        assert (failure.error or "").startswith("ValueError: no")
    refuses(
        app.url,
        "select payload from late_task",
        "select payload from late_dead",
        "select * from late_token",
        "delete from late_task",
        "delete from late_result",
        "update late_queue set knobs = '{}'",
    )


def test_an_enqueuer_cancels_a_workflow_whose_tasks_it_cannot_read(owner: str, as_: As) -> None:
    app, ran = late.App(owner), []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    def enqueued(role: str, commands: int) -> None:
        url = owner if role == "owner" else as_(role)
        with connect(url) as tx:
            ids = app.enqueue_workflow(tx, late.chain(note.call(1), note.call(2)))
            app.cancel(tx, ids[1])
        with closing(_connect(owner)) as connection:
            made = "select count(*) from late_task where name = 'late.cancel'"
            assert connection.execute(made).fetchone() == (commands,)

    enqueued("enqueuer", 1)
    refuses(as_("enqueuer"), "select state from late_stage")
    enqueued("owner", 3)
    drain(app)
    assert 2 not in ran


def test_the_function_alone_is_closed_to_everyone_else(owner: str, as_: As) -> None:
    refuses(as_("viewer"), "select late_enqueue('note')")
    # Its rights are the owner's, its tables too: a caller's search path leads it nowhere else.
    with closing(_connect(as_("enqueuer"))) as connection:
        connection.execute("create temporary table late_task (task_id uuid)")
        connection.execute("create temporary table late_lane (name text)")
        connection.execute("select late_enqueue('note')")
    with closing(_connect(owner)) as connection:
        row = connection.execute("select count(*) from late_task").fetchone()
    assert row == (1,)


def test_a_worker_does_all_its_work_and_owns_nothing(owner: str, as_: As) -> None:
    app, failed = late.App(as_("worker")), []

    @app.task(retry=late.Retry(max_attempts=2, base=0.05, cap=0.05))
    def fails(n: int) -> None:
        failed.append(n)
        raise ValueError

    @app.schedule(every=1.0)
    @app.task
    def tick(ctx: late.Context) -> None:
        with ctx.once() as tx:
            done.enqueue(tx)

    @app.task
    async def done() -> None: ...

    with connect(as_("enqueuer")) as tx:
        fails.options(unique_key="k", unique_for=3600).enqueue(tx, 1)
        done.options(delay=0.2).enqueue(tx)
    counts = drain(app, wait_s=1.5)
    assert (counts["dead"], failed) == (1, [1, 1])
    assert counts["done"] >= 1
    with Control(as_("worker")) as control:
        control.sweep()
    refuses(
        as_("worker"),
        "update late_task set queue = 'x'",
        "drop table late_task_default",
        "delete from late_audit",
        "insert into late_token values ('t', 'd', '[]', '[]', 1)",
        f"insert into late_task (shard_id, xid, task_id, queue, name, payload)"
        f" values (0, '3', '{new_id(0)}', 'q', 'n', '')",
    )


def test_a_viewer_sees_states_and_no_payloads(owner: str, as_: As) -> None:
    app = late.App(owner)

    @app.task
    def note(secret: str) -> None: ...

    with connect(owner) as tx:
        note.enqueue(tx, "hunter2")
        note.options(delay=3600).enqueue(tx, "hunter2")
    with Control(as_("viewer")) as control:
        [queue] = control.status.read().queues
        assert queue.depth.n == 2
        assert control.lanes.all()
        assert control.groups.all()
    refuses(
        as_("viewer"),
        "select payload from late_task",
        "select headers from late_task",
        "select payload from late_task_default",
        "select payload from late_timer",
        "select payload from late_dead",
        "select value from late_result",
        "select digest from late_token",
        "delete from late_dead",
        "insert into late_audit values ('a', 1, 'me', 'a', 's')",
        "update late_queue set knobs = '{}'",
    )


def test_an_operator_acts_and_cannot_unsay_it(owner: str, as_: As) -> None:
    app, broken = late.App(owner), [True]

    @app.task(retry=late.Retry(max_attempts=1))
    def mended() -> None:
        if broken[0]:
            raise ValueError

    with connect(owner) as tx:
        mended.enqueue(tx)
    assert drain(app) == {"dead": 1}
    with Control(as_("operator")) as control:
        [letter] = control.dead_letters.find(Filter())
        assert control.dead_letters.redrive(Filter(task_id=letter.task_id)).count == 1
    broken[0] = False
    assert drain(app) == {"done": 1}
    with closing(_connect(as_("operator"))) as connection:
        connection.execute("insert into late_audit values ('a', 1, 'me', 'a', 's')")
    refuses(
        as_("operator"),
        "delete from late_audit",
        "update late_audit set actor = 'somebody else'",
        "update late_task set queue = 'x'",
        "drop table late_task",
    )


def test_a_forged_position_is_lost_where_it_is_not_refused(owner: str) -> None:
    """Why the right matters: what the owner could do, nobody else may."""
    app = late.App(owner)

    @app.task
    def note() -> None: ...

    with connect(owner) as tx:  # so many that each shard has some, and its cursor moves on
        app.enqueue_many(tx, [note.call() for _ in range(200)])
    assert drain(app) == {"done": 200}
    with closing(_connect(owner)) as connection:
        for role in ROLES:
            connection.execute(f"create role {PREFIX}{role}")
        for shard in range(8):
            connection.execute(
                "insert into late_task (shard_id, xid, task_id, queue, name, payload)"
                f" values ({shard}, '3', '{new_id(shard)}', 'default', 'note', '{{}}')"
            )
    assert drain(app) == {}


def test_roles_that_exist_ask_for_no_right_to_create_one(owner: str, as_: As) -> None:
    """An ordinary owner of the tables, for whom somebody else has made the roles."""
    as_("viewer")
    made = [
        line for line in script(prefix=PREFIX).splitlines() if line.startswith("DO $$ BEGIN IF")
    ]
    assert len(made) == len(ROLES)
    with closing(_connect(owner)) as connection:
        connection.execute(f"create role {PREFIX}plain")
        try:
            connection.execute(f"set role {PREFIX}plain")
            for line in made:
                connection.execute(line)
            with pytest.raises(InsufficientPrivilege):
                connection.execute(made[0].replace(PREFIX, f"{PREFIX}no_"))
        finally:
            connection.execute("reset role")
            connection.execute(f"drop role {PREFIX}plain")


def test_names_are_not_statements(capsys: pytest.CaptureFixture[str]) -> None:
    for bad in ("x; drop table y", "", "Late", "a" * 50, "a'b"):
        with pytest.raises(ConfigError):
            script(schema=bad)
        with pytest.raises(ConfigError):
            script(prefix=bad)
    main_exits = pytest.raises(SystemExit)
    with main_exits as caught:
        main(["roles", "sql", "--schema", "public; --"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit):
        main(["roles", "sql", "--prefix", "shop_"])
    assert "CREATE ROLE shop_enqueuer" in capsys.readouterr().out


def test_the_doctor_says_what_a_role_lacks_that_may_not_notify(owner: str, as_: As) -> None:
    def notices() -> Check:
        with Control(as_("worker")) as control:
            [found] = [check for check in control.doctor() if check.name == "notices"]
        return found

    assert notices().result == "ok"
    with closing(_connect(owner)) as connection:
        connection.execute("revoke execute on function pg_notify(text, text) from public")
        connection.execute(f"alter function late_wake() owner to {PREFIX}viewer")
        found = notices()
        assert found.result == "failed"
        assert found.detail.endswith(f"to {PREFIX}viewer, {PREFIX}worker")
        with pytest.raises(InsufficientPrivilege), connect(as_("worker")) as tx:
            tx.execute("select pg_notify('late_wake', '')")
        connection.execute(found.detail.split("Run: ")[1])
        connection.execute("alter function late_wake() owner to current_user")
    assert notices().result == "ok"


def test_who_may_not_see_the_transactions_of_others_is_told_so(
    owner: str, as_: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_transactions, "OLD_S", 0.0)

    def checked(role: str) -> Check:
        with Control(as_(role)) as control:
            [found] = [check for check in control.doctor() if check.name == "transactions"]
        return found

    def seen(role: str) -> Overview:
        with Control(as_(role)) as control:
            return overview(control.look())

    with closing(_connect(owner)) as connection:
        well = checked("worker")
        assert (well.result, "sessions of other roles are hidden: " in well.detail) == ("ok", True)
        connection.execute("begin")
        connection.execute("insert into late_audit values ('a', 1, 'me', 'a', 's')")
        assert checked("worker") == Check(
            "transactions",
            "warning",
            "open transactions of other roles that have written: 1, and this login may not see for "
            f"how long: "
            f"{old_transactions.GRANT}",
        )
        assert seen("viewer").unseen.endswith(f"not be named: {old_transactions.GRANT}.")
        assert "has a transaction open" in checked("operator").detail
        model = seen("operator")
        assert model.unseen == ""
        assert any("has a transaction open" in each.what for each in model.attention)
        connection.execute("rollback")


def test_who_waits_for_a_lock_is_named_by_a_login_that_may_not_see_queries(
    owner: str, as_: As
) -> None:
    server = f"{owner}{'&' if '?' in owner else '?'}application_name=late"
    with closing(_connect(owner)) as holder, closing(_connect(server)) as waiting:
        if waiting.info.server_version < 140_000:
            pytest.skip("PostgreSQL 13 does not say since when a lock is waited for")
        holder.execute("begin")
        holder.execute("lock table late_dead")
        with ThreadPoolExecutor(1) as thread, Control(as_("viewer")) as control:
            future = thread.submit(waiting.execute, "select count(*) from late_dead")
            try:
                until = time.monotonic() + PATIENCE_S
                while not any(each.waits_s > 0 for each in control.status.sessions().holders):
                    assert time.monotonic() < until
            finally:
                holder.execute("rollback")
            future.result()


def test_the_script_goes_on_where_it_may_not_let_operators_see_others(
    owner: str, as_: As, capsys: pytest.CaptureFixture[str]
) -> None:
    """An owner without the right to grant it is told the statement that a superuser runs."""
    role, told = f"{PREFIX}viewer", list[str]()
    with closing(_connect(owner)) as connection:
        connection.execute(f"revoke pg_read_all_stats from {PREFIX}operator")
        connection.add_notice_handler(lambda each: told.append(each.message_primary or ""))
        connection.execute(f"set role {role}")
        connection.execute(_sessions(f"{PREFIX}operator"))
        assert told == [
            f"old transactions stay hidden from {PREFIX}operator, until a superuser runs:"
            f" GRANT pg_read_all_stats TO {PREFIX}operator;"
        ]
        connection.execute("reset role")
        connection.execute(told[0].split("runs: ")[1])
        connection.execute(f"set role {role}")
        connection.execute(_sessions(f"{PREFIX}operator"))
        assert len(told) == 1, "it has the right by now"
    with pytest.raises(SystemExit):
        main(["roles", "sql", "--no-stats"])
    assert "pg_read_all_stats" not in capsys.readouterr().out
