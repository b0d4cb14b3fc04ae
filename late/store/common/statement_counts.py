"""Counts of the statements that this process has sent to databases, by their first word.

They are counted in the driver's cursor, so that it costs the same for every caller: one addition
for a page, a commit, a heartbeat. A batch (`executemany`) counts once.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

statements: Counter[str] = Counter()
"""Counts by verb. Two threads that add at the same moment may lose one: this is for graphs."""
_VERBS = frozenset(("select", "insert", "update", "delete", "with", "pragma", "set", "merge"))


def count(statement: object) -> None:
    """Add one for this statement."""
    statements[_verb(statement) if isinstance(statement, str) else OTHER] += 1


OTHER = "other"


@lru_cache(maxsize=1_024)
def _verb(statement: str) -> str:
    word = statement.lstrip(" \n(")[:8].partition(" ")[0].lower()
    return word if word in _VERBS else OTHER
