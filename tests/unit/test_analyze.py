"""What `late analyze` computes without a database: pairs, logs, statistics, and their bounds."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from google.cloud.spanner_v1 import types

from late import events
from late.control.analyze import advice, client_log, postgres, spanner
from late.control.analyze.report import Report, Wait, compare, report
from late.observability import conflicts
from late.store.spanner import store
from late.store.spanner.conflict_watch import Touched, Transactions, meeting, rows_of, shown
from tests.unit.cli_kit import Cli

# As the server wrote it, with statements of our own tags.
DEADLOCK = """\
2026-11-27 10:00:01.003 UTC [19021] ERROR:  deadlock detected
2026-11-27 10:00:01.003 UTC [19021] DETAIL:  Process 19021 waits for ShareLock on transaction 778; blocked by process 19022.
\tProcess 19022 waits for ShareLock on transaction 777; blocked by process 19021.
\tProcess 19021: /* tag=late-foreground:pay */ update account set balance = 1 where id = 8
\tProcess 19022: /* tag=late-foreground:refund */ update account set balance = 1 where id = 7
2026-11-27 10:00:01.003 UTC [19021] HINT:  See server log for query details.
2026-11-27 10:00:01.003 UTC [19021] CONTEXT:  while updating tuple (0,2) in relation "account"
2026-11-27 10:00:01.003 UTC [19021] STATEMENT:  /* tag=late-foreground:pay */ update account
2026-11-27 10:00:02.000 UTC [19021] LOG:  something else
"""  # noqa: E501

# In the shape that Google's documentation gives: any column may be null.
LOCKS: list[tuple[Any, ...]] = [
    (
        b"account(7)",
        2.0,
        [
            ("account.balance", "ReaderShared", "late-foreground:pay"),
            ("account.balance", "Exclusive", "late-background:report"),
            ("account._exists", "WriterShared", "late-foreground:pay"),
        ],
    ),
    (b"trip(1+)", 0.5, [("trip.state", "WriterShared", "checkout")]),
    (None, None, None),
]
TRANSACTIONS: list[tuple[Any, ...]] = [
    ("late-foreground:pay", 100, 12, 0.05, ["account.id", "account.balance"], ["account.balance"]),
    ("late-foreground:pay", 300, 4, 0.01, None, ["trip.state"]),
    ("", 7, 0, None, [], []),
]


def wait(tag: str, other: str, lost_s: float, place: str = "", **more: Any) -> Wait:
    return Wait(**{"view": "server", "kind": "waiting", **more}, tag=tag, other=other,
                place=place, lost_s=lost_s)  # fmt: skip


def test_pairs_are_ranked_by_the_time_lost_in_both_directions() -> None:
    found = report(
        [
            wait("a", "b", 1.0, "t(1)"),
            wait("b", "a", 2.0, "t(2)"),
            wait("late-foreground:c", "late-foreground:c", 2.5, "t(3)"),
            wait("d", "", 0.1),
        ],
        for_s=10,
    )
    assert [(p.tags, p.lost_s) for p in found.pairs] == [
        (("a", "b"), 3.0), (("late-foreground:c",) * 2, 2.5), (("d", "unknown"), 0.1),
    ]  # fmt: skip
    first, second, _ = found.pairs
    assert first.waited_s == {"a": 1.0, "b": 2.0}
    assert [place.place for place in first.places] == ["t(2)", "t(1)"]
    assert "in one order" in first.advice[0]
    assert "ordering_key" in second.advice[0]
    assert found.lost_s == 5.6


def test_a_deadlock_is_of_two_kinds_where_another_kind_was_met() -> None:
    lost = wait("pay", "pay", 9.0, "account"), wait("pay", "refund", 2.0, "account(id=7)")
    dead = Wait("client", "deadlock", "pay", "process 4", "account ctid (0,1)", 1.0)
    [own, both] = report([*lost, dead], for_s=60.0).pairs
    assert (own.tags, own.kinds) == (("pay", "pay"), {"waiting": 1})
    assert (both.tags, both.kinds) == (("pay", "refund"), {"deadlock": 1, "waiting": 1})
    [alone] = report([lost[0], dead], for_s=60.0).pairs
    assert alone.kinds == {"deadlock": 1, "waiting": 1}


def test_a_row_by_its_key_is_named_before_a_table() -> None:
    waits = [wait("a", "b", 1.0 * lost, place) for lost, place in
             ((9, "t ctid (0,1)"), (5, "t"), (1, "t(id=2)"))]  # fmt: skip
    [pair] = report(waits, for_s=60.0).pairs
    assert [place.place for place in pair.places] == ["t(id=2)", "t", "t ctid (0,1)"]


def test_what_both_views_saw_is_counted_once() -> None:
    found = report(
        [
            wait("a", "late-foreground:b", 1.0, "t(1)", count=2),
            wait("a", "late-foreground:b", 3.0, "t(1)", view="client", kind="aborted", attempt=4),
        ],
        for_s=10,
    )
    [pair] = found.pairs
    assert (pair.lost_s, pair.count, pair.attempts_max) == (3.0, 1, 4)
    assert pair.kinds == {"aborted": 1, "waiting": 2}
    assert any("retry_budget" in text for text in pair.advice)


def aborted(tag: str, other: str, place: str) -> list[str]:
    """Return the advice for a transaction that was aborted for the fourth time."""
    lost = wait(tag, other, 1.0, place, view="client", kind="aborted", attempt=4)
    [pair] = report([lost], for_s=10).pairs
    return pair.advice


def test_no_knob_of_a_queue_is_advised_where_there_is_no_queue() -> None:
    for name, place in (
        ("settle", "late_lease,late_full"),
        ("beat", "late_worker(w-1)"),
        ("take", ""),
    ):
        own, emulator = aborted(f"late-foreground:{name}", "", place)
        assert "of late itself" in own
        assert "emulator" in emulator
    assert "of late itself" in aborted("late-foreground:settle", "late-foreground:beat", "")[0]
    # A task may be called so too, and a handler's transaction may be in the way.
    for tags, place in ((("settle", "settle"), "trip(1)"), (("settle", "pay"), "late_settlement")):
        one, two = (f"late-foreground:{tag}" for tag in tags)
        assert any("retry_budget" in text for text in aborted(one, two, place))
    assert aborted("GET /orders", "GET /orders", "t(1)") == [
        "touch this row last, just before the commit"
    ]


def test_a_change_of_a_table_is_no_matter_of_the_order_of_rows() -> None:
    def told(statement: str) -> list[str]:
        lost = wait("late-foreground:pay", "psql", 1.0, "ledger", view="server", kind="lock")
        lost = msgspec.structs.replace(lost, other_statement=statement)
        return report([lost], for_s=10).pairs[0].advice

    for statement in ("alter table ledger add column note text", "/* tag=ops */ TRUNCATE ledger"):
        [advice] = told(statement)
        assert advice.startswith("set a short lock_timeout for what changes the table")
    assert told("update ledger set x = 1") == ["touch this row last, just before the commit"]


def test_the_own_transactions_are_those_of_the_store() -> None:
    tree = ast.parse(inspect.getsource(store))
    written = {
        call.args[0].attr
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "write"
        and isinstance(call.args[0], ast.Attribute)
    }
    assert written == advice.OWN


def test_before_and_after_are_compared_by_the_minute() -> None:
    before = report([wait("a", "b", 2.0), wait("c", "d", 1.0)], for_s=60)
    after = report([wait("a", "b", 0.5), wait("e", "f", 1.0)], for_s=30)
    kept = msgspec.json.decode(msgspec.json.encode(before), type=Report)
    assert kept == before
    assert [(c.tags, c.before, c.after) for c in compare(kept, after)] == [
        (("e", "f"), None, 2.0), (("a", "b"), 2.0, 1.0), (("c", "d"), 1.0, None),
    ]  # fmt: skip


def test_a_log_with_other_lines_and_cut_ones_is_read() -> None:
    line = (
        '{"event":"conflict","kind":"deadlock","tag":"pay","count":3,"lost_s":1.5,"attempt":2,'
        '"tables":"account","key":"","process":"7","statement":"","error":"40P01","time":'
    )
    lines = [
        "late: not JSON",
        '{"event":"settled","message":"conflict"}',
        line + '"2026-11-27T10:00:00.000Z"}',
        "worker-1 | " + line + '"2026-11-27T10:00:30.000Z"}',
        line,
        '{"event":"conflict","count":"many"}',
    ]
    found = client_log.read(lines, {7: "refund"})
    assert [(w.tag, w.other, w.count, w.lost_s, w.place) for w in found.waits] == [
        ("pay", "refund", 3, 1.5, "account")
    ] * 2
    assert found.for_s == 30.0


def test_a_deadlock_in_the_servers_log_names_both_statements() -> None:
    [found] = postgres.deadlocks(DEADLOCK.splitlines(keepends=True))
    assert (found.tag, found.other) == ("late-foreground:pay", "late-foreground:refund")
    assert found.place == "account ctid (0,2)"
    assert found.statement.endswith("where id = 8")
    assert found.other_statement.endswith("where id = 7")
    assert postgres.deadlocks(["LOG:  deadlock is a word"]) == []


def test_spanners_lock_statistics_become_pairs_with_the_key() -> None:
    found = spanner.waits_of(LOCKS)
    assert [(w.tag, w.other, w.place, w.lost_s) for w in found] == [
        ("late-background:report", "late-foreground:pay",
         "account(7) [account._exists, account.balance]", 2.0),
        ("checkout", "checkout", "trip(1+) [trip.state]", 0.5),
        ("", "", "", 0.0),
    ]  # fmt: skip


def test_spanners_transaction_statistics_are_added_up_by_tag() -> None:
    pay, untagged = spanner.transactions_of(TRANSACTIONS)
    assert (pay.attempts, pay.aborts, pay.average_s) == (400, 16, 0.02)
    assert pay.tables == ["account", "trip"]
    assert (untagged.tag, untagged.average_s) == ("untagged", 0.0)


class Row(NamedTuple):
    """One row of a sample."""

    pid: int
    blocker: int
    query: str
    blocking: str
    waited_s: float
    relation: str | None = "account"
    page: int | None = 0
    number: int | None = 1
    name: str = "late"
    blocker_name: str = "shop"
    idle: bool = True
    begun_s: float | None = None


def test_a_wait_whose_samples_arrive_late_is_one_wait() -> None:
    sampler = postgres.Sampler(lambda *_: "account(id=7)")
    for now, waited_s in ((10.0, 0.1), (10.4, 0.2), (10.5, 0.5)):
        row = Row(1, 9, "update account", "select 1", waited_s, begun_s=1_000.0)
        sampler.take([row], now, 0.1)
    row = Row(1, 9, "update account", "select 1", 0.1, begun_s=1_000.6)
    sampler.take([row], 10.6, 0.1)
    [found] = sampler.waits
    assert found.count == 2


def test_samples_of_one_wait_are_one_wait_and_blame_who_does_not_wait() -> None:
    asked: list[object] = []

    def locate(*at: object) -> str:
        asked.append(at)
        return "account(id=7)"

    sampler = postgres.Sampler(locate)
    for now in (10.0, 10.1, 10.2):
        sampler.take(
            [
                Row(1, 9, "/* tag=pay */ update account", "select 1", now - 9.9),
                Row(2, 1, "update late_lease set", "/* tag=pay */ update account", now - 9.95),
                Row(2, 9, "update late_lease set", "select 1", now - 9.95),
            ],
            now,
            0.1,
        )
    found = {(w.tag, w.other): w for w in sampler.waits}
    assert found.keys() == {("pay", "shop"), ("late:late_lease", "shop")}
    pay = found["pay", "shop"]
    assert (round(pay.lost_s, 6), pay.count, pay.place) == (0.3, 1, "account(id=7)")
    assert asked == [("account", 0, 1)]
    # A second wait of the same session, after a pause.
    sampler.take([], 10.3, 0.1)
    sampler.take([Row(1, 9, "/* tag=pay */ update account", "select 1", 0.05)], 10.4, 0.1)
    assert {w.count for w in sampler.waits if w.tag == "pay"} == {2}


def test_the_record_is_bounded_and_counts_what_it_leaves_out() -> None:
    emitter, told = events.Emitter(), list[dict[str, Any]]()
    emitter.subscribe(lambda _, values: told.append(dict(values)), [events.CONFLICT])
    now = 0.0
    recorder = conflicts.Recorder(emitter, lambda: now)
    for _ in range(conflicts.LINES_MAX + 30):
        recorder.record("aborted", "pay", duration_s=0.5)
    assert len(told) == conflicts.LINES_MAX
    for n in range(2000):
        recorder.record("aborted", f"tag {n}", duration_s=1.0)
    assert len(recorder._left_out) <= 257
    now = conflicts.PERIOD_S
    recorder.record("aborted", "pay", duration_s=0.5)
    assert (told[-1]["count"], told[-1]["lost_s"]) == (31, 15.5)


def test_tags_are_short_and_safe_in_a_comment() -> None:
    assert conflicts.clean("a*/ drop 'x' %s") == "a_/_drop__x___s"
    tag = conflicts.tag_of("background", "shop.orders." + "x" * 60)
    assert len(tag) == conflicts.TAG_LENGTH_MAX
    assert conflicts.role_of(tag) == "background"
    assert conflicts.role_of(conflicts.tag_of("foreground", "a")) == "foreground"
    assert conflicts.role_of("checkout") is None
    shadow = conflicts.tag_of("background", "shop.orders." + "x" * 60, shadow=True)
    assert shadow.startswith("late-background-shadow:")
    assert len(shadow) == conflicts.TAG_LENGTH_MAX
    assert conflicts.role_of(shadow) == "background"
    assert conflicts.tag_in(conflicts.comment(tag) + "select 1") == tag
    with conflicts.tag("outer"), conflicts.tag("GET /orders"):
        assert conflicts.current() == "GET_/orders"
    with conflicts.tag("nightly", background=True):
        assert conflicts.current() == "late-background:nightly"
    assert conflicts.current() == ""


# --- Spanner's requests --------------------------------------------------------------------------


def rows(request: Any) -> list[tuple[str, tuple[str, ...]]]:
    return list(rows_of(request._pb))


def test_the_rows_of_requests_are_found() -> None:
    read = types.ReadRequest(table="account", key_set={"keys": [["7", "eu"]]})
    assert rows(read) == [("account", ("7", "eu"))]
    ranges = {"ranges": [{"start_closed": ["7"], "end_closed": ["9"]}]}
    assert rows(types.ReadRequest(table="trip", key_set=ranges)) == [("trip", ("7",))]
    dml = types.ExecuteSqlRequest(
        sql="UPDATE Account SET balance = @b WHERE id = @id", params={"id": 7.0, "b": 1}
    )
    assert rows(dml) == [("account", ("7",))]
    batch = types.ExecuteBatchDmlRequest(
        statements=[{"sql": "delete from trip where id=@id", "params": {"id": "x"}}]
    )
    assert rows(batch) == [("trip", ("x",))]
    commit = types.CommitRequest(
        mutations=[
            {"update": {"table": "account", "columns": ["id"], "values": [["7"]]}},
            {"delete": {"table": "trip", "key_set": {"keys": [["x"]]}}},
            {"insert": {"table": "late_task", "columns": ["shard_id"], "values": [["0"]]}},
        ]
    )
    assert rows(commit) == [("account", ("7",)), ("trip", ("x",))]


def touched(*keys: str, begun: float = 0.0, ended: float | None = None) -> Touched:
    made = Touched("tag", begun)
    made.rows = [("account", (key,)) for key in keys]
    made.ended = ended
    return made


def test_transactions_meet_on_a_row_while_both_are_open() -> None:
    mine = touched("1", "7", begun=5.0)
    assert meeting(mine, touched("7", ended=6.0)) == ("account", ("7",))
    assert meeting(mine, touched("7")) == ("account", ("7",))
    assert meeting(mine, touched("7", ended=4.0)) is None
    assert meeting(mine, touched("8")) is None


def test_attempts_are_counted_until_one_commits(monkeypatch: Any) -> None:
    told = list[dict[str, Any]]()
    stop = events.default.subscribe(lambda _, v: told.append(dict(v)), [events.CONFLICT])
    monkeypatch.setattr(conflicts, "default", conflicts.Recorder(events.default))
    transactions = Transactions()
    try:
        for _ in range(2):
            transactions.begin("s", "pay")
            transactions.failed("s", "aborted", Exception("no"))
        transactions.begin("s", "pay")
        transactions.end("s", committed=True)
        transactions.begin("s", "pay")
        transactions.failed("s", "aborted", Exception("no"))
        transactions.failed("s", "aborted", Exception("it has ended"))
    finally:
        stop()
    assert [each["attempt"] for each in told] == [1, 2, 1]


def test_a_row_without_a_key_is_its_table() -> None:
    assert shown(("late_lease", ())) == "late_lease"
    assert shown(("account", ("7", "eu"))) == "account(7,eu)"


def test_a_statement_is_printed_in_one_line(cli: Cli, tmp_path: Path) -> None:
    line = {"event": "conflict", "kind": "aborted", "tag": "shop", "statement": "SELECT a,\n  b"}
    log = tmp_path / "worker.log"
    log.write_bytes(msgspec.json.encode(line))
    out = cli.fine("analyze", "--seconds", "0", "--log", str(log)).out
    assert "   shop: SELECT a, b\n" in out
