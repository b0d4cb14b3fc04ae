"""A settlement waits for company as long as nobody waits for it."""

from __future__ import annotations

import msgspec
import pytest

from late.model.task import DEFAULT_GROUP
from late.scheduler.events_effects import Effect, SettleSoon, Stop
from late.scheduler.settings import CoreSettings
from tests.unit import core_world
from tests.unit.core_world import SECOND, World, settle

SETTINGS = CoreSettings(soon_us=2 * SECOND)


def at_rest(settings: CoreSettings = SETTINGS) -> World:
    """One task has run and is settled, and nothing is left to do."""
    world = World(settings=settings)
    started(world)
    world.finish(world.running[0])
    settle(world)
    return world


def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[SettleSoon]:
    """Collect what the core says of its settlements from now on."""
    found: list[SettleSoon] = []
    step = world.core.step

    def noted(event: object) -> list[Effect]:
        effects = step(event)  # type: ignore[arg-type]
        found.extend(effect for effect in effects if isinstance(effect, SettleSoon))
        return effects

    monkeypatch.setattr(world.core, "step", noted)
    return found


def started(world: World, **options: object) -> None:
    """Let one task start."""
    world.enqueue(**options)  # type: ignore[arg-type]
    world.read_page()
    world.grant(1)


def test_a_task_that_simply_ends_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest()
    found = asked(world, monkeypatch)
    started(world)
    world.finish(world.running[0])
    assert found == [SettleSoon(1, False)]


def test_the_settler_is_told_once_and_again_after_it_has_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = at_rest()
    found = asked(world, monkeypatch)
    for _ in range(3):
        world.enqueue()
    world.read_page()
    world.grant(3)
    world.finish(world.running[0])
    for _ in range(5):
        world.grant(0)
    assert world.core.state.quiet_until_us > world.now_us  # no pass looks at it meanwhile
    world.finish(world.running[0])
    assert found == [SettleSoon(1, False), SettleSoon(1, False)]
    settle(world)
    world.finish(world.running[0])
    assert found[2:] == [SettleSoon(1, False)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("kept", {}, id="a history"),
        pytest.param("result", {}, id="a result"),
        pytest.param("job", {"unique_key": "u"}, id="a unique key"),
        pytest.param("job", {"schedule": "s"}, id="a schedule"),
    ],
)
def test_an_end_that_somebody_waits_for_is_urgent(
    name: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = core_world.POLICIES
    kept = msgspec.structs.replace(policies["job"], result_ttl_us=SECOND)
    monkeypatch.setattr(core_world, "POLICIES", policies | {"result": kept})
    world = at_rest()
    world.core.state.pending._lease = msgspec.structs.replace(
        world.core.state.lease, group=DEFAULT_GROUP
    )
    found = asked(world, monkeypatch)
    started(world, name=name, **options)
    world.finish(world.running[0])
    assert found == [SettleSoon(1, True)]
    assert world.core.settlement(world.now_us) is not None
    assert not world.core.state.pending.awaited


@pytest.mark.parametrize(("wait_us", "urgent"), [(SECOND, True), (60 * SECOND, False)])
def test_a_retry_is_urgent_if_it_is_due_soon(
    wait_us: int, urgent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = at_rest()
    found = asked(world, monkeypatch)
    started(world)
    world.finish(world.running[0], kind="failed", after_us=wait_us)
    assert found == [SettleSoon(1, urgent)]


def test_the_answer_of_a_consumer_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest()
    found = asked(world, monkeypatch)
    started(world)
    world.finish(world.running[0], target="pull:q")
    assert found == [SettleSoon(1, True)]


def test_a_dead_letter_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest()
    found = asked(world, monkeypatch)
    started(world)
    world.finish(world.running[0], kind="dead")
    assert found == [SettleSoon(1, True)]


def test_a_command_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest()
    found = asked(world, monkeypatch)
    task_id = world.enqueue(delay_us=60 * SECOND)
    world.read_page()
    world.grant(0)
    assert found == [SettleSoon(1, False)]  # a delay of a minute: nobody waits for its row
    settle(world)
    world.command("reschedule", task_id, delay_s=90)
    world.read_page()
    world.grant(0)
    assert found[-1].urgent


def test_all_is_urgent_once_the_shard_is_to_be_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = at_rest()
    found = asked(world, monkeypatch)
    started(world)
    world.finish(world.running[0])
    world.core.step(Stop())
    assert found == [SettleSoon(1, False), SettleSoon(0, True)]


@pytest.mark.parametrize(("starts", "urgent"), [(3, False), (4, True)])
def test_a_full_window_is_urgent_once_little_of_it_is_ready(
    starts: int, urgent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail stands still until a settlement makes room; that is felt when work runs short."""
    world = at_rest(CoreSettings(window=4, page_size=2))
    for _ in range(4):
        world.enqueue()
    world.read_page()
    world.read_page()
    world.grant(starts)
    found = asked(world, monkeypatch)
    world.finish(world.running[0])
    assert found == [SettleSoon(1, urgent)]


def test_marks_and_their_ends_are_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest()
    world.enqueue()
    world.read_page()
    world.grant(1)
    world.take_over()  # the owner died: its task starts under a mark
    found = asked(world, monkeypatch)
    world.answer()
    world.read_page()
    world.grant(1)
    assert found == [SettleSoon(1, True)]
    settle(world)
    world.finish(world.running[0])
    assert found[1:] == [SettleSoon(1, True)]
