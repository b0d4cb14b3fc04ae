"""The operations of operators in the OpenAPI document, made from their table. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from late.api.operator.operation import Nothing, Operation
from late.api.operator.table import OPERATIONS
from late.api.operator.values import NAME
from late.model.queue_settings import NAMES

_IN_PATH = re.compile(r"\{(\w+)\}")
TASK_ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_CHOICES = {"Reschedule": ("at", "delay_s"), "ResetGroup": ("place", "at")}
"""Bodies that take one of two fields."""

_ANY = {"description": "Any JSON."}

Describe = Callable[..., dict[str, Any]]


def schemas() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the schema of each operation's answer, and the schemas that all of them refer to."""
    types = [each.gives for each in OPERATIONS] + [each.takes for each in OPERATIONS]
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=lambda _: _ANY
    )
    for name, (one, other) in _CHOICES.items():
        components[name]["oneOf"] = [_given(one, other), _given(other, one)]
    knobs = components["Turn"]["properties"]["knobs"]
    knobs["propertyNames"] = {"enum": [*NAMES]}
    components["Edit"]["properties"]["payload"] = {"type": "object"}
    return list(found[: len(OPERATIONS)]), components


def paths(describe: Describe) -> dict[str, dict[str, Any]]:
    """Return the paths of all operations; `describe` makes one, as `openapi.py` does."""
    found: dict[str, dict[str, Any]] = {}
    answers, components = schemas()
    for operation, answer in zip(OPERATIONS, answers, strict=True):
        parameters = [_in_path(name) for name in _IN_PATH.findall(operation.path)]
        if operation.method == "GET":
            parameters += _in_query(components[operation.takes.__name__])
        made = describe(
            operation.name,
            operation.summary,
            answers={200: answer},
            body=_body(operation),
            parameters=parameters,
        )
        made["description"] = role_of(operation)
        found.setdefault(operation.path, {})[operation.method.lower()] = made
    return found


def role_of(operation: Operation) -> str:
    """Say which role an operation takes."""
    rule = operation.rule
    return f"Takes the role `{rule.role}`{', for all queues' if rule.reach == 'all' else ''}."


def _body(operation: Operation) -> str | None:
    return operation.takes.__name__ if operation.method not in ("GET", "DELETE") else None


def _in_path(name: str) -> dict[str, Any]:
    pattern = TASK_ID if name == "task_id" else NAME
    schema = {"type": "string", "pattern": pattern}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(each)}
        for name, each in schema["properties"].items()
    ]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter: it is left out where a body would have null."""
    given = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    return given[0] if len(given) == 1 else schema


def _given(name: str, not_given: str) -> dict[str, Any]:
    """The schema of an object that has one of two fields, and not the other."""
    null = {"type": "null"}
    return {
        "required": [name],
        "properties": {name: {"not": null}, not_given: null},
    }


assert all(each.takes is Nothing for each in OPERATIONS if each.method == "DELETE")
