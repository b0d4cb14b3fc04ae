"""schemathesis against the OpenAPI document that the server hands out, with all of its checks."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.attack.table import Row
from tests.attack.target import Target

UNSAID = (
    "Expected `int`, got `float`",  # 16.0 is an integer for JSON Schema
    "Expected `int | null`, got `float`",
    "Invalid RFC3339",  # a date-time without a zone, or with a leap second
    "366 days ahead",
    "must carry a time zone",
    "the body names another queue",
    "Idempotency-Key and unique_key differ",
    "headers take",
    "a time such as 2026-05-01T12:00:00Z",  # of an event, the same as the second one
    "an integer of",  # of an event: 16.0, or one in a text
    "without control characters",  # nor code points that are no characters
    "all attributes take",
    "since must be before until",
    "not a task id",
    "not a value for a knob",
    "give a filter, or",
    "say where it starts",  # a group: one of two fields
    "give one of at and delay_s",
    "expected NAME=VALUE",
    "or an age such as 2h",
    "it is no end of a page",
    "are not commanded together",  # dead letters, which have commands of their own
    "no consumer group",  # in a body
    "is no shadow",
    "has no journal",
    "ends before it begins",
    "no such setting",
    "is a knob of queues",
    "are reserved",  # names of queues
    "has room for",  # the shards of a lane
    "unique_key must match",  # from the header Idempotency-Key, which is free beside an event
)
"""Rules between values, of the clock, or within a text: JSON Schema has no words for them."""


def run(target: Target, seconds: int = 40, seed: int = 1) -> Row:
    row = target.row("schemathesis, all checks, positive and negative, stateful")
    with target.watched(row), tempfile.TemporaryDirectory(prefix="late-contract-") as folder:
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "run",
            f"http://127.0.0.1:{target.http}/openapi.json",
            "--url", f"http://127.0.0.1:{target.http}",
            "--header", f"Authorization: Bearer {target.tokens['all']}",
            "--checks", "all", "--continue-on-failure", "--no-color",
            "--max-time", str(seconds), "--seed", str(seed), "--max-examples", "60",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = re.search(r"(\d+) generated", done.stdout)
    row.inputs = int(found[1]) if found else 0
    row.outcomes["cases"] = row.inputs
    failed = re.split(r"^- (?=ST\d+ )", done.stdout, flags=re.MULTILINE)[1:]
    for block in failed:
        known = next((text for text in UNSAID if text in block), None)
        if known is None:
            row.wrong.append(" ".join(block.partition("st replay")[0].split())[:600])
        else:
            row.outcomes[f"refused by a rule that the document cannot say: {known}"] += 1
    if done.returncode and not failed:
        row.wrong.append((done.stdout + done.stderr)[-1_000:])
    return row
