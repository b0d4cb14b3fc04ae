"""A signal stops a command wherever its main thread is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_EACH_LINE = """
import signal, sys
from late.cli.signals import stop_event

def wait(line):
    'Wait, and get the signal before the line of `threading` that the wait comes to as this one.'
    stop = stop_event()

    def trace(frame, event, _):
        nonlocal line
        if not frame.f_code.co_filename.endswith("threading.py"):
            return None
        line -= event == "line"
        if event == "line" and line == 0:
            signal.raise_signal(signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        return stop.wait(120)
    finally:
        sys.settrace(None)

for line in range(1, LINES + 1):
    assert wait(line), line
print("all", LINES)
"""
LINES = 12
"""As many as a wait begins with, before the main thread sleeps in it."""


def test_no_moment_of_a_wait_is_the_wrong_one_for_a_signal() -> None:
    code = AT_EACH_LINE.replace("LINES", str(LINES))
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, f"all {LINES}\n"), ran.stderr


OF_ANOTHER_THREAD = """
import os, signal, threading
from late.cli.signals import stop_event

stop = stop_event()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
# That thread inherits the block, so the one that waits for signals is the only one to take it.
threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()
print(stop.wait(30))
"""


def test_a_signal_that_another_thread_gets_wakes_the_main_thread() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OF_ANOTHER_THREAD],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
