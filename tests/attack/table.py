"""What was tried and what came of it: the rows of the table, and their text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    """One kind of attack on one store.

    Args:
        attack: what it is, for people.
        store: the database behind the server; empty for tests that bring their own servers.
    """

    attack: str
    store: str = ""
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """How often each outcome came: a status, `closed`, and the like."""
    wrong: list[str] = field(default_factory=list)
    """Outcomes that must not be, each in one line. None of them: it held."""
    notes: list[str] = field(default_factory=list)

    def add(self, outcome: str, *, wrong: str | None = None) -> None:
        """Count one input and its outcome, and note why it is wrong, if it is."""
        self.inputs += 1
        self.outcomes[outcome] += 1
        if wrong is not None:
            self.wrong.append(wrong)

    def came(self) -> str:
        """The outcomes, the most frequent first."""
        parts = [f"{name}: {count:,}" for name, count in self.outcomes.most_common(8)]
        rest = len(self.outcomes) - len(parts)
        return "; ".join([*parts, *([f"{rest} more"] if rest > 0 else []), *self.notes])


def render(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    lines = [
        "| attack | store | inputs | what came of them | held |",
        "|---|---|--:|---|---|",
    ]
    for row in rows:
        held = "yes" if not row.wrong else f"**no: {len(row.wrong)}**"
        lines.append(
            f"| {row.attack} | {row.store} | {row.inputs:,} | {_cell(row.came())} | {held} |"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
