"""What the overload laboratory takes for a wait, and how its producers commit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench.overload import producers
from bench.overload.producers import Committed, Samples, _produce
from bench.overload.scenarios import _mails
from tests.support import sqlite


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(producers, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_a_wait_counts_from_the_return_of_the_commit(clock: SimpleNamespace) -> None:
    samples = Samples()
    samples.committed("mail", [Committed((1.0,), began_s=1.0, ended_s=1.5)])
    clock.now = 1.7
    samples.add("mail", 1.0)
    clock.now = 60.0
    samples.add("mail", 1.0)  # a second attempt is no start

    assert samples.p99_ms("mail", 0.0, 10.0) == 200.0
    assert samples.commit_p99_ms("mail", 0.0, 10.0) == 500.0


def test_what_starts_before_its_producer_hears_of_the_commit_waited_nothing(
    clock: SimpleNamespace,
) -> None:
    samples = Samples()
    clock.now = 1.4
    samples.add("mail", 1.0)
    samples.committed("mail", [Committed((1.0,), began_s=1.0, ended_s=1.5)])

    assert samples.p99_ms("mail", 0.0, 10.0) == 0.0


def test_what_has_not_started_has_waited_until_now(clock: SimpleNamespace) -> None:
    samples = Samples()
    samples.committed("mail", [Committed((1.0, 1.1), began_s=1.2, ended_s=1.5)])
    samples.committed("ring", [Committed((1.0,), began_s=1.2, ended_s=1.5)])
    samples.committed("mail", [Committed((20.0,), began_s=20.0, ended_s=20.0)])
    clock.now = 1.6
    samples.add("mail", 1.0)
    clock.now = 31.5

    assert samples.p99_ms("mail", 0.0, 10.0) == 30_000.0
    assert samples.p99_ms("ring", 2.0, 10.0) == 8_000.0, "nothing was committed: the worst"


def test_a_producer_tells_all_that_it_has_committed(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "a.db")
    said: list[list[Committed]] = []
    looks = iter([False, False, True])
    stop, number = SimpleNamespace(is_set=lambda: next(looks)), SimpleNamespace(value=0)
    say: Any = SimpleNamespace(send=said.append)

    _produce(url, _mails, 1_000, number, stop, say)

    [commits] = said
    assert [len(commit.tasks) for commit in commits] == [50, 50]
    assert all(max(c.tasks) <= c.began_s <= c.ended_s for c in commits)
    assert number.value == 100
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        rows = connection.execute("select name, payload from late_task").fetchall()
    assert {name for name, _ in rows} == {"send"}
    named = [msgspec.json.decode(payload)["at"] for _, payload in rows]
    assert sorted(named) == sorted(at for commit in commits for at in commit.tasks)
