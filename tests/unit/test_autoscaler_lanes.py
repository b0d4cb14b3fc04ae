"""The shards of a lane as something that is sized."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import late
from late.autoscaler import policy
from late.autoscaler.autoscaler import Autoscaler, Term
from late.autoscaler.keda.demand import Signals
from late.autoscaler.simulation import simulator, traces
from late.autoscaler.simulation.baselines import LatePolicy
from late.autoscaler.targets.lanes import LaneSizer, LaneSource, load
from late.control import Control
from late.errors import ConfigError, StoreUnavailable
from tests.support import sqlite

QUIET = Signals(backlog=0, age_s=0, rate=0, busy_s=0, workers=1, shards=8)
LANE = policy.policy_from({"units": "shards", "min": 4, "max": 64})


def signals(**fields: Any) -> Signals:
    return msgspec.structs.replace(QUIET, **fields)


def test_the_load_is_pace_and_backlog_of_the_busiest_group() -> None:
    seen = [signals(rate=500, backlog=60_000), signals(rate=900), QUIET]
    assert load(seen, shard_rate=100, drain_s=60) == pytest.approx((500 + 1000) / 100)
    assert load([], shard_rate=100, drain_s=60) == 0


@given(size=st.integers(1, 4096))
def test_shards_come_in_powers_of_two(size: int) -> None:
    above, below = LANE.size_at_least(size), LANE.size_at_most(size)
    assert below <= size <= above
    assert above & (above - 1) == below & (below - 1) == 0
    assert above < 2 * size
    assert below * 2 > size
    assert LANE.size_at_least(above) == LANE.size_at_most(above) == above


def test_other_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match="min = 3: shards come in powers of two"):
        policy.policy_from({"units": "shards", "min": 3, "max": 64})


class Journal:
    def __init__(self) -> None:
        self.now_us = 1_000_000_000
        self.results: list[str] = []
        self.up_us: int | None = None
        self.down_us: int | None = None

    def hold(self, controller: str, owner: str, ttl_s: float) -> Term:
        return Term(controller, owner, 1, self.now_us, self.up_us, self.down_us)

    def looked(self, term: Term, text: str) -> None:
        self.results.append(text)

    def record(self, term: Term, decision: Any, result: str) -> int:
        if result == "started":
            up = decision.to_size > decision.from_size
            self.up_us, self.down_us = (self.now_us, None) if up else (None, self.now_us)
        return len(self.results)

    def finish(self, term: Term, seq: int, result: str) -> None:
        self.results.append(result)

    def give_back(self, term: Term) -> None: ...


def scaled(width: list[int], seen: Signals, journal: Journal, **wanted: Any) -> Autoscaler:
    source = LaneSource(lambda: width[-1], lambda: [seen], shard_rate=100, drain_s=60)
    sizer = LaneSizer("default", lambda: width[-1], width.append)
    return Autoscaler(msgspec.structs.replace(LANE, **wanted), source, sizer, journal, owner="me")


def test_a_lane_grows_with_its_load_and_says_why() -> None:
    width, journal = [8], Journal()
    decision = scaled(width, signals(rate=1_000), journal).look()
    assert decision is not None
    # 10 shards' worth on 8: more than the figures can tell, so it is doubled.
    assert (width, decision.rule, decision.inputs["load"]) == ([8, 16], "overload", 10.0)
    journal.now_us += 600_000_000
    decision = scaled(width, signals(rate=1_500), journal, overload_cpu=100.0).look()
    assert decision is not None
    assert (width[-1], decision.rule) == (32, "linear")
    assert journal.results == ["applied", "applied"]


def test_a_lane_shrinks_after_its_stable_window_only() -> None:
    width, journal = [32], Journal()
    scaler = scaled(width, signals(rate=100), journal)
    for _ in range(4):
        scaler.look()
        assert width == [32]
        journal.now_us += 60_000_000
    for _ in range(3):
        scaler.look()
        journal.now_us += 60_000_000
    assert width == [32, 4]


def test_what_cannot_be_read_or_is_refused_changes_nothing() -> None:
    def away() -> Any:
        raise StoreUnavailable("the database is away")

    width, journal = [8], Journal()
    scaler = scaled(width, signals(rate=10_000), journal)
    scaler._source = LaneSource(lambda: 8, away, shard_rate=100, drain_s=60)
    decision = scaler.look()
    assert decision is not None
    assert (decision.rule, decision.changes, width) == ("hold", False, [8])

    def refuse(shards: int) -> None:
        raise ConfigError("resized a moment ago")

    scaler = scaled(width, signals(rate=10_000), journal)
    scaler._sizer = LaneSizer("default", lambda: 8, refuse)
    scaler.look()
    assert journal.results[-1].startswith("failed: refused: resized a moment ago")


@pytest.mark.parametrize("name", ["daily", "friday"])
def test_on_the_shipped_traces_it_turns_rarely_and_never_runs_hot(name: str) -> None:
    trace = traces.SHIPPED[name]()
    lane = msgspec.structs.replace(LANE, stable_s=1800.0, down_cooldown_s=3600.0)
    figures = simulator.simulate(trace, LatePolicy(lane), lane, name="late").figures
    days = len(trace.load) / traces.DAY
    assert figures.turns == 0
    assert figures.hot < 0.005
    assert figures.steps <= 8 * days  # each one holds the keys that it moves for seconds
    assert figures.cost_peak < 0.7


def test_a_lane_of_a_real_database(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "a.db")
    with Control(url) as control:

        def width() -> int:
            found = control.lanes.layout().lane("default")
            assert found is not None
            return found.shards

        sizer = LaneSizer("default", width, lambda shards: control.lanes.resize("default", shards))
        source = LaneSource(
            width, lambda: control.status.signals([("default", None)]), shard_rate=100, drain_s=60
        )
        scaler = Autoscaler(LANE, source, sizer, control.autoscalers.journal(), owner="me")
        assert control.lanes.resize("default", 64).version == 1
        control.lanes.advance()
        policy_now = msgspec.structs.replace(LANE, stable_s=0.0)
        scaler = Autoscaler(policy_now, source, sizer, control.autoscalers.journal(), owner="me")
        scaler.look()
        [decision] = control.autoscalers.decisions()
        assert (decision.controller, decision.from_size, decision.to_size) == (
            "lane:default", 64, 4,
        )  # fmt: skip
        assert decision.result == "applied"
        assert [width(), control.lanes.all()[0].version] == [4, 2]


def test_shards_that_the_lane_has_no_more_are_marked_and_no_place_for_workers(
    tmp_path: Path,
) -> None:
    url = sqlite.database(tmp_path / "a.db")
    app = late.App(url, shards=8)

    @app.task(queue="mail")
    def send(number: int) -> None:
        pass

    with sqlite3.connect(tmp_path / "a.db") as tx:
        app.enqueue_many(tx, [send.call(n) for n in range(64)])
    with Control(url) as control:
        control.lanes.resize("default", 2)
        old = {each.shard_id for each in control.status.read().shards if each.old}
        assert old == {2, 3, 4, 5, 6, 7}
        [seen] = control.status.signals([("default", None)])
        assert seen.shards == 8, "what is in them is work"
        with sqlite3.connect(tmp_path / "a.db") as tx:
            tx.execute("delete from late_task")
            tx.execute(
                "insert into late_lease (consumer_group, shard_id, epoch, owner)"
                " values ('default', 7, 1, 'w')"
            )
        assert [each.shard_id for each in control.status.read().shards if each.old] == [7]
        [seen] = control.status.signals([("default", None)])
        assert seen.shards == 2
