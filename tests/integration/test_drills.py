"""Incidents made for real: the overview, `late top` and `late doctor` name each with its cause.

The alert rules take minutes by their nature: `make drills` makes every incident, evaluates the
rules, and runs the runbooks.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.drills.incidents import DRILLS, Drill
from tests.drills.kit import SPEAKERS, deployment
from tests.integration.waking_kit import database

pytestmark = pytest.mark.timeout(1_300)


SHORT = ("a target fails 100 %", "stuck handlers", "a lock on the journal, writes wait")
"""A report while all works, one of a worker that stands still, and the views of the server."""
CHOSEN = [drill for drill in DRILLS if drill.name in SHORT]


@pytest.mark.parametrize("drill", CHOSEN, ids=lambda drill: drill.name.replace(" ", "-"))
def test_an_incident_is_named_with_its_cause(drill: Drill, tmp_path: Path) -> None:
    with database() as url, deployment(url, tmp_path) as on, drill.make(on):  # type: ignore[attr-defined]
        on.apart = False
        for who in SPEAKERS[:-1]:
            said: list[str] = []

            def is_said(who: str = who, said: list[str] = said) -> bool:
                said[:] = [on.answer(who)]
                return all(re.search(pattern, said[0]) for pattern in drill.said)

            try:
                on.until(is_said)
            except AssertionError as error:
                raise AssertionError(f"{who} says: {said[0]}") from error
            assert not re.search(r"late (group|queue) delete|late dead purge", said[0]), who
