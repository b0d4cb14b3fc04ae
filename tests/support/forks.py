"""Runs pytest in forks of a process that has imported what many tests need."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import pytest


def pytest_in_fork(
    prepare: Callable[[], None], arguments: Sequence[str], output: str, limit_s: float
) -> int:
    """Return the exit code of pytest in a fork; -1 if it was not over after `limit_s`.

    It is ended then, and so are all of its children in any case.

    Args:
        prepare: what is done in the fork before pytest runs.
        arguments: of pytest.
        output: the file that gets what pytest prints.
        limit_s: seconds.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        into = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (into, 1), (into, 2)):
            os.dup2(source, target)
        code = 3
        try:
            prepare()
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
