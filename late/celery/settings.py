"""`Celery.conf`: settings with a meaning here are taken, all others are named in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

from late.celery.exceptions import NotSupported
from late.celery.scan.features import feature
from late.celery.scan.settings import setting
from late.errors import ConfigError

DEFAULTS: Mapping[str, Any] = {
    "task_always_eager": False,
    "task_eager_propagates": False,
    "task_default_queue": "default",
    "task_routes": None,
    "task_ignore_result": False,
    "task_time_limit": None,
    "task_soft_time_limit": None,
    "result_expires": 86_400.0,
    "timezone": "UTC",
    "beat_schedule": None,
    "imports": (),
    "include": (),
    "late_outside_transaction": "refuse",
    "late_django_database": "default",
    "late_time_limit": 3_600.0,
}
"""The settings with a meaning here. Those that begin with `late_` are not Celery's: calls without a
transaction (`refuse` or `open`), Django's database, and seconds of a task without a time limit."""
READ_BY_TASKS = frozenset(
    ("task_default_queue", "task_routes", "task_ignore_result", "task_time_limit",
     "task_soft_time_limit", "result_expires", "late_time_limit")
)  # fmt: skip
"""The settings that a task takes over when it is registered."""
_ALWAYS = {
    "enable_utc": (True,),
    "task_acks_late": (True,),
    "task_reject_on_worker_lost": (True,),
    "task_serializer": ("json",),
    "result_serializer": ("json",),
}
"""Settings that are always so here, with the values that say nothing new."""

Source: TypeAlias = str | Mapping[str, Any] | object
"""Settings: an object, the name of one (`module`, `module.name`, `module:name`), or a mapping."""

logger = logging.getLogger("late.celery")


class Settings(SimpleNamespace):
    """The settings of one app, as attributes and as items.

    Args:
        registered: returns how many tasks have taken their settings over already.
    """

    def __init__(self, registered: Callable[[], int]) -> None:
        super().__init__(**DEFAULTS)
        vars(self)["_registered"] = registered
        vars(self)["_told"] = set()

    def update(self, given: Mapping[str, Any] = {}, /, **more: Any) -> None:
        """Take settings by their names of any version of Celery; one mistake, and none is taken.

        Those without a meaning here can be read again and change nothing. The log names each of
        them once, and says what is here instead.

        Raises:
            ConfigError: no setting of `late_...` has such a name, or a value cannot be.
            NotSupported: a value that works otherwise here; the message says how.
        """
        named = {today(name): value for name, value in {**given, **more}.items()}
        taken = {name: _value(name, value) for name, value in named.items()}
        self._tell(name for name, value in taken.items() if not _means(name, value))
        self._tell_of_delay(taken)
        vars(self).update(taken)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or `default` if it is not set."""
        return vars(self).get(today(name), default)

    def __setattr__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __getitem__(self, name: str) -> Any:
        return vars(self)[today(name)]

    def __repr__(self) -> str:
        # Values may be secrets, such as a broker's URL.
        return f"<Settings {len(vars(self)) - 2} values>"

    def _tell_of_delay(self, taken: Mapping[str, Any]) -> None:
        changed = [n for n in sorted(READ_BY_TASKS & taken.keys()) if taken[n] != vars(self)[n]]
        registered = vars(self)["_registered"]()
        if changed and registered:
            logger.warning(
                "%s: set after %d tasks were registered, which keep what was set before; set it"
                " before the modules with the tasks are imported",
                ", ".join(changed),
                registered,
            )

    def _tell(self, names: Iterable[str]) -> None:
        told: set[str] = vars(self)["_told"]
        new = sorted(set(names) - told)
        told.update(new)
        if new:
            logger.warning(
                "settings of Celery without an effect here: %s; `late celery scan` finds where they"
                " are set",
                ", ".join(f"{name} ({feature('setting', name).note})" for name in new),
            )


def today(name: str) -> str:
    """Return today's name of a setting that may have one of before Celery 4."""
    if name in DEFAULTS:
        return name
    return setting(name, plain=True) or setting(f"conf.{name}") or name


def read(source: Source, namespace: str | None) -> dict[str, Any]:
    """Return the settings in `source`, as `config_from_object` of Celery takes them.

    Args:
        namespace: what their names begin with, as `CELERY` in Django's settings. With it, all such
            names are settings; without it, of an object only those that can be Celery's or ours.

    Raises:
        ImportError, AttributeError: `source` names nothing.
    """
    found = find(source) if isinstance(source, str) else source
    if isinstance(found, Mapping):
        names, value_of, all_meant = list(found), found.__getitem__, True
    else:
        names, all_meant = [name for name in dir(found) if not name.startswith("_")], False

        def value_of(name: str) -> Any:
            return getattr(found, name)

    if namespace is not None:
        prefix = namespace.rstrip("_").upper() + "_"
        own = [name for name in names if name.startswith(prefix)]
        return {name.removeprefix(prefix).lower(): value_of(name) for name in own}
    return {
        name: value_of(name)
        for name in names
        if all_meant or name in DEFAULTS or setting(name, plain=True) is not None
    }


def find(name: str) -> object:
    """Return what `name` names: `module`, `module.name` or `module:name`.

    Raises:
        ImportError, AttributeError: it names nothing.
    """
    module_name, colon, attribute = name.partition(":")
    if colon:
        return getattr(import_module(module_name), attribute)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        module_name, _, attribute = name.rpartition(".")
        if error.name != name or not module_name:
            raise
        module: ModuleType = import_module(module_name)
        if not hasattr(module, attribute):
            raise
        return getattr(module, attribute)


def _means(name: str, value: Any) -> bool:
    """Tell whether a setting does here what it does in Celery."""
    if name == "accept_content":
        return bool({"json", "application/json"} & set(value))
    return name in DEFAULTS or value in _ALWAYS.get(name, ())


def _value(name: str, value: Any) -> Any:
    """Check and convert the value of a setting with a meaning here; others stay as they are."""
    if name.startswith("late_") and name not in DEFAULTS:
        raise ConfigError(f"late.celery has no setting {name}")
    if name == "task_routes":
        return dict(_routes(value)) if value else None
    if name == "result_expires":
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if not seconds:
            raise NotSupported("result_expires: no result is kept for good; say for how long")
        return float(seconds)
    if name == "timezone":
        return "UTC" if value is None else str(value)
    if name in ("imports", "include"):
        return (value,) if isinstance(value, str) else tuple(value or ())
    return value


def _routes(value: Any) -> Iterator[tuple[str | re.Pattern[str], str]]:
    """Yield each pattern of a name, and its queue. The first that fits a name counts."""
    if isinstance(value, Mapping):
        for pattern, route in value.items():
            queue = route if isinstance(route, str) else route.get("queue")
            if not queue:
                raise NotSupported(
                    f"task_routes: {pattern!r:.80} names no queue; there are no exchanges and no"
                    " routing keys here"
                )
            yield pattern, str(getattr(queue, "name", queue))
    elif isinstance(value, list | tuple):
        for each in value:
            # `[(pattern, queue), ...]`, and any such lists and mappings in a list.
            is_pair = isinstance(each, list | tuple) and isinstance(each[0], str | re.Pattern)
            yield from _routes({each[0]: each[1]} if is_pair else each)
    else:
        raise NotSupported(f"task_routes: {value!r:.80}: a function cannot route here; name queues"
                           " by task or by pattern")  # fmt: skip
