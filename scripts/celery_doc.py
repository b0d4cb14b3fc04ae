"""Write the tables of `docs/celery.md` from `late/celery/scan/features.py`.

`python scripts/celery_doc.py`. A test compares the page with them.
"""

from __future__ import annotations

from pathlib import Path

from late.celery.scan.features import TABLE
from late.celery.scan.verdict import ORDER

PAGE = Path(__file__).resolve().parent.parent / "docs" / "celery.md"
BEGIN, END = "<!-- features -->", "<!-- end of features -->"
TITLES = {
    "option": "Options of tasks",
    "self": "A task in its own body (`self`)",
    "retry": "Keywords of `self.retry`",
    "app": "The app, and keywords of `Celery(...)`",
    "apply_async": "Keywords of `apply_async` and `send_task`",
    "call": "Calls, results, workflows",
    "result": "Attributes of results",
    "signal": "Signals",
    "argument": "Types of arguments",
    "setting": "Settings",
    "schedule": "Schedules",
    "exception": "Exceptions",
    "shape": "How a task is written",
    "import": "Imports of the package `celery`",
}


def tables() -> str:
    """Return the tables: a row for each verdict and note, the worst last."""
    lines = []
    for kind, title in TITLES.items():
        lines += [f"### {title}", "", "| | verdict | |", "|---|---|---|"]
        rows: dict[tuple[str, str], list[str]] = {}
        for name, found in TABLE[kind].items():
            rows.setdefault((found.verdict, found.note), []).append(f"`{name}`")
        for (verdict, note), names in sorted(
            rows.items(), key=lambda row: (ORDER.index(row[0][0]), row[0][1])
        ):
            lines.append(f"| {', '.join(names)} | {verdict} | {note} |")
        lines.append("")
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the page with today's tables."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables()}{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
