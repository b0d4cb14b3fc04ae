"""The commands that a login of each role can use, as `docs/sql.md` lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from late.store import open_store
from tests.security.logins import made
from tests.unit.cli_kit import Cli, Ended

Run = Callable[[str, str], Ended]
TASK = "019a0000-0000-7000-8000-000000000000"
SHOWN = ["status", "verify", "metrics", "knobs", "queue show mail", "target list", "group list",
         "group show default", "shards", "tasks list parked", "workflow list",
         "retention"]  # fmt: skip
HIDDEN = [f"show {TASK}", "dead list", "schedule list", "token list", f"cancel {TASK}",
          "queue pause mail"]  # fmt: skip


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    async def open_once(url: str) -> None:
        store = open_store(url)
        await store.open()
        await store.close()

    with made() as found:
        asyncio.run(open_once(found["owner"]))
        yield found


@pytest.fixture
def run(
    urls: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    def run(role: str, words: str) -> Ended:
        monkeypatch.setenv("LATE_URL", urls[role])
        return Cli(capsys, urls[role])(*words.split())

    return run


@pytest.mark.parametrize("words", SHOWN)
def test_a_viewer_sees_states_and_a_producer_nothing(run: Run, words: str) -> None:
    seen = run("viewer", words)
    assert seen.code == 0, seen
    assert "permission denied" in run("enqueuer", words).err


@pytest.mark.parametrize("words", ["status", "tasks list parked", "enqueue note"])
def test_a_service_sees_states_and_enqueues(run: Run, words: str) -> None:
    done = run("service", words)
    assert done.code == 0, done


@pytest.mark.parametrize("words", HIDDEN)
def test_a_service_sees_no_payloads_and_changes_nothing_by_a_command(run: Run, words: str) -> None:
    found = run("service", words)
    assert (found.code, "permission denied" in found.err) == (1, True)


@pytest.mark.parametrize("words", HIDDEN)
def test_a_viewer_sees_no_payloads_and_changes_nothing(run: Run, words: str) -> None:
    found = run("viewer", words)
    assert (found.code, "permission denied" in found.err) == (1, True)


@pytest.mark.parametrize(
    "words", ["dead list", "schedule list", "token list", "queue set mail rate=5"]
)
def test_an_operator_does_all_but_what_is_the_owners(run: Run, words: str) -> None:
    done = run("operator", words)
    assert done.code == 0, done
    for owners in ("migrate", "keys rotate"):
        assert "permission denied" in run("operator", owners).err
