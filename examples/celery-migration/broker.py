"""Celery's broker in a folder, so that no server is needed: the one of kombu, with whole messages.

kombu's own opens a message's file and then writes it. A worker that looks in between takes an empty
file, and the message is lost: one of sixteen, with one process that writes all the time and one
that reads. Here a message gets its name when it is whole.
"""

import uuid
from pathlib import Path
from time import monotonic_ns
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    """Writes a message under a name that no worker looks for, and then renames it."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:
        # Workers take messages in the order of their names.
        name = f"{monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg"
        draft = Path(self.data_folder_out, f"{name}.draft")
        draft.write_text(dumps(payload))
        draft.rename(draft.with_suffix(""))


def install() -> None:
    """Let `filesystem://` be this one, in this process."""
    filesystem.Transport.Channel = Channel
