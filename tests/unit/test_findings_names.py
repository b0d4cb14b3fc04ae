"""Commands of findings can be pasted, whatever plain SQL has written as a name."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from late.control.findings.findings import findings
from late.control.views import Count, QueueStatus
from tests.unit.test_web_views import seen


@pytest.mark.parametrize("queue", ["", "a b/c", "x; rm -rf"])
def test_dead_letters_of_a_queue_that_is_no_name_are_listed_by_their_reason(queue: str) -> None:
    status = msgspec.structs.replace(
        seen().status, queues=(QueueStatus("default", queue, dead=Count(3)),)
    )
    [command] = [
        each.command
        for each in findings(msgspec.structs.replace(seen(), status=status))
        if each.what.startswith("Dead letters")
    ]
    assert shlex.split(command) == [
        *("late", "dead", "list", "--reason", "invalid_name", "--group", "default")
    ]
