"""The knobs of a form in groups: what is set is on top and open, what was typed stays in sight."""

from __future__ import annotations

from pathlib import Path

from late.model.queue_settings import NAMES, QueueSettings
from late.web.models import queues
from late.web.models.knob_groups import GROUPS, OTHERS, knob_groups
from tests.unit.web_kit import page


def test_each_knob_is_in_one_group_and_those_that_are_set_in_the_first() -> None:
    groups = knob_groups(queues.form(QueueSettings(rate=5.0)), ["rate", "owner"], {})
    names = [field.name for group in groups for field in group.fields]
    assert sorted(names) == sorted(NAMES)
    assert {field.name for field in groups[0].fields} == {"rate", "owner"}
    assert [group.is_open for group in groups] == [True] + [False] * (len(groups) - 1)
    assert [group.name for group in groups[1:] if group.name != OTHERS] == list(GROUPS)


def test_a_group_with_a_text_that_was_typed_is_open() -> None:
    groups = knob_groups(queues.form(QueueSettings()), [], {"knob.burst": "many", "knob.owner": ""})
    assert [group.name for group in groups if group.is_open] == ["Pace"]


async def test_a_queue_without_knobs_has_them_all_folded(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        shown = await it.shown("queues/mail")
        assert shown.count("<summary>") == len(GROUPS)
        assert "<details open>" not in shown
        it.control.queues.change("queue", "mail", {"rate": 5.0})
        assert "<details open>" in await it.shown("queues/mail")
