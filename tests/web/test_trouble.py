"""A database, a server, a browser or a worker that goes away: the page says so and stays usable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from late.control import Control
from late.control.autoscale_journal import AutoscalerControl
from late.control.dead_letters.commands import DeadLetterControl
from late.control.queue_settings import QueueControl
from late.control.schedules import ScheduleControl
from late.control.status.queries import StatusControl
from late.control.task_commands import TaskControl
from late.errors import StoreUnavailable
from tests.integration.control_kit import execute
from tests.web.chromium import LOOK_EVERY_S, PATIENCE_S, Person, Tab
from tests.web.scene import WORKERS, Scene
from tests.web.serving import Served


def streams(served: Served) -> int:
    return served.ask(lambda: served.site._streams.open)


def until(holds: Callable[[], bool]) -> None:
    """For what the server knows of itself and tells nobody."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(LOOK_EVERY_S)


def test_a_browser_that_goes_leaves_no_stream_behind(
    people: Callable[[], Person], served: Served
) -> None:
    tabs = [people().tab() for _ in range(3)]
    for tab in tabs:
        tab.go(served.root + "queues")
    until(lambda: streams(served) == 3)
    tabs[0].close()
    until(lambda: streams(served) == 2)
    tabs[1].go("about:blank")
    until(lambda: streams(served) == 1)
    # Out of sight it does not follow: a browser has few connections for one host.
    hide = (
        "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    tabs[2].evaluate(hide % "true")
    until(lambda: streams(served) == 0)
    tabs[2].evaluate(hide % "false")
    until(lambda: streams(served) == 1)


def test_a_page_follows_again_after_the_server_came_back(
    tab: Tab, scene: Scene, control: Control
) -> None:
    with Served(scene.url) as served:
        tab.go(served.root + "queues")
        until(lambda: streams(served) == 1)
        tab.evaluate("window.stays = true")
    tab.wait("!document.getElementById('lost').hidden", "that it is not live")
    assert "payments" in tab.text("#live table"), "what was there stays"
    with Served(scene.url, port=served.port):
        control.queues.change("queue", "payments", {"paused": True})
        tab.shows("paused", "#live tr:has(a[href$='/payments'])")
        tab.wait("document.getElementById('lost').hidden")
        assert tab.evaluate("window.stays")


def test_a_dead_database_is_said_on_every_screen_and_so_is_its_return(
    tab: Tab, served: Served, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("no route to db.internal, user=admin")

    methods = [
        (StatusControl, "detailed"), (StatusControl, "owners"), (TaskControl, "find"),
        (DeadLetterControl, "page"), (DeadLetterControl, "redrive"), (ScheduleControl, "all"),
        (QueueControl, "live"), (QueueControl, "change"), (TaskControl, "show"),
        (AutoscalerControl, "all"),
    ]  # fmt: skip
    tab.go(served.root + "queues")
    with monkeypatch.context() as broken:
        for part, name in methods:
            broken.setattr(part, name, fails)
        tab.shows("The database does not answer. What you see is")
        assert "payments" in tab.text("#live table")
        for path in ("", "groups", "shards", "workers"):
            tab.go(served.root + path)
            tab.shows("The database does not answer.")
        for path in ("dead", "tasks?state=parked", "schedules", "autoscaler", "shards/default/1",
                     "queues/payments", f"tasks/{scene.dead[0]}"):  # fmt: skip
            tab.go(served.root + path)
            assert tab.count(".notice.bad") == 1, path
            assert "db.internal" not in tab.text(), path
            assert tab.count("nav a") > 10, path
        tab.go(served.root + "workers")
    tab.wait("!document.querySelector('#live .notice')", "that it answers again")
    tab.go(served.root + "schedules")
    with monkeypatch.context() as broken:
        broken.setattr(ScheduleControl, "all", fails)
        tab.wait("!document.getElementById('lost').hidden", "that a part could not be shown anew")
        assert "nightly-report" in tab.text("#live")
    tab.wait("document.getElementById('lost').hidden")


def test_a_worker_that_vanishes_is_told_as_such_and_so_are_its_shards(
    tab: Tab, served: Served, scene: Scene
) -> None:
    tab.go(served.root + "workers")
    tab.shows(WORKERS[0])
    execute(scene.url, "update late_worker set expires_at_us = 1 where worker_id = :id",
            id=WORKERS[0])  # fmt: skip
    tab.wait(f"!document.querySelector('#live table').innerText.includes('{WORKERS[0]}')")
    assert WORKERS[0] in tab.text("#vanished ~ .wide"), "it owns its shards still"
    tab.go(served.root)
    tab.shows("Shards of default are not worked")
    tab.follow(lambda: tab.press("a", "Shards of default are not worked"))
    tab.shows("5 of these shards have no live owner.")
    execute(scene.url, "update late_worker set expires_at_us = 1 where worker_id = :id",
            id=WORKERS[1])  # fmt: skip
    tab.go(served.root)
    tab.shows("No worker is alive")
