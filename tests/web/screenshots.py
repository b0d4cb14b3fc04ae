"""Pictures of the screens for the docs: `make screenshots`, or `python -m tests.web.screenshots`.

They are made of a real page in a real browser over the scene of the tests, while it moves on, so
that they cannot show what the page does not have.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from late.model.task import Usage
from late.store import open_store
from scripts import browser
from tests.conformance.kit import Owner
from tests.web.chromium import Chromium, Person, Tab
from tests.web.scene import NAMES, QUEUES, WORKERS, Scene, fill, past
from tests.web.serving import Served

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "screens"
BYTES_MAX = 600 * 1024
"""Of all pictures together: they are in everybody's clone."""
WIDTH, HEIGHT = 1100, 760


def screens(scene: Scene) -> dict[str, str]:
    """What each picture is of."""
    return {
        "overview": "", "queues": "queues", "queue": "queues/mail", "targets": "targets",
        "groups": "groups", "group": "groups/default", "shards": "shards?group=default",
        "shard": "shards/default/1", "task": f"tasks/{scene.dead[0]}", "dead": "dead",
        "tasks": "tasks?state=parked", "schedules": "schedules", "workers": "workers",
        "conflicts": "conflicts", "autoscaler": "autoscaler", "usage": "cost", "celery": "celery",
    }  # fmt: skip


class Moving:
    """Settlements of the first shard, a few in a second, in a thread: so that there is a flow."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Moving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        store = open_store(self._url)
        await store.open()
        try:
            (lease,) = await store.acquire(WORKERS[0], [("default", 0)])  # type: ignore[list-item]
            owner, turn = Owner(store, lease), 0
            while not self._stop.is_set():
                turn += 1
                n = turn % len(QUEUES)
                count = 20 + turn % 7 * 5
                usage = Usage(QUEUES[n], NAMES[n], "local", "done", count, count, count * 40_000)
                await owner.settle(usage=(usage,))
                await asyncio.to_thread(self._stop.wait, 0.4)
        finally:
            await store.close()


def picture(tab: Tab, path: Path) -> int:
    """Take one, and return its size."""
    tab.picture(path)
    return path.stat().st_size


def take(chromium: Chromium, scene: Scene, folder: Path, kind: str) -> int:
    """All of them; returns how many bytes they are."""
    total = 0
    past(scene.url)
    with Served(scene.url, every_s=None) as served, Moving(scene.url):
        tab = Person(chromium).tab(WIDTH, HEIGHT, prefers_color_scheme="light")
        tab.go(served.root)
        tab.wait("!document.querySelector('.hour').innerText.includes('being read')", "the hour")
        for name, path in screens(scene).items():
            tab.go(served.root + path)
            total += picture(tab, folder / f"{name}.{kind}")
        tab.go(served.root + "queues/payments")
        tab.type("input[name='knob.rate']", "5")
        tab.follow(lambda: tab.press("button", "Preview"))
        tab.evaluate("document.querySelector('.preview').scrollIntoView()")
        total += picture(tab, folder / f"preview.{kind}")
        dark = Person(chromium).tab(WIDTH, HEIGHT, prefers_color_scheme="dark")
        dark.go(served.root)
        total += picture(dark, folder / f"overview-dark.{kind}")
        narrow = Person(chromium).tab(360, HEIGHT, prefers_color_scheme="light")
        narrow.go(served.root)
        total += picture(narrow, folder / f"overview-narrow.{kind}")
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.web.screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--kind", choices=("webp", "png"), default="webp")
    asked = parser.parse_args(arguments)
    folder = asked.folder
    program = browser.find()
    if program is None:
        print(f"no Chromium: {browser.HOW}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, Chromium(program) as chromium:
        total = take(chromium, fill(f"sqlite:///{temporary}/page.db"), folder, asked.kind)
    count = len(list(folder.glob(f"*.{asked.kind}")))
    print(f"{count} pictures in {folder}, {total / 1024:.0f} KiB")
    if total > BYTES_MAX:
        print(f"more than {BYTES_MAX // 1024} KiB: make them smaller", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
