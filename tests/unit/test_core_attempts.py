"""What an attempt is told of its task, and by whose policy it is judged."""

from __future__ import annotations

import msgspec

from late.model.offers import ELSEWHERE
from late.model.task import Policy, Reads
from late.scheduler.core.transitions import adopt
from late.scheduler.settings import CoreSettings
from late.scheduler.task_state import Entry
from tests.unit.core_world import POLICIES, World, settle


def test_what_another_worker_ran_is_judged_by_its_policy_where_there_is_none_here() -> None:
    # Given a task that has ended, one that can run here, and one that is offered to others
    world = World(settings=CoreSettings(offers=True))
    world.enqueue()
    world.read_page()
    world.grant(1)
    ended = world.running[0]
    world.finish(ended)
    settle(world)
    own, offered = world.enqueue(), world.enqueue("stranger")
    world.read_page()
    core = world.core.state
    entries = core.window.entries
    attempts = [ended, *(entries[each].attempt(core.lease) for each in (own, offered))]
    # When the policy of who ran them comes
    for attempt in attempts:
        adopt(core, attempt, Policy(max_attempts=7))
    # Then it is the offered one's alone
    policy = entries[offered].policy
    assert (policy.max_attempts, policy.target) == (7, ELSEWHERE)
    assert entries[own].policy.max_attempts == POLICIES["job"].max_attempts


def test_what_was_created_before_a_reset_is_a_replay() -> None:
    world = World()
    world.enqueue()
    entry, created_us = Entry(record=world.log[0], policy=Policy()), world.log[0].created_at_us
    for replay_us, is_replay in ((created_us, False), (created_us + 1, True)):
        reads = Reads(replay_us=replay_us)
        lease = msgspec.structs.replace(world.core.state.lease, reads=reads)
        assert entry.attempt(lease).is_replay is is_replay
