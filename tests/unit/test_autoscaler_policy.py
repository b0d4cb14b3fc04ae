"""The policy's file is refused with field and value named; the decision keeps its promises."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late.autoscaler import policy as policies
from late.autoscaler.decide import Decision, Observation, State, after_step, decide
from late.autoscaler.forecast import SLOT_US, WEEK_US, forecast
from late.autoscaler.policy import Hint, Policy, Window
from late.autoscaler.time_windows import contains
from late.errors import ConfigError

MINUTE = 60_000_000
START = 1_800_000_000_000_000


@dataclasses.dataclass
class Run:
    """Readings a minute apart, each decided and carried out."""

    policy: Policy
    size: int
    now_us: int = START
    state: State = dataclasses.field(default_factory=State)

    def look(self, cpu: float | None, *, age_us: int = 0, **more: Any) -> Decision:
        at_us = None if cpu is None else self.now_us - age_us
        seen = Observation(size=self.size, at_us=at_us, cpu=cpu, **more)
        decision, self.state = decide(self.policy, seen, self.state, self.now_us)
        self.state = after_step(decision, self.state)
        self.size = decision.to_size
        self.now_us += MINUTE
        return decision

    def quiet(self, minutes: int, cpu: float) -> Decision:
        for _ in range(minutes - 1):
            self.look(cpu)
        return self.look(cpu)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min = 5\nmax = 3", ("min = 5", "max = 3")),
        ("min = 1\nmax = 3\ntarget_cpu = 120", ("target_cpu = 120", "<= 100")),
        ("min = 1\nmax = 3\nmaxx = 4", ("maxx",)),
        ("min = 0\nmax = 3", ("min = 0",)),
        ("max = 3", ("min",)),
        ("min = 1\nmax = 'x'", ("max = 'x'",)),
        ("min = 1\nmax = 3\nmethod = 'magic'", ("method = 'magic'",)),
        ("min = 250\nmax = 3000\nunits = 'processing_units'", ("min = 250", "hundreds")),
        ("min = 1\nmax = 3\ntarget_cpu = 88\nmargin = 5", ("overload_cpu = 90", "88 + 5")),
        ("min = 1\nmax = 3\ndown_cooldown_s = -1", ("down_cooldown_s = -1",)),
        ("min = 1\nmax = 3\n[[hints]]\nat = '25:00'\nminutes = 5\nsize = 2", ("hints[0].at", "25")),
        (
            "min = 1\nmax = 3\n[[hints]]\nat = '18:00'\nminutes = 5\nsize = 9",
            ("hints[0].size = 9", "1..3"),
        ),
        (
            "min = 1\nmax = 3\n[[hints]]\nat = '18:00'\nminutes = 5\nsize = 2\nzone = 'Mars/X'",
            ("hints[0].zone = 'Mars/X'",),
        ),
        ("min = ", ("not TOML",)),
        ("", ("min is missing",)),
        ("min = 1\nmax = 3\nmaxx = 4", ("maxx = 4: no such field; did you mean max?",)),
        ("min = 1\nmax = 3\n[limits]\nup = 3", ("limits = {'up': 3}: no such field",)),
        (
            "min = 1\nmax = 3\n[[hints]]\nat = '18:00'\nminutes = 5\nsize = 2\nsise = 9",
            ("hints[0].sise = 9: no such field; did you mean size?",),
        ),
        ("min = 1\nmax = 3\n[[hints]]\nat = '18:00'\nsize = 2", ("hints[0].minutes is missing",)),
        ("min = 1\nmax = 3\n[hints]\nat = '18:00'", ("hints = ", "[[hints]]")),
        ("min = 1\nmax = 3\nmethod = 'Linear'", ("one of linear, stepwise, direct",)),
        (
            "min = 1\nmax = 3\n[[hints]]\nat = '18:00'\nminutes = 5\nsize = 2\ndays = ['friday']",
            ("hints[0].days[0] = 'friday'", "one of mon, tue"),
        ),
        ("min = '1'\nmax = 3", ("min = '1'", "`int`")),
        ("min = 1\nmax = 3\nstorage_per_node_gib = inf", ("storage_per_node_gib = inf",)),
        (
            "min = 1000\nmax = 3000\nunits = 'processing_units'\ndown_step_max = 100",
            ("down_step_max = 100", "max = 3000", "1000 less"),
        ),
        ("min = 4\nmax = 64\nunits = 'shards'\npredict_weeks = 3", ("predict_weeks = 3",)),
        ("min = 4\nmax = 64\nunits = 'shards'\ndown_step_max = 16", ("down_step_max = 16", "32")),
    ],
)
def test_a_wrong_policy_is_refused_with_field_and_value(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        policies.parse(text, "sizes.toml")
    assert "sizes.toml" in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        policies.read(tmp_path / "nothing.toml")


def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"Is a directory$"):
        policies.read(tmp_path)
    path = tmp_path / "sizes.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"sizes\.toml is not text in UTF-8"):
        policies.read(path)

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ConfigError, match=r"sizes\.toml: Permission denied$"):
        policies.read(path)


def test_targets_are_googles_guidance_unless_one_is_given() -> None:
    assert policies.parse("min=1\nmax=2").target == 65
    assert policies.parse("min=1\nmax=2\ntopology='multi-regional'").target == 45
    assert policies.parse("min=1\nmax=2\ntarget_cpu=50").target == 50


def test_processing_units_come_in_the_sizes_that_exist() -> None:
    policy = Policy(min=100, max=10_000, units="processing_units")
    assert [policy.size_at_least(s) for s in (1, 100, 101, 950, 1001, 2000)] == [
        100, 100, 200, 1000, 2000, 2000,
    ]  # fmt: skip
    assert [policy.size_at_most(s) for s in (99, 199, 999, 1999, 2000)] == [
        100, 100, 900, 1000, 2000,
    ]  # fmt: skip


def test_linear_goes_where_the_target_is_met() -> None:
    run = Run(Policy(min=1, max=100), 10)
    assert (run.look(80).to_size, run.size) == (13, 13)  # 10 * 80 / 65 = 12.3


def test_stepwise_goes_one_step_and_back() -> None:
    run = Run(Policy(min=1, max=100, method="stepwise", step=2, stable_s=0, smooth=1), 10)
    assert run.look(80).to_size == 12
    run.now_us += 3600 * 1_000_000
    assert run.look(40).to_size == 10


def test_direct_goes_to_the_maximum() -> None:
    assert Run(Policy(min=1, max=40, method="direct"), 10).look(5).to_size == 40


@pytest.mark.parametrize("cpu", [60.0, 65.0, 70.0])
def test_within_the_margin_nothing_moves(cpu: float) -> None:
    assert not Run(Policy(min=1, max=100), 10).look(cpu).changes


def test_an_overload_multiplies_and_does_not_wait_for_the_step_before() -> None:
    run = Run(Policy(min=1, max=100), 10)
    assert [run.look(98).to_size for _ in range(3)] == [20, 40, 80]


def test_an_overload_right_after_a_step_down_waits_for_the_cooldown() -> None:
    run = Run(Policy(min=1, max=100, smooth=1, stable_s=0, down_cooldown_s=0), 20)
    assert run.look(30).to_size == 10
    assert not any(run.look(99).changes for _ in range(4))
    assert run.look(99).to_size == 20


def test_an_overload_that_was_measured_before_the_last_step_does_not_count_again() -> None:
    run = Run(Policy(min=1, max=100), 10)
    assert run.look(98).to_size == 20
    again = run.look(98, age_us=2 * MINUTE, measured_size=12)
    assert again.to_size == 20
    assert "before the last step" in again.why


def test_a_reading_before_the_last_step_without_its_size_says_nothing() -> None:
    run = Run(Policy(min=1, max=100, up_cooldown_s=0, down_cooldown_s=0, stable_s=0, smooth=1), 10)
    assert run.look(84).to_size == 13
    for cpu in (84, 99, 10):
        decision = run.look(cpu, age_us=2 * MINUTE)
        assert not decision.changes
        assert "before the last step" in decision.why
        run.now_us -= MINUTE
    assert run.look(84, age_us=0).to_size == 17


def test_a_reading_of_the_old_size_asks_for_nothing_twice() -> None:
    run = Run(Policy(min=1, max=100, up_cooldown_s=0, smooth=1), 10)
    assert run.look(84).to_size == 13
    assert not run.look(84, measured_size=10).changes


def test_a_step_down_waits_for_a_whole_stable_window() -> None:
    run = Run(Policy(min=1, max=100, stable_s=600, smooth=1, down_cooldown_s=0), 20)
    assert not run.quiet(10, 30).changes
    assert run.look(30).to_size == 10


def test_a_step_down_goes_only_to_what_the_window_was_content_with() -> None:
    run = Run(Policy(min=1, max=100, stable_s=600, smooth=1, down_cooldown_s=0), 20)
    run.look(52)
    assert run.quiet(10, 20).to_size == 16  # 20 * 52 / 65


def test_a_gap_starts_the_window_again() -> None:
    run = Run(Policy(min=1, max=100, stable_s=600, stale_s=120, smooth=1, down_cooldown_s=0), 20)
    run.quiet(9, 30)
    run.now_us += 5 * MINUTE
    assert not run.look(30).changes
    assert run.quiet(10, 30).to_size == 10


def test_cooldowns_up_and_down() -> None:
    policy = Policy(min=1, max=100, smooth=1, stable_s=0, up_cooldown_s=300, down_cooldown_s=1800)
    run = Run(policy, 10)
    assert run.look(80).to_size == 13
    assert "waits" in run.look(80).why
    sizes = [run.look(30).to_size for _ in range(40)]
    assert sizes.index(6) == 28  # the 30th minute after the step up


def test_limits_of_one_step() -> None:
    policy = Policy(min=1, max=100, up_step_max=3, down_percent_max=10, down_cooldown_s=0,
                    up_cooldown_s=0, stable_s=0, smooth=1)  # fmt: skip
    assert Run(policy, 20).look(95).to_size == 23
    assert Run(policy, 20).look(10).to_size == 18


@pytest.mark.parametrize(
    ("cpu", "age_us", "words"),
    [(None, 0, "no metrics"), (99.0, 11 * MINUTE, "660 s old"), (99.0, -11 * MINUTE, "ahead"),
     (float("nan"), 0, "not a possible")],
)  # fmt: skip
def test_without_fresh_metrics_the_size_is_held(cpu: float | None, age_us: int, words: str) -> None:
    decision = Run(Policy(min=1, max=100), 10).look(cpu, age_us=age_us)
    assert not decision.changes
    assert decision.rule == "hold"
    assert words in decision.why


def test_storage_is_a_floor_that_is_met_at_once() -> None:
    policy = Policy(min=1, max=100, storage_per_node_gib=1024, stable_s=0, up_step_max=1)
    run = Run(policy, 2)
    decision = run.look(50, storage_bytes=5 * 2**40)
    assert (decision.to_size, decision.rule) == (7, "storage")  # 5 TiB at 75 % of 1 TiB
    run.now_us += 3600 * 1_000_000
    assert run.look(1, storage_bytes=5 * 2**40).to_size == 7


def test_databases_need_processing_units() -> None:
    policy = Policy(min=100, max=10_000, units="processing_units")
    assert Run(policy, 100).look(65, databases=35).to_size == 400


def test_the_day_average_asks_for_more() -> None:
    assert Run(Policy(min=1, max=100), 10).look(65, cpu_24h=99).to_size == 11


def test_a_hint_holds_on_its_days_in_its_zone() -> None:
    hint = Hint(at="18:00", minutes=120, size=12, days=("fri",), zone="Europe/Berlin")
    policy = Policy(min=1, max=50, hints=(hint,))

    def wanted(text: str) -> int:
        now = round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)
        return Run(policy, 4, now).look(65).to_size

    # Friday 17:00 UTC is 18:00 in Berlin in winter, 16:00 UTC in summer.
    assert wanted("2026-01-16T16:59") == 4
    assert wanted("2026-01-16T17:00") == 12
    assert wanted("2026-01-16T18:59") == 12
    assert wanted("2026-01-16T19:00") == 4
    assert wanted("2026-01-15T17:30") == 4
    assert wanted("2026-07-17T16:00") == 12


def test_a_hint_over_midnight_goes_on() -> None:
    hint = Hint(at="23:00", minutes=180, size=12, days=("fri",))
    now = round(datetime(2026, 1, 17, 1, 30, tzinfo=UTC).timestamp() * 1e6)
    assert Run(Policy(min=1, max=50, hints=(hint,)), 4, now).look(65).to_size == 12


def risen(policy: Policy, *, by: float, minutes: int = 12) -> Decision:
    """The last look at a load that changes by so many points of CPU a minute, at ten nodes."""
    run = Run(policy, 10)
    for minute in range(minutes):
        run.size = 10  # what is asked for does not come
        decision = run.look(60 + by * minute, measured_size=10)
    return decision


def test_a_rise_is_carried_forward() -> None:
    # Five minutes ago the load was 0.5 nodes less: in ten minutes it is one more than now
    policy = Policy(min=1, max=50, margin=10, smooth=1, trend_lead_s=600, trend_cpu=80)
    plain = risen(Policy(min=1, max=50, margin=10, smooth=1), by=1)
    assert (plain.rule, plain.wanted) == ("within", 10)
    decision = risen(policy, by=1)
    assert (decision.rule, decision.wanted) == ("trend", math.ceil((7.1 + 1.0) / 0.8))
    # Nothing is made smaller because the load falls, nor before there is a past to compare with
    assert risen(policy, by=-0.4).rule == "within"
    assert risen(policy, by=3, minutes=3).rule != "trend"
    # In an overload the CPU does not tell how fast the load rises
    assert risen(policy, by=2.9).rule == "overload"


def test_a_rise_over_a_gap_is_not_seen() -> None:
    policy = Policy(min=1, max=50, margin=10, smooth=1, trend_lead_s=600)
    run = Run(policy, 10)
    run.quiet(5, 50)
    run.now_us += 15 * MINUTE
    assert run.look(70).rule == "within"


def test_a_forecast_asks_for_more_and_never_for_less() -> None:
    policy = Policy(min=1, max=50, stable_s=0)
    assert Run(policy, 10).look(65, forecast=14.0).to_size == 20
    assert Run(policy, 10).look(65, forecast=1.0).to_size == 10


def test_the_forecast_is_the_median_of_the_weeks_and_the_highest_of_the_hour() -> None:
    now = 5 * WEEK_US
    loads = {1: 10.0, 2: 90.0, 3: 12.0}
    at = sorted(now - week * WEEK_US + slot * SLOT_US for week in loads for slot in range(3))
    load = [loads[(now - t + 2 * SLOT_US) // WEEK_US] * (1 + (now - t) % WEEK_US * 0) for t in at]
    assert forecast(at, load, now, weeks=3, lead_us=2 * SLOT_US) == 12.0
    assert forecast(at[-3:], load[-3:], now, weeks=3, lead_us=0) is None


LIVES = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(0, 130)),
        st.integers(0, 20),
        st.integers(1, 12),
        st.one_of(st.none(), st.integers(0, 40 * 2**40)),
        st.one_of(st.none(), st.floats(0, 60)),
    ),
    min_size=1,
    max_size=60,
)


@st.composite
def any_policy(draw: st.DrawFn) -> Policy:
    units = draw(st.sampled_from(["nodes", "processing_units"]))
    scale = 1 if units == "nodes" else 1000
    low = draw(st.integers(1, 20))
    return policies.policy_from(
        msgspec.to_builtins(
            Policy(
                min=low * scale,
                max=(low + draw(st.integers(0, 60))) * scale,
                units=units,
                method=draw(st.sampled_from(["linear", "stepwise"])),
                step=draw(st.integers(1, 5)) * scale,
                up_step_max=draw(st.one_of(st.none(), st.integers(1, 9 * scale))),
                up_percent_max=draw(st.one_of(st.none(), st.floats(1, 200))),
                down_never=draw(st.sampled_from([(), (Window(at="00:00", minutes=720),)])),
                down_step_max=draw(st.one_of(st.none(), st.integers(1, 9).map(scale.__mul__))),
                up_cooldown_s=draw(st.sampled_from([0.0, 300.0])),
                down_cooldown_s=draw(st.sampled_from([0.0, 1800.0])),
                stable_s=draw(st.sampled_from([0.0, 300.0])),
            )
        )
    )


@settings(max_examples=150, deadline=None)
@given(any_policy(), LIVES)
def test_whatever_is_seen_the_promises_hold(policy: Policy, life: list[Any]) -> None:
    """Never below the minimum or the data, above the maximum, faster than the limits, against the
    cool-downs, or on stale or missing metrics."""
    run = Run(policy, policy.max)
    last_change: int | None = None
    room = policy.storage_per_node_gib * 2**30 * policy.storage_fill / 100
    for cpu, age, wait, storage, load in life:
        before, now = run.size, run.now_us
        decision = run.look(cpu, age_us=age * MINUTE, storage_bytes=storage, forecast=load)
        run.now_us += wait * MINUTE
        needed = 0 if storage is None else storage / room * policy.node
        assert policy.size_at_least(decision.to_size) == decision.to_size
        if cpu is None or age * 60 > policy.stale_s:
            assert decision.to_size == before
            continue
        assert policy.min <= decision.to_size <= policy.max
        assert decision.to_size >= min(needed, policy.max)
        forced = before < needed
        if decision.to_size > before and not forced:
            least = policy.size_at_least(before + 1) - before
            assert decision.to_size - before <= max(least, policy.up_step_max or 1e9)
            share = before * (policy.up_percent_max or 1e9) / 100
            assert decision.to_size - before <= max(least, share)
            wait_us = policy.up_cooldown_s * 1e6
            assert (
                decision.rule == "overload" or last_change is None or now - last_change >= wait_us
            )
        if decision.to_size < before:
            assert not any(contains(each, now) for each in policy.down_never)
            assert policy.down_step_max is None or before - decision.to_size <= policy.down_step_max
            assert last_change is None or now - last_change >= policy.down_cooldown_s * 1e6
        if decision.changes:
            last_change = now


def test_a_policy_may_be_yaml(tmp_path: Path) -> None:
    path = tmp_path / "sizes.yaml"
    path.write_text(
        "min: 3\nmax: 60\nhints:\n  - {at: '17:45', minutes: 255, size: 45, days: [fri]}\n"
    )
    found = policies.read(path)
    assert (found.min, found.max, found.hints[0].size) == (3, 60, 45)
    for text, error in (
        ("min: 3\nmax: [", "is not YAML"),
        ("- 3", "expected fields and values"),
        ("min: 9\nmax: 3", "min = 9 is above max = 3"),
        ("min: 3\nmax: 6\nnodes: 4", "nodes"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=error):
            policies.read(path)
