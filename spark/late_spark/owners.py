"""The owners' file: it says who pays, if the label of a queue is too coarse.

```yaml
owners:
  - owner: payments
    queue: "pay-*"
  - owner: growth
    queue: mail
    task: "newsletter.*"
```
The first entry that fits wins; where none does, the recorded label of the queue stays.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from late.errors import ConfigError


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owner: str
    queue: str = "*"
    task: str = "*"


class Owners(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owners: list[Entry]


def load(path: Path) -> Callable[[str, str, str], str]:
    """(queue, task, recorded owner) -> owner.

    Raises:
        ConfigError: unreadable, not YAML, or an unknown field.
    """
    import yaml

    try:
        found = msgspec.yaml.decode(path.read_bytes(), type=Owners)
    except OSError as error:
        raise ConfigError(f"owners {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"owners {path}: {' '.join(str(error).split())}") from None

    @cache
    def owner_of(queue: str, task: str, recorded: str) -> str:
        for entry in found.owners:
            if fnmatchcase(queue, entry.queue) and fnmatchcase(task, entry.task):
                return entry.owner
        return recorded

    return owner_of
