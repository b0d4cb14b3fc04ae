"""W9's programs: what fetches tasks from `late serve`, and what a worker pushes them to.

    python -m bench.remote consume ADDRESS
    python -m bench.remote serve ADDRESS

`app` is the worker's: the whole queue goes to the service at `BENCH_TARGET`.
"""

from __future__ import annotations

import os
import sys

import late
from bench import tasks

app = late.App(
    tasks.app.url,
    targets=[late.GrpcTarget("other", [os.environ.get("BENCH_TARGET", "127.0.0.1:1")])],
)
app.route("bench", target="other")


async def work(task: late.PulledTask) -> None:
    """The no-op, with the mark of the first."""
    await tasks.nothing(0, "")


def main(command: str, address: str) -> None:
    if command == "consume":
        late.Consumer(address, queues=["bench"], concurrency=64).run(work)
    else:
        late.serve_handlers(tasks.app, address).run()


if __name__ == "__main__":
    main(*sys.argv[1:3])
