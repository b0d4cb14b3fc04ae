"""`late target list`: the services that execute tasks, as configured here and as workers report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from late.cli import options, output
from late.cli.app_loader import load_app

if TYPE_CHECKING:
    from late.app.app import App
    from late.control.findings.targets import TargetView
    from late.model.targets import Target

CUT = {"where": 30, "tasks": 20, "last error": 32}
CUT_REACHED = {"where": 60, "reached": 100}
"""Characters of cells in a pipe, so that a row has 200 or so. `--json` has all of them."""
ELSEWHERE = "not configured here"
"""The answer of `--check` for a target of workers that this process has no settings of."""


def list_(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP", help="Its targets too, and what goes there.", show_default=False
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Ask each that is configured here; 1 if one does not answer, or fails."
        ),
    ] = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """List targets: those of the file that LATE_TARGETS names and of an app, and those that workers
    report, with how their calls end. No task is sent, and no secret is shown."""
    from late.model.targets import configured

    loaded = None if app is None else load_app(app)
    targets = configured(() if loaded is None else loaded.targets.values())
    goes = _tasks_of(loaded)
    reported, trouble = reported_by_workers(url_option)
    found = _checked(targets) if check else {}
    rows = []
    for name in sorted({*targets, *reported}):
        target, seen = targets.get(name), reported.get(name)
        rows.append(_row(name, target, seen, goes.get(name, [])))
        if check:
            rows[-1]["error"] = found.get(name, ELSEWHERE)
    if trouble:
        output.note(f"late: what workers report is not known: {trouble}")
    if json:
        output.as_json({"targets": rows})
    else:
        _print(rows, check)
    failing = any(each["failing"] for each in rows)
    if check and (failing or any(found.values())):
        raise typer.Exit(1)


def _tasks_of(app: App | None) -> dict[str, list[str]]:
    """Return the tasks and queues of an app that go to each target."""
    goes: dict[str, list[str]] = {}
    if app is not None:
        for name, task in sorted(app.tasks.items()):
            goes.setdefault(task.policy.target, []).append(name)
        for queue, policy in sorted(app.routes.items()):
            goes.setdefault(policy.target, []).append(f"queue {queue}")
    return goes


def reported_by_workers(url: str | None) -> tuple[dict[str, TargetView], str]:
    """Return what workers report, by target, and why that is not known. Without a database nothing
    is asked: the settings of this process are the answer then."""
    from late.control.findings.targets import parked_by_task, targets_of
    from late.errors import LateError

    if not options.named_url(url):
        return {}, ""
    try:
        with options.control_of(url) as control:
            seen = control.look()
    except LateError as error:
        return {}, str(error)
    return {each.name: each for each in targets_of(seen.reports, parked_by_task(seen))}, ""


def _row(
    name: str, target: Target | None, seen: TargetView | None, tasks: list[str]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "kind": target.kind if target else seen.kind if seen else "",
        "where": target.where if target else seen.where if seen else "",
        "protection": target.protection if target else None,
        "concurrency": target.concurrency if target else None,
        "tasks": tasks or (list(seen.tasks) if seen else []),
        "workers": 0,
        "failing": False,
    }
    if seen is not None:
        row |= {
            "workers": seen.workers,
            "failing": seen.failing,
            "calls": seen.calls,
            "failed": seen.failed,
            "open_since_us": seen.open_since_us,
            "waiting": seen.waiting,
            "last_error": seen.error,
        }
    return row


def _print(rows: list[dict[str, Any]], check: bool) -> None:
    columns = ["name", "kind", "where", "protection", "tasks", "workers>", "failed", "circuit",
               "waiting>", "last error"]  # fmt: skip
    cells = []
    for row in rows:
        known = "calls" in row
        opened = output.moment(row["open_since_us"]) if known else None
        share = f"{row['failed']} of {row['calls']}" if known else "-"
        cells.append(
            [
                *(row[key] for key in ("name", "kind", "where", "protection")),
                ", ".join(row["tasks"]),
                row["workers"],
                share,
                f"open since {opened}" if opened else "closed" if known else "-",
                row.get("waiting", "-"),
                row.get("last_error") or "-",
            ]
        )
    output.table("Targets", columns, cells, hide={"where"} if check else (), cut=CUT)
    if check and rows:
        answers = [(row["name"], row["where"], row["error"] or "yes") for row in rows]
        output.table("Reached from here", ("name", "where", "reached"), answers, cut=CUT_REACHED)


def _checked(targets: dict[str, Target]) -> dict[str, str | None]:
    """Return why each target cannot be reached; None where it can."""
    import asyncio

    from late.dispatcher.push.probe import probe

    async def every() -> list[str | None]:
        return await asyncio.gather(*(probe(target) for target in targets.values()))

    return dict(zip(targets, asyncio.run(every()), strict=True))
