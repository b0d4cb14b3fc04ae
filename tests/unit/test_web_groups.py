"""The screen of a group, as a browser gets it."""

from __future__ import annotations

from pathlib import Path

from late.control import Control
from tests.unit.test_web_routes import filled


async def test_a_group_shows_what_is_left_of_its_objective_and_what_it_skips(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as (it, _):
        assert "Skips" not in await it.shown("groups/default")
        with Control(it.url) as control:
            control.groups.change("default", {"objective_s": 30.0, "max_age_s": 3_600.0})
    async with filled(tmp_path) as (it, _):
        shown = await it.shown("groups/default")
        assert "Budget left" in shown
        assert "what is older than 1.0 h" in shown
        assert "Budget left" not in await it.shown("queues/mail")
