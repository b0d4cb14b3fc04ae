"""The shard of a shadow: what its attempts are told, and what it leaves to the real group."""

from __future__ import annotations

import msgspec
import pytest

from late.model.task import Policy, Reads
from late.scheduler.settings import CoreSettings
from late.scheduler.task_state import Entry
from tests.unit.core_world import World, settle


class ShadowWorld(World):
    reads = Reads(shadow=True)


@pytest.mark.parametrize("world", [World, ShadowWorld])
def test_an_attempt_knows_it_and_keeps_no_result(world: type[World]) -> None:
    made = world()
    made.enqueue()
    made.read_page()
    made.grant(1)
    shadow = world is ShadowWorld
    assert made.running[0].shadow is shadow
    entry = Entry(record=made.log[0], policy=Policy(result_ttl_us=1))
    assert entry.attempt(made.core.state.lease).keeps_result is not shadow
    made.core.state.pending.keep(entry, b"1")
    assert bool(made.core.state.pending._results) is not shadow


@pytest.mark.parametrize("world", [World, ShadowWorld])
def test_a_task_without_a_handler_is_not_offered(world: type[World]) -> None:
    """Who takes the offer may be of an older version, and run it as a real one."""
    made = world(settings=CoreSettings(offers=True))
    task_id = made.enqueue("stranger")
    made.read_page()
    made.grant(1)
    settle(made)
    parked = [row for (_, parked_id), row in made.timers.items() if parked_id == task_id]
    assert [row.reason for row in parked] == (["unknown"] if world is ShadowWorld else [])


@pytest.mark.parametrize("world", [World, ShadowWorld])
def test_a_redrive_of_a_real_letter_is_not_for_a_shadow(world: type[World]) -> None:
    """It would tell a workflow that its stage goes on."""
    made = world()
    task_id = made.enqueue()
    made.read_page()
    made.grant(1)
    made.finish(made.running[0], kind="failed", retryable=False)
    settle(made)
    assert made.dead == [task_id]
    made.command("redrive", task_id)
    made.read_page()
    made.grant(1)
    settle(made)
    assert bool(made.revived) is (world is World)


def test_a_lease_of_another_kind_makes_no_shadow() -> None:
    made = ShadowWorld()
    made.enqueue()
    lease = msgspec.structs.replace(made.core.state.lease, reads=Reads())
    assert not Entry(record=made.log[0], policy=Policy()).attempt(lease).shadow
