"""Commands about the keys of a deployment, and those of subjects."""

from __future__ import annotations

from typing import Annotated

import typer

from late.cli import options, output
from late.errors import ConfigError

app = typer.Typer(help="The keys of workers, and those of subjects.", no_args_is_help=True)


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


@app.command()
def drop(
    subject: Annotated[str, typer.Argument(help="The name that producers give as `subject=`.")],
    url: options.Url = None,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Delete the key of a subject, a tenant or a person: nothing of theirs can be read any more.

    It cannot be undone. Their tasks that wait become dead letters `subject_dropped` when they are
    due, and new ones under this name are refused. Workers use the key for 10 seconds more. Backups
    have it as long as you keep them.
    """
    if not yes:
        question = f"Delete the key of {subject!r}, so that nobody can ever read its tasks?"
        options.asked(question, "the key would be deleted for good")
    with options.control_of(url) as control:
        dropped = control.subject_keys.drop(subject)
    done = "dropped" if dropped.now else "had been dropped before"
    output.line(json, {"dropped": dropped}, f"the key of {subject!r} ({dropped.subject}) {done}")


@app.command()
def rewrap(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app with the keys.")],
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Wrap the keys of all subjects by the current key of the app's codec.

    After that the keys before it are not needed for subjects.
    """
    from late.cli.app_loader import load_app
    from late.payload.codec import owners

    found = load_app(target)
    codecs = [found.codec, *(task.codec for task in found.tasks.values())]
    rings = list(dict.fromkeys(ring for each in codecs if (ring := owners(each)) is not None))
    if not rings:
        raise ConfigError(f"{target} has no codec late.Encrypted")
    with options.control_of(url or found.url) as control:
        done = control.subject_keys.rewrap(rings)
    text = f"{done.wrapped} keys wrapped anew, {done.kept} were, {done.refused} not opened"
    output.line(json, {"keys": done}, text)
    if done.refused:
        raise typer.Exit(1)
