"""Dead letters by cause, and the filter of the screen. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from late.control.dead_letters.filter import Filter
from late.control.views import DeadView
from late.errors import ConfigError
from late.web.formats import fitting, short

LOOKED_AT = 200
"""The number of latest dead letters that one page groups; older ones are on further pages."""
CAUSES = 30
"""Causes that are listed; the others are only counted."""
EXAMPLES, EXAMPLES_MIN = 5, 1
"""Examples of each cause, if there are few causes and if there are many."""
ERRORS_SHOWN = 24 * 1024
"""Characters of errors on one page: a letter's own page has more."""
FIELDS = ("group", "queue", "name", "reason", "error", "workflow")
"""Fields of the filter, as the form and the links name them."""
_VARIABLE = re.compile(r"[0-9'\"\[{(<]")
_STEM_MIN = 6
_Key = tuple[str, str, str, str, str]
"""Group, queue, name, reason, stem."""


class Example(msgspec.Struct, frozen=True):
    """One dead letter of a cause."""

    letter: DeadView
    errors: tuple[tuple[int, int, str, str], ...]
    """(attempt, time, worker, error) of each attempt whose error differs from the one before."""


class Cause(msgspec.Struct, frozen=True):
    """Dead letters of the same cause."""

    group: str
    queue: str
    name: str
    reason: str
    stem: str
    """A text that each of their last errors contains; may be empty."""
    count: int
    first_us: int
    last_us: int
    examples: tuple[Example, ...]


class DeadPage(msgspec.Struct, frozen=True):
    """The model of the screen."""

    causes: tuple[Cause, ...]
    more: int
    """Causes that are not listed."""
    looked_at: int
    before_us: int | None
    """The moment at which the next page begins; None if these were all."""


def causes(found: Sequence[DeadView], before_us: int | None = None) -> DeadPage:
    """Group one page of dead letters by cause, the most common cause first.

    Args:
        found: the dead letters, latest first.
        before_us: the moment at which the next page begins.
    """
    ordered = sorted(found, key=_cause)
    groups = [(key, list(letters)) for key, letters in groupby(ordered, key=_cause)]
    groups.sort(key=lambda each: (-len(each[1]), -max(x.dead_at_us for x in each[1])))
    shown = groups[:CAUSES]
    examples = max(EXAMPLES_MIN, min(EXAMPLES, CAUSES // max(1, len(shown))))
    room = ERRORS_SHOWN // (examples * max(1, len(shown)))
    return DeadPage(
        causes=tuple(_of(key, letters, examples, room) for key, letters in shown),
        more=len(groups) - len(shown),
        looked_at=len(found),
        before_us=before_us,
    )


def _of(key: _Key, letters: list[DeadView], examples: int, room: int) -> Cause:
    group, queue, name, reason, common = key
    times = [letter.dead_at_us for letter in letters]
    latest = sorted(letters, key=lambda letter: -letter.dead_at_us)[:examples]
    shown = tuple(Example(each, _fitting(differences(each), room)) for each in latest)
    return Cause(group, queue, name, reason, common, len(letters), min(times), max(times), shown)


def _fitting(
    errors: list[tuple[int, int, str, str]], room: int
) -> tuple[tuple[int, int, str, str], ...]:
    texts = fitting([each[-1] for each in errors], room)
    return tuple((*each[:3], text) for each, text in zip(errors, texts, strict=True))


def _cause(letter: DeadView) -> _Key:
    error = letter.errors[-1].error if letter.errors else ""
    return letter.group, letter.queue, letter.name, letter.reason, stem(error)


def stem(error: str) -> str:
    """The part of an error that errors of its kind have in common.

    It is the first line up to the first digit, quote or bracket, but at least a few characters.
    """
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[0][:200]
    found = _VARIABLE.search(line, _STEM_MIN)
    return (line[: found.start()] if found else line).rstrip()


def differences(letter: DeadView) -> list[tuple[int, int, str, str]]:
    """Return (attempt, time, worker, error) of attempts whose error differs from the one before."""
    found = []
    before: str | None = None
    for each in letter.errors:
        if each.error != before:
            found.append((each.attempt, each.at_us, each.worker, each.error))
        before = each.error
    return found


def which(fields: Mapping[str, str]) -> Filter:
    """Make the filter from the fields of a link or a form.

    Raises:
        ConfigError: a time is not a number; `Filter.check` refuses other wrong values.
    """
    given: dict[str, Any] = {name: fields[name] for name in FIELDS if fields.get(name)}
    before = fields.get("before")
    if before and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise ConfigError(f"before {short(before, 40)!r}: microseconds")
    return Filter(**given, until_us=int(before) if before else None)


def said(chosen: Filter) -> str:
    """Describe the filter for people."""
    words = [f"{name} {getattr(chosen, name)!r}" for name in FIELDS if getattr(chosen, name)]
    return ", ".join(words) or "all dead letters"
