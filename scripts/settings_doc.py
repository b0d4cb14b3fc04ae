"""Writes `docs/settings.md`: `python scripts/settings_doc.py`.

From the settings of a worker (`late/config.py`, with their docstrings) and the options of the
commands (`late/cli/config/catalogue.py`). A test compares page and sources.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta

from late import config
from late.cli.config import catalogue
from late.cli.config.catalogue import AUTOSCALER, COMMANDS, LIVE, SERVE, TOP, WORKER, Setting

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"

HEAD = """# Settings

Made by `python scripts/settings_doc.py` from `late/config.py` and the options of the commands.

A setting comes from the first of these that gives it:

1. a flag of the command,
2. a variable of the environment,
3. the configuration file,
4. its default.

```toml
# late.toml
url = "postgresql://worker@db/shop"

[worker]
concurrency = 32
grace_s = 60
log_level = "INFO"

[serve]
http_port = 7280
health_port = 8081
```

```sh
late config show                                     # every setting, its value and its source
late config show worker shop.tasks:app --concurrency 8   # as this command line would have it
late config check late.toml                          # exit code 2 if a command would refuse it
```

## The file

- **Which file**: the one of `--config FILE`, else of `LATE_CONFIG`, else `late.toml` in the
  current folder. No other place is looked at. `late --config FILE COMMAND` works with every
  command; `worker`, `serve` and `autoscale run` also take it after their name.
  `LATE_CONFIG=/dev/null` is no file.
- **Sections**: `[worker]` is for each process that runs a worker, also for `late serve`.
  `[serve]` has the options of `late serve`, and may have any setting of a worker for `late serve`
  alone. `[autoscaler]` has the options of `late autoscale run`. `url` stands above them.
- **`url`** is for commands. A worker uses the database of its app, as `App(url)` has it in the
  code: write `App(os.environ["LATE_URL"])` where a platform sets the variable. The log's line
  `worker started` names the database. A warning before it says if `LATE_URL`, or `url`, has
  another kind or name of a database than the app.
- **Switches**: a flag such as `--log-json` only switches on. What the file has switched on, the
  variable switches off (`LATE_LOG_JSON=0`), or `--set exit_when_stuck=0`.
- **Lists**: the first source that gives one gives all of it. In a variable spaces separate the
  parts: `LATE_SERVE_PULL="mail sms"`.
- **Errors**: an unknown key or a wrong value is one line with the file, the key and the nearest
  key that there is. The command ends with exit code 2 and has opened nothing.
- **Variables** with an unknown name are not an error, as a service may have some of its own. At
  the start of a process, and in `late config show`, a warning names each that resembles a known
  one: `LATE_LEASE_TTL is no variable of late and is not read; did you mean LATE_LEASE_TTL_S?`
- **Secrets**: `late config show` leaves passwords out. There is a warning if everybody can write
  the file, or if it holds a password and everybody can read it. A password is better in
  `PGPASSWORD` or a file of the platform.

## SIGHUP

`late worker` and `late serve` read the file again at SIGHUP, and say so in one line. {live}
change at once. The line names the others that differ under `needs_restart`. A file that is wrong
or gone by then changes nothing, and one line says why.

`late worker --processes N` replaces its workers one by one at SIGHUP, so each setting of a worker
changes. It needs a restart for `processes`, `health_host`, `health_port` and `log_json`. If the
file is wrong or gone, no worker is replaced.

A worker that was started at a terminal stops when the terminal is closed.
"""

TEXTS = {
    TOP: ("For every command", ""),
    WORKER: (
        "`[worker]`",
        "Names of seconds end in `_s`. A setting without a flag of its own is `--set NAME=VALUE`.",
    ),
    SERVE: (
        "`[serve]`",
        "Besides these every setting of `[worker]`, for `late serve` alone. What of these options "
        "`late worker` has too, `[worker]` gives for both.",
    ),
    AUTOSCALER: ("`[autoscaler]`", "The policy itself is a [file of its own](autoscaler.md)."),
}

OTHERS = """
## Variables that are not in the file

| variable | what it is |
|---|---|
| `LATE_CONFIG` | the path of the file |
| `LATE_TOKEN` | the token of `late url sign` |
| `LATE_ACTOR` | the name of who gives a command, for the audit; the login stands behind it |
| `LATE_OIDC_CLIENT_SECRET` | the client's secret at the identity provider; or `oidc_secret_file` |
| `LATE_TARGETS` | a file with the addresses of targets ([targets](targets.md)) |
| `LATE_WAKE` | the workers that a producer wakes by datagram ([waking](waking.md)) |
| `LATE_WAKE_SECRET` | the secret of these datagrams |
| `LATE_POSTGRES_URL` | the PostgreSQL of `late demo` and `late bench` |
"""


def page() -> str:
    """Return the whole page."""
    live = ", ".join(f"`{name}`" for name in sorted(LIVE))
    parts = [HEAD.replace("{live}", live)]
    meanings = docstrings(config.WorkerConfig)
    for section, settings in catalogue.sections().items():
        title, text = TEXTS[section]
        command = COMMANDS.get(section)
        about = f"For `{command}`. {text}\n\n" if command else ""
        parts.append(f"\n## {title}\n\n{about}")
        parts.append("| name | type | default | variable | flag | what it is |\n")
        parts.append("|---|---|---|---|---|---|\n")
        parts += [row(setting, meanings) for setting in settings.values()]
    return "".join([*parts, OTHERS])


def row(setting: Setting, meanings: Mapping[str, str]) -> str:
    """Return one line of a table."""
    text = meanings.get(setting.name, "") if setting.text is None else setting.text
    cells = (
        f"`{setting.name}`",
        ", ".join(type_names(setting.kind)),
        "" if setting.default is None else f"`{plain(setting.default)}`",
        f"`{setting.variable}`" if setting.variable else "",
        f"`{setting.flag.removesuffix('=')}`" if setting.flag else "",
        " ".join(text.split()).replace("|", "\\|"),
    )
    return f"| {' | '.join(cells)} |\n"


def type_names(kind: Any) -> Iterator[str]:
    """Yield the words for a type and for its bounds."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from type_names(arguments[0])
        yield from (bounds for meta in arguments[1:] if (bounds := bounds_of(meta)))
    elif origin is Literal:
        yield " or ".join(f"`{each}`" for each in arguments)
    elif origin is list:
        yield "list of texts"
    elif origin is Union or origin is not None:
        words = [list(type_names(each)) for each in arguments if each is not type(None)]
        yield from (" or ".join(each[0] for each in words), *words[0][1:])
    else:
        yield {str: "text", int: "integer", float: "number", bool: "boolean"}[kind]


def bounds_of(meta: Meta) -> str:
    """Return the words for the bounds of a number; nothing for those of a text."""
    above = f"above {plain(meta.gt)}" if meta.gt is not None else ""
    least = plain(meta.ge) if meta.ge is not None else ""
    most = f"{plain(meta.le)}" if meta.le is not None else ""
    if least and most:
        return f"{least} to {most}"
    return f"{above} to {most}" if above and most else f"at least {least}" if least else above


def plain(value: Any) -> str:
    """Return a value as the file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,.15g}".replace(",", "") if isinstance(value, float) else str(value)


def docstrings(struct: type) -> dict[str, str]:
    """Return field -> the text below it in the source."""
    (tree,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(after.value, ast.Constant)
            found[field.target.id] = str(after.value.value)
    return found


if __name__ == "__main__":
    PAGE.write_text(page())
    count = sum(len(each) for each in catalogue.sections().values())
    print(f"{PAGE}: {count} settings", file=sys.stderr)
