"""Run tests on mutants, each in a fork: `python -m tests.mutants.fork_server`.

A line of JSON comes in for each run: the file with the mutant, the arguments of pytest, the file
for its output and the limit in seconds. Its exit code is the answer, -1 if it was not over in time.

To import Hypothesis, SQLAlchemy and pytest takes longer than most tests do. Here that is done once;
`late`, of which a part is changed, is imported in the fork.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence

from tests.mutants.hook import sitecustomize
from tests.support.forks import pytest_in_fork

USED = ("asyncio", "hypothesis", "hypothesis.strategies", "msgspec", "psycopg", "sqlalchemy")
"""What many tests import, and what a fork bears: gRPC does not."""


def main() -> int:
    for name in (*USED, "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql"):
        importlib.import_module(name)
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "late")
    assert not loaded, f"a fork would not see that these are changed: {loaded}"
    for line in sys.stdin:
        asked = json.loads(line)
        code = run(asked["mutant"], asked["arguments"], asked["output"], asked["limit_s"])
        print(code, flush=True)
    return 0


def run(mutant: str, arguments: Sequence[str], output: str, limit_s: float) -> int:
    """Return the exit code of pytest in a fork; end it and all its children after `limit_s`."""

    def change() -> None:
        os.environ[sitecustomize.VARIABLE] = mutant
        sitecustomize.install()

    return pytest_in_fork(change, arguments, output, limit_s)


if __name__ == "__main__":
    raise SystemExit(main())
