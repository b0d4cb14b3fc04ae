"""The total CPU, the largest step up, and times at which nothing is made smaller."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from late.autoscaler import policy as policies
from late.autoscaler.decide import Observation, State, decide
from late.autoscaler.metrics.file import FileSource
from late.autoscaler.policy import Hint, Policy, Window
from late.autoscaler.simulation import traces
from late.autoscaler.simulation.baselines import LatePolicy
from late.autoscaler.simulation.simulator import compare, simulate
from late.autoscaler.simulation.traces import DAY, Conditions, Trace
from late.autoscaler.time_windows import contains
from late.errors import ConfigError

NOW = 1_800_000_000_000_000
MINUTE = 60_000_000
NIGHT = "at = '01:00'\nminutes = 240"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target_cpu_total = 120", ("target_cpu_total = 120", "<= 100")),
        ("target_cpu_total = 0", ("target_cpu_total = 0",)),
        ("units = 'shards'\ntarget_cpu_total = 70", ("target_cpu_total = 70", "shard")),
        ("up_percent_max = 0", ("up_percent_max = 0",)),
        ("up_percent_max = 2000", ("up_percent_max = 2000", "<= 1000")),
        ("down_only = '1-5'", ("down_only = '1-5'", "array")),
        (f"[[down_only]]\n{NIGHT}\nsize = 2", ("size",)),
        (f"[[down_only]]\n{NIGHT}\n[[down_never]]\n{NIGHT}", ("down_only and down_never",)),
        ("[[down_never]]\nat = '1'\nminutes = 5", ("down_never[0].at = '1'",)),
        ("[[down_never]]\nat = '01:00'\nminutes = 0", ("down_never[0].minutes = 0",)),
        (f"[[down_never]]\n{NIGHT}\nzone = 'Mars/X'", ("down_never[0].zone = 'Mars/X'",)),
        (f"[[down_only]]\n{NIGHT}\ndays = ['someday']", ("down_only[0].days", "someday")),
    ],
)
def test_a_wrong_value_is_refused_with_field_and_value(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        policies.parse(f"min = 1\nmax = 4\n{text}", "sizes.toml")
    for word in words:
        assert word in str(error.value)


def looked(policy: Policy, size: int, cpu: float, total: float | None = None) -> Any:
    return decide(policy, Observation(size, NOW, cpu, cpu_total=total), State(), NOW)[0]


@pytest.mark.parametrize(
    ("cpu", "total", "wanted"),
    [
        (65, 70, 10),  # both as they are to be
        (40, 84, 12),  # 10 * 84 / 70: work of low priority asks for more
        (80, 72, 13),  # 10 * 80 / 65: the high one does
        (20, 75, 10),  # the total is within its margin: no reason to make it smaller
    ],
)
def test_of_two_targets_the_one_counts_that_asks_for_more(
    cpu: float, total: float, wanted: int
) -> None:
    policy = Policy(min=1, max=100, target_cpu_total=70, smooth=1)
    assert looked(policy, 10, cpu, total).wanted == wanted


def test_scale_in_needs_both_below() -> None:
    policy = Policy(min=1, max=100, target_cpu_total=70, smooth=1, stable_s=0)
    assert looked(policy, 10, 20, 35).to_size == 5  # 10 * 35 / 70, and not 10 * 20 / 65
    assert looked(policy, 10, 32.5, 35).to_size == 5


def test_a_total_at_its_ceiling_is_no_overload() -> None:
    """Work of low priority may take what is left, and it is asked for in proportion."""
    policy = Policy(min=1, max=100, target_cpu_total=90, smooth=1)
    found = looked(policy, 10, 30, 100)
    assert (found.rule, found.to_size) == ("linear", 12)


@pytest.mark.parametrize(
    ("total", "words"), [(None, "no metrics of the total"), (-1.0, "not a possible")]
)
def test_without_the_total_the_size_is_held(total: float | None, words: str) -> None:
    found = looked(Policy(min=1, max=100, target_cpu_total=70), 10, 20, total)
    assert (found.rule, found.to_size) == ("hold", 10)
    assert words in found.why


@pytest.mark.parametrize(
    ("size", "percent", "reached"), [(10, 20, 12), (10, 25, 12), (3, 20, 4), (10, 100, 20)]
)
def test_a_step_up_is_at_most_a_share_of_the_size(size: int, percent: float, reached: int) -> None:
    """In an overload too; and never less than one size, or a small database would never grow."""
    found = looked(Policy(min=1, max=100, up_percent_max=percent, overload_factor=5), size, 99)
    assert found.to_size == reached


def test_the_smaller_of_two_limits_counts() -> None:
    policy = Policy(min=1, max=100, up_percent_max=50, up_step_max=2)
    assert looked(policy, 10, 99).to_size == 12
    units = Policy(min=100, max=9000, units="processing_units", up_percent_max=10)
    assert looked(units, 500, 99).to_size == 600
    assert looked(units, 2000, 99).to_size == 3000


@pytest.mark.parametrize("percent", [None, 100])
@pytest.mark.parametrize(
    ("units", "size", "step", "reached"),
    [
        ("shards", 8, 2, 16),
        ("processing_units", 500, 10, 600),
        ("processing_units", 1000, 100, 2000),
        ("processing_units", 3000, 999, 4000),
        ("processing_units", 3000, 1999, 4000),
    ],
)
def test_a_limit_below_the_next_size_lets_it_grow_by_that(
    units: Any, size: int, step: int, reached: int, percent: float | None
) -> None:
    policy = Policy(min=1, max=9000, units=units, up_step_max=step, up_percent_max=percent,
                    overload_factor=5)  # fmt: skip
    assert looked(policy, size, 99).to_size == reached


@pytest.mark.parametrize(
    ("units", "size", "percent", "reached"),
    [("nodes", 3, 25, 2), ("shards", 16, 25, 8), ("processing_units", 3000, 25, 2000)],
)
def test_a_share_below_the_next_size_lets_it_shrink_by_that(
    units: Any, size: int, percent: float, reached: int
) -> None:
    policy = Policy(min=1, max=9000, units=units, down_percent_max=percent, stable_s=0, smooth=1)
    assert looked(policy, size, 5).to_size == reached


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


@pytest.mark.parametrize(
    ("field", "when", "may"),
    [
        ("down_only", "2026-01-06T02:30", True),
        ("down_only", "2026-01-06T12:00", False),
        ("down_only", "2026-01-06T23:30", False),  # of the next window's day before
        ("down_never", "2026-01-06T02:30", False),
        ("down_never", "2026-01-06T12:00", True),
    ],
)
def test_nothing_is_made_smaller_when_it_may_not_be(field: str, when: str, may: bool) -> None:
    window = Window(at="01:00", minutes=240)
    policy = Policy(min=1, max=100, stable_s=0, smooth=1, **{field: (window,)})  # type: ignore[arg-type]
    now = at(when)
    found, _ = decide(policy, Observation(10, now, 20.0), State(), now)
    assert found.changes is may
    assert (field in found.why) is not may
    grown, _ = decide(policy, Observation(10, now, 99.0), State(), now)
    assert grown.to_size > 10, "more is never forbidden"
    full, _ = decide(policy, Observation(1, now, 20.0, storage_bytes=80 * 2**40), State(), now)
    assert full.to_size > 1


@pytest.mark.parametrize(
    ("begin", "minutes", "when", "inside"),
    [
        # Berlin, spring: at 01:00 UTC the clock goes from 02:00 to 03:00.
        ("01:00", 240, "2026-03-28T23:59", False),
        ("01:00", 240, "2026-03-29T00:00", True),
        ("01:00", 240, "2026-03-29T02:59", True),
        ("01:00", 240, "2026-03-29T03:00", False),  # 05:00, an hour sooner than on other days
        ("22:00", 480, "2026-03-29T03:59", True),
        ("22:00", 480, "2026-03-29T04:00", False),
        ("02:30", 60, "2026-03-29T00:59", False),
        ("02:30", 60, "2026-03-29T01:00", True),  # 03:00: the half hour that is left of it
        ("02:30", 60, "2026-03-29T01:30", False),
        # Autumn: at 01:00 UTC it goes from 03:00 back to 02:00.
        ("01:00", 240, "2026-10-24T23:00", True),
        ("01:00", 240, "2026-10-25T03:59", True),
        ("01:00", 240, "2026-10-25T04:00", False),  # 05:00, an hour later
        ("22:00", 480, "2026-10-25T04:59", True),
        ("22:00", 480, "2026-10-25T05:00", False),
        ("02:15", 30, "2026-10-25T00:20", True),
        ("02:15", 30, "2026-10-25T00:50", False),
        ("02:15", 30, "2026-10-25T01:20", True),  # once more
    ],
)
def test_a_window_goes_by_the_clock_when_that_is_changed(
    begin: str, minutes: int, when: str, inside: bool
) -> None:
    window = Window(at=begin, minutes=minutes, zone="Europe/Berlin")
    assert contains(window, at(when)) is inside


def test_the_simulator_keeps_to_the_hours() -> None:
    load = tuple(20.0 if 480 <= i % DAY < 1200 else 8.0 for i in range(2 * DAY))
    night = Policy(min=1, max=100, down_only=(Window(at="02:00", minutes=180),))
    run = simulate(Trace("days", load, Conditions(noise=0)), LatePolicy(night), night, name="late")
    downs = [i for i in range(1, len(run.size)) if run.size[i] < run.size[i - 1]]
    assert downs
    assert all(120 <= i % DAY <= 305 for i in downs)


def test_the_simulator_sizes_for_work_of_low_priority() -> None:
    policy = Policy(min=1, max=100, target_cpu_total=80)
    trace = Trace("low", (5.0,) * 300, Conditions(noise=0), low=(11.0,) * 300)
    run = simulate(trace, LatePolicy(policy), policy, name="late")
    assert run.size[-1] == 20  # 16 at 80 %; 5 at 65 % would do with 8
    assert run.figures.within == 1.0
    assert run.figures.cost_clairvoyant == pytest.approx(1.0, abs=0.01)
    plain = simulate(trace, LatePolicy(Policy(min=1, max=100)), Policy(min=1, max=100), name="late")
    assert plain.size[-1] == 8


def test_a_trace_may_say_when_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("at,load\n2026-01-09T18:00:00Z,3\n2026-01-09T18:01:10Z,4\n")
    assert traces.read(path).start_us == at("2026-01-09T18:00")
    path.write_text("at,load\n2026-01-09T18:00:00Z,3\n2026-01-09T18:05:00Z,4\n")
    with pytest.raises(ConfigError, match=r"line 3: at = '2026-01-09T18:05:00Z' is not minute 2"):
        traces.read(path)
    path.write_text("at,load\n2026-01-09T18:00:00,3\n")
    with pytest.raises(ConfigError, match=r"line 2: at = .* no time zone"):
        traces.read(path)


def test_the_simulator_says_which_rule_made_the_steps() -> None:
    hint = Hint(at="18:00", minutes=600, size=30)
    policy = Policy(min=1, max=40, hints=(hint,))
    trace = Trace("flat", (5.0,) * 120, Conditions(noise=0), start_us=at("2026-01-09T17:30"))
    run, *others = compare(trace, policy)
    assert run.by_rule == {"hint": 1}
    assert run.size[-1] == 30
    assert not any(other.by_rule for other in others)


def test_files_may_have_the_total(tmp_path: Path) -> None:
    (tmp_path / "cpu.csv").write_text("at,cpu,size,cpu_total\n1000000,40,10,71.5\n")
    assert FileSource(tmp_path / "cpu.csv").read(0).cpu_total == 71.5
    (tmp_path / "load.csv").write_text("load,low\n3,1.5\n4,2\n")
    assert traces.read(tmp_path / "load.csv").low == (1.5, 2.0)
    (tmp_path / "load.csv").write_text("load,low\n3,much\n")
    with pytest.raises(ConfigError, match="line 2: low = 'much'"):
        traces.read(tmp_path / "load.csv")
    (tmp_path / "load.csv").write_text("load,low\n3,1\n4\n")
    with pytest.raises(ConfigError, match="`low` is missing"):
        traces.read(tmp_path / "load.csv")
