"""`late url sign`: a URL that lets whoever has it put one kind of task."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from late.cli import options, output
from late.errors import ConfigError

KEPT_IN = "env:LATE_TOKEN"

app = typer.Typer(help="URLs that put a task without a token.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """URLs that put a task without a token."""


@app.command()
def sign(
    queue: Annotated[str, typer.Argument(show_default=False)],
    name: Annotated[str, typer.Argument(help="The task's name.", show_default=False)],
    token: Annotated[
        str,
        typer.Option(
            metavar="env:NAME|file:PATH", help="A token to enqueue into the queue, kept there."
        ),
    ] = KEPT_IN,
    server: Annotated[
        str, typer.Option(metavar="URL", help="Where late serve --signed-urls is reached.")
    ] = "http://127.0.0.1:7280",
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="It is valid so long, at most 7d.")
    ] = "1h",
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The arguments; otherwise the body has them."),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=2, help="The most bytes of that body.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="It puts one task only.")] = False,
    once_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="As --once; URLs with the same key share the use."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Print a URL by which whoever has it puts tasks NAME into QUEUE, with a POST.

    It asks no server and no database. It ends at its time, and with its token.
    """
    from late.api.http.signed_urls import sign_url
    from late.model.targets import resolve

    if not token.startswith(("env:", "file:")):
        # Any user of the machine can read the arguments of a command.
        raise ConfigError("--token is env:NAME or file:PATH, and not the token itself")
    made = sign_url(
        server,
        resolve(token, "the token to sign with"),
        queue,
        name,
        expires_s=options.duration_us(expires, "--expires") / 1_000_000,
        payload=None if payload is None else options.json_object(payload, "--payload"),
        max_bytes=max_bytes,
        once=once if once_key is None else once_key,
    )
    ends_s = int(parse_qs(urlsplit(made).query)["expires"][0])
    output.line(json, {"url": made, "expires_at_us": ends_s * 1_000_000}, made)
