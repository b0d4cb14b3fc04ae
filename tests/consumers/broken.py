"""Consumers with one fault each, which the script has to find: `python broken.py FAULT`.

Each is examples/python/consumer.py with one thing done otherwise.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

CONSUMER = Path(__file__).resolve().parents[2] / "examples" / "python" / "consumer.py"

FAULTS: dict[str, tuple[str, ...]] = {
    "acks-first": ("kill",),
    "never-extends": ("long",),
    "drops-on-sigterm": ("stop-short", "stop-long"),
    "works-twice": ("once",),
    "rounds-numbers": ("values",),
    "forgets-delays": ("retry",),
    "hides-reasons": ("dead-letter",),
    "takes-all": ("not-capable",),
    "never-repeats": ("lost-answers",),
}
"""Fault -> the scenarios that have to find it."""


def load() -> Any:
    """Load the sound consumer as a module."""
    spec = importlib.util.spec_from_file_location("consumer", CONSUMER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def acks_first(consumer: Any) -> None:
    run, post = consumer.run, consumer.post

    def run_late(task: dict[str, Any]) -> None:
        post("ack", {"receipt": task["receipt"]})
        run(task)

    consumer.run = run_late


def never_extends(consumer: Any) -> None:
    post = consumer.post
    consumer.post = lambda path, body: None if path == "extend" else post(path, body)


def drops_on_sigterm(consumer: Any) -> None:
    listen = signal.signal
    consumer.signal.signal = lambda number, _: listen(number, lambda *_: os._exit(0))


def works_twice(consumer: Any) -> None:
    run = consumer.run

    def run_twice(task: dict[str, Any]) -> None:
        run(task)
        run(task)

    consumer.run = run_twice


def rounds_numbers(consumer: Any) -> None:
    class Rounded:
        dumps = staticmethod(json.dumps)

        @staticmethod
        def loads(text: str | bytes) -> Any:
            return json.loads(text, parse_int=lambda digits: int(float(digits)))

    consumer.json = Rounded


def _without(consumer: Any, field: str) -> None:
    post = consumer.post
    consumer.post = lambda path, body: post(
        path, {key: value for key, value in body.items() if path != "nack" or key != field}
    )


def forgets_delays(consumer: Any) -> None:
    _without(consumer, "after_s")


def hides_reasons(consumer: Any) -> None:
    _without(consumer, "reason")


def takes_all(consumer: Any) -> None:
    work = consumer.work

    def take(task: dict[str, Any]) -> Any:
        path, body = work(task)
        return ("ack", {}) if body.get("outcome") == "not_capable" else (path, body)

    consumer.work = take


def never_repeats(consumer: Any) -> None:
    opened = urllib.request.urlopen

    def once(request: urllib.request.Request, timeout: float) -> Any:
        try:
            return opened(request, timeout=timeout)
        except OSError:
            if not request.full_url.endswith("/ack"):
                raise
            raise HTTPError(request.full_url, 400, "taken for a refusal", Message(), None) from None

    consumer.urllib.request.urlopen = once


def main() -> None:
    consumer = load()
    breaks: Callable[[Any], None] = globals()[sys.argv[1].replace("-", "_")]
    breaks(consumer)
    consumer.main()


if __name__ == "__main__":
    main()
