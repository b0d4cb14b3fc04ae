"""Commands about tokens: who may use `late serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from late.cli import options, output
from late.errors import ConfigError
from late.model.access.tokens import CERTIFICATE

app = typer.Typer(help="Who may use the HTTP and gRPC interfaces.", no_args_is_help=True)

TokenArgument = Annotated[str, typer.Argument(help="Its name in logs, and to revoke it.")]


@app.command()
def create(
    name: TokenArgument,
    scope: Annotated[
        list[str], typer.Option(help="enqueue, consume, view or operate; may be repeated.")
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(help="Queue, or a pattern with *; may be repeated. Default: all."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 90d; never by default.")
    ] = None,
    certificate: Annotated[
        bool,
        typer.Option("--certificate", help="For a client certificate of this name; no secret."),
    ] = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Make a token and print it. It is shown this once: only its hash is kept."""
    lifetime_us = None if expires is None else options.duration_us(expires, "--expires")
    if lifetime_us is not None and lifetime_us <= 0:
        raise ConfigError(f"--expires {expires!r}: a token must live for longer than nothing")
    with options.control_of(url) as control:
        text, row = control.tokens.create(
            name,
            scopes=scope,
            queues=queue or ["*"],
            lifetime_us=lifetime_us,
            certificate=certificate,
        )
    keys = {"name": row.name, "token": text, "expires_at_us": row.expires_at_us}
    output.line(json, keys, text or f"{row.name}: by its client certificate")


@app.command("list")
def list_(url: options.Url = None, json: options.Json = False) -> None:
    """List all tokens: what they allow, and whether they are valid."""
    with options.control_of(url) as control:
        tokens, now = control.tokens.all(), control.now()
    rows = [
        {
            "name": token.name,
            "kind": CERTIFICATE if token.digest == CERTIFICATE else "secret",
            "scopes": token.scopes,
            "queues": token.queues,
            "created_at_us": token.created_at_us,
            "expires_at_us": token.expires_at_us,
            "revoked_at_us": token.revoked_at_us,
            "live": token.live(now),
        }
        for token in tokens
    ]
    output.listed(
        json,
        {"tokens": rows},
        "tokens",
        ("name", "kind", "scopes", "queues", "state"),
        [
            (
                token.name,
                row["kind"],
                ", ".join(token.scopes),
                ", ".join(token.queues),
                "live" if row["live"] else "revoked" if token.revoked_at_us else "expired",
            )
            for token, row in zip(tokens, rows, strict=True)
        ],
    )


@app.command()
def revoke(name: TokenArgument, url: options.Url = None, json: options.Json = False) -> None:
    """End a token: within seconds nobody is let in by it."""
    with options.control_of(url) as control:
        control.tokens.revoke(name)
    output.line(json, {"revoked": name}, f"{name}: revoked")
