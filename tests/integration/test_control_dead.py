"""Dead letters: filters, purge, and a redrive that the shard's owner finds by itself."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from sqlalchemy import event

from late.control import Control, Filter
from late.control.audit import entries
from late.control.dead_letters import dry_run as rehearsal
from late.control.dead_letters import filter as filters
from late.control.dead_letters import move as moving
from late.errors import ConfigError, InvalidName, InvalidPayload, InvalidSchedule
from late.model.ids import new_id
from late.model.task import AttemptError, DeadLetter, Record
from late.schema.engine import make_engine, reading
from late.schema.tables import dead as table
from late.store import open_store
from tests.conformance.kit import dead as letter
from tests.conformance.kit import own, record
from tests.integration.control_kit import execute, rekey, rows

ERROR = AttemptError(attempt=3, at_us=9, worker="w1", error="ValueError: no such card")


async def bury(url: str, *letters: DeadLetter, shard: int = 0, group: str = "default") -> None:
    store = open_store(url)
    await store.open()
    owner = await own(store, shard, group=group, name=f"w-{group}-{shard}")
    await owner.settle(dead=letters)
    await store.release([owner.lease])
    await store.close()


def made(n: int, **changes: object) -> list[Record]:
    return [record(position=i + 1, **changes) for i in range(n)]


async def test_list_is_the_latest_first_and_bounded(url: str) -> None:
    first, second, third = made(3)
    await bury(url, letter(first, errors=(ERROR,)))
    await bury(url, letter(second))
    await bury(url, letter(third))
    with Control(url) as control:
        found = control.dead_letters.find()
        times = [each.dead_at_us for each in found]
        assert times == sorted(times, reverse=True)
        assert {each.task_id for each in found} == {first.task_id, second.task_id, third.task_id}
        assert len(control.dead_letters.find(limit=2)) == 2
        (one,) = control.dead_letters.find(Filter(task_id=first.task_id))
        assert (one.reason, one.attempts, one.errors) == ("failed", 3, (ERROR,))
        assert (one.queue, one.name, one.shard_id, one.group) == ("default", "count", 0, "default")
        assert (one.payload, one.payload_bytes) == (None, 2)
        assert (
            control.dead_letters.find(Filter(task_id=first.task_id), payload=True)[0].payload
            == "{}"
        )


async def test_every_filter_selects(url: str) -> None:
    execute(url, "insert into late_group (name, created_at_us) values ('audit', 1)")
    a, b, c = record(queue="a"), record(name="other"), record(shard=1)
    await bury(url, letter(a), letter(b, reason="gave_up"))
    await bury(url, letter(c), shard=1, group="audit")
    died = {a.task_id: 1000, b.task_id: 2000, c.task_id: 3000}
    rekey(url, table, lambda row: {"dead_at_us": died[row["task_id"]]})
    cases = {
        Filter(): {a, b, c},
        Filter(queue="a"): {a},
        Filter(name="other"): {b},
        Filter(reason="gave_up"): {b},
        Filter(reason="killed_worker"): set(),
        Filter(group="audit"): {c},
        Filter(task_id=c.task_id): {c},
        Filter(task_id=new_id(1)): set(),
        Filter(task_ids=(a.task_id, c.task_id)): {a, c},
        Filter(task_ids=(a.task_id, c.task_id), queue="a"): {a},
        Filter(task_ids=(new_id(0), new_id(1))): set(),
        Filter(since_us=2000): {b, c},
        Filter(until_us=2000): {a},
        Filter(since_us=2000, until_us=3000): {b},
        Filter(queue="a", name="other"): set(),
    }
    with Control(url) as control:
        for which, expected in cases.items():
            found = {each.task_id for each in control.dead_letters.find(which)}
            assert found == {each.task_id for each in expected}, which
            dry = control.dead_letters.purge(which, dry_run=True)
            assert (dry.count, dry.dry_run) == (len(expected), True), which
            assert set(dry.task_ids) == found, which
        assert len(control.dead_letters.find()) == 3


async def test_purge_deletes_only_what_matches(url: str) -> None:
    kept, gone = record(queue="kept"), record(queue="gone")
    await bury(url, letter(kept), letter(gone))
    with Control(url) as control:
        assert control.dead_letters.purge(Filter(queue="gone")).task_ids == (gone.task_id,)
        assert [each.task_id for each in control.dead_letters.find()] == [kept.task_id]
        assert control.dead_letters.purge(Filter(queue="gone")).count == 0
    assert rows(url, "select count(*) from late_timer") == [(0,)]


async def test_many_ids_are_moved_in_parts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "IDS_MAX", 2)
    ours = made(5)
    await bury(url, *map(letter, ours))
    other = record(shard=1)
    await bury(url, letter(other), shard=1)
    ids = [each.task_id for each in ours]
    with Control(url) as control:
        only = [*ids[:3], other.task_id, new_id(2)]
        assert control.dead_letters.redrive(Filter(), only=only, dry_run=True).count == 4
        moved = control.dead_letters.redrive(Filter(), only=only, rate=1.0)
        assert (moved.count, set(moved.task_ids)) == (4, {*ids[:3], other.task_id})
        assert {each.task_id for each in control.dead_letters.find()} == set(ids[3:])
        assert control.dead_letters.purge(Filter(), only=[], limit=1).count == 0
    due = sorted(row[0] for row in rows(url, "select due_at_us from late_timer"))
    assert due[-1] - due[0] >= 2_000_000, "the rate goes on over the parts"


async def test_redrive_parks_the_whole_task_due_now_with_no_attempt_used(url: str) -> None:
    task = record(
        shard=2, queue="mail", name="send", payload=b"\x00\xff", headers='{"a":"b"}',
        options='{"priority":5}', position=77, sequence=78,
    )  # fmt: skip
    await bury(url, letter(task, attempts=12, deaths=2, errors=(ERROR,)), shard=2)
    store = open_store(url)
    await store.open()
    with Control(url) as control:
        dry = control.dead_letters.redrive(Filter(), dry_run=True)
        assert (dry.count, dry.dry_run, dry.task_ids) == (1, True, (task.task_id,))
        assert await store.due("default", 2, until_us=2**62, limit=10) == []

        assert control.dead_letters.redrive(Filter()).task_ids == (task.task_id,)
        assert control.dead_letters.find() == []
        (parked,) = await store.due("default", 2, until_us=await store.now(), limit=10)
        assert parked.record == task
        assert (parked.attempts, parked.deaths, parked.held_key) == (0, 0, None)
        assert parked.errors == (ERROR,)
        assert control.tasks.show(task.task_id).groups[0].state == "parked"
        assert control.dead_letters.redrive(Filter()).count == 0
    await store.close()


@pytest.mark.parametrize("limit", [1, 250, 400])
async def test_a_limit_takes_the_oldest_across_transactions(url: str, limit: int) -> None:
    letters = made(450)
    await bury(url, *(letter(each) for each in letters))
    rekey(url, table, lambda row: {"dead_at_us": 1_000_000 + row["position"]})
    with Control(url) as control:
        moved = control.dead_letters.redrive(Filter(), limit=limit)
        assert moved.count == limit
        assert len(moved.task_ids) == min(100, limit)
        assert control.dead_letters.redrive(Filter(), limit=limit, dry_run=True).count == min(
            limit, 450 - limit
        )
    left = rows(url, "select min(position), count(*) from late_dead")
    assert left == [(limit + 1, 450 - limit)]
    parked = rows(url, "select max(position), count(*) from late_timer")
    assert parked == [(limit, limit)]


async def test_letters_of_many_shards_go_the_oldest_first_and_are_read_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given pages of two, and letters that died in turn in three shards, some at one moment."""
    monkeypatch.setattr(moving, "PAGE", 2)
    monkeypatch.setattr(moving, "CHUNK", 4)
    shards = [[record(shard=s, queue=f"q{n % 2}", position=n + 1) for n in range(7)]
              for s in range(3)]  # fmt: skip
    for shard, letters in enumerate(shards):
        await bury(url, *(letter(each) for each in letters), shard=shard)
    rekey(url, table, lambda row: {"dead_at_us": 1_000 + row["position"] // 5})
    order = sorted((1_000 + each.position // 5, each.task_id) for one in shards for each in one)
    ids = tuple(task_id for _, task_id in order)
    even = {each.task_id for one in shards for each in one if each.queue == "q0"}
    with Control(url) as control:
        assert control.dead_letters.redrive(Filter(), limit=5).task_ids == ids[:5]
        left = [task_id for task_id in ids[5:] if task_id in even]
        assert control.dead_letters.purge(Filter(queue="q0")).task_ids == tuple(left)
        rest = tuple(task_id for task_id in ids[5:] if task_id not in even)
        read: list[str] = []

        def note(_c: object, _k: object, text: str, *_: object) -> None:
            read.append(text)

        event.listen(control._database.engine, "before_cursor_execute", note)
        moved = control.dead_letters.redrive(Filter(), rate=1.0)
        event.remove(control._database.engine, "before_cursor_execute", note)
        assert moved.task_ids == rest, "the due times of a rate go by this"
        begin = "SELECT late_dead.dead_at_us, late_dead.task_id \nFROM"
        walks = [text for text in read if text.startswith(begin)]
        assert walks
        assert len(walks) <= len(rest) / 2 + len(shards), "each page once, whatever the chunks"
    assert rows(url, "select count(*) from late_dead") == [(0,)]


async def test_a_dry_run_looks_at_so_many_and_says_where_it_stopped(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given five letters of one queue and five of another, in two shards."""
    monkeypatch.setattr(rehearsal, "LOOKED", 8)
    monkeypatch.setattr(rehearsal, "IDS_SHOWN", 3)
    first = [record(queue=f"q{n % 2}", position=n + 1) for n in range(4)]
    second = [record(shard=1, queue=f"q{n % 2}", position=n + 5) for n in range(6)]
    await bury(url, *(letter(each) for each in first))
    await bury(url, *(letter(each) for each in second), shard=1)
    rekey(url, table, lambda row: {"dead_at_us": 1_000 + row["position"]})
    with Control(url) as control:

        def told(which: Filter, limit: int | None = None, *, exact: bool = False) -> str:
            return str(
                control.dead_letters.purge(which, limit=limit, dry_run=True, exact=exact).counted
            )

        assert told(Filter(task_id=second[-1].task_id)) == "1", "by its index, wherever it is"
        assert told(Filter()) == ">= 8"
        assert told(Filter(queue="q1")) == ">= 4"
        assert told(Filter(), 8) == told(Filter(), 8, exact=True) == "8"
        assert told(Filter(), 9) == ">= 8"
        assert told(Filter(until_us=1_008)) == "7", "what is outside the time is not looked at"
        assert told(Filter(queue="q1"), exact=True) == "5"
        assert told(Filter(), exact=True) == "10"
        oldest = control.dead_letters.redrive(Filter(queue="q1"), limit=3, dry_run=True).task_ids
        assert oldest == (first[1].task_id, first[3].task_id, second[1].task_id)
        monkeypatch.setattr(rehearsal, "LOOKED", 1)
        moved = control.dead_letters.purge(Filter(queue="q1"), dry_run=True)
        assert moved.task_ids == (first[1].task_id, second[1].task_id)
        assert str(moved.counted) == ">= 2", "no fewer than are named"
        assert told(Filter(queue="q1"), 2) == "2"


async def test_two_redrives_at_once_send_each_task_back_once(url: str) -> None:
    letters = made(600)
    await bury(url, *(letter(each) for each in letters))
    barrier = threading.Barrier(3)
    counts: list[int] = []

    def run() -> None:
        with Control(url) as control:
            control.check()
            barrier.wait()
            counts.append(control.dead_letters.redrive(Filter()).count)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 600
    assert rows(url, "select count(*), count(distinct task_id) from late_timer") == [(600, 600)]
    assert rows(url, "select count(*) from late_dead") == [(0,)]


async def test_a_task_that_dies_again_meanwhile_is_not_sent_back_again(url: str) -> None:
    """What has died after the redrive began is not meant: else it might never end."""
    await bury(url, *(letter(each) for each in made(3)))
    hour = 3_600_000_000
    rekey(url, table, lambda row: {"dead_at_us": row["dead_at_us"] + hour * (row["position"] == 3)})
    with Control(url) as control:
        assert control.dead_letters.redrive(Filter()).count == 2


@pytest.mark.parametrize(
    "which",
    [
        Filter(queue="a b"),
        Filter(name=""),
        Filter(reason="x" * 200),
        Filter(group="'; drop table late_dead"),
        Filter(since_us=5, until_us=5),
    ],
)
def test_a_filter_that_means_nothing_is_refused(url: str, which: Filter) -> None:
    with Control(url) as control:
        for call in (
            control.dead_letters.find,
            control.dead_letters.purge,
            control.dead_letters.redrive,
        ):
            with pytest.raises(ConfigError):
                call(which)
        with pytest.raises(InvalidName):
            control.dead_letters.purge(Filter(task_id="17"))
        with pytest.raises(ConfigError, match="limit 0"):
            control.dead_letters.purge(Filter(), limit=0)
        with pytest.raises(ConfigError, match="limit -1"):
            control.dead_letters.find(limit=-1)


async def test_a_redrive_at_a_rate_spreads_the_due_times(url: str) -> None:
    records = made(5)
    await bury(url, *(letter(each) for each in records))
    with Control(url) as control:
        now = control.now()
        assert control.dead_letters.redrive(Filter(), rate=2.0).count == 5
        dues = sorted(row[0] for row in rows(url, "select due_at_us from late_timer"))
        assert now <= dues[0] <= control.now()
        assert all(later - earlier <= 1_000_000 for earlier, later in pairwise(dues))
        assert dues[-1] - dues[0] == 2_000_000, "five of them, two a second"
        for rate in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ConfigError, match="rate"):
                control.dead_letters.redrive(Filter(), rate=rate)


async def test_letters_are_found_by_the_text_of_an_error(url: str) -> None:
    first, second = made(2)
    quoted = AttemptError(attempt=1, at_us=9, worker="w1", error='no "card" 100% \\ done_')
    await bury(url, letter(first, errors=(ERROR,)), letter(second, errors=(quoted, ERROR)))
    with Control(url) as control:

        def found(text: str) -> set[str]:
            return {each.task_id for each in control.dead_letters.find(Filter(error=text))}

        assert found("no such card") == {first.task_id, second.task_id}
        assert found('"card" 100% \\') == {second.task_id}
        assert found("done_") == {second.task_id}
        assert found("100%c") == found("done_x") == found("_o such") == set()


async def test_every_change_leaves_its_row_in_the_audit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE_ACTOR", "rosa")
    first, second = made(2, payload=b'{"amount": 1}')
    await bury(url, letter(first), letter(second))
    with Control(url) as control:
        control.dead_letters.redrive(Filter(task_id=first.task_id), rate=7, dry_run=True)
        control.dead_letters.redrive(Filter(task_id=first.task_id), rate=7)
        control.tasks.edit(second.task_id, b'{"amount": 2}')
        control.dead_letters.purge(Filter(group="default"))
        control.tasks.cancel(first.task_id)
        control.tasks.reschedule(first.task_id, control.now(), group="default")
    engine = make_engine(url)
    with reading(engine) as connection:
        said = [(e.actor.split()[0], e.action, e.subject, e.after) for e in entries(connection)]
    engine.dispose()
    assert [each[:3] for each in said[::-1]] == [
        ("rosa", "dead.redrive", "dead:*"),
        ("rosa", "task.redrive", f"task:{second.task_id}"),
        ("rosa", "dead.purge", "dead:default"),
        ("rosa", "task.cancel", f"task:{first.task_id}"),
        ("rosa", "task.reschedule", f"task:{first.task_id}"),
    ]
    assert '"count":1' in said[-1][3]
    assert '"rate":7' in said[-1][3]
    assert "amount" not in str(said), "no payload"


async def test_an_edit_is_refused_where_it_can_mean_nothing(url: str) -> None:
    plain, sealed = record(), record(options='{"codec":"signed"}')
    await bury(url, letter(plain), letter(sealed))
    with Control(url) as control:
        for payload in (b"", b"[1]", b"7", b"{"):
            with pytest.raises(InvalidPayload):
                control.tasks.edit(plain.task_id, payload)
        for task_id, group in ((new_id(0), None), (plain.task_id, "audit")):
            with pytest.raises(ConfigError, match="no dead letter"):
                control.tasks.edit(task_id, b"{}", group=group)
        with pytest.raises(ConfigError, match="call="):
            control.tasks.edit(sealed.task_id, b"{}")
        with pytest.raises(InvalidName):
            control.tasks.cancel("x")
        with pytest.raises(ConfigError, match="group"):
            control.tasks.cancel(plain.task_id, group="no spaces")
        with pytest.raises(InvalidSchedule):
            control.tasks.reschedule(plain.task_id, control.now() + 367 * 86_400_000_000)
    assert rows(url, "select count(*) from late_audit") == [(0,)]
