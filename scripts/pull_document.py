"""Cut docs/openapi.json down to what producers and consumers use: clients are made from that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "openapi.json"
OPERATIONS = ("put", "putMany", "receive", "ack", "nack", "extend", "taskResult")
JSON = "application/json"
Schema = dict[str, Any]


def document() -> Schema:
    """Return the document with these operations and what they refer to. All errors look alike, so
    each operation has one for all: `default`."""
    whole = json.loads(DOCUMENT.read_text())
    paths: Schema = {}
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] in OPERATIONS:
                paths.setdefault(path, {})[method] = _in_json(_with_one_error(operation))
    schemas: Schema = {}
    _collect(paths, whole["components"]["schemas"], schemas)
    kept = {name: whole[name] for name in ("openapi", "info")}
    return {**kept, "paths": paths, "components": {"schemas": dict(sorted(schemas.items()))}}


def _with_one_error(operation: Schema) -> Schema:
    answers = {code: one for code, one in operation["responses"].items() if code < "300"}
    error = {**operation["responses"]["400"], "description": "Refused."}
    return {**operation, "responses": {**answers, "default": error}}


def _in_json(operation: Schema) -> Schema:
    """Leave out the other content of a body: these clients put tasks, and no events."""
    body = operation.get("requestBody")
    if body is None:
        return operation
    content = {JSON: body["content"][JSON]}
    return {**operation, "requestBody": {**body, "content": content}}


def _collect(part: Any, schemas: Schema, found: Schema) -> None:
    """Add the schemas that a part of the document refers to, and what those refer to."""
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(part)):
        if name not in found:
            found[name] = schemas[name]
            _collect(schemas[name], schemas, found)
