"""Which tasks of a jam leave the window: those that a knob holds back, and no others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from late.model.queue_settings import QueueSettings
from late.model.task import TRANSACTION_POOL
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.ready_queues import ReadyQueues
from late.scheduler.task_state import Entry
from tests.unit.test_limits import S, entry, outcome


def flows(settings: QueueSettings, number: int, **fields: object) -> tuple[ReadyQueues, Limits]:
    """A shard with so many ready tasks of one queue."""
    limits = Limits()
    limits.set({"q": settings}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made = ReadyQueues("g", limits)
    for n in range(number):
        each = entry(n, **fields)
        each.move("ready")
        made.push(each)
    return made, limits


def starts(made: ReadyQueues, now_us: int, room: int) -> list[Entry]:
    made.open(now_us, {"local": room})
    found = []
    while (each := made.next()) is not None:
        found.append(each)
    return found


def ended(limits: Limits, entries: Iterable[Entry], now_us: int) -> None:
    limits.ended([outcome(each.record.sequence) for each in entries], now_us)


def test_what_waits_for_a_slot_only_stays() -> None:
    made, _ = flows(QueueSettings(timeout_s=30.0), 1_000)
    for tenth in range(20):
        assert len(starts(made, tenth * S // 10, 16)) == 16
        assert made.surplus(250) == []
    assert made.limited == 1_000 - 20 * 16


def test_what_waits_for_its_transaction_stays() -> None:
    """Parked, a backlog of such tasks would cost two rows of the timer table each, and a minute."""
    limits = Limits([TRANSACTION_POOL, "mail"])
    limits.set({}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made = ReadyQueues("g", limits)
    for n in range(1_000):
        each = entry(n, target="mail" if n % 2 else TRANSACTION_POOL)
        each.move("ready")
        made.push(each)
    for now_us in (0, S):
        made.open(now_us, {TRANSACTION_POOL: 0, "mail": 0})
        assert made.next() is None
        parked = made.surplus(250)
    assert {each.policy.target for each, _, _ in parked} == {"mail"}
    assert made.limited == 500 + 250


def test_what_a_knob_holds_back_leaves_once_its_speed_is_known() -> None:
    made, _ = flows(QueueSettings(concurrency=2), 1_000)
    assert len(starts(made, 0, 16)) == 2
    assert made.surplus(250) == [], "it may move fast"
    assert starts(made, S // 2, 16) == []
    parked = made.surplus(250)
    assert made.limited == 250
    assert len(parked) == 1_000 - 2 - 250
    assert all(S < again_us <= 61 * S for _, again_us, _ in parked)
    assert {reason for _, _, reason in parked} == {"limited"}


def test_a_task_that_was_cancelled_holds_nobody_behind_it_back() -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(paused=True)}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made = ReadyQueues("g", limits)
    entries = [entry(n) for n in range(300)]
    for each in entries:
        each.move("ready")
        made.push(each)
    assert starts(made, 0, 16) == []
    assert made.surplus(250) == [], "its speed is not known yet"
    entries[100].move("cancelled")
    assert starts(made, S, 16) == []
    parked = made.surplus(250)
    assert made.limited == 250
    assert [each.record.sequence for each, _, _ in parked] == list(range(251, 300))


def test_a_queue_that_moves_fast_keeps_what_it_starts_meanwhile() -> None:
    """Else its slots would stand idle until the first of the parked ones is back."""
    made, limits = flows(QueueSettings(concurrency=50), 2_000)
    for turn in range(30):  # 50 at a time, 20 ms each: 2,500 a second
        now_us = turn * 20_000
        begun = starts(made, now_us, 64)
        assert len(begun) == 50
        assert made.surplus(250) == []
        ended(limits, begun, now_us + 20_000)


FAIR = QueueSettings(fair_key="tenant", fair_share=0.25)


def of_tenant(name: str, first: int, number: int) -> list[Entry]:
    found = []
    for n in range(first, first + number):
        each = entry(n)
        record = msgspec.structs.replace(each.record, headers=f'{{"tenant":"{name}"}}')
        found.append(Entry(record=record, policy=each.policy))
        found[-1].move("ready")
    return found


def tenants(begun: Iterable[Entry]) -> Counter[str]:
    return Counter(json.loads(each.record.headers or "{}")["tenant"] for each in begun)


def test_a_lone_tenant_uses_every_slot_and_others_come_before_it() -> None:
    limits = Limits(slots=8)
    limits.set({"q": FAIR}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made, other = ReadyQueues("g", limits), ReadyQueues("g", limits)
    made.push_all(of_tenant("flood", 0, 100))
    begun = starts(made, 0, 8)
    assert len(begun) == 8, "nobody else waits"
    # Two of them end, and another tenant waits in another shard of this worker.
    ended(limits, begun[:2], S)
    other.push_all(of_tenant("small", 500, 1))
    assert starts(made, S, 2) == []
    assert tenants(starts(other, S, 2)) == {"small": 1}
    assert tenants(starts(made, 2 * S, 1)) == {"flood": 1}, "the slot that is left"


def test_in_one_shard_no_slot_stays_empty_and_the_small_ones_have_theirs() -> None:
    limits = Limits(slots=8)
    limits.set({"q": FAIR}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made = ReadyQueues("g", limits)
    made.push_all(of_tenant("flood", 0, 100) + of_tenant("a", 500, 1) + of_tenant("b", 600, 3))
    assert tenants(starts(made, 0, 8)) == {"flood": 4, "a": 1, "b": 3}


def test_tasks_of_a_shard_that_is_lost_hold_nobody_back() -> None:
    limits = Limits(slots=8)
    limits.set({"q": FAIR}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made, lost = ReadyQueues("g", limits), ReadyQueues("g", limits)
    lost.push_all(of_tenant("small", 500, 5))
    made.push_all(of_tenant("flood", 0, 100))
    assert len(starts(made, 0, 8)) == 2
    lost.abandon()
    assert len(starts(made, S, 6)) == 6
    # Settings that change arrange all anew, and count each once.
    limits.set({"q": QueueSettings(fair_key="tenant", fair_share=0.5)}, {}, S)
    made.push_all(of_tenant("small", 900, 2))
    starts(made, 2 * S, 0)
    assert limits._waiting["q"] == {"flood": 92, "small": 2}


def ready(*targets: str) -> ReadyQueues:
    """A shard with a ready task for each of these targets, whose queue has a knob."""
    limits = Limits({*targets} - {"local"})
    limits.set({"q": QueueSettings(timeout_s=30.0)}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made = ReadyQueues("g", limits)
    for n, target in enumerate(targets):
        each = entry(n, target=target)
        each.move("ready")
        made.push(each)
    return made


@pytest.mark.parametrize("knob", [True, False])
def test_what_comes_back_is_before_its_equals(knob: bool) -> None:
    made = ready("local", "local") if knob else ReadyQueues("g", Limits())
    back = entry(7)
    if not knob:
        for n in range(2):
            each = entry(n)
            each.move("ready")
            made.push(each)
    back.move("ready")
    made.push_front(back)
    assert made.limited == (3 if knob else 0)
    assert [each.record.sequence for each in starts(made, 0, 9)] == [7, 0, 1]


def test_a_pool_without_room_holds_no_other_up() -> None:
    made = ready("full", "free", "away")
    made.open(0, {"full": 0, "free": 1})
    found = made.next()
    assert found is not None
    assert found.policy.target == "free"
    assert made.next() is None


def test_a_pulled_queue_is_asked_for_while_consumers_wait() -> None:
    made = ready("pull:mail", "pull:post", "mail")
    made.open(0, {"pull:mail": 0, "pull:post": 1, "mail": 1})
    assert made.asked() == ["pull:post"]
    assert made.ready_for("pull:mail") == 1


def test_what_a_limit_has_parked_is_not_counted_with_what_waits_here_alone() -> None:
    made = ready("bank", "bank", "post")
    parked = entry(7, target="bank")
    parked.timer_key, parked.postponed = (S, "7"), True
    retried = entry(8, target="bank")
    retried.timer_key = (S, "8")
    for each in (parked, retried):
        each.move("ready")
        made.push(each)
    assert (made.ready_for("bank"), made.unlimited_for("bank")) == (4, 3)


def test_each_of_many_tenants_keeps_one() -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(paused=True)}, {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    made = ReadyQueues("g", limits)
    for n in range(600):
        each = entry(n, target=f"t{n % 300}")
        each.move("ready")
        made.push(each)
    rooms = {f"t{n}": 1 for n in range(300)}
    for now_us in (0, S):
        made.open(now_us, rooms)
        assert made.next() is None
        parked = made.surplus(250)
    assert len(parked) == 300
    assert made.limited == 300
