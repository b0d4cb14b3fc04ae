"""Run tests on mutants, each in a fork: `python -m tests.mutants.fork_server`.

A line of JSON comes in for each run: the file with the mutant, the arguments of pytest, the file
for its output and the limit in seconds. Its exit code is the answer, -1 if it was not over in time.

To import Hypothesis, SQLAlchemy and pytest takes longer than most tests do. Here that is done once;
`late`, of which a part is changed, is imported in the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence

import pytest

from tests.mutants.hook import sitecustomize

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
    child = os.fork()
    if child == 0:
        os.setsid()
        into = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (into, 1), (into, 2)):
            os.dup2(source, target)
        os.environ[sitecustomize.VARIABLE] = mutant
        sitecustomize.install()
        code = 3
        try:
            code = int(pytest.main(list(arguments)))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(code)
    ends = time.monotonic() + limit_s
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > ends:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what a test has left behind
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    raise SystemExit(main())
