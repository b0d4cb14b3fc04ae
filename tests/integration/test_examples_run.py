"""Each example starts by one command, takes an order and pays it, and ends at SIGTERM."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.integration.stall_kit import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ORDER = {"email": "ada@example.org", "cents": 100}
PAID = {
    "django": "select count(*) from shop_order where paid",
    "fastapi": "select count(*) from orders where paid = 1",
}


class Example:
    """A running example, and its database."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.file = folder / "shop.db"
        self.log = folder / "log"
        self.url = f"http://127.0.0.1:{(port := free_port())}/orders"
        settings = {"SHOP_FILE": str(self.file), "SHOP_URL": f"sqlite:///{self.file}"}
        environment = os.environ | settings | {"PYTHON": sys.executable, "PORT": str(port)}
        environment.pop("LATE_URL", None)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(EXAMPLES / name / "run")],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def place(self) -> bool:
        """Place an order; False while the service does not listen."""
        body = {"data": ORDER} if self.name == "django" else {"json": ORDER}
        try:
            return httpx.post(self.url, timeout=120, **body).is_success
        except httpx.ConnectError:
            return False

    def paid(self) -> bool:
        with closing(sqlite3.connect(self.file, timeout=120)) as connection:
            return connection.execute(PAID[self.name]).fetchone() == (1,)

    def until(self, condition: Callable[[], bool], limit_s: float = 200) -> None:
        ends = time.monotonic() + limit_s
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < ends, self.log.read_text()
            time.sleep(0.2)


@pytest.fixture(params=["django", "fastapi"])
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Example]:
    found = Example(request.param, tmp_path)
    yield found
    if found.process.poll() is None:
        os.killpg(found.process.pid, signal.SIGKILL)
        found.process.wait(120)


def test_one_command_starts_the_example(example: Example) -> None:
    example.until(example.place)
    example.until(example.paid)
    example.process.send_signal(signal.SIGTERM)
    assert example.process.wait(120) == 0, example.log.read_text()
