"""An app with subjects that a child process can import."""

from __future__ import annotations

import os
from pathlib import Path

import late
from late.payload.codec import Encrypted

app = late.App(
    os.environ.get("LATE_TEST_SUBJECTS", "sqlite:///subjects.db"),
    codec=Encrypted("msgpack", keys={"k1": b"0123456789abcdef" * 2}, current="k1"),
)


@app.task(process=True)
def write_pid(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
