"""The knob simulator: attempts of the journal's counts, run again under the scheduler's limits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import insert

from late.control import Control
from late.control.simulation.attempts import BURSTS, Attempt, Counted, attempts
from late.control.simulation.comparison import Read, Simulation, compare
from late.control.simulation.fleet import Fleet, Ran, run
from late.control.simulation.simulation import JOBS
from late.control.simulation.variants import Variant, variants
from late.errors import ConfigError, InvalidPolicy
from late.model.histogram import histogram, percentile_us
from late.model.queue_settings import QueueSettings
from late.model.task import ENQUEUED, Usage
from late.model.usage_sums import summed
from late.schema.tables import lease, settlement
from tests.integration.control_kit import transaction
from tests.unit.api_kit import served
from tests.unit.cli_kit import Cli, cli  # noqa: F401

SECOND_US, MINUTE_US = 1_000_000, 60_000_000
SHARDS = range(4)


def burst(count: int, *, busy_us: int = 100_000, at_us: int = 0) -> list[Attempt]:
    """So many attempts of one moment, over four shards in turns."""
    return [Attempt(at_us, "mail", n % 4, busy_us, 0) for n in range(count)]


def ran(found: list[Attempt], workers: int = 1, slots: int = 16, **knobs: float) -> Ran:
    set_ = {"mail": QueueSettings(**knobs)} if knobs else {}  # type: ignore[arg-type]
    return run(found, Fleet(workers, slots, set_), "mail", SHARDS)


def longest_s(of: Ran) -> float:
    return (percentile_us(of.waits, 1.0) or 0.0) / 1e6


# --- the model ------------------------------------------------------------------------------------


def test_slots_bound_what_runs_at_once() -> None:
    of = ran(burst(160), slots=16)
    assert longest_s(of) == pytest.approx(0.9, rel=0.04), "ten rounds of 0.1 s, the last waits nine"
    assert (of.slots_busy_most, of.backlog_most) == (16, 144)
    assert of.drain_us == 900_000
    assert set(of.limited_us) == {"slots"}
    assert longest_s(ran(burst(160), slots=160)) == 0.0


def test_a_rate_is_the_schedulers_own_bucket() -> None:
    of = ran(burst(110), rate=10.0, burst=10.0, slots=1_000)
    assert longest_s(of) == pytest.approx(10.0, rel=0.04), "ten at once, and ten a second then"
    assert set(of.limited_us) == {"rate"}
    assert of.limited_us["rate"] == pytest.approx(10 * SECOND_US, rel=0.01)


def test_a_concurrency_is_shared_by_the_workers() -> None:
    one, two = ran(burst(80), concurrency=4), ran(burst(80), workers=2, concurrency=4)
    assert one.slots_busy_most == two.slots_busy_most == 4
    assert longest_s(one) == pytest.approx(1.9, rel=0.04)
    assert set(one.limited_us) == {"concurrency"}


def test_more_workers_have_more_slots() -> None:
    waits = [longest_s(ran(burst(160), workers=n, slots=4)) for n in (1, 2, 4)]
    assert waits == pytest.approx([3.9, 1.9, 0.9], rel=0.04)


def test_other_queues_take_slots_in_turns() -> None:
    other = [each._replace(queue="news") for each in burst(160)]
    alone, beside = ran(burst(160)), ran(sorted(burst(160) + other))
    assert longest_s(alone) < longest_s(beside) < 2.2 * longest_s(alone)


def test_several_that_run_as_one_take_as_many_tokens_and_as_long() -> None:
    single = burst(400)
    joined = [each._replace(number=10, busy_us=10 * each.busy_us) for each in burst(40)]
    for knobs in ({"rate": 20.0}, {"concurrency": 8}):
        fine, coarse = ran(single, **knobs), ran(joined, **knobs)
        assert longest_s(coarse) == pytest.approx(longest_s(fine), rel=0.2), knobs
        assert sum(coarse.waits.values()) == sum(fine.waits.values()) == 400


# --- the journal ----------------------------------------------------------------------------------


def usage(waits_s: list[float], busy_s: float = 0.1, outcome: str = "done") -> Usage:
    waiting = histogram(round(each * 1e6) for each in waits_s)
    busy_us = round(busy_s * 1e6)
    count = len(waits_s)
    return Usage(
        "mail", "send", "local", outcome, count, count, busy_us * count,
        waiting=waiting, busy=histogram([busy_us] * count),
    )  # fmt: skip


def test_an_attempt_was_due_its_wait_and_its_time_before_its_end() -> None:
    row = Counted(3, 10 * SECOND_US, 10 * SECOND_US, (usage([2.0, 4.0]),))
    found = attempts([row], "local", 0)
    assert [each.due_us / 1e6 for each in found] == pytest.approx([5.9, 7.9], abs=0.13)
    assert {(each.shard_id, each.queue, each.busy_us) for each in found} == {(3, "mail", 100_000)}


def test_arrivals_lost_attempts_and_other_targets_are_no_attempts() -> None:
    uncounted = (usage([1.0], outcome=ENQUEUED), usage([0.0], outcome="died"))
    row = Counted(0, 0, 0, (*uncounted, usage([1.0], outcome="retried")))
    assert len(attempts([row], "local", 0)) == 1
    assert attempts([row], "billing", 0) == []


@pytest.mark.parametrize("bursts", BURSTS)
def test_a_sum_keeps_every_attempt_and_its_busy_time(bursts: int) -> None:
    row = Counted(0, 0, MINUTE_US, (usage([n / 10 for n in range(999)], 0.237),))
    for together in (1, 7):
        found = attempts([row], "local", bursts, {"mail": together})
        assert sum(each.number for each in found) == 999
        assert sum(each.busy_us for each in found) == pytest.approx(999 * 237_000, rel=1e-4)


def test_what_waited_in_a_sum_came_in_bursts_and_the_rest_evenly() -> None:
    waits = [0.0] * 20 + [n / 10 for n in range(1, 101)]
    row = Counted(0, 0, MINUTE_US, (usage(waits, 0.0),))
    for bursts in (1, 4):
        due = Counter(each.due_us for each in attempts([row], "local", bursts) if each.wait_us)
        # Of a wait below a twentieth of the longest nobody can say that it was of a burst.
        assert len([at for at, count in due.items() if count > 1]) == bursts
        assert sum(count for count in due.values() if count > 1) == pytest.approx(95, abs=1)
        last = max(at for at, count in due.items() if count > 1)
        assert last < MINUTE_US - 9 * SECOND_US, "the longest wait ended within the minute"


def test_attempts_of_one_burst_are_not_run_by_their_length() -> None:
    quick, slow = usage([1.0] * 10, 0.1), usage([1.0] * 10, 5.0)
    rows = [Counted(0, 0, MINUTE_US, (slow,)), Counted(1, 0, MINUTE_US, (quick,))]
    found = attempts(rows, "local", 1)
    assert {each.due_us for each in found} == {found[0].due_us}
    assert found[0].busy_us > SECOND_US


def journal(
    knobs: QueueSettings, arrivals_us: list[int], *, width_us: int = 0, gap_us: int = 0
) -> Read:
    """Make the journal of these arrivals: a settlement a second for each shard, or sums.

    Args:
        gap_us: the time after which a slot that is free is taken again.
    """
    found = [Attempt(at, "mail", n % 4, 200_000, 0) for n, at in enumerate(arrivals_us)]
    starts: dict[tuple[int, int], list[float]] = {}
    bucket = 0.0
    # A line of its own: what the model says must not be what it is compared with.
    free_us, tokens_us = [0] * 16, 0.0
    assert knobs.rate is not None
    for each in sorted(found):
        slot = free_us.index(min(free_us))
        bucket = max(each.due_us, free_us[slot], tokens_us)
        tokens_us = max(tokens_us, each.due_us - SECOND_US) + SECOND_US / knobs.rate
        free_us[slot] = round(bucket) + each.busy_us + gap_us
        ended = (free_us[slot] - gap_us) // SECOND_US * SECOND_US + SECOND_US
        starts.setdefault((each.shard_id, ended), []).append((bucket - each.due_us) / 1e6)
    rows = [Counted(shard, at, at, (usage(w, 0.2),)) for (shard, at), w in sorted(starts.items())]
    if width_us:
        rows = in_sums(rows, width_us)
    last = max(row.until_us for row in rows)
    return Read(rows, list(SHARDS), {"w1"}, {"w1"}, {"mail": knobs}, 16, 0, last, 0)


def in_sums(rows: list[Counted], width_us: int) -> list[Counted]:
    kept: dict[tuple[int, int], list[Counted]] = {}
    for row in rows:
        kept.setdefault((row.shard_id, row.until_us // width_us), []).append(row)
    return [
        Counted(shard, at * width_us, group[-1].until_us,
                summed(each for row in group for each in row.usage))
        for (shard, at), group in sorted(kept.items())
    ]  # fmt: skip


ARRIVALS = sorted(
    [n * SECOND_US // 5 for n in range(1_500)]
    + [(35 + 100 * k) * SECOND_US + n for k in range(3) for n in range(600)]
)
"""Five a second for five minutes, and three bursts of 600."""


MANY = [at for k in range(3) for at in [(5 + 30 * k) * SECOND_US] * 1_000]
"""Bursts of a thousand, which the slots work off for 12.5 s."""


def simulated(read: Read, *texts: str) -> Simulation:
    return compare(read, "mail", "default", variants(texts), JOBS)


@pytest.mark.parametrize("width_us", [0, MINUTE_US], ids=["settlements", "minutes"])
def test_the_same_knobs_reproduce_the_waits(width_us: int) -> None:
    found = simulated(journal(QueueSettings(rate=15.0), ARRIVALS, width_us=width_us))
    assert found.happened.wait_s.p99 == pytest.approx(39, rel=0.1)
    assert found.error.p99 is not None
    assert abs(found.error.p99) < 0.2, found
    assert (found.summed > 0) is bool(width_us)
    assert any("as a direction" in note for note in found.notes) is bool(width_us)
    assert found.attempts == len(ARRIVALS)


@pytest.mark.parametrize("width_us", [0, MINUTE_US], ids=["settlements", "minutes"])
def test_other_knobs_are_foretold(width_us: int) -> None:
    before = simulated(
        journal(QueueSettings(rate=15.0), ARRIVALS, width_us=width_us),
        "rate=30", "rate=30 workers=4",
    )  # fmt: skip
    after = simulated(journal(QueueSettings(rate=30.0), ARRIVALS))
    for variant in before.variants:
        assert variant.wait_s.p99 == pytest.approx(
            after.happened.wait_s.p99, rel=0.4 if width_us else 0.2
        )
    assert before.variants[0].knobs == "rate=30 workers=1 slots=16"
    assert before.replayed.limited is not None
    assert before.replayed.limited.rate > 0.4
    assert before.happened.limited is None


def test_a_fleet_that_is_slower_than_its_knobs_say_has_a_drag() -> None:
    """A slot that is taken again only after a fifth of a handler's time."""
    slots = QueueSettings(rate=1_000.0)
    exact, dragged = (simulated(journal(slots, MANY, gap_us=gap)) for gap in (0, 40_000))
    assert dragged.drag - exact.drag == pytest.approx(0.2, abs=0.06)
    assert dragged.error.p99 == pytest.approx(0.0, abs=0.06)


def test_a_long_history_is_run_in_fewer_jobs_with_nearly_the_same_answer() -> None:
    read = journal(QueueSettings(rate=15.0), ARRIVALS, width_us=MINUTE_US)
    coarse = compare(read, "mail", "default", (), 400)
    assert coarse.together == 9
    assert coarse.error.p99 is not None
    assert abs(coarse.error.p99) < 0.25


def test_what_is_not_simulated_is_said() -> None:
    read = journal(QueueSettings(rate=15.0), ARRIVALS)
    read.knobs = {"mail": QueueSettings(rate=15.0, concurrency="auto", owner="pay")}
    read.slots, read.changes, read.owners_all = None, 2, {"w1", "w2"}
    notes = " / ".join(simulated(read).notes)
    for part in ("16 each", "since then: 2", "2 workers", "not simulated: concurrency"):
        assert part in notes
    assert "owner" not in notes


# --- what is asked --------------------------------------------------------------------------------


def test_variants_are_read() -> None:
    first, second = variants(["rate=50,concurrency=20", "rate=default slots=8"], workers=3)
    assert first == Variant({"rate": 50.0, "concurrency": 20}, 3)
    assert second == Variant({"rate": None}, 3, 8)
    assert second.text == "rate=default workers=3 slots=8"
    assert variants([], workers=3) == (Variant({}, 3),)
    assert variants([]) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed=3", "no such knob"), ("rate", "expected name=value"), ("rate=fast", "a number"),
        ("rate=-1", "rate must be"), ("fair_key=tenant", "cannot be simulated"),
        ("concurrency=auto", "cannot be simulated"), ("workers=0", "workers must be 1..1000"),
        ("workers=two", "whole number"), ("", "without a knob"),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_is_refused(text: str, said: str) -> None:
    with pytest.raises((ConfigError, InvalidPolicy), match=said):
        variants([text])


def test_more_workers_than_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 shards"):
        simulated(journal(QueueSettings(rate=15.0), ARRIVALS), "workers=5")


# --- the command and the route --------------------------------------------------------------------


def keep(url: str, read: Read) -> None:
    """Write the rows into the journal, the last of them just now."""
    with Control(url) as control:
        now = control.now()
    with transaction(url) as connection:
        for shard in read.shards:
            place = {"consumer_group": "default", "shard_id": shard}
            connection.execute(insert(lease).values(**place, epoch=1))
            rows = [row for row in read.rows if row.shard_id == shard]
            for seq, row in enumerate(rows, 1):
                connection.execute(
                    insert(settlement).values(
                        **place, seq=seq, settlement_id=f"{shard}-{seq}", epoch=1, owner="w1",
                        cursor="", open="[]", usage=msgspec.json.encode(row.usage).decode(),
                        settled_at_us=now - read.now_us + row.until_us,
                    )
                )  # fmt: skip


def test_the_command_prints_what_happened_beside_what_would_have(cli: Cli) -> None:  # noqa: F811
    keep(cli.url, journal(QueueSettings(rate=15.0), ARRIVALS))
    cli.fine("queue", "set", "mail", "rate=15")
    asked = ("simulate", "--queue", "mail", "--since", "1h", "--set", "rate=30")
    shown = cli.fine(*asked)
    for part in ("happened", "replayed", "error", "wait p99", "limited by rate", "1: rate=30"):
        assert part in shown.out
    assert "changes of the queue's knobs" in shown.err
    found = cli.fine(*asked, "--json").json
    assert set(found) == set(Simulation.__struct_fields__)
    assert abs(found["error"]["p99"]) < 0.2
    assert found["variants"][0]["wait_s"]["p99"] < found["replayed"]["wait_s"]["p99"] / 2


def test_bad_input_of_the_command_is_one_line(cli: Cli) -> None:  # noqa: F811
    assert "has no journal" in cli.refused("simulate", "--queue", "mail")
    keep(cli.url, journal(QueueSettings(rate=15.0), ARRIVALS[:50]))
    assert "no attempt of queue 'nope'" in cli.refused("simulate", "--queue", "nope")
    assert "too short" in cli.refused("simulate", "--queue", "mail", "--since", "5s")
    assert "no such knob" in cli.refused("simulate", "--queue", "mail", "--set", "x=1")


async def test_the_route_answers_the_same(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        keep(it.url, journal(QueueSettings(rate=15.0), ARRIVALS))
        path = "/v1/queues/mail/simulation?since=1h&variants=rate=30,burst=30;workers=2"
        answer = await it.call("GET", path)
        assert answer.status == 200, answer
        knobs = [each["knobs"] for each in answer.json["variants"]]
        assert knobs == ["rate=30 burst=30 workers=1 slots=16", "workers=2 slots=16"]
        refused = await it.call("GET", "/v1/queues/nope/simulation")
        assert (refused.status, refused.json["error"]) == (400, "bad_request")
