"""Write `docs/state_machine.md` from `late.model.task.TRANSITIONS`.

    python scripts/state_machine.py

The table in the code is the truth, the page is made from it, and a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from late.model.task import TRANSITIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "state_machine.md"

MEANING = {
    "logged": "read from the log, or fetched by its key after a takeover; not yet judged",
    "waiting": "due soon: in memory until then, and in the checkpoint's `open`",
    "held": "behind another task of its ordering key",
    "ready": "may start: due, allowed, and only a slot is missing",
    "parked": "in `late_timer`, or on its way there: due later, to be retried, or held for long",
    "running": "handed to a handler; one attempt is under way",
    "done": "the handler returned",
    "dead": "will not run again by itself; kept in `late_dead` with every attempt's error",
    "expired": "the expiry that the producer asked for had passed before it could start",
    "discarded": "the handler answered `Discard`",
    "cancelled": "somebody asked for it before it ended; an attempt that ran then was the last",
}

HEAD = """\
# The life of a task

<!-- Made by scripts/state_machine.py from late.model.task.TRANSITIONS; a test compares them. -->

The life of one task within one consumer group. Only the shard's owner moves a task, and each move
that must survive is part of a settlement, so that a zombie owner moves nothing. A task ends once
per group. The states without a way out are final.

"""


def diagram(transitions: Mapping[str, Sequence[str]]) -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> logged"]
    for state, following in transitions.items():
        lines += [f"    {state} --> {other}" for other in following]
        if not following:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)


def page(transitions: Mapping[str, Sequence[str]]) -> str:
    """The whole document."""
    rows = [
        f"| `{state}` | {MEANING[state]} | "
        + (", ".join(f"`{other}`" for other in following) or "(final)")
        + " |"
        for state, following in transitions.items()
    ]
    table = "\n".join(["| state | meaning | may become |", "|---|---|---|", *rows])
    return f"{HEAD}{table}\n\n```mermaid\n{diagram(transitions)}\n```\n"


def main() -> int:
    PAGE.write_text(page(TRANSITIONS))
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
