"""Names of Celery that the scan looks for in calls, and forms of calls."""

from __future__ import annotations

import ast

from late.celery.scan.features import APP

SENDS = frozenset(("delay", "apply_async"))
SIGNATURES = frozenset(("s", "si", "signature", "subtask"))
LINKS = frozenset(("link", "link_error", "on_error"))
OF_TASKS = SIGNATURES | {"apply", "chunks", "map", "starmap"}
CANVAS = frozenset(
    (
        "chain",
        "group",
        "chord",
        "chunks",
        "xmap",
        "xstarmap",
        "signature",
        "subtask",
        "maybe_signature",
    )
)
RESULTS = frozenset(
    ("AsyncResult", "GroupResult", "ResultSet", "ResultBase", "EagerResult", "allow_join_result")
)
TYPED = {
    "datetime.datetime.now": "datetime", "datetime.datetime.utcnow": "datetime",
    "datetime.datetime": "datetime", "datetime.date.today": "datetime", "datetime.date": "datetime",
    "django.utils.timezone.now": "datetime", "decimal.Decimal": "Decimal", "uuid.uuid4": "UUID",
    "uuid.UUID": "UUID", "uuid.uuid1": "UUID",
}  # fmt: skip
"""Calls whose values are of types that JSON has not."""

NOT_THERE = frozenset(name for name, found in APP.items() if found.verdict != "same")
"""Attributes of Celery's app that the one here has not."""


def is_joined(node: ast.BinOp) -> bool:
    return any(map(is_signature, (node.left, node.right)))


def is_signature(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SIGNATURES
    )


def sends(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SENDS
    )
