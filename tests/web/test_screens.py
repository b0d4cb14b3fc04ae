"""Every screen as a reader has it: in the light and in the dark, wide and on a telephone, by keys,
and without scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from late.control import Control
from late.control.audit import acting
from tests.web.chromium import Person, Tab
from tests.web.scene import Scene, fill, past
from tests.web.serving import Served

PAGE_BYTES_MAX = 100 * 1024


def screens(scene: Scene) -> list[str]:
    """Each screen, with something on it."""
    return [
        "", "queues", "queues/payments", "queues/thumbnails", "queues/renamed-long-ago", "targets",
        "targets/bank", "groups", "groups/default", "groups/reports", "shards",
        "shards/default/6", "tasks", f"tasks/{scene.dead[0]}?payload=1",
        f"tasks/{scene.parked[0]}", f"tasks/{scene.waiting[0]}", "dead",
        "dead?queue=payments&group=default", "tasks?state=parked", "tasks?state=dead",
        "tasks?state=logged", "workflows", "workflows?state=failed",
        *(f"workflows/{each}" for each in scene.workflows), f"tasks/{scene.dead[3]}",
        f"dead?workflow={scene.workflows[1]}", "schedules", "workers",
        "conflicts", "autoscaler", "celery", "cost", "login", "groups/nothing-here",
    ]  # fmt: skip


# What every page must keep, by the page's own figures: an empty list is a good page.
# Source of the contrast: WCAG 2.2, success criterion 1.4.3; of the sizes of controls: 2.5.8.
FAULTS = """
(() => {
  const faults = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) faults.push(`it is ${wide} px wider than the window`);
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  if (!document.documentElement.lang || !document.title) faults.push("no language or title");
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  for (const each of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!each.labels.length) faults.push(`no label: ${each.outerHTML}`);
  for (const each of document.querySelectorAll("a, button"))
    if (each.checkVisibility() && !each.innerText.trim()) faults.push(`no name: ${each.outerHTML}`);
  for (const each of document.querySelectorAll(":not([role=img] *):is(th):not([scope])"))
    faults.push(`a head of nothing: ${each.outerHTML}`);
  const current = [...document.querySelectorAll("header [aria-current]")];
  if (current.length && current.filter((each) => each.ariaCurrent === "page").length !== 1)
    faults.push("not one current screen");
  if (document.querySelectorAll(".sections a").length > 6) faults.push("more than six entries");
  for (const each of document.querySelectorAll("button, input:not([type=hidden]), select, nav a")) {
    const box = each.getBoundingClientRect();
    if (box.width < 24 || box.height < 24) faults.push(`too small: ${each.outerHTML}`);
  }
  for (const each of document.querySelectorAll("time[datetime]:not([title])"))
    faults.push(`not in the reader's zone: ${each.outerHTML}`);
  const channels = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (text) => {
    const [r, g, b] = channels(text).slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (each) => {
    for (; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const each = node.parentElement;
    if (!node.data.trim() || !each.checkVisibility()) continue;
    if (each.matches("option, .hidden, .skip")) continue;
    const style = getComputedStyle(each);
    const [one, two] = [light(style.color), light(behind(each))].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if ((one + 0.05) / (two + 0.05) < (large ? 3 : 4.5))
      faults.push(`hard to read: ${node.data.trim().slice(0, 40)} in ${style.color}`);
  }
  return faults;
})()
"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280), ("dark", 3840)])
def test_every_screen_can_be_read_and_used(
    people: Callable[[], Person], served: Served, scene: Scene, scheme: str, width: int
) -> None:
    tab = people().tab(width, 900, prefers_color_scheme=scheme)
    tab.call("Network.setCacheDisabled", {"cacheDisabled": True})
    found: dict[str, Any] = {}
    # What is wide has but a few kinds of things on it.
    for path in screens(scene) if width < 3_000 else ("", "queues", "queues/payments"):
        tab.received = 0
        tab.go(served.root + path)
        assert tab.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        found[path] = tab.evaluate(FAULTS)
        # With all that it loads, for somebody who comes for the first time.
        assert 1_000 < tab.received <= PAGE_BYTES_MAX, path
        if path == "groups/nothing-here":
            tab.faults.clear()  # the browser complains of the status, which is right
        assert tab.faults == [], path
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert tab.dialogs == []


def test_screens_are_reached_by_keys(tab: Tab, served: Served, scene: Scene) -> None:
    tab.go(served.root)
    for key, name in (("q", "Queues"), ("d", "Dead letters"), ("t", "Tasks"), ("o", "Overview")):
        tab.key("g")
        tab.follow(lambda key=key: tab.key(key))  # type: ignore[misc]
        assert tab.text("h1") == name
    # The rows of entries are links in their order: the tab key alone reaches each.
    tab.go(served.root + "dead")
    reached = tab.evaluate(
        "[...document.querySelectorAll('header nav a')].filter((each) => each.tabIndex === 0 &&"
        " each.checkVisibility()).map((each) => each.innerText)"
    )
    assert reached == [
        "Overview", "Queues", "Tasks", "Schedules", "Workers", "Cost",
        "Tasks", "Parked", "Workflows", "Dead letters", "Conflicts",
    ]  # fmt: skip
    tab.key("/")
    assert tab.evaluate("document.activeElement.name") == "q"
    # In a field the keys are letters.
    tab.key("g")
    tab.key("q")
    assert tab.evaluate("document.activeElement.value") == "gq"
    tab.type(".find input", scene.parked[0])
    tab.follow(lambda: tab.evaluate("document.querySelector('.find').requestSubmit()"))
    tab.shows("is parked")


def test_a_button_stays_while_it_is_pressed(tab: Tab, served: Served) -> None:
    tab.go(served.root + "schedules")
    tab.evaluate(
        "window.lateAsked = window.lateSwaps = 0;"
        "document.addEventListener('htmx:afterRequest', () => window.lateAsked++);"
        "document.addEventListener('htmx:afterSwap', () => window.lateSwaps++);"
    )
    look = "document.body.dispatchEvent(new Event('late:look'));"
    tab.evaluate("dispatchEvent(new PointerEvent('pointerdown'));" + look)
    tab.wait("window.lateAsked > 0")
    assert tab.evaluate("window.lateSwaps") == 0
    tab.evaluate("dispatchEvent(new PointerEvent('pointerup'));" + look)
    tab.wait("window.lateSwaps > 0")


def test_an_open_page_follows_and_leaves_what_is_typed_into(
    tab: Tab, served: Served, control: Control
) -> None:
    tab.go(served.root + "queues?text=mail")
    tab.evaluate(
        "window.looks = 0; window.stays = true;"
        "new EventSource('/ui/live').addEventListener('look', () => window.looks++)"
    )
    control.queues.change("queue", "mail", {"paused": True})
    tab.shows("paused", "#live table")
    tab.evaluate("document.querySelector('#live input[name=text]').focus()")
    control.queues.change("queue", "mail", {"closed": True})
    tab.evaluate("window.looks = 0")
    tab.wait("window.looks > 1")
    assert tab.evaluate("document.activeElement.name") == "text"
    assert "closed" not in tab.text("#live table")
    tab.evaluate("document.activeElement.blur()")
    tab.shows("closed", "#live table")
    assert tab.evaluate("window.stays"), "it was never loaded as a whole"


def test_the_last_hour_is_drawn_though_nobody_has_watched(tab: Tab, tmp_path: Path) -> None:
    url = fill(f"sqlite:///{tmp_path}/page.db").url
    past(url)
    with Served(url) as served:
        tab.go(served.root)
        tab.wait("document.querySelectorAll('.hour canvas').length === 3", "three charts")
        tab.wait("!document.querySelector('.hour').innerText.includes('being read')")
        widths = tab.evaluate("[...document.querySelectorAll('.hour canvas')].map((c) => c.width)")
        assert len(set(widths)) == 1, "one axis of time"
        drawn = tab.evaluate("document.querySelector('[data-kind=failed]').dataset.chart")
        points = json.loads(drawn)
        # What `fill` has put there is drawn too, as soon as its minute is over.
        failed = [count for at, count in points if at < points[-1][0] - 600 and (count or 0) > 20]
        assert len(failed) == 8, "the minutes of the failures"
        kinds = "[...document.querySelectorAll('.changes li')].map((each) => each.className)"
        assert tab.evaluate(kinds) == ["join", "death", "change"]
        assert "rate 50 → 20" in tab.text(".changes .change")
        assert tab.faults == []


def test_a_knob_is_changed_without_scripts(tab: Tab, served: Served, control: Control) -> None:
    tab.without_scripts()
    tab.go(served.root + "queues/receipts")
    tab.press("summary", "Pace")
    tab.type("input[name='knob.rate']", "7")
    tab.follow(lambda: tab.press("button", "Preview"))
    tab.follow(lambda: tab.press("button", "Change it"))
    tab.shows("Workers follow within five seconds.")
    assert control.queues.live().queues["receipts"].rate == 7.0


def test_a_queue_that_was_renamed_keeps_its_knobs_in_sight(
    tab: Tab, served: Served, control: Control
) -> None:
    with acting("olga"):
        control.queues.change("queue", "old-name", {"paused": True})
    tab.go(served.root + "queues")
    tab.follow(lambda: tab.press("#live a", "old-name"))
    tab.shows("It may be empty, or have another name by now.")
    tab.choose("select[name='knob.paused']", "")
    tab.follow(lambda: tab.press("button", "Preview"))
    tab.follow(lambda: tab.press("button", "Change it"))
    assert not control.queues.live().queues["old-name"].paused
