"""Find the settings of Celery in a project, in their old, prefixed and lower-case names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from late.celery.scan.features import APP
from late.celery.scan.finder import Finder
from late.celery.scan.project import Module
from late.celery.scan.setting_features import PREFIXES, SETTINGS
from late.celery.scan.sources import Sources
from late.celery.scan.tasks import Use

OLD = {
    "broker_url": "broker_url",
    "celery_broker": "broker_url",
    "celery_always_eager": "task_always_eager",
    "celery_eager_propagates": "task_eager_propagates",
    "celery_eager_propagates_exceptions": "task_eager_propagates",
    "celery_ignore_result": "task_ignore_result",
    "celery_routes": "task_routes",
    "celery_queues": "task_queues",
    "celery_default_queue": "task_default_queue",
    "celery_default_exchange": "task_default_exchange",
    "celery_default_routing_key": "task_default_routing_key",
    "celery_create_missing_queues": "task_create_missing_queues",
    "celery_acks_late": "task_acks_late",
    "celery_annotations": "task_annotations",
    "celery_track_started": "task_track_started",
    "celery_default_rate_limit": "task_default_rate_limit",
    "celery_task_result_expires": "result_expires",
    "celery_send_task_error_emails": "task_send_error_emails",
    "celery_store_errors_even_if_ignored": "task_store_errors_even_if_ignored",
    "celery_max_cached_results": "result_cache_max",
    "celery_schedule": "beat_schedule",
    "celerybeat_schedule": "beat_schedule",
    "celerybeat_scheduler": "beat_scheduler",
    "celeryd_task_time_limit": "task_time_limit",
    "celeryd_task_soft_time_limit": "task_soft_time_limit",
    "celeryd_hijack_root_logger": "worker_hijack_root_logger",
}
"""Names of before Celery 4, in lower case."""
KNOWN = tuple(PREFIXES)
LONG = {"broker": "broker_url", "backend": "result_backend"}
"""Keywords of `Celery(...)` -> the settings that they are."""
IN_CAPITALS = ("CELERY_", "CELERYD_", "CELERYBEAT_")
NOT_READ = "not read"


def settings_of(finder: Finder, module: Module, sources: Sources) -> Iterator[Use]:
    """Yield the settings of a module, each line once, and the places where some are not read."""
    plain = module.name in sources.modules
    given = [(_plain(each.name), each) for each in sources.given if each.module is module]
    found = [
        (setting(name, plain=plain) or _of_prefix(name, sources.prefixes), value, line)
        for node in (*module.assigned, *module.typed, *module.calls)
        for name, value, line in _assigned(finder, module, node)
    ]
    found += [(name, each.value, each.line) for name, each in given if each.value is not None]
    uses = [
        Use("setting", NOT_READ, module.path, each.line) for _, each in given if each.value is None
    ]
    for name, value, line in found:
        if name is not None and value is not None:
            uses += [Use(*use, module.path, line) for use in _uses(name, value)]
    return iter(dict.fromkeys(uses))


def _uses(name: str, value: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield what a setting uses, by the kind and the name of a feature."""
    if name == "task_acks_late" and isinstance(value, ast.Constant) and not value.value:
        return  # It says what Celery does without it.
    yield "setting", name
    if name == "result_expires" and isinstance(value, ast.Constant) and not value.value:
        yield "setting", "result_expires=None"
    if name == "task_routes" and not routes_by_name(value):
        yield "setting", "task_routes=function"
    if name in ("task_serializer", "accept_content", "result_serializer") and any(
        isinstance(each, ast.Constant) and each.value in ("pickle", "yaml")
        for each in ast.walk(value)
    ):
        yield "argument", "pickle"


def routes_by_name(value: ast.expr) -> bool:
    """Return whether `task_routes` names queues alone, as far as its form shows that."""
    match value:
        case ast.Dict():
            return all(_is_queue(each) for each in value.values)
        case ast.List() | ast.Tuple():
            return all(map(routes_by_name, value.elts)) or _is_pair(value)
        case ast.Lambda():
            return False
        case ast.Constant():
            return value.value is None  # The name of a function.
        case ast.Name():
            return value.id.isupper()  # A function is not in capitals.
    return True


def _is_pair(value: ast.List | ast.Tuple) -> bool:
    """Return whether it is a pattern and its route."""
    return len(value.elts) == 2 and _is_queue(value.elts[1])


def _is_queue(route: ast.expr) -> bool:
    if not isinstance(route, ast.Dict):
        return True
    names = [each.value for each in route.keys if isinstance(each, ast.Constant)]
    return "queue" in names or len(names) < len(route.keys)


def _plain(name: str) -> str | None:
    """Return today's name of a setting in a class or a mapping of settings."""
    return setting(name, plain=True) or setting(f"conf.{name}")


def _of_prefix(name: str, prefixes: set[str]) -> str | None:
    """Return the setting in a name such as `SHOP_BROKER_URL`, with `namespace="SHOP"`."""
    found = next((each for each in prefixes if name.startswith(each)), None)
    return None if found is None else _plain(name.removeprefix(found))


def setting(name: str, *, plain: bool = False) -> str | None:
    """Return today's name of a setting, or None if it is none of Celery's.

    >>> setting("CELERY_TASK_ALWAYS_EAGER"), setting("CELERYD_CONCURRENCY"), setting("DEBUG")
    ('task_always_eager', 'worker_concurrency', None)
    """
    lower = name.lower()
    if lower in OLD:
        return OLD[lower]
    if name.startswith("conf."):
        return _today(name.removeprefix("conf.").lower())
    if name.isupper():
        if lower.startswith("broker_"):
            return lower
        for old, new in (("celeryd_", "worker_"), ("celerybeat_", "beat_")):
            if lower.startswith(old):
                return new + lower.removeprefix(old)
        return _today(lower.removeprefix("celery_")) if lower.startswith("celery_") else None
    return lower if plain and (lower in SETTINGS or lower.startswith(KNOWN)) else None


def _today(name: str) -> str | None:
    if name in OLD:
        return OLD[name]
    if name in SETTINGS or name.startswith(KNOWN):
        return name
    return OLD.get(f"celery_{name}")


def _assigned(finder: Finder, module: Module, node: ast.AST) -> Iterator[tuple[str, ast.expr, int]]:
    """Yield name, value and line of what may be a setting."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value, node.lineno
            elif isinstance(target, ast.Attribute) and finder.is_conf(module, target.value):
                yield f"conf.{target.attr}", node.value, node.lineno
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                key, own = str(target.slice.value), finder.is_conf(module, target.value)
                if own or key.startswith(IN_CAPITALS):
                    yield f"conf.{key}" if own else key, node.value, node.lineno
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value, node.lineno
    elif isinstance(node, ast.Call):
        yield from _given(finder, module, node)


def _given(finder: Finder, module: Module, node: ast.Call) -> Iterator[tuple[str, ast.expr, int]]:
    """The keywords of `Celery(...)`, and those in capitals as of Flask's `config.update(...)`."""
    made = finder.makes_app(module, node.func)
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        if made and keyword.arg not in APP:
            yield f"conf.{LONG.get(keyword.arg, keyword.arg)}", keyword.value, keyword.value.lineno
        elif keyword.arg.startswith(IN_CAPITALS):
            yield keyword.arg, keyword.value, keyword.value.lineno
    for given in node.args:
        if isinstance(given, ast.Dict):
            for key, value in zip(given.keys, given.values, strict=True):
                if isinstance(key, ast.Constant) and str(key.value).startswith(IN_CAPITALS):
                    yield str(key.value), value, value.lineno
