"""The app of `test_last_release.py`, in words that every release knows.

As a program, `shop.py FIRST LAST`, it enqueues those numbers with the `late` that it finds.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from google.api_core.exceptions import Aborted

import late
from late.outbox import connect

URL = os.environ["LATE_TEST_KILL_URL"]
FOLDER = os.environ["LATE_TEST_KILL_DIR"]
HOLD = os.path.join(os.path.dirname(FOLDER), "hold")
held = threading.Semaphore(4)
app = late.App(URL)


@app.task()
def count(number: int) -> None:
    """Leave a line, which is there after a SIGKILL, and take a moment.

    While the file HOLD is there, the first few in each process run on.
    """
    path = os.path.join(FOLDER, f"{os.getpid()}.txt")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{number}\n".encode())
    finally:
        os.close(descriptor)
    time.sleep(0.02)
    if os.path.exists(HOLD) and held.acquire(blocking=False):
        while os.path.exists(HOLD):
            time.sleep(0.02)
        held.release()


def enqueue(first: int, last: int) -> None:
    """Write the tasks in one transaction, again from its start whenever Spanner aborts it."""
    while True:
        try:
            with connect(URL) as tx:
                app.enqueue_many(tx, [count.call(number) for number in range(first, last)])
        except Aborted:
            continue
        return


if __name__ == "__main__":
    enqueue(*map(int, sys.argv[1:]))
