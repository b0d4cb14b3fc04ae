"""The clients in Go and TypeScript: their types are those of the document, and their tests pass."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import go_client, pull_document, typescript_types
from scripts.check_tree import HOSTS
from tests.consumers.languages import EXAMPLES, go, needs_go
from tests.node import node_for_types

TYPESCRIPT = EXAMPLES / "typescript"
NO_NETWORK = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|E403")


def test_the_types_are_made_from_the_document() -> None:
    assert go_client.FILE.read_text() == go_client.text(pull_document.document())
    assert typescript_types.FILE.read_text().startswith(typescript_types.first_line())


def test_a_change_of_the_document_changes_the_types() -> None:
    cut = pull_document.document()
    before = go_client.text(cut)
    cut["components"]["schemas"]["Nack"]["properties"]["colour"] = {"type": "integer"}
    changed = go_client.text(cut)
    (line,) = set(changed.splitlines()) - set(before.splitlines())
    assert line.split() == ["Colour", "*int64", '`json:"colour,omitempty"`']


def test_the_document_has_what_the_operations_refer_to() -> None:
    cut = pull_document.document()
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(cut)))
    assert named == set(cut["components"]["schemas"])
    assert set(go_client.operations(cut)) == set(pull_document.OPERATIONS)


def test_the_lock_file_has_no_address_of_a_registry() -> None:
    lock = (TYPESCRIPT / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert HOSTS.search(lock) is None
    packages = json.loads(lock)["packages"]
    assert all("integrity" in each for name, each in packages.items() if name)


@needs_go
def test_the_client_in_go_is_sound() -> None:
    """It is formatted, and its own tests pass."""
    listed = subprocess.run(
        ["gofmt", "-l", "."], cwd=EXAMPLES / "go", capture_output=True, text=True, check=True
    )
    assert listed.stdout == ""
    go("vet", "./...")
    go("test", "./...")


def test_the_tests_of_the_client_in_typescript_pass() -> None:
    words = [node_for_types(), "--test", "late/late.test.ts"]
    done = subprocess.run(words, cwd=TYPESCRIPT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages of the lock file in a copy of the example; its folder `node_modules`."""
    folder = tmp_path_factory.mktemp("npm") / "typescript"
    ignored = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(TYPESCRIPT, folder, ignore=ignored)
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm packages: npm is not installed")
    words = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries", "1"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode and NO_NETWORK.search(done.stderr):
        pytest.skip("no npm packages: the registry does not answer")
    assert done.returncode == 0, done.stderr
    return folder / "node_modules"


def test_the_client_in_typescript_is_sound(packages: Path) -> None:
    """Its types are those that the pinned generator makes, and the compiler has no objection."""
    assert typescript_types.FILE.read_text() == typescript_types.made(packages)
    compiler = str(packages / ".bin" / "tsc")
    done = subprocess.run([compiler], cwd=packages.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
