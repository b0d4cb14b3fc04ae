"""Large payloads: what a core keeps in memory, and what it asks of one transaction."""

from __future__ import annotations

from late.scheduler.settings import CoreSettings
from tests.unit.core_world import SECOND, World


def test_large_payloads_fill_the_window_before_their_number_does() -> None:
    world = World(settings=CoreSettings(window=100, page_size=10, window_bytes=5_000))
    for _ in range(100):
        world.enqueue(payload=b"x" * 1_000)
    for _ in range(5):
        world.read_page()
    assert world.core.state.unsettled == 10
    world.drain()
    assert world.core.state.window.bytes == 0


def test_a_settlement_parks_no_more_than_a_transaction_takes() -> None:
    world = World(settings=CoreSettings(settle_bytes=2_500))
    sizes = [1_000, 1_000, 1_000, 9_000, 10, 1_000]
    ids = [world.enqueue(payload=b"x" * size, delay_us=60 * SECOND) for size in sizes]
    world.read_page()
    parked, left = [], set(ids)
    while left:
        world.write()
        world.acknowledge()
        rows = [row.record for row in world.last.parked]
        left -= {record.task_id for record in rows}
        assert sum(len(record.payload) for record in rows) <= 2_500 or len(rows) == 1
        assert {task.task_id for task in world.last.open} == left, "what waits is not forgotten"
        parked.append(len(rows))
    assert parked == [2, 1, 1, 2]
