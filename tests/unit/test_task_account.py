"""The account of one shard, from hand-made rows: pure. Real databases: `test_verify`."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from late.control.verify.journal_check import Journal, Settled
from late.control.verify.problems import LISTED, Problems
from late.control.verify.task_account import DEAD, KEY, LOGGED, PARKED, TICK, Account, Row, Totals
from late.model.task import OpenTask, TaskId

SHARD = ("default", 3)

# Of one task: which rows it has, whether `open` has it, what is counted, what is said of it.
SOUND: list[tuple[list[tuple[int, int]], bool, Totals]] = [
    ([(LOGGED, 1)], False, Totals(log=1, waiting=1)),
    ([(LOGGED, 0)], False, Totals(log=1, settled=1)),
    ([(LOGGED, 0)], True, Totals(log=1, open=1)),
    ([(LOGGED, 0), (PARKED, 0)], False, Totals(log=1, parked=1)),
    ([(LOGGED, 0), (DEAD, 0)], False, Totals(log=1, dead=1)),
    ([(PARKED, 0)], False, Totals(parked=1)),
    ([(DEAD, 0)], False, Totals(dead=1)),
    ([(LOGGED, 1), (KEY, 0), (TICK, 0)], False, Totals(log=1, waiting=1)),
    ([(LOGGED, 0), (KEY, 0)], True, Totals(log=1, open=1)),
    ([(TICK, 0), (PARKED, 0)], False, Totals(parked=1)),
]
BROKEN: list[tuple[list[tuple[int, int]], bool, str]] = [
    ([], True, "open_gone"),
    ([(PARKED, 0)], True, "open_gone"),
    ([(LOGGED, 1)], True, "two_places"),
    ([(LOGGED, 0), (PARKED, 0)], True, "two_places"),
    ([(LOGGED, 1), (PARKED, 0)], False, "two_places"),
    ([(LOGGED, 1), (LOGGED, 1)], False, "two_places"),
    ([(PARKED, 0), (PARKED, 0)], False, "two_places"),
    ([(LOGGED, 0), (DEAD, 0)], True, "ended_twice"),
    ([(PARKED, 0), (DEAD, 0)], False, "ended_twice"),
    ([(LOGGED, 1), (DEAD, 0)], False, "ended_twice"),
    ([(DEAD, 0), (DEAD, 0)], False, "ended_twice"),
    ([(LOGGED, 0), (LOGGED, 0)], False, "logged_twice"),
    ([(PARKED, 1)], False, "held_forever"),
    ([(LOGGED, 0), (KEY, 0)], False, "key_held"),
    ([(KEY, 0)], False, "key_held"),
    ([(DEAD, 0), (TICK, 0)], False, "tick_held"),
]


def rows_of(task_id: str, places: list[tuple[int, int]]) -> list[Row]:
    return [
        (task_id, source, 7 if source == LOGGED else None, flag, flag, "name")
        for source, flag in places
    ]


def judged(rows: list[Row], opened: list[OpenTask]) -> tuple[Account, Problems]:
    findings = Problems()
    account = Account(SHARD, opened, findings)
    account.take(sorted(rows))
    return account, findings


def test_every_sound_task_is_counted_once() -> None:
    for places, opened, totals in SOUND:
        keys = [OpenTask(7, TaskId("t"))] if opened else []
        account, findings = judged(rows_of("t", places), keys)
        assert findings.problems == [], places
        assert account.totals == totals, places


def test_every_broken_task_is_named() -> None:
    for places, opened, kind in BROKEN:
        keys = [OpenTask(7, TaskId("t"))] if opened else []
        _, findings = judged(rows_of("t", places), keys)
        assert kind in {p.kind for p in findings.problems}, places
        assert {p.task_id for p in findings.problems} == {"t"}


def test_open_at_another_position_is_gone_unless_the_record_waits() -> None:
    """A rebase may have moved the record above every cursor: it will be read again from there."""
    for flag, kinds in ((0, ["open_gone"]), (1, [])):
        _, findings = judged(rows_of("t", [(LOGGED, flag)]), [OpenTask(8, TaskId("t"))])
        assert [p.kind for p in findings.problems] == kinds


def test_a_store_without_positions_compares_none() -> None:
    _, findings = judged([("t", LOGGED, None, 0, 0, "")], [OpenTask(8, TaskId("t"))])
    assert findings.problems == []


@given(st.lists(st.sampled_from(range(len(SOUND))), max_size=40))
def test_sound_books_add_up(chosen: list[int]) -> None:
    rows: list[Row] = []
    opened = []
    expected = Totals()
    for number, case in enumerate(chosen):
        places, is_open, totals = SOUND[case]
        rows += rows_of(f"t{number:03}", places)
        opened += [OpenTask(7, TaskId(f"t{number:03}"))] if is_open else []
        expected = expected + totals
    account, findings = judged(rows, opened)
    assert findings.total == 0
    assert account.totals == expected


def test_ends_are_those_since_the_kept_journal_begins() -> None:
    rows = [
        ("a", LOGGED, 1, 0, 1, ""),  # settled since
        ("b", LOGGED, 2, 0, 0, ""),  # settled before
        ("c", LOGGED, 3, 0, 1, ""),  # dead since
        ("c", DEAD, None, 0, 0, ""),
        ("d", LOGGED, 4, 0, 1, ""),  # parked
        ("d", PARKED, None, 0, 0, ""),
        ("e", LOGGED, 5, 1, 1, ""),  # waiting
    ]
    account, _ = judged(rows, [])
    assert account.ended_recently == 2


def test_problems_beyond_the_bound_are_counted() -> None:
    findings = Problems()
    for number in range(LISTED + 5):
        findings.add("open_gone", SHARD, "gone", task_id=str(number))
    assert (len(findings.problems), findings.total) == (LISTED, LISTED + 5)


def journal_of(*rows: Settled, lease: int | None = 1, ended: int = 0) -> Problems:
    findings = Problems()
    journal = Journal(SHARD, findings)
    for row in rows:
        journal.take(row)
    journal.close(lease, ended)
    return findings


def settled(seq: int, epoch: int = 1, owner: str = "w1", at: int = 0, ends: int = 0) -> Settled:
    usage = f'[["q","n","local","done",{ends}],["q","n","local","retried",9]]' if ends else None
    return Settled(seq, epoch, owner, usage, at)


def summed(seq: int, first_seq: int, ends: int = 0) -> Settled:
    return msgspec.structs.replace(settled(seq, ends=ends), first_seq=first_seq)


def test_a_row_that_stands_for_others_is_no_hole_and_hides_none() -> None:
    assert journal_of(settled(1), summed(4, 2, 7), settled(5), ended=7).problems == []
    assert journal_of(summed(4, 1), summed(9, 5), settled(10)).problems == []
    (hole,) = journal_of(summed(4, 1), summed(9, 6), settled(10)).problems
    assert (hole.kind, hole.what) == ("journal_hole", "between settlements 4 and 6 is a hole")
    (twice,) = journal_of(summed(4, 1), summed(9, 4), settled(10)).problems
    assert twice.kind == "counted_twice"


def test_a_sound_journal() -> None:
    findings = journal_of(
        settled(4, ends=5), settled(5, ends=2), settled(6, 2, "w2"), settled(7, 2, "w2", ends=1),
        lease=2, ended=3,
    )  # fmt: skip
    assert (findings.problems, findings.notes) == ([], [])


def test_what_ended_before_the_kept_journal_does_not_count() -> None:
    findings = journal_of(settled(4, ends=5), settled(5, ends=2), ended=3)
    assert [p.kind for p in findings.problems] == ["uncounted"]


def read(seq: int, arrived: int, ended: int = 0, owner: str = "w1") -> Settled:
    usage = f'[["q","n","","enqueued",{arrived}],["q","n","local","done",{ended}]]'
    return Settled(seq, seq, owner, usage, 0)


def balanced(opened_then: int, unfinished: int, *rows: Settled) -> list[str]:
    findings = Problems()
    journal = Journal(SHARD, findings)
    for row in rows:
        journal.take(row)
    journal.balance(opened_then, unfinished)
    return [problem.what for problem in findings.problems if problem.kind == "uncounted"]


def test_what_was_read_has_ended_or_is_to_come() -> None:
    """Also when its row of the log is long gone."""
    rows = (settled(1), read(2, 5, 1), read(3, 2, 3))
    assert balanced(0, 3, *rows) == []
    assert balanced(0, 4, *rows) == [], "a dead letter was sent back, or parked before"
    (said,) = balanced(1, 3, *rows)
    assert said == (
        "1 of 8 tasks that were read since settlement 1 have not ended, and are neither open nor"
        " parked"
    )
    assert balanced(0, 0) == []


def test_what_was_read_is_counted_anew_after_a_reset_or_a_rebase() -> None:
    for owner in ("create", "reset", "rebase"):
        rows = (settled(1), read(2, 5), read(3, 0, owner=owner), read(4, 2, 1))
        assert balanced(0, 1, *rows) == []
        assert len(balanced(1, 1, *rows)) == 1


def test_where_counts_are_missing_nothing_is_compared() -> None:
    assert balanced(0, 0, settled(1), read(3, 5)) == []
    assert balanced(0, 0, settled(1), Settled(2, 2, "w1", "{", 0), read(3, 5)) == []
    assert balanced(0, 0, settled(1), settled(3), read(4, 0, owner="reset"), read(5, 1)) != []


def test_every_fault_of_a_journal() -> None:
    cases = {
        "journal_hole": journal_of(settled(1), settled(3)),
        "counted_twice": journal_of(settled(4), summed(6, 3)),
        "epoch_back": journal_of(settled(1, 2), settled(2, 1)),
        "two_owners": journal_of(settled(1), settled(2, owner="w2")),
        "usage": journal_of(settled(1), Settled(2, 1, "w1", "{", 0)),
        "journal_gone": journal_of(),
        "lease": journal_of(settled(1), lease=2),
    }
    for kind, findings in cases.items():
        assert [p.kind for p in findings.problems] == [kind]
    assert [p.kind for p in journal_of(settled(1), lease=None).problems] == ["lease"]


def test_a_clock_that_went_back_is_a_note() -> None:
    minute_us = 60_000_000
    findings = journal_of(settled(1, at=minute_us), settled(2, at=0), settled(3, at=2 * minute_us))
    assert (findings.problems, findings.notes) == ([], [])
    findings = journal_of(settled(1, at=minute_us + 1), settled(2, at=0))
    assert findings.notes == [
        "default/3: the database's clock went back by 60 s before settlement 2"
    ]
