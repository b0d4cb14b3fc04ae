"""Settings that are read anew while a process runs, at SIGHUP.

| the settings | then |
|---|---|
| cannot be read, or are wrong | one line says so, and all stays as it is |
| differ in what may change here | it counts from now on |
| differ in something else | the line names it: it needs a restart |
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from late import config
from late.config import WorkerConfig
from late.errors import ConfigError
from late.observability.logs import fields

logger = logging.getLogger("late.config")

LOG_LEVEL = "log_level"


class Reading(msgspec.Struct, frozen=True):
    """The settings as they were read at one moment."""

    worker: WorkerConfig
    command: Mapping[str, Any] = {}
    """Values of the command's other options that a file may change, by name."""

    def values(self) -> dict[str, Any]:
        """Return every value by its name."""
        return {**self.command, **msgspec.structs.asdict(self.worker)}


def of_keywords(settings: Mapping[str, Any]) -> Reading:
    """Read the settings of a program that has no file."""
    return Reading(config.load(**settings))


def at_hangup(reload: Callable[[], object], stop: Callable[[], None]) -> Callable[[], None]:
    """Return what SIGHUP does: read the settings anew, or stop if the terminal of this process has
    been closed since this call."""
    at_terminal = os.isatty(0)

    def hang_up() -> None:
        if at_terminal and not os.isatty(0):
            stop()
        else:
            reload()

    return hang_up


class Reloader:
    """Reads the settings anew when it is called.

    Args:
        read: reads them.
        first: what the process began with.
        take: gets the settings that count from now on.
        live: tells whether a setting, by its name, may change here.
    """

    def __init__(
        self,
        read: Callable[[], Reading],
        first: Reading,
        take: Callable[[WorkerConfig], None],
        live: Callable[[str], bool] = (config.LIVE | {LOG_LEVEL}).__contains__,
    ) -> None:
        self._read = read
        self._now = first
        self._take = take
        self._live = live

    def __call__(self) -> bool:
        """Take what has changed, say so in one line, and return whether it could be read."""
        try:
            wanted = self._read().values()
        except ConfigError as error:
            logger.error("settings are wrong, and stay as they were: %s", error)
            return False
        known = self._now.values()
        names = sorted(n for n in wanted.keys() | known if wanted.get(n) != known.get(n))
        changed = [name for name in names if self._live(name)]
        self._change({name: wanted.get(name) for name in changed})
        waiting = [name for name in names if name not in changed]
        about = fields(event="settings_read", **_named(changed=changed, needs_restart=waiting))
        logger.log(logging.WARNING if waiting else logging.INFO, _said(names), extra=about)
        return True

    def _change(self, values: Mapping[str, Any]) -> None:
        mine = {n: v for n, v in values.items() if n in WorkerConfig.__struct_fields__}
        command = {n: v for n, v in values.items() if n not in mine}
        worker = msgspec.structs.replace(self._now.worker, **mine)
        self._now = Reading(worker, {**self._now.command, **command})
        if level := command.get(LOG_LEVEL):
            logging.getLogger("late").setLevel(str(level).upper())
        if mine:
            self._take(worker)


def _said(names: Collection[str]) -> str:
    return "settings were read again" if names else "settings were read again: none has changed"


def _named(**lists: list[str]) -> dict[str, str]:
    return {name: ", ".join(each) for name, each in lists.items() if each}
