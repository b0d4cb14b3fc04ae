"""What one settlement counts: attempts, ends, arrivals, times, tenants."""

from __future__ import annotations

import msgspec
import pytest

from late.model.histogram import bucket
from late.model.task import ENQUEUED, Attempt, Kind, Outcome, Policy, Record, TaskId, Usage
from late.scheduler.task_state import Entry
from late.scheduler.usage import TENANTS_MAX, UsageCounters


def record(number: int = 1, *, created_us: int = 1_000, headers: str | None = None) -> Record:
    return Record(0, number, TaskId(f"t{number}"), "q", "n", b"12345", headers, None, created_us, 1)


def outcome(
    of: Record, *, number: int = 1, due_us: int = 1_000, started_us: int = 1_500, busy_us: int = 70,
    kind: Kind = "done",
) -> Outcome:  # fmt: skip
    return Outcome(Attempt("g", of, number, 0, 1, due_us), kind, started_us, busy_us)


def ledger() -> UsageCounters:
    return UsageCounters(lambda record: record.headers)


def test_an_attempt_is_counted_with_its_times() -> None:
    book = ledger()
    book.add(outcome(record()), "done", ended=True)
    book.add(outcome(record(), started_us=1_500, busy_us=31), "done", ended=True)
    assert book.take() == (
        Usage("q", "n", "local", "done", 2, 2, 101, 1_000, 10, 0, 0, 0,
              ((bucket(500), 2),), ((31, 1), (bucket(70), 1))),
    )  # fmt: skip
    assert book.take() == ()


def test_a_retry_that_was_due_later_than_it_arrived_is_late_by_its_wait() -> None:
    book = ledger()
    late = outcome(record(), number=2, due_us=9_000, started_us=9_400, kind="failed")
    book.add(late, "retried", ended=False)
    [row] = book.take()
    assert (row.count, row.retries, row.delayed, row.lateness_us) == (1, 1, 1, 400)
    assert (row.payload_bytes, row.waiting_us) == (0, 400)


def test_a_delayed_task_that_starts_on_time_is_not_late() -> None:
    book = ledger()
    book.add(outcome(record(), due_us=9_000, started_us=9_000), "done", ended=True)
    [row] = book.take()
    assert (row.delayed, row.lateness_us) == (1, 0)


@pytest.mark.parametrize("word", ["stalled", "died", "interrupted"])
@pytest.mark.parametrize("number", [1, 2])
def test_an_attempt_that_is_made_again_under_its_number_is_a_retry(word: str, number: int) -> None:
    book = ledger()
    for _ in range(2):
        book.add(outcome(record(), number=number, kind="failed"), word, ended=False)
    book.add_done([outcome(record(), number=number)])
    rows = book.take()
    assert sum(row.attempts for row in rows) == 3
    # Of these starts at most one was the task's first
    assert sum(row.retries for row in rows) == (2 if number == 1 else 3)


@pytest.mark.parametrize("word", ["interrupted", "not_capable"])
def test_what_was_given_back_before_its_handler_was_called_is_no_attempt(word: Kind) -> None:
    book = ledger()
    back = msgspec.structs.replace(outcome(record(), kind=word), begun=False)
    book.add(back, word, ended=False)
    book.add_done([outcome(record())])
    done, other = book.take()
    assert (other.outcome, other.count, other.attempts, other.retries) == (word, 1, 0, 0)
    assert (done.attempts, done.retries) == (1, 0)


def test_a_clock_that_went_back_makes_no_time_negative() -> None:
    book = ledger()
    book.add(outcome(record(), started_us=1, busy_us=-5), "done", ended=True)
    [row] = book.take()
    assert (row.waiting_us, row.busy_us, row.waiting, row.busy) == (0, 0, ((0, 1),), ((0, 1),))


def test_what_never_ran_has_no_attempt_and_no_time() -> None:
    book = ledger()
    book.add(outcome(record(), kind="expired"), "expired", ended=True)
    book.add_final(record(), "dead")
    dead, expired = book.take()
    assert (expired.count, expired.attempts, expired.waiting, expired.payload_bytes) == (
        1,
        0,
        (),
        5,
    )
    assert (dead.count, dead.attempts, dead.target, dead.payload_bytes) == (1, 0, "", 5)


def test_arrivals_are_counted_with_their_age() -> None:
    book = ledger()
    entries = [Entry(record(each, created_us=1_000), Policy()) for each in (1, 2)]
    book.add_arrived(entries, 4_000)
    [row] = book.take()
    assert (row.outcome, row.count, row.attempts, row.waiting_us) == (ENQUEUED, 2, 0, 6_000)
    assert (row.waiting, row.payload_bytes) == (((bucket(3_000), 2),), 0)


def test_each_tenant_has_a_row_until_there_are_too_many() -> None:
    book = ledger()
    for number in range(TENANTS_MAX + 7):
        book.add(outcome(record(headers=f"t{number}")), "done", ended=True)
    book.add(outcome(record(headers="t3")), "done", ended=True)
    found = {row.tenant: row.count for row in book.take()}
    assert (len(found), found["*"], found["t3"]) == (TENANTS_MAX + 1, 7, 2)


@pytest.mark.parametrize("tenants", [("a", "b", "a"), (None, None)])
def test_tasks_that_come_or_end_together_are_counted_with_their_tenants(
    tenants: tuple[str | None, ...],
) -> None:
    records = [record(number, headers=tenant) for number, tenant in enumerate(tenants)]
    book = ledger()
    book.add_done(map(outcome, records))
    ended = {row.tenant: row.count for row in book.take()}
    book.add_arrived([Entry(record=each, policy=Policy()) for each in records], 2_000)
    arrived = {row.tenant: row.count for row in book.take()}
    assert ended == arrived == {tenant: tenants.count(tenant) for tenant in tenants}


def test_who_has_no_tenant_comes_before_those_who_have_one() -> None:
    book = ledger()
    for number, tenant in enumerate(("b", None, "a"), 1):
        book.add_final(record(number, headers=tenant), "dead")
    assert [row.tenant for row in book.take()] == [None, "a", "b"]


def test_a_row_of_an_older_version_reads_as_nothing_recorded() -> None:
    old = msgspec.json.decode('["q","n","local","done",3,4,50,60,70]', type=Usage)
    assert (old.count, old.payload_bytes) == (3, 70)
    assert (old.retries, old.delayed, old.waiting, old.busy, old.tenant) == (0, 0, (), (), None)
    assert msgspec.json.decode(msgspec.json.encode(old), type=Usage) == old
