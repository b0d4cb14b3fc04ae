"""The OpenAPI 3.1 document, made from `schemas.py`. Pure.

`docs/openapi.json` is this document; a test checks that they are the same.
"""

from __future__ import annotations

from functools import cache
from inspect import cleandoc
from typing import Any

import msgspec

from late.api import schemas
from late.api.http import event_openapi, operators_openapi
from late.model import validation as validate

_NAME = {"type": "string", "pattern": r"^[A-Za-z0-9._:-]{1,128}$"}
_QUEUE_NAME = {"type": "string", "pattern": r"^(?!late\.|\.{1,2}$)[A-Za-z0-9._:-]{1,128}$"}
_QUEUE = {"name": "queue", "in": "path", "required": True, "schema": _QUEUE_NAME}
_GROUP_NAME = {"type": "string", "pattern": r"^[A-Za-z0-9._:-]{0,128}$"}
"""An empty one stands for the default group."""
_GROUP = {"name": "group", "in": "query", "required": False, "schema": _GROUP_NAME}
_HEADERS = {
    "type": "object",
    "description": "At most 8 KiB as JSON.",
    "propertyNames": {"pattern": r"^[^\u0000]+$"},
    "additionalProperties": {"type": "string", "pattern": r"^[^\u0000]*$"},
}
_BODIES = (schemas.Put, schemas.PutMany, schemas.Receive, schemas.Ack, schemas.Nack, schemas.Extend)
_ANSWERS = (schemas.Accepted, schemas.Pulled, schemas.QueueStats)
_ERRORS = {
    400: "A value is wrong, or the body is not JSON.",
    401: "No token, or one that is not valid.",
    403: "The token lacks this scope, or is not for this queue.",
    404: "No such queue, group or receipt.",
    409: "The unique key is taken by another body; the receipt is stale; or what is there now"
    " does not allow the command.",
    413: "Above 1 MiB, or for a batch 8 MiB or 1,000 tasks.",
    415: "The body has another content type.",
    422: "No such task is known.",
    429: "Too many requests, or the queue is full: see Retry-After.",
    503: "The database does not answer: see Retry-After.",
}


@cache
def document() -> dict[str, Any]:
    """The document, ready to be encoded."""
    _, components = msgspec.json.schema_components(
        (*_BODIES, *_ANSWERS), ref_template="#/components/schemas/{name}"
    )
    components["Error"] = {
        "type": "object",
        "required": ["error", "message"],
        "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
    }
    components["CloudEvent"] = event_openapi.EVENT_SCHEMA
    components |= operators_openapi.schemas()[1]
    _tell_rules(components["Put"])
    components["PutMany"]["properties"]["tasks"]["maxItems"] = validate.BATCH_TASKS_MAX
    components["Receive"]["properties"]["group"] = _or_null(_GROUP_NAME)
    components["Receive"]["properties"]["names"]["anyOf"][0]["items"] = _NAME
    components["Pulled"]["properties"]["payload"] = {"type": "object"}
    components["Ack"]["properties"]["result"] = {"description": "Any JSON, at most 256 KiB."}
    made = {
        "openapi": "3.1.0",
        "info": {"title": "late", "version": "1", "license": {"name": "Apache-2.0"}},
        "paths": _merged(_paths(), operators_openapi.paths(_operation)),
        "security": [{"token": []}, {}],
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    found: dict[str, Any] = _whole(made)
    return found


def _whole(value: Any) -> Any:
    """Write bounds such as 60.0 as 60, and texts without the indentation of their docstring.

    `typing` keeps one of two annotations that are equal, so 60 and 60.0 of two modules depend on
    which was imported first. From Python 3.13 on a docstring has lost its indentation already.
    """
    if isinstance(value, dict):
        found = {key: _whole(each) for key, each in value.items()}
        if isinstance(text := found.get("description"), str):
            found["description"] = cleandoc(text)
        return found
    if isinstance(value, list | tuple):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _merged(
    paths: dict[str, dict[str, Any]], others: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    return {path: paths.get(path, {}) | others.get(path, {}) for path in {**paths, **others}}


def _tell_rules(put: dict[str, Any]) -> None:
    """Add the rules of a task's values, which `late.model.validation` checks."""
    fields = put["properties"]
    fields["name"] = _NAME
    fields["queue"] = _or_null(_QUEUE_NAME)
    for name in ("lane", "ordering_key", "unique_key"):
        fields[name] = _or_null(_NAME)
    fields["headers"] = _or_null(_HEADERS)
    reach = validate.PRIORITY_MAX
    fields["priority"] = _or_null({"type": "integer", "minimum": -reach, "maximum": reach})
    for name in ("delay_s", "expires_s", "unique_for_s", "max_wait_s"):
        fields[name] = _or_null({"type": "number", "maximum": validate.DELAY_S_MAX})
    for name in ("unique_for_s", "max_wait_s"):
        fields[name]["anyOf"][0]["exclusiveMinimum"] = 0
    put["allOf"] = [
        {"not": _both("at", "delay_s")},
        {"not": _both("expires_at", "expires_s")},
        *(
            {"if": _both(name), "then": _both("unique_key")}
            for name in ("unique_for_s", "on_conflict")
        ),
        {"if": _both("max_wait_s"), "then": _debounced()},
        {"not": _both("max_wait_s", "unique_for_s")},
    ]


def _debounced() -> dict[str, Any]:
    """The schema of a task whose `max_wait_s` has a delay to bound."""
    asked = _both("unique_key", "on_conflict", "delay_s")
    replaces = {"on_conflict": {"const": "replace"}, "delay_s": {"exclusiveMinimum": 0}}
    return {"allOf": [asked, {"properties": replaces}]}


def _both(*names: str) -> dict[str, Any]:
    """The schema of an object that has these fields, and none of them is null."""
    given = {name: {"not": {"type": "null"}} for name in names}
    return {"required": [*names], "properties": given}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [dict(schema), {"type": "null"}], "default": None}


def _puts(queue: str) -> dict[str, Any]:
    idempotency = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "The same as `unique_key` in the body, and a name as that is. An event has"
        " its own key, so for events it is not read.",
        "schema": {"type": "string"},
    }
    put = _operation(
        "put",
        "Enqueue one task.",
        body="Put",
        answers={201: _ref("Accepted"), 200: _ref("Accepted")},
        parameters=[_QUEUE, idempotency],
    )
    put["requestBody"]["content"][event_openapi.KIND] = {"schema": _ref("CloudEvent")}
    signed = _operation(
        "putSigned",
        "Enqueue the task of a signed URL; without --signed-urls there are none, so 404.",
        answers={201: _ref("Accepted")},
        parameters=[_QUEUE, *event_openapi.SIGNED_PARAMETERS],
    )
    # The URL stands for a token.
    signed |= {"security": [{}], "requestBody": event_openapi.SIGNED_BODY}
    return {f"{queue}/tasks": {"post": put}, f"{queue}/put": {"post": signed}}


def _put_many() -> dict[str, Any]:
    accepted = _object(
        "tasks", {"type": "array", "items": _ref("Accepted")}, token={"type": "string"}
    )
    queue = {
        "name": "queue",
        "in": "query",
        "required": False,
        "description": "The queue of those that name none, as events do; else that of the task.",
        "schema": _QUEUE_NAME,
    }
    put = _operation(
        "putMany",
        "Enqueue several tasks, all or none.",
        body="PutMany",
        answers={201: accepted, 200: accepted},
        parameters=[queue],
    )
    events = {"type": "array", "items": _ref("CloudEvent")}
    put["requestBody"]["content"][event_openapi.BATCH] = {"schema": events}
    return put


def _paths() -> dict[str, Any]:
    queue = "/v1/queues/{queue}"
    stats = _object("queues", {"type": "array", "items": _ref("QueueStats")})
    pulled = _object("tasks", {"type": "array", "items": _ref("Pulled")})
    extended = _object(
        "receipt", {"type": "string"}, visible_until={"type": "string", "format": "date-time"}
    )
    return {
        **_puts(queue),
        "/v1/tasks": {"post": _put_many()},
        f"{queue}/receive": {
            "post": _operation(
                "receive",
                "Take tasks: nobody else gets them until `visible_until`.",
                body="Receive",
                answers={200: pulled},
                parameters=[_QUEUE],
            )
        },
        "/v1/ack": {"post": _operation("ack", "Done.", body="Ack", answers={204: None})},
        "/v1/nack": {
            "post": _operation(
                "nack", "Not done: again, later, or never.", body="Nack", answers={204: None}
            )
        },
        "/v1/extend": {
            "post": _operation("extend", "Still at work.", body="Extend", answers={200: extended})
        },
        "/v1/queues": {
            "get": _operation("queues", "All queues.", answers={200: stats}, parameters=[_GROUP])
        },
        queue: {
            "get": _operation(
                "queue",
                "What waits and runs in one queue.",
                answers={200: _ref("QueueStats")},
                parameters=[_QUEUE, _GROUP],
            )
        },
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(field: str, schema: dict[str, Any], **more: dict[str, Any]) -> dict[str, Any]:
    fields = {field: schema, **more}
    return {"type": "object", "required": sorted(fields), "properties": fields}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    name: str,
    summary: str,
    *,
    answers: dict[int, dict[str, Any] | None],
    body: str | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {"description": text, "content": _content(_ref("Error"))}
        for status, text in _ERRORS.items()
    }
    for status, schema in answers.items():
        responses[str(status)] = {"description": summary}
        if schema is not None:
            responses[str(status)]["content"] = _content(schema)
    found: dict[str, Any] = {"operationId": name, "summary": summary, "responses": responses}
    if parameters:
        found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = {"required": True, "content": _content(_ref(body))}
    return found
