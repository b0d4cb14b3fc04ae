"""`python -m tests.consumers COMMAND...`: judge a consumer, in whatever language it is written.

python -m tests.consumers python examples/python/consumer.py
python -m tests.consumers --only kill,long -- node examples/typescript/consumer.ts
python -m tests.consumers --url postgresql+psycopg://user@host/empty -- ./consumer

It starts `late serve` on a database of its own, or on the empty one that is given, and runs the
command with LATE_URL, LATE_TOKEN, LATE_QUEUE, LATE_CONSUMER, LATE_VISIBILITY_S and LATE_GRACE_S in
its environment: docs/clients.md says what it has to do. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time

from tests.consumers.names import SCENARIOS
from tests.consumers.verdicts import LIMIT_S, judge_on, table


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.consumers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="an empty database; by default a new file of SQLite")
    parser.add_argument("--only", help="some scenarios, with commas: " + ", ".join(SCENARIOS))
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="the longest wait of a scenario"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the consumer's program")
    asked = parser.parse_args()
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    names = SCENARIOS if asked.only is None else tuple(asked.only.split(","))
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown or not command:
        parser.error(f"no such scenario: {', '.join(unknown)}" if unknown else "no command")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        url = asked.url or f"sqlite:///{folder}/queue.db"
        verdicts = asyncio.run(judge_on(url, command, names, limit_s=asked.limit_s))
    print(table(verdicts))
    wrong = sum(each.wrong is not None for each in verdicts.values())
    took_s = time.monotonic() - began
    print(f"{len(verdicts) - wrong} of {len(verdicts)} scenarios passed, in {took_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
