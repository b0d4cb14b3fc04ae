"""`late roles`: rights in the database."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Least rights for producers, workers and people.", no_args_is_help=True)


@app.callback()
def _roles() -> None:
    pass


@app.command("sql")
def sql(
    schema: Annotated[
        str, typer.Option("--schema", help="The schema with the tables of late.")
    ] = "public",
    prefix: Annotated[
        str, typer.Option("--prefix", help="The beginning of the roles' names.")
    ] = "late_",
    stats: Annotated[
        bool,
        typer.Option(
            "--stats/--no-stats", help="Grant operators the sight of all sessions of the server."
        ),
    ] = True,
) -> None:
    """Print the statements for PostgreSQL that make the roles; it connects to nothing.

    late roles sql | psql DATABASE: late_enqueuer, late_service, late_worker, late_viewer,
    late_operator. Run it again after each migration. What each may do: docs/sql.md.
    """
    from late.schema.roles import script

    typer.echo(script(schema=schema, prefix=prefix, stats=stats), nl=False)
