"""Commands in named situations; `test_core_property.py` gives them in those that nobody named."""

from __future__ import annotations

import msgspec
import pytest

from late.errors import DecodeError
from late.model.ids import new_id, shard_of
from late.model.workflow import StageEnd
from late.payload.command import Command, Kind, decode
from late.scheduler.core.commands import MISSED_MAX, MISSED_US
from late.scheduler.core.settlements import pending_settlement
from late.scheduler.settings import CoreSettings
from tests.conformance.kit import record
from tests.unit.core_world import SECOND, World, answers, settle


def test_a_command_before_its_task_waits_for_it() -> None:
    # Given a page that ends between a cancel and its task, which were committed together
    world = World(settings=CoreSettings(window=24, page_size=1))
    world.command("cancel", "a00002")
    task = world.enqueue()
    world.read_page()
    world.grant(4)
    settle(world)
    assert not world.final
    # When the rest is read
    world.read_page()
    settle(world)
    # Then it ends without ever having started
    assert world.final.keys() == {"a00001", task}
    assert not world.starts


def unjudged() -> World:
    """Return a world in which a command may be for a task that is not in the log."""
    world = World()
    world.judge_command = lambda record: None  # type: ignore[method-assign]
    return world


def test_a_task_that_comes_a_moment_behind_its_cancel_never_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Workflows are of one group
    monkeypatch.setattr(pending_settlement, "DEFAULT_GROUP", "g")
    # Given a cancel of a stage that waits, which another shard has just started
    world = unjudged()
    command = world.command("cancel", "a00002")
    world.drain()
    assert world.final.keys() == {command}
    # When its row comes, before the journal has what becomes of its workflow
    task = world.enqueue(stage=True)
    other = world.enqueue()
    world.read_page()
    world.grant(4)
    settle(world)
    # Then it ends without ever having started, and its workflow hears of it
    assert [each.record.task_id for each in world.running] == [other]
    assert task in world.final
    assert world.last.ended_stages == (StageEnd(task, "cancelled"),)


def test_a_cancel_of_a_task_that_ended_long_ago_refuses_no_replay_of_it() -> None:
    world = unjudged()
    world.command("cancel", "a00002")
    world.drain()
    world.now_us += MISSED_US
    task = world.enqueue()
    world.read_page()
    world.grant(4)
    assert [each.record.task_id for each in world.running] == [task]


def test_so_many_missed_cancels_are_kept_in_mind() -> None:
    world = unjudged()
    for number in range(MISSED_MAX + 5):
        world.command("cancel", f"b{number:05d}")
    world.drain()
    assert len(world.core.state.commands.missed) == MISSED_MAX


def test_a_window_full_of_commands_for_tasks_to_come_does_not_stop_the_tail() -> None:
    world = World(settings=CoreSettings(window=24, page_size=8))
    for number in range(60):
        world.command("cancel", f"a{61 + number:05d}")
    for _ in range(60):
        world.enqueue(delay_us=20 * SECOND)
    world.drain()
    assert not world.starts


def test_a_command_that_makes_room_for_the_tail_comes_back_later() -> None:
    world = World(settings=CoreSettings(window=24, page_size=8))
    for number in range(60):
        world.command("cancel", f"a{61 + number:05d}")
    for _ in range(8):
        world.read_page()
        world.grant(4)
        world.write()
        world.acknowledge()
    assert world.timers
    assert all(row.due_at_us > world.now_us for row in world.timers.values())


def test_a_cancelled_head_lets_its_key_go_on() -> None:
    world = World()
    head, second = (world.enqueue(ordering_key="k") for _ in range(2))
    world.read_page()
    world.grant(0)
    world.command("cancel", head)
    world.read_page()
    world.grant(4)
    assert [a.record.task_id for a in world.running] == [second]


def test_a_running_task_that_was_cancelled_is_not_repeated() -> None:
    world = World()
    task = world.enqueue()
    world.read_page()
    world.grant(1)
    command = world.command("cancel", task)
    assert not world.core.cancel_asked(world.running[0])
    world.read_page()
    settle(world)
    assert command not in world.final, "it waits for the end of its task"
    assert world.core.cancel_asked(world.running[0]), "its handler can know"
    world.finish(world.running[0], kind="failed", error="boom")
    settle(world)
    assert world.final.keys() == {task, command}
    job = [(u.outcome, u.attempts) for u in world.last.usage if u.name == "job"]
    assert job == [("cancelled", 1)]


@pytest.mark.parametrize("kind", ["cancel", "reschedule"])
def test_a_command_for_what_runs_outlives_the_worker(kind: Kind) -> None:
    # Given a task that runs, which somebody cancels or puts off
    world = World()
    task = world.enqueue()
    world.read_page()
    world.grant(1)
    settle(world)
    body = {"at_us": world.now_us + 500 * SECOND} if kind == "reschedule" else {}
    command = world.command(kind, task, **body)
    world.read_page()
    settle(world)
    assert {task, command} <= {each.task_id for each in world.last.open}
    # When its worker dies, the next one starts the task no more
    world.take_over()
    answers(world)
    world.grant(4)
    world.read_page()
    world.grant(4)
    settle(world)
    assert len(world.starts) == 1
    if kind == "cancel":
        assert world.final.keys() == {task, command}
    else:
        assert [key[1] for key in world.timers] == [task]


def test_the_last_success_of_a_cancelled_task_counts() -> None:
    world = World()
    task = world.enqueue()
    world.read_page()
    world.grant(1)
    world.command("cancel", task)
    world.read_page()
    world.finish(world.running[0])
    settle(world)
    usage = {(u.name, u.outcome) for u in world.last.usage if u.outcome != "enqueued"}
    assert usage == {("job", "done"), ("late.cancel", "discarded")}


def test_a_look_that_failed_has_found_nothing_out() -> None:
    """Or a cancel would end as one of a task that is gone, and the task would run."""
    world = World()
    task = world.enqueue(delay_us=600 * SECOND)
    world.read_page()
    settle(world)
    world.take_over()  # its row is in the table, and not in memory
    answers(world)
    command = world.command("cancel", task)
    world.read_page()
    world.grant(0)
    assert len(world.answers) == 1
    world.fail_answer()
    world.grant(0)
    answers(world)
    settle(world)
    assert world.final == {task: "ended", command: "ended"}
    assert not world.starts


def test_a_far_task_is_put_off_without_coming_into_the_window() -> None:
    world = World()
    task = world.enqueue(delay_us=60 * SECOND)
    world.read_page()
    settle(world)
    world.command("reschedule", task, at_us=world.now_us + 500 * SECOND)
    world.read_page()
    answers(world)
    settle(world)
    assert [key for key in world.timers if key[1] == task] == [(world.now_us + 500 * SECOND, task)]
    settle(world)
    assert not world.last.open


def buried(world: World) -> str:
    """A task that has become a dead letter."""
    task = world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0], kind="failed", error="boom", retryable=False)
    settle(world)
    assert world.dead == [task]
    return task


def test_a_cancel_after_a_redrive_finds_what_that_brought_back() -> None:
    world = World()
    task = buried(world)
    world.command("redrive", task)
    world.command("cancel", task)
    world.read_page()
    answers(world)  # it is in no table now, and must not count as ended for that
    settle(world)
    world.drain()
    assert len(world.starts) == 1, "the redrive's attempt was cancelled"
    assert world.final[task] == "ended"


def test_a_redrive_after_a_cancel_brings_it_back() -> None:
    world = World(settings=CoreSettings(window=24, page_size=8))
    task = buried(world)
    world.command("cancel", task)
    world.command("redrive", task)
    world.read_page()
    for _ in range(4):  # time enough for a look, before a slot is free
        answers(world)
        settle(world)
        world.grant(0)
    world.drain()
    assert [a.record.task_id for a in world.starts] == [task, task]


def test_a_command_that_cannot_be_read_is_a_dead_letter() -> None:
    world = World()
    command = world.command("cancel", "a00001", tomorrow=True)
    world.read_page()
    settle(world)
    assert world.dead == [command]
    assert world.letters[command].reason == "invalid_command"


def test_a_row_says_what_the_command_says() -> None:
    task_id = new_id(7)
    for command in (
        Command("cancel", task_id),
        Command("reschedule", task_id, "audit", at_us=5),
        Command("reschedule", task_id, delay_us=9),
        Command("redrive", task_id, payload=b"\x00\xff"),
    ):
        row = command.row()
        assert row.shard_id == shard_of(row.task_id) == 7
        assert decode(record(name=row.name, payload=row.payload)) == command
    assert msgspec.json.decode(Command("cancel", task_id).row().payload) == {"task_id": task_id}
    assert decode(record(name="late.unheard_of")) is None
    far = b'{"task_id": "x", "at_us": 4611686018427387904}'  # would wait for its key
    past = b'{"task_id": "x", "delay_us": -99999999999999999}'
    for payload in (far, past, b"", b"[]", b'{"task_id": 7}', b"{}"):
        with pytest.raises(DecodeError) as refused:
            decode(record(name="late.cancel", payload=payload))
        assert refused.value.reason == "invalid_command"


def test_a_dead_letter_that_goes_back_starts_at_once() -> None:
    # Given a dead letter, and a look at what is overdue that has just been taken
    world = World()
    task = world.enqueue()
    world.read_page()
    world.grant(1)
    world.finish(world.running[0], kind="dead", reason="gave_up")
    settle(world)
    world.now_us += 6 * SECOND
    world.grant(1)
    answers(world)
    # When it is sent back
    world.command("redrive", task)
    world.read_page()
    settle(world)
    # Then its owner, which has put it there, does not wait for the next look
    answers(world)
    world.grant(1)
    assert [a.record.task_id for a in world.running] == [task]


def test_a_handler_hears_of_no_cancel_but_that_of_its_own_attempt() -> None:
    world = World()
    task, other = world.enqueue(), world.enqueue()
    world.read_page()
    world.grant(2)
    world.command("cancel", task)
    world.command("reschedule", other)
    world.read_page()
    asked = {a.record.task_id: world.core.cancel_asked(a) for a in world.running}
    assert asked == {task: True, other: False}
    of_former = msgspec.structs.replace(world.running[0], epoch=world.running[0].epoch - 1)
    assert not world.core.cancel_asked(of_former), "its shard has been lost since"
