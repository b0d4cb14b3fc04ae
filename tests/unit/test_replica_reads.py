"""Reads on a replica: its lag by positions of the log, and when the primary is read instead."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late import config
from late.control import replica as module
from late.control.replica import AGAIN_S, ReplicaReads
from late.control.status.replication import LagMeter, Position
from late.errors import ConfigError, StoreUnavailable

URL = "postgresql://late:secret@replica/shop"
SPANNER = "spanner:///projects/p/instances/i/databases/d"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30), st.data())
def test_a_lag_is_never_said_to_be_shorter_than_it_is(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Against all positions the primary ever had: the replica has those up to the one it is at."""
    meter, now, position, replayed = LagMeter(), 0, 0, 0
    history = [(0, 0)]
    for seconds, written in steps:
        now += seconds
        position += written
        history.append((position, now))
        meter.add(position, now)
        replayed = data.draw(st.integers(replayed, position))
        lag_s = meter.lag_s(replayed, now)
        missing = [at for written, at in history if written > replayed]
        real_s = now - missing[0] if missing else 0
        assert lag_s is None or lag_s >= real_s
        assert missing or lag_s == 0


def test_a_replica_that_has_reached_nothing_known_has_no_lag() -> None:
    meter = LagMeter()
    assert meter.lag_s(10, 0.0) is None
    meter.add(20, 1.0)
    assert meter.lag_s(10, 5.0) is None
    assert meter.lag_s(20, 5.0) == 4.0


class Server:
    """A `Control` of either side."""

    store = "postgresql"

    def __init__(self, name: str) -> None:
        self.url = name
        self.status = self
        self.server = 7
        self.at: int | None = 0
        self.asked = 0
        self.down = False
        self.closed = False
        self.ages: list[float] = []

    def written(self) -> Position:
        return Position(7, self.at)

    def replayed(self) -> Position:
        self.asked += 1
        if self.down:
            raise StoreUnavailable("connection refused")
        return Position(self.server, self.at)

    def age_s(self) -> float:
        self.asked += 1
        return self.ages.pop(0)

    def close(self) -> None:
        self.closed = True


class Pair:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.primary, self.replica = Server("primary"), Server("replica")
        self.now_s = 0.0
        monkeypatch.setattr(module, "Control", lambda *_, **__: self.replica)
        primary: Any = self.primary
        self.reads = ReplicaReads(
            primary, URL, max_lag_s=2.0, alarm_s=600.0,
            monotonic=lambda: self.now_s, sleep=self.sleep,
        )  # fmt: skip

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def read(self, *, fresh: bool = False) -> str:
        return self.reads.read(lambda control: control.url, fresh=fresh)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(monkeypatch)


def test_a_replica_that_has_all_is_read_at_once_and_for_all(pair: Pair) -> None:
    pair.primary.at = pair.replica.at = 10
    assert (pair.read(), pair.read(fresh=True)) == ("replica", "replica")
    assert pair.now_s == 0.0, "nobody has waited"


def test_a_replica_that_falls_behind_is_read_up_to_the_bound(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "late.control")
    assert pair.read() == "replica"
    pair.primary.at = 10
    pair.now_s = 1.5
    assert pair.read() == "replica", "what it lacks is not older than the look before, 1.6 s ago"
    assert pair.read(fresh=True) == "primary"
    pair.now_s = 2.5
    assert pair.read() == "primary"
    assert pair.read() == "primary"
    pair.replica.at = 10
    assert pair.read() == "replica"
    assert [record.getMessage() for record in caplog.records] == [
        "reads go to the replica postgresql://late:***@replica/shop",
        "reads go to the database, not to the replica postgresql://late:***@replica/shop: "
        "it is over 2 s behind",
        "reads go to the replica postgresql://late:***@replica/shop",
    ]


def test_a_replica_that_does_not_answer_is_left_alone_for_a_while(pair: Pair) -> None:
    pair.replica.down = True
    assert pair.read() == "primary"
    pair.replica.down = False
    assert pair.read() == "primary"
    assert pair.replica.asked == 1
    pair.now_s = AGAIN_S
    assert pair.read() == "replica"


def test_a_read_that_fails_on_the_replica_runs_on_the_primary(pair: Pair) -> None:
    """A replica ends reads which are in the way of what it has to replay."""
    asked = []

    def work(control: Any) -> str:
        asked.append(control.url)
        if control.url == "replica":
            raise StoreUnavailable("canceling statement due to conflict with recovery")
        return "seen"

    assert pair.reads.read(work) == "seen"
    assert asked == ["replica", "primary"]


def test_a_primary_or_another_servers_replica_is_refused(pair: Pair) -> None:
    pair.replica.server = 8
    with pytest.raises(
        ConfigError, match=r"postgresql://late:\*\*\*@replica/shop is no replica of primary"
    ):
        pair.reads.check()
    pair.replica.server, pair.replica.at = 7, None
    with pytest.raises(ConfigError, match="is no replica"):
        pair.reads.check()
    pair.reads.close()
    assert (pair.replica.closed, pair.primary.closed) == (True, False)


def test_what_is_wrong_with_a_question_is_not_the_replicas_fault(pair: Pair) -> None:
    def work(control: Any) -> str:
        raise ConfigError("no consumer group 'nope'")

    with pytest.raises(ConfigError, match="nope"):
        pair.reads.read(work)
    assert pair.read() == "replica"


def test_a_replica_that_becomes_the_primary_is_read_no_more(pair: Pair) -> None:
    """After a switch of servers, when somebody looks at the page."""
    pair.replica.at = None
    assert pair.read() == "primary"
    assert pair.reads.freshness.trouble == "it is no replica of this database"
    assert pair.reads.check() == (False, None), "it is asked again later"


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:///other.db", "spanner:///projects/p/instances/i/databases/d"]
)
def test_another_store_has_no_such_replica(pair: Pair, url: str) -> None:
    primary: Any = pair.primary
    with pytest.raises(ConfigError, match="read_url"):
        ReplicaReads(primary, url, max_lag_s=2.0, alarm_s=600.0)


def stale_reads(pair: Pair, kind: str, url: str) -> ReplicaReads:
    pair.primary.store, pair.primary.url = kind, url
    primary: Any = pair.primary
    return ReplicaReads(
        primary, url, max_lag_s=10.0, alarm_s=600.0, monotonic=lambda: pair.now_s
    )  # fmt: skip


def name(control: Any) -> str:
    """The side that is read."""
    return str(control.url)


def test_the_age_of_reads_on_spanner_is_checked(pair: Pair) -> None:
    reads = stale_reads(pair, "spanner", SPANNER)
    assert reads.read(name) == "replica"
    assert pair.replica.asked == 0, "a look asks nothing more"
    pair.replica.ages = [10.0, 10.1]
    assert reads.check() == (True, 10.0)
    assert reads.check() == (False, 10.1)
    assert reads.freshness.trouble == "it is over 10 s behind"
    assert reads.read(name) == SPANNER
    pair.now_s = AGAIN_S
    assert reads.read(name) == "replica"
    assert reads.read(name, fresh=True) == SPANNER


def test_the_age_of_a_follower_of_cockroach_is_asked_before_each_read(pair: Pair) -> None:
    """How old that is the cluster's settings say, and not the reader. Nobody has tried it."""
    reads = stale_reads(pair, "cockroachdb", "cockroachdb://late@h:26257/db")
    pair.replica.ages = [4.8, 11.0, 4.9]
    assert reads.read(name) == "replica"
    assert reads.freshness.lag_s == 4.8
    assert reads.read(name) == "cockroachdb://late@h:26257/db"
    assert reads.read(name) == "replica"
    assert reads.read(name, fresh=True) == "cockroachdb://late@h:26257/db"
    assert pair.replica.asked == 3


def test_stale_reads_of_another_database_are_refused(pair: Pair) -> None:
    pair.primary.store, pair.primary.url = "spanner", SPANNER
    primary: Any = pair.primary
    with pytest.raises(ConfigError, match=r"databases/dd\?replica=us-east4 is another database"):
        ReplicaReads(primary, f"{SPANNER}d?replica=us-east4", max_lag_s=2.0, alarm_s=600.0)


def test_a_lag_in_which_live_workers_look_dead_is_refused() -> None:
    with pytest.raises(ConfigError, match="look dead"):
        config.load({"LATE_READ_URL": URL, "LATE_READ_LAG_S": "4.5"})
    assert config.load({"LATE_READ_LAG_S": "4.5"}).read_lag_s == 4.5
    spanner = "spanner:///projects/p/instances/i/databases/d"
    assert config.load({"LATE_READ_URL": spanner, "LATE_READ_LAG_S": "15"}).read_url == spanner
