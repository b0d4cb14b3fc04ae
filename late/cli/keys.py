"""Commands about the keys of a deployment."""

from __future__ import annotations

from typing import Annotated

import typer

from late.cli import options, output

app = typer.Typer(help="The keys by which workers know each other.", no_args_is_help=True)


@app.command()
def rotate(
    at_once: Annotated[
        bool,
        typer.Option("--at-once", help="Remove the old ones now: their receipts are void then."),
    ] = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Make a new key of receipts and of workers, without a stop. It takes the tables' owner.

    Every process reads it within 5 seconds and uses it after 30. The key before it stays valid for
    8 days, so receipts that were given out do too; then the next rotation removes it. First end
    all processes of versions before schema 0014: they know one key.
    """
    with options.control_of(url) as control:
        kept = control.tokens.rotate(at_once=at_once)
    output.line(json, {"keys": kept}, f"a new key; {kept} kept")
