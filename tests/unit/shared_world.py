"""Shared transactions in the small world of `core_world`."""

from __future__ import annotations

from late.model.task import Attempt, Outcome
from late.scheduler.core.settlements import shared_settlement
from late.scheduler.events_effects import Settled
from tests.unit.core_world import World


def share(world: World, attempts: list[Attempt], fate: str) -> bool:
    """End attempts in a transaction that has their settlement; return whether it could be.

    Args:
        fate: `committed`, `died` (committed, and the owner has not learned of it), `rolled
            back`, or `replaced` (another settlement took its place).
    """
    outcomes = [Outcome(a, "done", world.now_us, 5, result=b"1") for a in attempts]
    if not world.out and (first := world.core.settlement_before_share(world.now_us)) is not None:
        world.out, world.applied_out = first, False
        world.write()
        world.acknowledge()
    shared = None if world.out else world.core.share(outcomes, world.now_us)
    if shared is None:
        return False
    assert world.core.settlement(world.now_us) is None, "two settlements are out"
    if fate in ("committed", "died"):
        for attempt in attempts:
            world.running.remove(attempt)
            world.suspected.discard(attempt.record.task_id)
        world.apply(shared.settlement)
        assert not {a.record.task_id for a in attempts} - world.final.keys()
        if fate == "died":
            world.take_over()
            return True
        world.limits.ended(outcomes, world.now_us)
    elif fate == "replaced":
        shared_settlement.replace(world.core.state, shared)
        world.apply(shared.substitute)
    if fate == "rolled back":
        world.core.unshare()
    else:
        world.step(Settled(world.now_us))
    return True
