"""The screen of tasks on their way from Celery: it is named where there are some."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from late.control import Control
from late.model.access.tokens import Token
from late.model.histogram import bucket
from late.model.task import ENQUEUED, Usage
from late.store import open_store
from late.web import celery_views
from tests.conformance.kit import own
from tests.unit.test_web_routes import token
from tests.unit.web_kit import page

NAV = 'href="/ui/celery"'
TASK = "shop.send"


async def settle(url: str, *usage: Usage) -> None:
    store = open_store(url)
    await store.open()
    try:
        owner = await own(store, 3)
        await owner.settle(usage=usage)
    finally:
        await store.close()


def set_share(control: Control, **knobs: object) -> None:
    control.queues.change("queue", f"celery:{TASK}", knobs)


def cells(text: str) -> list[str]:
    """The cells of the task's line, as a reader sees them."""
    (line,) = re.findall(rf"<tr[^>]*><th scope=\"row\"><a [^>]*>{TASK}</a>.*?</tr>", text, re.S)
    return [
        re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td>(.*?)</td>", line, re.S)
    ]


async def test_without_such_tasks_no_screen_names_it(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        assert NAV not in await it.shown("")
        assert "No task is on its way." in await it.shown("celery")
        set_share(it.control, late_share=0.5)
        it.site._context.snapshots.forget()
        assert NAV in await it.shown("")


async def test_a_task_has_its_share_and_the_counts_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery_views, "EVERY_S", 0.0)
    monkeypatch.setattr(celery_views, "REST", 0)
    waits = ((bucket(2_000_000), 4),)
    async with page(tmp_path) as it:
        set_share(it.control, late_share=0.25, closed=True)
        await settle(
            it.url,
            Usage("default", TASK, "local", ENQUEUED, 5),
            Usage("default", TASK, "local", "done", 4, 4, waiting=waits),
            Usage("default", TASK, "local", "dead", 1, 1),
            Usage("celery", f"celery:{TASK}", "local", ENQUEUED, 7),
            Usage("celery.link", f"celery:{TASK}", "local", ENQUEUED, 2),
            Usage("celery", f"celery:{TASK}", "local", "retried", 3, 3),
            Usage("mail", "another", "local", ENQUEUED, 50),
        )
        text = await it.shown("celery")
        assert "another" not in text
        share, *late_side = cells(text)[:6]
        assert share.split() == ["0.25", "25", "%", "off"]
        assert late_side[:3] == ["5", "1", "1"]
        assert late_side[3].endswith("s")
        assert cells(text)[6:] == ["9", "3", "0", "–", "–", "link 2"]
        assert f'href="/ui/queues/celery%3A{TASK}"' in text
        assert "late_share" in await it.shown(f"queues/celery%3A{TASK}")


async def test_the_journal_is_read_once_for_all_who_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    monkeypatch.setattr(celery_views, "EVERY_S", 600.0)
    monkeypatch.setattr(
        celery_views, "read", lambda control, since_us, group: reads.append(group) or []
    )
    async with page(tmp_path) as it:
        for _ in range(3):
            await it.shown("celery")
    assert reads == ["default"]


async def test_who_sees_some_queues_alone_sees_nothing_of_it(tmp_path: Path) -> None:
    some, four = token("some", "view", queues=("mail",))
    every, all_ = token("all", "view")
    tokens: list[Token] = [four, all_]
    async with page(tmp_path, tokens=tokens) as it:
        set_share(it.control, late_share=0.5)
        for text, status in ((some, 404), (every, 200)):
            headers = {"authorization": f"Bearer {text}"}
            assert (await it.get("celery", headers=headers)).status_code == status
            assert (NAV in (await it.get("", headers=headers)).text) == (status == 200)
