"""Hand a command of `manage.py` over to the command `late`."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from late.contrib.django.application import migrate_hint, setting
from late.contrib.django.checks import check_schema
from late.contrib.django.connections import database_url

TARGET = "late.contrib.django.worker:app"
"""The `MODULE:APP` of commands that need the project's tasks."""


def with_app(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with the project's app where a command wants one and has none."""
    given = list(arguments)
    for words in (["check"], ["target", "list"]):
        rest = given[len(words) :]
        if given[: len(words)] == words and (not rest or rest[0].startswith("-")):
            return [*words, TARGET, *rest]
    if given[:1] == ["enqueue"] and not any(each.startswith("--app") for each in given):
        return [*given, "--app", TARGET]
    return given


class LateCommand(BaseCommand):
    """Runs `late` on the project's database with the arguments that follow.

    `first` is put in front of them. Options of `late` are its own (`--help` as well), so Django
    does not read them, but for `--settings` and `--pythonpath`, which it has read by then.
    """

    first: tuple[str, ...] = ()
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """See the class. It ends the process with the exit code of `late`."""
        parser = CommandParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        self._run(parser.parse_known_args(argv[2:])[1])

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the arguments of `late` from `call_command("late", "status", "--json")`."""
        parser.add_argument("arguments", nargs="*")
        defaults = vars(parser.parse_known_args([])[0])
        parser.parse_args = lambda args=(), _=None: Namespace(
            **(defaults | {"arguments": list(args)})
        )

    def handle(self, *_: Any, arguments: Sequence[str], **__: Any) -> None:
        """Run the command for `call_command`, and return.

        Raises:
            CommandError: it ended with another exit code than 0, its `returncode`.
        """
        before = sys.argv, {name: os.environ.get(name) for name in ("LATE_URL", "PYTHONPATH")}
        try:
            with redirect_stdout(self.stdout._out), redirect_stderr(self.stderr._out):
                self._run(arguments)
        except SystemExit as ended:
            if ended.code:
                raise CommandError("see above", returncode=int(ended.code)) from None
        finally:
            sys.argv = before[0]
            for name, value in before[1].items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def _run(self, arguments: Sequence[str]) -> None:
        from late.cli import main

        os.environ["LATE_URL"] = database_url(setting("DATABASE"))
        # The parent of several workers starts each with the command line that it has itself.
        sys.argv = ["late", *self.first, *with_app(arguments)]
        if sys.argv[1:2] == ["worker"]:  # Each finds the project from any folder, as manage.py.
            places = [sys.path[0] or os.getcwd(), os.environ.get("PYTHONPATH")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        if self.first == ("worker", TARGET) and {"-h", "--help"} & {*arguments}:
            print("manage.py late_worker [OPTIONS]: in this project MODULE:APP is given.\n")
        try:
            main(sys.argv[1:])
        except SystemExit as ended:
            self._hint(ended.code)
            raise

    def _hint(self, code: Any) -> None:
        """Name the command of Django, where the message of `late` has named its own."""
        if code == 1 and any(each.hint for each in check_schema([setting("DATABASE")])):
            print(migrate_hint(), file=sys.stderr)
        if code == 2 and sys.argv[1:2] == ["worker"] and not self.first:
            print("in this project: `manage.py late_worker [OPTIONS]`", file=sys.stderr)
        if sys.argv[1:2] == ["doctor"]:
            print(
                "in this project: `manage.py late_worker` for `late worker MODULE:APP`, and"
                " `manage.py late` for `late`",
                file=sys.stderr,
            )
