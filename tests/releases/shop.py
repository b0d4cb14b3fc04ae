"""The app of `test_last_release.py`, in words that every release knows.

As a program, `shop.py FIRST LAST`, it enqueues those numbers with the `late` that it finds.
"""

from __future__ import annotations

import os
import sys
import time

import late
from late.outbox import connect

URL = os.environ["LATE_TEST_KILL_URL"]
app = late.App(URL)


@app.task()
def count(number: int) -> None:
    """Leave a line, which is there after a SIGKILL, and take a moment."""
    path = os.path.join(os.environ["LATE_TEST_KILL_DIR"], f"{os.getpid()}.txt")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{number}\n".encode())
    finally:
        os.close(descriptor)
    time.sleep(0.02)


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:])
    with connect(URL) as tx:
        app.enqueue_many(tx, [count.call(number) for number in range(first, last)])
