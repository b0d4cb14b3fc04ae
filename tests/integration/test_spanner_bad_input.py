"""What is wrong with a Spanner database, said in one line, in bounded time, with nothing done."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from late.cli import main
from late.control import Control
from late.errors import ConfigError, LateError, StoreRefused, StoreUnavailable
from late.schema.spanner import deadlines as spanner_bounds
from late.store import open_store
from late.testing.servers.spanner import INSTANCE, PROJECT, create_database, drop_database, url_of
from tests import servers

HOST = "SPANNER_EMULATOR_HOST"
SERVICE = """
import os
import late

app = late.App(os.environ["SHOP_URL"])

@app.task
def greet() -> None: ...
"""


class Bad(NamedTuple):
    """A database that cannot be used."""

    url: str
    error: type[LateError]
    words: str
    code: int = 1


@pytest.fixture(scope="module")
def emulator() -> str:
    host = servers.spanner_host()
    if host is None:
        pytest.skip("no Spanner emulator: install it with gcloud or set SPANNER_EMULATOR_HOST")
    return host


@pytest.fixture(scope="module")
def good(emulator: str) -> Iterator[str]:
    made = create_database(migrated=True)
    yield made
    drop_database(made)


class _Forbidden(grpc.GenericRpcHandler):
    """A Spanner whose caller may do nothing: what the emulator, which knows no roles, cannot be."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        def refuse(_: bytes, context: grpc.ServicerContext) -> Any:
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "Caller is missing IAM permission spanner.sessions.create on resource shop.",
            )

        return grpc.unary_unary_rpc_method_handler(refuse)


@contextmanager
def forbidden() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Forbidden()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def of_postgresql() -> Iterator[str]:
    name = f"late-{secrets.token_hex(6)}"
    client: Any = spanner.Client(project=PROJECT, disable_builtin_metrics=True)
    database = client.instance(INSTANCE).database(name, database_dialect=DatabaseDialect.POSTGRESQL)
    database.create().result(30)
    try:
        yield url_of(name)
    finally:
        database.drop()


CASES = (
    "project",
    "instance",
    "database",
    "permission",
    "dead",
    "dialect",
    "credentials",
    "shape",
    "scheme",
)


@pytest.fixture(params=CASES)
def bad(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, good: str) -> Any:
    """One way in which a URL that was typed, or what is behind it, is wrong."""
    case: str = request.param
    # Beside other tests the emulator may take longer than an operator is kept waiting.
    monkeypatch.setattr(spanner_bounds, "CALL_TIMEOUT_S", 120.0)
    if case == "project":
        yield Bad(
            good.replace(f"projects/{PROJECT}", "projects/elsewhere"), StoreRefused, "elsewhere"
        )
    elif case == "instance":
        yield Bad(good.replace(f"instances/{INSTANCE}", "instances/none"), StoreRefused, "none")
    elif case == "database":
        yield Bad(url_of("mistyped"), StoreRefused, "mistyped")
    elif case == "permission":
        with forbidden() as host:
            monkeypatch.setenv(HOST, host)
            yield Bad(good, StoreRefused, "spanner.sessions.create")
    elif case == "dead":
        monkeypatch.setenv(HOST, "127.0.0.1:1")
        # Ten seconds are for a network. Where a server lives, a busy machine needs them.
        monkeypatch.setattr(spanner_bounds, "CALL_TIMEOUT_S", 2.0)
        yield Bad(good, StoreUnavailable, "127.0.0.1:1")
    elif case == "dialect":
        with of_postgresql() as url:
            yield Bad(url, StoreRefused, "dialect POSTGRESQL")
    elif case == "credentials":
        monkeypatch.delenv(HOST)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
        yield Bad(good, ConfigError, "/nowhere/key.json was not found", 2)
    elif case == "shape":
        yield Bad(good.partition("/databases")[0], ConfigError, "databases/NAME", 2)
    else:
        yield Bad(good.replace(":///", "://"), ConfigError, "databases/NAME", 2)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[str]]:
    """The arguments of a command on a database."""

    def arguments(name: str, url: str) -> list[str]:
        if name != "worker":
            return [name, url]
        module = f"shop_{secrets.token_hex(4)}"
        (tmp_path / f"{module}.py").write_text(SERVICE)
        monkeypatch.setenv("SHOP_URL", url)
        monkeypatch.syspath_prepend(tmp_path)
        return ["worker", f"{module}:app", "--wait-for-database", "0"]

    return arguments


@pytest.mark.parametrize("name", ["migrate", "status", "worker"])
def test_a_command_ends_with_one_line(
    bad: Bad,
    name: str,
    command: Callable[[str, str], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command(name, bad.url))
    out, err = capsys.readouterr()
    assert ended.value.code == bad.code, err
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("late: ")
    assert bad.words in line


async def opened(url: str) -> None:
    store = open_store(url)
    try:
        await store.open()
    finally:
        await store.close()


async def test_a_store_does_not_open(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.words):
        await opened(bad.url)


def test_the_control_plane_says_the_same(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.words), Control(bad.url) as control:
        control.status.read()
