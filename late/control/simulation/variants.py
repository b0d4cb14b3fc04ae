"""Read the knobs and sizes that are to be tried, and compare two runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from late.errors import ConfigError
from late.model import queue_settings
from late.model.queue_settings import QueueSettings
from late.model.validation import shown

LIMITS = ("rate", "burst", "concurrency")
"""The knobs that can be tried: those that hold back when a task starts, by numbers alone."""
SIZES = ("workers", "slots")
WORKERS_MAX = 1_000
SLOTS_MAX = 100_000


class Variant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes of one variant. What it does not name stays as it is."""

    knobs: Mapping[str, float | int | None] = {}
    workers: int | None = None
    slots: int | None = None

    @property
    def text(self) -> str:
        """The variant as it is written, such as `rate=50 workers=4`."""
        given: dict[str, float | int | str | None] = {
            name: "default" if each is None else each for name, each in self.knobs.items()
        }
        given |= {"workers": self.workers, "slots": self.slots}
        return " ".join(
            f"{name}={each:g}" if isinstance(each, float) else f"{name}={each}"
            for name, each in given.items()
            if each is not None
        )


def variants(
    texts: Iterable[str], *, workers: int | None = None, slots: int | None = None
) -> tuple[Variant, ...]:
    """Read variants such as `rate=50 concurrency=20` or `rate=50,workers=4`, one each.

    Args:
        workers: for those that do not name their own; alone it is a variant of itself.
        slots: of each worker, likewise.

    Raises:
        ConfigError: a word is no knob that can be tried, or its value is out of bounds.
    """
    sizes = {"workers": workers, "slots": slots}
    read = [_variant(text, sizes) for text in texts]
    if not read and any(each is not None for each in sizes.values()):
        read = [_variant("", sizes)]
    return tuple(read)


def _variant(text: str, given: Mapping[str, int | None]) -> Variant:
    words = text.replace(",", " ").split()
    sizes, knobs = dict(given), []
    for word in words:
        name, _, value = word.partition("=")
        if name in SIZES:
            sizes[name] = _whole(name, value)
        else:
            knobs.append(word)
    for name, most in zip(SIZES, (WORKERS_MAX, SLOTS_MAX), strict=True):
        size = sizes[name]
        if size is not None and not 1 <= size <= most:
            raise ConfigError(f"{name} must be 1..{most}, got {size}")
    changes = queue_settings.parse(knobs)
    for name, value in changes.items():
        if name not in LIMITS or value == "auto":
            what = f"{name}={value}" if name in LIMITS else name
            raise ConfigError(
                f"{shown(what)} cannot be simulated; there are {', '.join((*LIMITS, *SIZES))}"
            )
    queue_settings.changed(QueueSettings(), changes, "queue")
    if not changes and sizes["workers"] is None and sizes["slots"] is None:
        raise ConfigError("a variant without a knob: expected such as rate=50 or workers=4")
    return Variant(changes, sizes["workers"], sizes["slots"])


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is a whole number, got {shown(text)}") from None


def limits_of(knobs: QueueSettings) -> QueueSettings:
    """Return the knobs that a run knows."""
    concurrency = knobs.concurrency if isinstance(knobs.concurrency, int) else None
    return QueueSettings(rate=knobs.rate, burst=knobs.burst, concurrency=concurrency)


def error_of(replayed: float | None, happened: float | None) -> float | None:
    """Return how far a replay is off, in parts of what happened; None: there is nothing to
    compare."""
    if replayed is None or not happened:
        return None
    return replayed / happened - 1.0
