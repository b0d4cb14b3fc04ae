"""Every screen by the rules of axe-core (WCAG 2 A and AA, best practices): it finds nothing.

Source: axe-core, dequeuniversity.com/rules/axe. What it finds is a fault of the page, whatever the
cause; what it cannot judge by itself is for people. A newer one than the package has can be tried:
`LATE_TEST_AXE=axe.min.js pytest tests/web/test_axe.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from tests.web.chromium import Person, Tab
from tests.web.scene import Scene, fill, past
from tests.web.serving import Served

TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
WIDE, NARROW = (1440, 900), (390, 844)
PAINTED = ["color-contrast", "link-in-text-block"]
"""Rules that the colours of the page decide; the others say the same in the dark."""
PLACED = ["scrollable-region-focusable", "meta-viewport"]
"""Rules that the width decides; `test_screens` has the sizes of controls."""


def axe() -> str:
    """Return the script of axe-core."""
    given = os.environ.get("LATE_TEST_AXE")
    return (
        Path(given).read_text() if given else (files("axe_core_python") / "axe.min.js").read_text()
    )


def painted(tab: Tab, scheme: str) -> None:
    """Show the page in these colours."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    tab.call("Emulation.setEmulatedMedia", {"features": [feature]})
    assert tab.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")


def found(tab: Tab, run_only: dict[str, Any]) -> list[str]:
    """Return what axe-core finds wrong, a line for each element."""
    options = json.dumps({"runOnly": run_only, "resultTypes": ["violations"], "iframes": False})
    lines: list[str] = tab.evaluate(
        f"""axe.run(document, {options}).then((result) => result.violations.flatMap((rule) =>
          rule.nodes.map((node) => `${{rule.id}}: ${{node.html.slice(0, 200)}} `
            + node.failureSummary.split("\\n").slice(1).join(";").slice(0, 300))))"""
    )
    return lines


def different(scene: Scene) -> list[str]:
    """Return one screen of each template, and those with other things on it."""
    return [
        "", "queues", "queues/payments", "targets", "groups", "groups/reports", "shards",
        "shards/default/6", "tasks", f"tasks/{scene.dead[0]}?payload=1",
        f"tasks/{scene.parked[0]}", "dead?queue=payments&group=default", "tasks?state=parked",
        "workflows", *(f"workflows/{each}" for each in scene.workflows), f"tasks/{scene.dead[3]}",
        "schedules", "workers", "conflicts", "autoscaler", "celery", "cost", "login",
        "search?q=a",
        "groups/nothing-here",
    ]  # fmt: skip


def test_axe_finds_nothing(people: Callable[[], Person], tmp_path: Path) -> None:
    script, wrong = axe(), dict[str, list[str]]()
    scene = fill(f"sqlite:///{tmp_path}/page.db")
    past(scene.url)
    # Not live: a page that is exchanged meanwhile would be judged in halves.
    with Served(scene.url, every_s=None) as served:
        tab = people().tab()
        for path in different(scene):
            painted(tab, "light")
            tab.resize(*WIDE)
            tab.go(served.root + path)
            tab.evaluate(script)
            lines = found(tab, {"type": "tag", "values": TAGS})
            tab.resize(*NARROW)
            painted(tab, "dark")
            lines += found(tab, {"type": "rule", "values": [*PAINTED, *PLACED]})
            if lines:
                wrong[path] = sorted(set(lines))
        # The box with its suggestions below it.
        tab.go(served.root)
        tab.evaluate(script)
        tab.type(".find input", "pay")
        tab.wait("!document.querySelector('.found').hidden")
        tab.key("ArrowDown")
        if lines := found(tab, {"type": "tag", "values": TAGS}):
            wrong["the search box"] = lines
    assert wrong == {}, json.dumps(wrong, indent=1)


def test_axe_finds_what_is_wrong(people: Callable[[], Person], served: Served) -> None:
    """The control of the test above: a field without a name, and grey on white."""
    tab = people().tab()
    tab.go(served.root + "login")
    tab.evaluate(axe())
    tab.evaluate(
        "document.querySelector('main').innerHTML = '<h1>x</h1><input><p>hard to read</p>';"
        "document.querySelector('p').style.color = '#bbb';"
    )
    rules = {line.partition(":")[0] for line in found(tab, {"type": "tag", "values": TAGS})}
    assert {"label", "color-contrast"} <= rules
