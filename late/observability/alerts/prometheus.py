"""Rules as a file that Prometheus loads (`rule_files`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from late.observability.alerts.rules import Rule


def render(rules: Iterable[Rule]) -> str:
    """Render YAML. Every text is a JSON string, which is also a string in YAML."""
    return "".join(_lines(rules))


def _lines(rules: Iterable[Rule]) -> Iterator[str]:
    yield "# Made by `late alerts render`: change the knobs of a queue (owner, severity,\n"
    yield "# objective_s) or the options of the command, and not this file.\n"
    yield "groups:\n  - name: late\n    rules:\n"
    for rule in rules:
        yield f"      - alert: {rule.alert.name}\n"
        yield f"        expr: {text(rule.expr)}\n"
        yield f"        for: {rule.alert.hold}\n"
        # The subject too: promtool takes rules of one name with the same labels for duplicates.
        yield from _pairs("labels", rule.labels | rule.subject)
        yield from _pairs("annotations", rule.annotations)


def _pairs(name: str, pairs: Mapping[str, str]) -> Iterator[str]:
    yield f"        {name}:\n"
    for key, value in pairs.items():
        yield f"          {key}: {text(value)}\n"


def text(value: str) -> str:
    return msgspec.json.encode(value).decode()
