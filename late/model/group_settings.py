"""The settings of a consumer group that an operator sets: values, bounds and texts. Pure.

They are kept as JSON in `late_meta`, beside the row of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from late.errors import ConfigError, InvalidPolicy
from late.model.time_text import duration_us
from late.model.validation import DAY_S, bounds, shown

KEY = "group_set/"
"""The beginning of the keys in `late_meta`."""
BOUNDS = {"objective_s": (0.1, 366 * DAY_S), "max_age_s": (1.0, 366 * DAY_S)}
TAKES_BACK = "default"


class GroupSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings that are set. What a later version has added is passed over."""

    objective_s: float | None = None
    """Seconds within which its attempts are to start, counted from when they are due."""
    max_age_s: float | None = None
    """A task that is older when it would begin ends as expired and never runs in the group."""


NAMES = GroupSettings.__struct_fields__


def decode(text: str) -> GroupSettings:
    """Read settings as they are kept in the database.

    Raises:
        InvalidPolicy: the text is no object of settings.
    """
    try:
        return msgspec.json.decode(text, type=GroupSettings)
    except msgspec.MsgspecError as error:
        raise InvalidPolicy(f"settings of a group that cannot be read: {error}") from error


def of_meta(facts: Mapping[str, str]) -> dict[str, GroupSettings]:
    """Return the settings of each group that has any, from the rows of `late_meta`.

    Raises:
        InvalidPolicy: a text is no object of settings.
    """
    return {k.removeprefix(KEY): decode(v) for k, v in facts.items() if k.startswith(KEY)}


def changed(settings: GroupSettings, changes: Mapping[str, Any]) -> GroupSettings:
    """Return `settings` with `changes`: name -> seconds, or None to take a setting back.

    Raises:
        ConfigError: there is no such setting, or a value is out of bounds; the message names it.
    """
    for name, value in changes.items():
        if name not in NAMES:
            raise ConfigError(f"no such setting: {shown(name)}; there are {', '.join(NAMES)}")
        if value is None:
            continue
        least, most = BOUNDS[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise ConfigError(f"{name} must be {bounds(least, most)}, got {shown(value)}")
    made = {name: None if value is None else float(value) for name, value in changes.items()}
    return msgspec.structs.replace(settings, **made)


def parse(words: list[str]) -> dict[str, float | None]:
    """Read words such as `objective_s=60 max_age=6h objective_s=default`: name -> seconds.

    A name without `_s` takes a time with its unit.

    Raises:
        ConfigError: a word is not `name=value`, a name stands twice, or there is no such setting.
    """
    found: dict[str, float | None] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text:
            raise ConfigError(f"expected name=value, got {shown(word)}")
        full = name if name.endswith("_s") else f"{name}_s"
        if full not in NAMES:
            raise ConfigError(f"no such setting: {shown(name)}; there are {', '.join(NAMES)}")
        if full in found:
            raise ConfigError(f"{full} is given twice")
        found[full] = None if text == TAKES_BACK else _seconds(name, text)
    return found


def _seconds(name: str, text: str) -> float:
    if not name.endswith("_s"):
        return duration_us(text, name) / 1_000_000
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} is a number of seconds, got {shown(text)}") from None
