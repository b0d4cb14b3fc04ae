"""Make a short fingerprint of a handler's signature, to compare two versions of a task.

It covers the arguments as they are stored: their names, whether each may be left out, whether it is
given by name only, and their types, down to the fields of classes. It is the same in every process
and version of Python, because it is made of the JSON Schema of the arguments and of nothing that
Python names. Left out is what changes no argument: the order of parameters (arguments are stored
by name), defaults, titles and descriptions. So a parameter more changes the fingerprint, required
or not, and another order, another default or another docstring does not.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from late.handler.signature import Shape
from late.payload import models

UNKNOWN = ""
"""The fingerprint of a task whose arguments are not known: it takes any."""
_DIGITS = 8
_NOTES = frozenset({"title", "description", "default", "examples"})
"""Keys of a schema that say nothing of which values are valid."""
_BY_NAME = frozenset({"properties", "mapping", "$defs"})
"""Keys of a schema whose value has names of its own."""
_UNORDERED = frozenset({"anyOf", "required", "enum"})


def fingerprint(shape: Shape, parameters: str = "") -> str:
    """Return eight hexadecimal digits, or `UNKNOWN`.

    Args:
        shape: see `late.handler.signature.Signature`.
        parameters: what else decides on the arguments of a call.
    """
    if not issubclass(shape, msgspec.Struct):
        return UNKNOWN
    (root,), classes = msgspec.json.schema_components(
        [shape], ref_template="{name}", schema_hook=models.schema
    )
    arguments = classes.pop(root["$ref"])  # The name of the task, which is no part of it.
    by_name_only = set(arguments["properties"]) - set(shape.__match_args__)
    found = [_values(arguments), sorted(by_name_only), _values(classes, names=True)]
    if parameters:
        found.append(parameters)
    return hashlib.sha256(_encoded(found)).hexdigest()[:_DIGITS]


def _values(schema: Any, *, names: bool = False) -> Any:
    """Return the part of a schema that says which values are valid."""
    if isinstance(schema, list):
        return [_values(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, each in schema.items():
        if names or key not in _NOTES:
            values = _values(each, names=not names and key in _BY_NAME)
            found[key] = sorted(values, key=_encoded) if key in _UNORDERED and not names else values
    return found


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
