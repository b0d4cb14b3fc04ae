"""The names and numbers of `ctx.count`: a mistake fails where the handler counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from late.errors import ConfigError
from late.model.task import Counts

NAMES_MAX = 16
"""Names that one task may count in a process. Each is in every row of usage that has it."""
NUMBER_MAX = 1_000_000_000_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,25}\Z")
"""A column of a CSV file and a sheet of a workbook can have the name."""

_known: dict[str, set[str]] = {}
"""The names that each task has counted so far."""


def given(numbers: Mapping[str, int]) -> Counts:
    """Return the counts of an answer, ascending by name; `check` has not seen them yet."""
    return tuple(sorted(numbers.items()))


def check(task: str, name: str, number: int) -> None:
    """Refuse what cannot be added up.

    Raises:
        ConfigError: a wrong name, no whole number from 0 to `NUMBER_MAX`, or more names of the task
            than `NAMES_MAX`.
    """
    names = _known.setdefault(task, set())
    if name not in names:
        _check_name(task, name)
        if len(names) >= NAMES_MAX:
            raise ConfigError(
                f"{task}: ctx.count({name!r}): a task counts at most {NAMES_MAX} names, and has"
                f" {', '.join(sorted(names)[:3])} and others; an id is no name"
            )
        names.add(name)
    _check_number(task, name, number)


def check_form(numbers: Mapping[str, int]) -> None:
    """Refuse wrong names and wrong numbers of an answer, whatever else its task has counted.

    Raises:
        ConfigError: see `check`.
    """
    for name, number in numbers.items():
        _check_name("counts", name)
        _check_number("counts", name, number)


def _check_name(task: str, name: str) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise ConfigError(
            f"{task}: ctx.count({name!r:.64}): a name has a letter, then up to 25 letters,"
            " digits, '_' or '-'"
        )


def _check_number(task: str, name: str, number: int) -> None:
    if type(number) is not int or not 0 <= number <= NUMBER_MAX:
        raise ConfigError(
            f"{task}: ctx.count({name!r}, {number!r:.64}): expected a whole number from 0 to"
            f" {NUMBER_MAX:,}"
        )
