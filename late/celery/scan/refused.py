"""Find in calls what `late.celery` refuses: keywords of `retry`, `terminate`, `forget`."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from late.celery.scan.finder import Finder
from late.celery.scan.project import Module
from late.celery.scan.twins import SAID_BY_USE, imported

RETRY_ORDER = ("args", "kwargs", "exc", "throw", "eta", "countdown", "max_retries")
UNKNOWN = -1.0
"""Retries of which the source does not show how many they are."""
SIDES = ("celery.group", "celery.chord", "celery.canvas.group", "celery.canvas.chord")


def retries_of(value: ast.expr) -> float:
    """Return the number of retries that an expression says; infinite for None."""
    found = value.value if isinstance(value, ast.Constant) else UNKNOWN
    if found is None:
        return math.inf
    return float(found) if isinstance(found, int | float) else UNKNOWN


def of_retry(node: ast.Call, allowed: float) -> Iterator[str]:
    """Yield the keywords of a `self.retry(...)`, those without a name too.

    Args:
        allowed: the retries that the decorator allows.
    """
    given = [*zip(RETRY_ORDER, node.args, strict=False)]
    given += [(keyword.arg or "**", keyword.value) for keyword in node.keywords]
    for name, value in given:
        if isinstance(value, ast.Constant) and value.value is None and name != "max_retries":
            continue
        if name in ("args", "kwargs") and _is_request(value, name):
            continue
        yield name
        if name == "max_retries" and _is_above(value, allowed):
            yield "max_retries above"


def _is_above(value: ast.expr, allowed: float) -> bool:
    asked = retries_of(value)
    if ast.unparse(value).endswith(".max_retries"):  # Those of the decorator.
        return False
    return (allowed != math.inf and UNKNOWN in (asked, allowed)) or asked > allowed


def _is_request(value: ast.expr, name: str) -> bool:
    """Return whether it is `self.request.args`."""
    return ast.unparse(value).endswith(f".request.{name}")


def is_terminate(node: ast.Call) -> bool:
    """Return whether a `revoke(...)` asks for the end of an attempt that runs."""
    values = [keyword.value for keyword in node.keywords if keyword.arg == "terminate"]
    return any(not (isinstance(each, ast.Constant) and not each.value) for each in values)


def results_of(module: Module) -> set[str]:
    """Return the names in a module that hold the result of a call."""
    return {
        target.id
        for node in module.assigned
        for target in node.targets
        if isinstance(target, ast.Name) and is_result(node.value, set())
    }


def is_result(node: ast.expr, names: set[str]) -> bool:
    """Return whether an expression is the result of a task, by its form.

    Args:
        names: of variables that hold one.
    """
    if isinstance(node, ast.Name):
        return node.id in names
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return last in ("delay", "apply_async", "send_task", "AsyncResult")


def of_canvas(
    finder: Finder, module: Module, node: ast.Call, function: ast.Attribute
) -> Iterator[str]:
    """Yield what is refused of a method of `group(...)` and the like."""
    made = function.value
    if not isinstance(made, ast.Call):
        return
    found = finder.project.resolve(module, made.func) or ""
    names = {keyword.arg for keyword in node.keywords}
    is_canvas = found in (*SIDES, "celery.chain", "celery.canvas.chain")
    if is_canvas and function.attr in ("apply_async", "set") and "task_id" in names:
        yield "task_id in a canvas"
    is_group = found in ("celery.group", "celery.canvas.group")
    links = function.attr in ("link", "link_error", "on_error")
    if is_group and (links or names & {"link", "link_error"}):
        yield "link_error of a group"


def imports_of(finder: Finder, module: Module) -> Iterator[tuple[str, int]]:
    """Yield the imports of Celery that `late.celery` has not as they are, each with its line."""
    for name, line in dict(module.imported).items():
        if name.partition(".")[0] not in ("celery", "kombu") or name.startswith(SAID_BY_USE):
            continue
        own = finder.project.module(name.partition(".")[0]) is not None
        if not own and imported(name).verdict != "same":
            yield name, line
