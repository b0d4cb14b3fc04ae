"""`late target list`: the services that execute tasks, as this process is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from late.cli import options, output
from late.cli.app_loader import load_app

if TYPE_CHECKING:
    from late.model.targets import Target


def list_(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP", help="Its targets too, and what goes there.", show_default=False
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Connect to each; 1 if one cannot be reached.")
    ] = False,
    json: options.Json = False,
) -> None:
    """List the targets of the file that LATE_TARGETS names and of an app. No task is sent, and no
    secret is shown."""
    from late.model.targets import configured

    loaded = None if app is None else load_app(app)
    targets = configured(() if loaded is None else loaded.targets.values())
    goes: dict[str, list[str]] = {}
    if loaded is not None:
        for name, task in sorted(loaded.tasks.items()):
            goes.setdefault(task.policy.target, []).append(name)
        for queue, policy in sorted(loaded.routes.items()):
            goes.setdefault(policy.target, []).append(f"queue {queue}")
    found = _checked(targets) if check else {}
    rows = [
        {
            "name": name,
            "kind": target.kind,
            "where": target.where,
            "protection": target.protection,
            "concurrency": target.concurrency,
            "tasks": goes.get(name, []),
            **({"error": found[name]} if check else {}),
        }
        for name, target in sorted(targets.items())
    ]
    if json:
        output.as_json({"targets": rows})
    else:
        columns = ["name", "kind", "where", "protection", "concurrency", "tasks"]
        shown: list[list[Any]] = [
            [*(row[key] for key in columns[:-1]), ", ".join(goes.get(str(row["name"]), []))]
            for row in rows
        ]
        if check:
            columns.append("reached")
            for row, cells in zip(rows, shown, strict=True):
                cells.append(row["error"] or "yes")
        output.table("Targets", columns, shown)
    if any(found.values()):
        raise typer.Exit(1)


def _checked(targets: dict[str, Target]) -> dict[str, str | None]:
    """Return why each target cannot be reached; None where it can."""
    import asyncio

    from late.dispatcher.push.probe import probe

    async def every() -> list[str | None]:
        return await asyncio.gather(*(probe(target) for target in targets.values()))

    return dict(zip(targets, asyncio.run(every()), strict=True))
