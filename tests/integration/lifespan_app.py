"""An app whose child processes open resources of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from late import App

app = App("sqlite:///unused.db", shards=2)


@app.lifespan
def opened() -> Iterator[int]:
    yield os.getpid()


@app.task(process=True)
def tell(file: str) -> None:
    """Write which process opened the resources, and which one runs."""
    Path(file).write_text(f"{app.resources} {os.getpid()}")
