"""The entries of the page: six sections, with what the caller may open below each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from late.model.access.rights import ANYBODY, NOBODY, Caller, Right
from late.web import navigation
from late.web.navigation import SECTIONS
from tests.unit.web_kit import page


def names(caller: Caller, current: str = "") -> list[list[str]]:
    found = navigation.sections(caller, current)
    return [[screen.name for screen in section.screens] for section in found]


def test_six_entries_lead_to_every_screen_and_no_key_is_used_twice() -> None:
    assert [section.first.name for section in SECTIONS] == [
        "Overview", "Queues", "Tasks", "Schedules", "Workers", "Cost",
    ]  # fmt: skip
    every = [screen for section in SECTIONS for screen in section.screens]
    assert len({screen.key for screen in every}) == len({s.path for s in every}) == len(every)
    assert sum(map(len, names(ANYBODY))) == len(every)
    assert names(NOBODY) == []


def test_a_role_has_no_entry_of_a_screen_that_it_may_not_see() -> None:
    shop = Caller("shop", (Right("view", ("shop.*",)),))
    own = [
        ["Overview"],
        ["Queues"],
        ["Tasks", "Parked", "Workflows", "Dead letters"],
        ["Schedules"],
        ["Cost"],
    ]
    assert names(shop) == own
    lane = Caller("eu", (Right("view", ("shop.*",), ("eu",)),))
    assert names(lane) == [*own[:4], ["Shards"], *own[4:]]


@pytest.mark.parametrize(
    ("path", "state", "expected"),
    [
        ("", "", ""),
        ("queues/mail", "", "queues"),
        ("tasks", "parked", "tasks?state=parked"),
        ("tasks", "dead", "tasks"),
        ("tasks/0190", "parked", "tasks"),
        ("shards/default/3", "", "shards"),
    ],
)
def test_an_address_belongs_to_a_screen(path: str, state: str, expected: str) -> None:
    assert navigation.here(path, state) == expected


def test_the_section_of_the_current_screen_is_marked() -> None:
    found = navigation.sections(ANYBODY, "dead", hidden=("celery",))
    assert [section.first.name for section in found if section.is_current] == ["Tasks"]
    assert "celery" not in {screen.path for section in found for screen in section.screens}


async def test_the_current_entry_and_the_one_below_it_are_marked(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        for path, entries in (
            ("", [("page", "Overview")]),
            ("dead", [("true", "Tasks"), ("page", "Dead letters")]),
            ("tasks?state=parked", [("true", "Tasks"), ("page", "Parked")]),
            ("queues/mail", [("true", "Queues"), ("page", "Queues")]),
            ("nowhere", []),
        ):
            navs = "".join(re.findall("<nav.*?</nav>", (await it.get(path)).text, re.S))
            assert re.findall(r'aria-current="(\w+)">([^<]+)<', navs) == entries, path
