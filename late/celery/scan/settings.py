"""Find the settings of Celery in a project, in their old, prefixed and lower-case names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from late.celery.scan.features import PREFIXES, SETTINGS
from late.celery.scan.project import Module
from late.celery.scan.tasks import Finder, Use

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


def settings_of(finder: Finder, module: Module, configs: frozenset[str]) -> Iterator[Use]:
    """Yield the settings of a module.

    Args:
        configs: modules whose lower-case names are settings, by `config_from_object`.
    """
    plain = module.name in configs or module.name.rpartition(".")[2] == "celeryconfig"
    for node in (*module.assigned, *module.typed, *module.calls):
        for name, value, line in _assigned(finder, module, node):
            found = setting(name, plain=plain)
            if found is None:
                continue
            yield Use("setting", found, module.path, line)
            if found in ("task_serializer", "accept_content", "result_serializer") and any(
                isinstance(each, ast.Constant) and each.value in ("pickle", "yaml")
                for each in ast.walk(value)
            ):
                yield Use("argument", "pickle", module.path, line)


def configs_of(finder: Finder, module: Module) -> Iterator[str]:
    """Yield the modules that an app takes its settings from."""
    for node in module.calls:
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "config_from_object"
            and node.args
            and finder.is_app(module, node.func.value)
            and not any(keyword.arg == "namespace" for keyword in node.keywords)
        ):
            [given, *_] = node.args
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                found = finder.project.module(given.value)
            else:
                found = finder.project.module(module.dotted(given) or "")
            if found is not None:
                yield found.name


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
            elif isinstance(target, ast.Attribute) and _is_conf(finder, module, target.value):
                yield f"conf.{target.attr}", node.value, node.lineno
            elif isinstance(target, ast.Subscript) and _is_conf(finder, module, target.value):
                key = target.slice
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield f"conf.{key.value}", node.value, node.lineno
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value, node.lineno
    elif isinstance(node, ast.Call):
        yield from _given(finder, module, node)


def _given(finder: Finder, module: Module, node: ast.Call) -> Iterator[tuple[str, ast.expr, int]]:
    """`app.conf.update(...)`, and the keywords of `Celery(...)`."""
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in ("update", "add_defaults"):
        if not _is_conf(finder, module, function.value):
            return
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield f"conf.{keyword.arg}", keyword.value, keyword.value.lineno
        for given in node.args:
            if isinstance(given, ast.Dict):
                for key, value in zip(given.keys, given.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield f"conf.{key.value}", value, value.lineno
    elif finder.project.resolve(module, function) in ("celery.Celery", "celery.app.base.Celery"):
        names = {"broker": "broker_url", "backend": "result_backend", "include": "include"}
        for keyword in node.keywords:
            if keyword.arg in names:
                yield f"conf.{names[keyword.arg]}", keyword.value, keyword.value.lineno


def _is_conf(finder: Finder, module: Module, node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "conf"
        and finder.is_app(module, node.value)
    )
