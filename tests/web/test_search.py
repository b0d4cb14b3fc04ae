"""The search box: suggestions by keys and by the pointer, and the page without scripts."""

from __future__ import annotations

from tests.web.chromium import Tab
from tests.web.scene import Scene
from tests.web.serving import Served

FIELD = ".find input"
NAMES = "[...document.querySelectorAll('.found li')].map((each) => each.firstChild.data)"
MARKED = "document.querySelector('.found [aria-selected=true]')?.firstChild.data"


def typed(tab: Tab, text: str, first: str) -> None:
    """Type, and wait for the suggestions of just that."""
    tab.type(FIELD, text)
    tab.wait(f"({NAMES})[0] === {first!r}")


def test_suggestions_are_chosen_by_keys(tab: Tab, served: Served) -> None:
    tab.go(served.root)
    tab.key("/")
    typed(tab, "payments", "payments")
    assert tab.evaluate(MARKED) is None
    assert tab.evaluate(f"document.querySelector('{FIELD}').ariaExpanded") == "true"
    tab.key("ArrowDown")
    tab.key("ArrowDown")
    tab.key("ArrowUp")
    assert tab.evaluate(MARKED) == "payments"
    active = f"document.querySelector('{FIELD}').getAttribute('aria-activedescendant')"
    assert tab.evaluate(f"document.getElementById({active}).ariaSelected") == "true"
    assert tab.evaluate(f"document.activeElement === document.querySelector('{FIELD}')")
    tab.key("Escape")
    assert tab.evaluate("document.querySelector('.found').hidden")
    assert tab.evaluate(f"document.querySelector('{FIELD}').value") == "payments"
    typed(tab, "bank", "bank")
    tab.follow(lambda: tab.key("Enter"))
    assert tab.text("h1") == "Target bank"
    assert tab.faults == []


def test_a_suggestion_is_chosen_by_the_pointer(tab: Tab, served: Served) -> None:
    tab.go(served.root)
    typed(tab, "nightly", "nightly-report")
    tab.follow(lambda: tab.press(".found li", "nightly-report"))
    tab.shows("nightly-report")
    assert tab.text("h1") == "Schedules"


def test_the_box_works_without_scripts(tab: Tab, served: Served, scene: Scene) -> None:
    tab.without_scripts()
    tab.go(served.root)
    tab.type(FIELD, "work")
    tab.follow(lambda: tab.evaluate(f"document.querySelector('{FIELD}').form.submit()"))
    assert "worker-a1" in tab.text("main")
    tab.type(FIELD, scene.parked[0])
    tab.follow(lambda: tab.evaluate(f"document.querySelector('{FIELD}').form.submit()"))
    tab.shows("is parked")
