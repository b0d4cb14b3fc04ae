"""Effects exactly once although workers are killed where it hurts: before the effect's commit, and
between that and the record of the task's end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from late.outbox import connect
from tests.conformance.backends import Backend
from tests.integration.effects_kit import effects, make_table
from tests.integration.kill_app import (
    DIES_BEHIND,
    DIES_CARELESS,
    DIES_INSIDE,
    app,
    careless,
    charge,
    charge_async,
)
from tests.integration.kill_kit import Fleet, settled, until


@pytest.fixture
def fleet(backend: Backend, url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    make_table(backend, url)
    made = Fleet(url, folder)
    yield made
    made.close()


def test_each_effect_happens_once_over_kills(backend: Backend, url: str, fleet: Fleet) -> None:
    # What dies with a transaction open keeps an emulator of one transaction from all others.
    numbers = [n for n in range(20) if not (backend.emulated and n in DIES_INSIDE)]
    without = list(range(100, 110))
    with connect(url) as tx:
        calls = [(charge, charge_async)[n % 2].call(n) for n in numbers]
        app.enqueue_many(tx, [*calls, *(careless.call(n) for n in without)])

    def done() -> bool:
        living = [p for p in fleet.processes if p.poll() is None]
        for _ in range(2 - len(living)):
            fleet.start()
        return settled(url)

    until(done, fleet, 500.0)
    fleet.killed.update(p.pid for p in fleet.processes if p.poll() is not None)
    assert set(fleet.stop()) <= {0}, fleet.logs()
    died = {path.stem for path in fleet.folder.glob("*.died")}
    # A task whose process died of another one behind its own effect does not come to its death.
    assert died & {f"behind-{n}" for n in DIES_BEHIND}
    assert died >= {f"behind-{n}" for n in DIES_CARELESS}
    assert died >= {f"inside-{n}" for n in DIES_INSIDE if n in numbers}
    found = effects(backend, url)
    assert [n for n in found if n < 100] == numbers
    # The control: a transaction that says nothing of its task is repeated by the same death.
    repeated = [n for n in found if n >= 100]
    assert set(repeated) == set(without)
    assert len(repeated) > len(without)
