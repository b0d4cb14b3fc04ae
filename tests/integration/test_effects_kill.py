"""Effects exactly once although workers are killed where it hurts: before the effect's commit, and
between that and the record of the task's end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import late
from late.outbox import connect
from tests.conformance.backends import Backend
from tests.integration.effects_kit import effects, make_table
from tests.integration.kill_app import (
    DIES_BEHIND,
    DIES_INSIDE,
    app,
    careless,
    charge,
    charge_async,
)
from tests.integration.kill_kit import Fleet, settled, until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def numbers(backend: Backend) -> list[int]:
    # What dies with a transaction open keeps an emulator of one transaction from all others.
    return [n for n in range(20) if not (backend.emulated and n in DIES_INSIDE)]


@pytest.fixture
def fleet(backend: Backend, url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    make_table(backend, url)
    made = Fleet(url, folder, {"LATE_LEASE_TTL_S": "5"} if backend.emulated else None)
    yield made
    made.close()


def run(fleet: Fleet, url: str, calls: list[late.Call]) -> None:
    """Enqueue, and have two workers on it until all is settled, whoever dies."""
    with connect(url) as tx:
        app.enqueue_many(tx, calls)

    def done() -> bool:
        living = [p for p in fleet.processes if p.poll() is None]
        for _ in range(2 - len(living)):
            fleet.start()
        return settled(url)

    until(done, fleet, 240.0)
    fleet.killed.update(p.pid for p in fleet.processes if p.poll() is not None)
    assert set(fleet.stop()) <= {0}, fleet.logs()


def test_each_effect_happens_once_over_kills(
    backend: Backend, url: str, fleet: Fleet, numbers: list[int]
) -> None:
    run(fleet, url, [(charge, charge_async)[n % 2].call(n) for n in numbers])
    assert effects(backend, url) == numbers
    died = {path.stem for path in fleet.folder.glob("*.died")}
    assert died == {f"behind-{n}" for n in DIES_BEHIND} | {
        f"inside-{n}" for n in DIES_INSIDE if n in numbers
    }


def test_without_the_record_the_same_kills_repeat_effects(
    backend: Backend, url: str, fleet: Fleet, numbers: list[int]
) -> None:
    run(fleet, url, [careless.call(n) for n in numbers])
    found = effects(backend, url)
    assert set(found) == set(numbers)
    assert len(found) > len(numbers)
