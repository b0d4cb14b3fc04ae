"""Three groups over one log while their workers are killed: each runs every task that it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api_core.exceptions import Aborted

from late.control import Control
from late.outbox import connect
from tests.conformance.backends import Backend
from tests.integration.kill_app import app, count, shared
from tests.integration.kill_kit import Fleet, until

GROUPS = ("default", "audit", "post")


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    # Without a wait for company a death repeats little more than what runs.
    settings = {"LATE_PRUNE_EVERY_S": "0.3", "LATE_SETTLE_DELAY_S": "0.01"}
    made = Fleet(url, folder, settings, GROUPS)
    yield made
    made.close()


def enqueue(url: str, numbers: range) -> str:
    """Tasks for all groups, and one that `post` does not read; returns the last one's token."""
    while True:
        try:
            with connect(url) as tx:
                calls = [shared.call(n) for n in numbers]
                return app.enqueue_many(tx, [count.call(numbers[0]), *calls])[-1]
        except Aborted:
            continue


def test_no_group_loses_a_task_when_workers_are_killed(
    backend: Backend, url: str, fleet: Fleet
) -> None:
    each, rounds = (20, 2) if backend.emulated else (150, 3)
    with Control(url) as control:
        control.groups.create("audit", start="beginning")
        control.groups.create("post", queues=["shared"], start="now")
        fleet.start()
        fleet.start()
        token = ""
        for turn in range(rounds):
            token = enqueue(url, range(turn * each, (turn + 1) * each))
            seen = len(fleet.runs())
            until(lambda seen=seen: len(fleet.runs()) > seen + each // 2, fleet)  # type: ignore[misc]
            fleet.kill()
            fleet.start()
        for name in GROUPS:
            waited = control.groups.wait(name, token, timeout_s=300)
            assert waited.state in ("settled", "gone"), (waited, fleet.logs())
        found = control.verify()
        # What all have settled is removed while they run, and nothing else.
        assert (found.problems, found.totals.waiting, found.totals.open) == ((), 0, 0)
    runs = Counter(fleet.runs())
    wanted = {f"{name} {n}" for name in GROUPS for n in range(rounds * each)}
    wanted |= {str(turn * each) for turn in range(rounds)}
    assert set(runs) == wanted
    # `count` leaves one line for each group that reads its queue.
    again = sum(runs.values()) - 3 * rounds * each - 2 * rounds
    assert 0 <= again <= rounds * 3 * 16 * 2
    fleet.stop()
