"""The verdicts, and what the scan says of one part of Celery."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Verdict = Literal["same", "edit", "unsupported"]
ORDER: tuple[Verdict, ...] = ("same", "edit", "unsupported")
"""From the best to the worst."""


class Feature(NamedTuple):
    """One part of Celery's interface."""

    verdict: Verdict
    note: str = ""
    """The reason, or what to do."""
    silent: bool = False
    """True if it goes on without an error, and means something else."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of them; `same` if there are none."""
    return max(verdicts, key=ORDER.index, default="same")


BROKER = "there is no broker: the tasks are rows of the database"
REMOTE = "operate with `late status`, `late cancel`, `late queue`, or the page"
BEAT = "`late celery beat` reads it"
