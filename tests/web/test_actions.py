"""What operators do on the page, pressed and typed in a real browser."""

from __future__ import annotations

from collections.abc import Callable

from late.control import Control
from late.control.dead_letters.filter import Filter
from late.model.queue_settings import QueueSettings
from tests.web.chromium import Person, Tab
from tests.web.scene import Scene
from tests.web.serving import Served


def knob(tab: Tab, name: str) -> str:
    return str(tab.evaluate(f"document.querySelector('[name=\"knob.{name}\"]').value"))


def test_a_knob_is_previewed_changed_and_undone(tab: Tab, served: Served, control: Control) -> None:
    tab.go(served.root + "queues/payments")
    assert (knob(tab, "rate"), knob(tab, "owner")) == ("20", "billing")
    tab.type("input[name='knob.rate']", "0.5")
    tab.press("summary", "Pace")
    tab.choose("select[name='knob.paused']", "on")
    tab.follow(lambda: tab.press("button", "Preview"))
    tab.shows("Nothing more starts", ".preview")
    assert control.queues.live().queues["payments"].rate == 20.0
    tab.follow(lambda: tab.press("button", "Change it"))
    tab.shows("Changed. Workers follow")
    changed = control.queues.live().queues["payments"]
    assert (changed.rate, changed.paused, changed.owner) == (0.5, True, "billing")
    tab.follow(lambda: tab.press("button", "Undo"))
    tab.shows("Undone.")
    back = control.queues.live().queues["payments"]
    assert (back.rate, back.paused) == (20.0, None)
    assert {entry.actor for entry in control.audit.entries(subject="queue:payments", limit=2)} == {
        "anybody@page"
    }


def test_a_knob_out_of_range_is_told_and_nothing_that_was_typed_is_lost(
    tab: Tab, served: Served, control: Control
) -> None:
    before = control.queues.live().queues["payments"]
    for name, value, told in (("rate", "-1", "rate must be"), ("breaker", "often", "breaker")):
        tab.go(served.root + "queues/payments")
        tab.press("summary", "Time")
        tab.press("summary", "Failures")
        tab.type("input[name='knob.timeout_s']", "9")
        tab.type(f"input[name='knob.{name}']", value)
        tab.follow(lambda: tab.press("button", "Preview"))
        tab.shows(told, ".notice.bad")
        assert (knob(tab, name), knob(tab, "timeout_s")) == (value, "9")
    assert control.queues.live().queues["payments"] == before


def test_dead_letters_are_sent_back_at_a_rate_and_purged(
    tab: Tab, served: Served, control: Control, scene: Scene
) -> None:
    assert len(control.dead_letters.find()) == len(scene.dead) == 14
    tab.go(served.root + "dead")
    tab.type("input[name=error]", "CardDeclined")
    tab.follow(lambda: tab.press("button", "Filter"))
    tab.type("form[action$='/redrive'] input[name=limit]", "3")
    tab.type("form[action$='/redrive'] input[name=rate]", "5")
    tab.follow(lambda: tab.press("button", "Preview retry"))
    tab.shows("This would retry: 3", ".preview")
    assert len(control.dead_letters.find()) == 14
    tab.follow(lambda: tab.press(".preview button", "Retry them"))
    tab.shows("3 dead letters retried. They fall due at 5 a second, the last in 400 ms.")
    assert len(control.dead_letters.find(Filter(error="CardDeclined"))) == 4
    assert len(control.tasks.find("parked").tasks) == len(scene.parked) + 3

    tab.follow(lambda: tab.press("button", "Preview purge"))
    tab.type(".preview input[name=confirm]", "yes")
    tab.follow(lambda: tab.press(".preview button", "Delete them"))
    tab.shows("this cannot be undone", ".notice.bad")
    assert len(control.dead_letters.find()) == 11
    tab.go(served.root + "dead")
    tab.follow(lambda: tab.press("button", "Preview purge"))
    tab.type(".preview input[name=confirm]", "purge")
    tab.follow(lambda: tab.press(".preview button", "Delete them"))
    tab.shows("No dead letters.")
    assert control.dead_letters.find() == []


def test_tasks_are_found_by_their_state_and_commanded(
    tab: Tab, served: Served, control: Control, scene: Scene
) -> None:
    tab.go(served.root + "tasks")
    tab.shows("runs for over two seconds")
    tab.choose("form.filter select[name=state]", "parked")
    tab.type("form.filter input[name=reason]", "retry")
    tab.follow(lambda: tab.press("button", "Filter"))
    assert tab.count("#live tbody tr") == len(scene.parked) / 2
    # Those selected.
    first = tab.evaluate("document.querySelector('input[type=checkbox]').name").removeprefix("id.")
    tab.press("input[type=checkbox]")
    tab.follow(lambda: tab.press("button", "Preview cancel"))
    tab.shows("This would cancel: 1", ".preview")
    tab.shows("1 selected task", ".preview")
    assert control.audit.entries(subject="tasks:default") == []
    tab.follow(lambda: tab.press(".preview button", "Cancel them"))
    tab.shows("1 task cancelled")
    told = control.audit.entries(subject="tasks:default")
    assert [each.action for each in told] == ["tasks.cancel"]
    # All that match, at a rate.
    tab.go(served.root + "tasks?state=parked&reason=retry")
    tab.type("#act input[name=at]", "soon")
    tab.follow(lambda: tab.press("button", "Preview reschedule"))
    tab.shows("a time such as 90s", ".notice.bad")
    tab.type("#act input[name=at]", "1h")
    tab.type("#act input[name=rate]", "5")
    tab.follow(lambda: tab.press("button", "Preview reschedule"))
    tab.shows(f"This would run at another time: {len(scene.parked) // 2}", ".preview")
    tab.follow(lambda: tab.press(".preview button", "Reschedule them"))
    tab.shows(f"{len(scene.parked) // 2} tasks get another time")
    # One leads to its own page; the dead are retried.
    tab.go(served.root + "tasks?state=parked&reason=retry")
    tab.follow(lambda: tab.press("#live tbody a", first))
    tab.shows("is parked (retry)")
    tab.go(served.root + "tasks?state=dead&queue=payments")
    dead = len(control.dead_letters.find())
    tab.press("input[type=checkbox]")
    tab.follow(lambda: tab.press("button", "Preview retry"))
    tab.follow(lambda: tab.press(".preview button", "Retry them"))
    tab.shows("1 dead letter retried.")
    assert len(control.dead_letters.find()) == dead - 1


def test_a_schedule_is_run_paused_and_resumed(tab: Tab, served: Served, control: Control) -> None:
    depth = sum(queue.depth.n for queue in control.status.read(queue="receipts").queues)
    form = "form[action$='/schedules/nightly-report/{}'] button"
    tab.go(served.root + "schedules")
    tab.follow(lambda: tab.press(form.format("run")))
    tab.shows("Enqueued.")
    groups = len([g for g in control.groups.all() if g.queues is None])
    assert (
        sum(queue.depth.n for queue in control.status.read(queue="receipts").queues)
        == depth + groups
    )
    tab.follow(lambda: tab.press(form.format("pause")))
    tab.shows("paused", "#live")
    assert [each.paused for each in control.schedules.all()] == [True, False]
    tab.follow(lambda: tab.press(form.format("resume")))
    assert [each.paused for each in control.schedules.all()] == [False, False]


def test_a_group_is_paused_and_reset_after_a_dry_run(
    tab: Tab, served: Served, control: Control
) -> None:
    lag = control.groups.get("audit").lag.n
    tab.go(served.root + "groups/audit")
    tab.follow(lambda: tab.press("button", "Pause"))
    tab.shows("paused", ".facts")
    tab.choose("select[name=place]", "now")
    tab.follow(lambda: tab.press("button", "Preview"))
    tab.shows("To begin anew at now would do this")
    assert str(lag) in tab.text(".preview tfoot")
    assert control.groups.get("audit").lag.n == lag
    tab.type("input[name=confirm]", "default")
    tab.follow(lambda: tab.press("button", "Reset it"))
    tab.shows("type 'audit' to confirm it")
    assert control.groups.get("audit").lag.n == lag > 0
    tab.go(served.root + "groups/audit")
    tab.choose("select[name=place]", "now")
    tab.follow(lambda: tab.press("button", "Preview"))
    tab.type("input[name=confirm]", "audit")
    tab.follow(lambda: tab.press("button", "Reset it"))
    tab.shows("The group begins anew.")
    assert control.groups.get("audit").lag.n == 0


def test_a_target_is_paused_and_a_group_goes_on(tab: Tab, served: Served, control: Control) -> None:
    tab.go(served.root + "targets/bank")
    before = control.queues.live().targets.get("bank", QueueSettings())
    tab.choose("select[name='knob.paused']", "on")
    tab.follow(lambda: tab.press("button", "Preview"))
    tab.follow(lambda: tab.press("button", "Change it"))
    assert control.queues.live().targets["bank"].paused is True
    tab.follow(lambda: tab.press("button", "Undo"))
    tab.shows("Undone.")
    assert control.queues.live().targets.get("bank", QueueSettings()) == before
    tab.go(served.root + "groups/default")
    tab.follow(lambda: tab.press("button", "Pause"))
    assert control.groups.get("default").state == "paused"
    tab.follow(lambda: tab.press("button", "Resume"))
    tab.shows("It goes on.")
    assert control.groups.get("default").state == "working"


def test_one_dead_task_is_sent_back(
    tab: Tab, served: Served, control: Control, scene: Scene
) -> None:
    tab.go(f"{served.root}tasks/{scene.dead[2]}")
    tab.follow(lambda: tab.press("button", "Retry in default"))
    tab.shows("1 dead letter retried.")
    states = {each.group: each.state for each in control.tasks.show(scene.dead[2]).groups}
    assert states["default"] == "parked"
    assert len(control.dead_letters.find()) == len(scene.dead) - 1


def test_a_dead_task_is_sent_back_with_another_payload(
    tab: Tab, served: Served, control: Control, scene: Scene
) -> None:
    tab.go(f"{served.root}tasks/{scene.dead[0]}")
    tab.follow(lambda: tab.press("a", "Show the payload"))
    tab.type("textarea[name=payload]", '{"order": 1')
    tab.follow(lambda: tab.press("form[action$='/edit'] button", "Retry"))
    tab.shows("the payload is not JSON", ".notice.bad")
    assert tab.evaluate("document.querySelector('textarea').value") == '{"order": 1'
    tab.type("textarea[name=payload]", '{"order": 1}')
    tab.follow(lambda: tab.press("form[action$='/edit'] button", "Retry"))
    tab.shows("Retried with the new payload.")
    tab.go(f"{served.root}tasks/{scene.parked[0]}")
    tab.press("summary", "Cancel in default")
    tab.shows("This cannot be undone")
    tab.follow(lambda: tab.press("button", "Cancel it"))
    tab.shows("Its owner reads this within seconds.")


def test_of_two_operators_at_once_the_second_is_told(
    people: Callable[[], Person], served: Served, control: Control
) -> None:
    one, two = people().tab(), people().tab()
    for tab, rate in ((one, "1"), (two, "2")):
        tab.go(served.root + "queues/mail")
        tab.press("summary", "Pace")
        tab.type("input[name='knob.rate']", rate)
        tab.follow(lambda tab=tab: tab.press("button", "Preview"))  # type: ignore[misc]
    one.follow(lambda: one.press("button", "Change it"))
    two.follow(lambda: two.press("button", "Change it"))
    two.shows("the knobs were changed since this page was made")
    assert control.queues.live().queues["mail"].rate == 1.0
    two.go(served.root + "queues/mail")
    assert knob(two, "rate") == "1"
    two.type("input[name='knob.rate']", "2")
    two.follow(lambda: two.press("button", "Preview"))
    two.follow(lambda: two.press("button", "Change it"))
    assert control.queues.live().queues["mail"].rate == 2.0
    changes = [entry.action for entry in control.audit.entries(subject="queue:mail")]
    assert changes == ["queue.set", "queue.set"]


def test_what_a_page_shows_that_is_gone_meanwhile_is_told(
    tab: Tab, served: Served, control: Control, scene: Scene
) -> None:
    tab.go(f"{served.root}tasks/{scene.dead[1]}")
    control.dead_letters.purge(Filter(task_id=scene.dead[1]))
    tab.follow(lambda: tab.press("button", "Retry in default"))
    tab.shows("it is no dead letter any more")
    tab.go(served.root + "schedules")
    control.schedules.remove("sweep")
    tab.follow(lambda: tab.press("form[action$='/schedules/sweep/run'] button"))
    tab.shows("sweep", ".notice.bad")
    # Letters that die while a preview is read are not meant by it.
    tab.go(served.root + "dead?queue=mail")
    tab.follow(lambda: tab.press("button", "Preview retry"))
    control.dead_letters.redrive(Filter(queue="mail"))
    tab.follow(lambda: tab.press(".preview button", "Retry them"))
    assert control.dead_letters.find(Filter(queue="mail")) == []
