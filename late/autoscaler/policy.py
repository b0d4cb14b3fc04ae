"""The policy: the settings for a database's size, read from a file and checked.

An error names the field and its value. Source: Google's guidance for Spanner (high-priority CPU
65 % in one region, 45 % in several; storage per node), and the settings of the autoscalers of
Google's cloudspannerecosystem and of Mercari, which `docs/autoscaler.md` compares.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from late.errors import ConfigError

Method = Literal["linear", "stepwise", "direct"]
Units = Literal["nodes", "processing_units", "shards"]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TARGETS = {"regional": 65.0, "multi-regional": 45.0}
DATABASES_PER_NODE = 100

_STEPS = {
    "processing_units": "processing units come in hundreds up to 1000, and in thousands above",
    "shards": "shards come in powers of two",
}

Percent = Annotated[float, Meta(gt=0, le=100)]
Size = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=7 * 86_400)]


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time of the week: `time_windows.contains`."""

    at: Annotated[str, Meta(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    """Its begin, by the clock of `zone`."""
    minutes: Annotated[int, Meta(ge=1, le=7 * 1440)]
    days: Annotated[tuple[Day, ...], Meta(min_length=1)] = DAYS
    zone: str = "UTC"


class Hint(Window, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A window with a minimum size: "Friday 18:00 needs 12"."""

    size: Size
    """The least size during the window. The step limits apply on the way, so begin early enough."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings for one database. Sizes are in `units`, times in seconds, CPU in percent."""

    min: Size
    max: Size
    units: Units = "nodes"
    topology: Literal["regional", "multi-regional"] = "regional"
    method: Method = "linear"
    target_cpu: Percent | None = None
    """High-priority CPU to keep; by default Google's advice for the topology."""
    target_cpu_total: Percent | None = None
    """The same for the CPU of all priorities. The one of the two that asks for more counts."""
    margin: Annotated[float, Meta(ge=0, lt=50)] = 5.0
    """Nothing changes while the CPU is within this many points of the target."""
    target_cpu_24h: Percent = 90.0
    """Target for the 24 h average of all CPU, if it is measured. It only ever asks for more."""
    step: Size = 1
    """The size that `stepwise` adds or takes away."""
    overload_cpu: Percent = 90.0
    """From here on the CPU does not tell how much is missing."""
    overload_factor: Annotated[float, Meta(gt=1, le=10)] = 2.0
    """In an overload the size is multiplied by this."""
    up_step_max: Size | None = None
    """Limit of one step up; the next size that exists is always allowed."""
    up_percent_max: Annotated[float, Meta(gt=0, le=1000)] | None = None
    """The same limit, in percent of the present size."""
    down_step_max: Size | None = None
    """Limit of one step down."""
    down_percent_max: Percent | None = None
    """Limit of one step down, in percent of the present size."""
    up_cooldown_s: Seconds = 300.0
    """Time between any step and the next one up; an overload does not wait after a step up."""
    down_cooldown_s: Seconds = 900.0
    """Time between any step and the next one down."""
    stable_s: Seconds = 300.0
    """Scale in only to a size that would have been enough for all of this time."""
    smooth: Annotated[int, Meta(ge=1, le=60)] = 5
    """Number of readings to average. An overload is judged by the last one alone."""
    stale_s: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    """Metrics older than this lead to no change."""
    storage_per_node_gib: Annotated[float, Meta(gt=0, le=1_000_000)] = 10_240.0
    storage_fill: Percent = 75.0
    """Share of it that may be used, in percent."""
    down_only: tuple[Window, ...] = ()
    """Scale in only at these times; none given: at any time."""
    down_never: tuple[Window, ...] = ()
    """Never scale in at these times."""
    hints: tuple[Hint, ...] = ()
    predict_weeks: Annotated[int, Meta(ge=0, le=12)] = 0
    """Number of earlier weeks whose same hour makes the forecast; 0: no forecast."""
    predict_lead_s: Seconds = 1200.0
    """Time that the forecast looks ahead: as long as it takes to be ready."""
    trend_lead_s: Seconds = 0.0
    """Time by which a rise is carried forward: metrics are old, and a resize takes its time. 0: a
    rise is met when it is seen."""
    trend_cpu: Percent = 80.0
    """The CPU that the load may reach, once its rise is carried forward."""
    dry_run: bool = False
    """Decide and record, change nothing."""

    @property
    def target(self) -> float:
        """The CPU to keep, in percent."""
        return TARGETS[self.topology] if self.target_cpu is None else self.target_cpu

    @property
    def node(self) -> int:
        """One node, in `units`."""
        return 1000 if self.units == "processing_units" else 1

    def size_at_least(self, size: float) -> int:
        """Return the smallest size that exists and is at least `size`.

        Processing units come in hundreds up to one node and in thousands above. Shards come in
        powers of two: such a step is worth the keys that it moves, and half of them stay.
        """
        if self.units == "nodes":
            return max(1, math.ceil(size - 1e-9))
        if self.units == "shards":
            return 1 << max(0, math.ceil(math.log2(max(size, 1)) - 1e-9))
        step = 100 if size <= 1000 else 1000
        return max(100, math.ceil(size / step - 1e-9) * step)

    def size_at_most(self, size: float) -> int:
        """Return the largest size that exists and is at most `size`."""
        if self.units == "nodes":
            return max(1, math.floor(size + 1e-9))
        if self.units == "shards":
            return 1 << math.floor(math.log2(max(size, 1)) + 1e-9)
        step = 100 if size < 1000 else 1000
        return max(100, math.floor(size / step + 1e-9) * step)


def parse(text: str, where: str = "policy") -> Policy:
    """Read a policy from TOML.

    Raises:
        ConfigError: not TOML, an unknown field, or an impossible value; it names field and value.
    """
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from None
    return policy_from(found, where)


def read(path: Path) -> Policy:
    """Read the policy of a file: YAML if its name ends in .yaml or .yml, else TOML.

    Raises:
        ConfigError: the file cannot be read, it is YAML and PyYAML is missing, or as `parse`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"policy {path}: {error.strerror}") from None
    except UnicodeError:
        raise ConfigError(f"policy {path} is not text in UTF-8") from None
    if path.suffix not in (".yaml", ".yml"):
        return parse(text, str(path))
    return policy_from(_yaml(text, str(path)), str(path))


def _yaml(text: str, where: str) -> dict[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{where}: YAML needs `pip install pyyaml`; TOML needs nothing"
        ) from error
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: expected fields and values")
    return found


def policy_from(values: dict[str, Any], where: str = "policy") -> Policy:
    """Make a policy from plain values and check it.

    Raises:
        ConfigError: as `parse`.
    """
    try:
        policy = msgspec.convert(values, Policy)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_named(values, str(error))}") from None
    for problem in _problems(policy):
        raise ConfigError(f"{where}: {problem}")
    return policy


_TIMES = {"hints": Hint, "down_only": Window, "down_never": Window}
_CHOICES = {
    "units": get_args(Units), "method": get_args(Method), "topology": tuple(TARGETS), "days": DAYS,
}  # fmt: skip
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


def _named(values: dict[str, Any], message: str) -> str:
    """Return `message` with the field, its value and what could be there instead; msgspec names
    only the field."""
    text, _, place = message.partition(" - at `$")
    path = place.removesuffix("`").lstrip(".")
    found = _at(values, path)
    if field := _FIELD.fullmatch(text):
        where = f"{path}.{field[2]}" if path else field[2]
        if field[1] == "missing required":
            return f"{where} is missing"
        value = found.get(field[2]) if isinstance(found, dict) else None
        known = _TIMES.get(path.partition("[")[0], Policy).__struct_fields__
        near = get_close_matches(field[2], known, 1)
        mean = f"; did you mean {near[0]}?" if near else ""
        return f"{where} = {value!r:.80}: no such field{mean}"
    if not path:
        return text
    name = path.rpartition(".")[2].partition("[")[0]
    if text.startswith("Invalid enum value") and name in _CHOICES:
        text = f"expected one of {', '.join(_CHOICES[name])}"
    elif path in _TIMES and isinstance(found, dict):
        text += f"; a table of it begins with [[{path}]]"
    return f"{path} = {found!r:.80}: {text}"


def _at(values: Any, path: str) -> Any:
    """Return the value at a path such as `hints[0].days`; None if there is none."""
    for part in re.findall(r"[^.\[\]]+", path):
        try:
            values = values[int(part) if isinstance(values, list) else part]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return values


def _problems(policy: Policy) -> list[str]:
    """List the problems between fields, which the type of a single field cannot show."""
    found = []
    if policy.min > policy.max:
        found.append(f"min = {policy.min} is above max = {policy.max}")
    for name in ("min", "max"):
        size = getattr(policy, name)
        if policy.size_at_least(size) != size:
            found.append(f"{name} = {size}: {_STEPS[policy.units]}")
    if policy.target + policy.margin >= policy.overload_cpu:
        found.append(
            f"overload_cpu = {policy.overload_cpu:g} must be above the target and its margin, "
            f"{policy.target:g} + {policy.margin:g}"
        )
    if policy.margin >= policy.target:
        found.append(f"margin = {policy.margin:g} must be below the target {policy.target:g}")
    if policy.target_cpu_total is not None and policy.units == "shards":
        found.append(
            f"target_cpu_total = {policy.target_cpu_total:g}: a shard has one figure, target_cpu"
        )
    if policy.predict_weeks and policy.units == "shards":
        found.append(f"predict_weeks = {policy.predict_weeks}: a lane keeps no figures of weeks")
    if policy.down_step_max is not None:
        least = policy.max - policy.size_at_most(policy.max - 1)
        if policy.min < policy.max and policy.down_step_max < least:
            found.append(
                f"down_step_max = {policy.down_step_max}: from max = {policy.max} the next smaller "
                f"size is {least} less"
            )
    if policy.down_only and policy.down_never:
        found.append("down_only and down_never: give one of them")
    for number, hint in enumerate(policy.hints):
        if not policy.min <= hint.size <= policy.max:
            found.append(
                f"hints[{number}].size = {hint.size} is not within {policy.min}..{policy.max}"
            )
    return found + list(_zones(policy))


def _zones(policy: Policy) -> Iterator[str]:
    for name in ("hints", "down_only", "down_never"):
        windows: tuple[Window, ...] = getattr(policy, name)
        for number, window in enumerate(windows):
            try:
                ZoneInfo(window.zone)
            except (KeyError, ValueError, OSError):
                yield f"{name}[{number}].zone = {window.zone[:64]!r}: no such time zone"
