"""The live settings of a queue or of a target: values, bounds and defaults. Pure.

An operator sets them while the fleet runs (`late queue set`, `late target set`). They are kept as
JSON in `late_queue` and `late_target`, and every worker uses new values within seconds. A setting
without a value has the default of its kind: `LOCAL` for handlers in the worker's own process,
`REMOTE` for services that are called. The settings of its queue **and** of its target apply to a
task.

Settings make tasks wait. Only `expires_s` drops one, because an operator asks for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from late.errors import InvalidPolicy
from late.model.validation import DAY_S, bounds, is_name, shown

Kind = Literal["queue", "target"]


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings that are set. None stands for the default of the kind."""

    paused: bool | None = None
    """Start no task of the queue or target. Tasks wait; none is lost."""
    closed: bool | None = None
    """Refuse new tasks: enqueue raises `QueueFull`."""
    max_backlog: int | None = None
    """Refuse new tasks while so many are unfinished. The count is some seconds old."""
    concurrency: int | Literal["auto"] | None = None
    """The most attempts at once in the whole fleet. With `auto` each worker finds its own limit."""
    rate: float | None = None
    """The most starts per second in the whole fleet."""
    burst: int | None = None
    """The most starts at once after a quiet time. The default is the starts of one second."""
    retry_budget: float | None = None
    """The most retries per worker, as a share of first attempts, 0..1. Further retries wait."""
    retry_min: float | None = None
    """Retries per second and worker that are always allowed."""
    breaker: float | None = None
    """The share of failed calls, 0..1, that opens the circuit; 1.5 never opens it."""
    breaker_calls: int | None = None
    """With fewer calls within 10 s the circuit does not open."""
    breaker_open_s: float | None = None
    """Seconds that the circuit stays open at first. They double each time, up to a minute."""
    smart_retry: bool | None = None
    """While a target, or most tasks of a name, fail, a failure uses no attempt and makes no dead
    letter."""
    slow_start_s: float | None = None
    """Time from a tenth of the concurrency to all of it, after a start or a recovery."""
    fair_key: str | None = None
    """The header that names the tenant."""
    fair_share: float | None = None
    """The largest share of the slots that one tenant may have."""
    key_concurrency: int | None = None
    """The most attempts at once in the whole fleet of tasks that have the same limit key."""
    key_rate: float | None = None
    """The most starts per second in the whole fleet of tasks that have the same limit key."""
    key_backlog: int | None = None
    """Refuse new tasks of a limit key while so many of it are unfinished. The count is some seconds
    old."""
    foreground: int | None = None
    """Foreground tasks that start for each background task, while both wait."""
    timeout_s: float | None = None
    """Seconds that an attempt may take. It replaces the handler's time-out."""
    expires_s: float | None = None
    """A task that has waited so long ends as expired and never runs."""
    fresh_first_s: float | None = None
    """If the oldest task has waited so long, the newest tasks start first."""
    spread_s: float | None = None
    """The starts of tasks that are due at the same time are spread over so many seconds."""
    owner: str | None = None
    """The team that answers for the queue and pays for it: a label for reports and alerts only."""
    severity: Literal["page", "ticket"] | None = None
    """The severity of an alert about the queue, for `late alerts render`."""
    late_share: float | None = None
    """The share of a Celery task's calls that `late` takes, 0..1: for `late.celery.router`."""
    objective_s: float | None = None
    """The highest age of the queue's oldest task, in seconds, without an alert; for `late alerts
    render`."""


CONCURRENCY_MAX = 100_000
_NUMBERS: dict[str, tuple[type, float, float]] = {
    "max_backlog": (int, 1, 10**12),
    "rate": (float, 0.001, 1_000_000),
    "burst": (int, 1, 1_000_000),
    "retry_budget": (float, 0, 1),
    "retry_min": (float, 0, 1_000_000),
    "breaker": (float, 0.01, 1.5),
    "breaker_calls": (int, 1, 100_000),
    "breaker_open_s": (float, 0.1, 3_600),
    "slow_start_s": (float, 0, 3_600),
    "fair_share": (float, 0.001, 1),
    "key_concurrency": (int, 1, CONCURRENCY_MAX),
    "key_rate": (float, 0.001, 1_000_000),
    "key_backlog": (int, 1, 10**12),
    "foreground": (int, 1, 1_000),
    "timeout_s": (float, 0.001, DAY_S),
    "expires_s": (float, 0.001, 366 * DAY_S),
    "fresh_first_s": (float, 0.001, 366 * DAY_S),
    "spread_s": (float, 0, DAY_S),
    "late_share": (float, 0, 1),
    "objective_s": (float, 0.1, 366 * DAY_S),
}
_FLAGS = ("paused", "closed", "smart_retry")
SEVERITIES = ("page", "ticket")
NAMES = QueueSettings.__struct_fields__
QUEUE_ONLY = frozenset({"closed", "max_backlog", "fair_key", "fair_share", "key_concurrency",
                        "key_rate", "key_backlog", "foreground", "expires_s", "fresh_first_s",
                        "spread_s", "owner", "severity", "late_share",
                        "objective_s"})  # fmt: skip
"""The settings that concern tasks and not the service that executes them. A target has none."""

LOCAL = QueueSettings(smart_retry=True, fair_share=0.25, foreground=8)
"""The defaults for a worker's own handlers. They share its slots and have no other limit."""
REMOTE = QueueSettings(
    concurrency="auto",
    retry_budget=0.2,
    retry_min=10.0,
    breaker=0.5,
    breaker_calls=20,
    breaker_open_s=5.0,
    smart_retry=True,
    slow_start_s=17.0,
)
"""The defaults for other services: they are protected. Sources: the budget is Finagle's (20 % and
10/s), the breaker's figures are those of `reliability` 4. A share of 10 % that doubles every 5 s is
100 % after 17 s."""


def decode(text: str | bytes) -> QueueSettings:
    """Read settings as they are kept in the database.

    Raises:
        InvalidPolicy: the text is no object of settings, or a value is unknown or out of bounds.
            A worker must not run without a setting that an operator has set.
    """
    try:
        settings = msgspec.json.decode(text, type=QueueSettings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidPolicy(f"knobs that cannot be read: {error}") from error
    check(settings)
    return settings


def encode(settings: QueueSettings) -> str:
    """Return the JSON that is kept in the database."""
    return msgspec.json.encode(settings).decode()


def changed(settings: QueueSettings, changes: Mapping[str, Any], kind: Kind) -> QueueSettings:
    """Return `settings` with `changes`: name -> value, or None for the default.

    Raises:
        InvalidPolicy: no setting of this kind has such a name, or a value is out of bounds; the
            message names it.
    """
    for name in changes:
        if name not in NAMES:
            raise InvalidPolicy(f"no such knob: {shown(name)}; there are {', '.join(NAMES)}")
        if kind == "target" and name in QUEUE_ONLY:
            raise InvalidPolicy(f"{name} is a knob of queues: a target has no tasks of its own")
    try:
        result = msgspec.convert({**msgspec.structs.asdict(settings), **changes}, QueueSettings)
    except msgspec.ValidationError as error:
        raise InvalidPolicy(f"not a value for a knob: {error}") from error
    check(result)
    return result


def parse(words: list[str]) -> dict[str, Any]:
    """Read words such as `rate=50 paused=on concurrency=auto burst=default`: name -> value.

    Raises:
        InvalidPolicy: a word is not `name=value`, a name stands twice, or a value has another type.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InvalidPolicy(f"expected name=value, got {shown(word)}")
        if name not in NAMES:
            raise InvalidPolicy(f"no such knob: {shown(name)}; there are {', '.join(NAMES)}")
        if name in found:
            raise InvalidPolicy(f"{name} is given twice")
        if not text:
            raise InvalidPolicy(f"{name}= has no value; {name}=default takes it back")
        found[name] = None if text == "default" else _typed(name, text)
    return found


def _typed(name: str, text: str) -> Any:
    if name in _FLAGS:
        words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
        if text.lower() not in words:
            raise InvalidPolicy(f"{name} is on or off, got {shown(text)}")
        return words[text.lower()]
    if name == "severity" and text not in SEVERITIES:
        raise InvalidPolicy(f"severity is {' or '.join(SEVERITIES)}, got {shown(text)}")
    if name in ("fair_key", "owner", "severity") or (name == "concurrency" and text == "auto"):
        return text
    whole = name == "concurrency" or _NUMBERS[name][0] is int
    try:
        return int(text) if whole else float(text)
    except ValueError:
        word = "a whole number" if whole else "a number"
        raise InvalidPolicy(f"{name} is {word}, got {shown(text)}") from None


def check(settings: QueueSettings) -> None:
    """Check that every value is within its bounds.

    Raises:
        InvalidPolicy: one is not; the message names it.
    """
    for name, (_, least, most) in _NUMBERS.items():
        value = getattr(settings, name)
        # This form also refuses NaN, which compares false with everything.
        if value is not None and not least <= value <= most:
            raise InvalidPolicy(f"{name} must be {bounds(least, most)}, got {shown(value)}")
    limit = settings.concurrency
    if isinstance(limit, int) and not 1 <= limit <= CONCURRENCY_MAX:
        raise InvalidPolicy(
            f"concurrency must be auto or 1..{CONCURRENCY_MAX}, got {shown(limit)} "
            "(paused=on starts nothing)"
        )
    if isinstance(limit, str) and limit != "auto":
        raise InvalidPolicy(f"concurrency must be auto or a number, got {shown(limit)}")
    if settings.fair_key is not None and not is_name(settings.fair_key):
        raise InvalidPolicy(
            f"fair_key must be the name of a header, got {shown(settings.fair_key)}"
        )
    if settings.owner is not None and not is_name(settings.owner):
        raise InvalidPolicy(f"owner must be a name, got {shown(settings.owner)}")


def binds(settings: QueueSettings) -> bool:
    """Tell whether a setting is set that affects how tasks run."""
    labels = {"owner": None, "late_share": None, "severity": None, "objective_s": None}
    return msgspec.structs.replace(settings, **labels) != QueueSettings()


def effective(settings: QueueSettings, defaults: QueueSettings) -> QueueSettings:
    """Return the settings that apply: for each its value if it is set, else its default."""
    given = {n: v for n, v in msgspec.structs.asdict(settings).items() if v is not None}
    return msgspec.structs.replace(defaults, **given)
