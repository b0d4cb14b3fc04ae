"""`--ids FILE`: many tasks by their ids, one a line."""

from __future__ import annotations

import sys
from typing import Annotated, TextIO, TypeAlias

import typer

from late.errors import ConfigError, InvalidName
from late.model.ids import shard_of
from late.model.task import TaskId

IDS_MAX = 100_000
LINE_MAX = 1_000
"""Characters of a line that are read: an id has 36, and another file is refused soon."""

File: TypeAlias = Annotated[
    str | None,
    typer.Option("--ids", metavar="FILE", help="Only these tasks: an id a line; - reads stdin."),
]


def read(file: str) -> list[TaskId]:
    """Read the ids of a file, each once. Empty lines are passed over.

    Raises:
        ConfigError: a line is no task id, there is none, there are too many, or the file cannot be
            read.
    """
    if file == "-":
        return _ids(sys.stdin, "stdin")
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            return _ids(lines, file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error


def _ids(lines: TextIO, file: str) -> list[TaskId]:
    found: dict[TaskId, None] = {}
    number = 0
    while line := lines.readline(LINE_MAX):
        number += 1
        if not (text := line.strip()):
            continue
        try:
            shard_of(text)
        except InvalidName as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
        found[TaskId(text)] = None
        if len(found) > IDS_MAX:
            raise ConfigError(f"{file} has more than {IDS_MAX:,} ids: give it in parts")
    if not found:
        raise ConfigError(f"{file} has no task id")
    return list(found)
