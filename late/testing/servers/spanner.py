"""A private Spanner emulator for tests and the demo. It ends with this process.

The program is `emulator_main` of the Google Cloud SDK's component `cloud-spanner-emulator`. Its
gateway is not used: it is needed for REST only, and does not stop the emulator when it is stopped
itself. The emulator keeps everything in memory and needs no credentials.

A small shell waits on a pipe that only this process holds, and kills the emulator when the pipe is
closed. So no emulator remains after ctrl-C, an exception or SIGKILL of this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from late.errors import StoreUnavailable

HOST_VARIABLE = "SPANNER_EMULATOR_HOST"
PROJECT = "late-test"
INSTANCE = "late"
ENVIRONMENT = {
    "GOOGLE_CLOUD_PROJECT": PROJECT,
    # The emulator allows one transaction per session, so sessions must not be shared.
    "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_FOR_RW": "false",
    "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_PARTITIONED_OPS": "false",
}
"""The variables that a client of an emulator needs besides `SPANNER_EMULATOR_HOST`."""

_START_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
_POLL_S = 0.02
_SUPERVISE = '"$@" & pid=$!; trap "" INT TERM HUP; read -r _; kill -KILL $pid; wait $pid'
_PATH = re.compile(r"projects/([^/]+)/instances/([^/]+)/databases/([^/?]+)")


def find_emulator() -> Path | None:
    """Return the program `emulator_main`, or None if no SDK has it."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return None
    program = Path(gcloud).resolve().parent / "cloud_spanner_emulator" / "emulator_main"
    return program if os.access(program, os.X_OK) else None


def url_of(database: str) -> str:
    return f"spanner+spanner:///projects/{PROJECT}/instances/{INSTANCE}/databases/{database}"


class SpannerEmulator:
    """One emulator on a free loopback port. It is also a context manager.

    `start` may be called again after `kill`. The port is then the same, and all data is gone. It is
    not safe for concurrent use.

    Raises:
        StoreUnavailable: there is no program, or it does not start.
    """

    def __init__(self) -> None:
        found = find_emulator()
        if found is None:
            raise StoreUnavailable(
                "no Spanner emulator found: gcloud components install cloud-spanner-emulator, "
                f"or set {HOST_VARIABLE}"
            )
        self.port = 0
        self._program = found
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """The value of `SPANNER_EMULATOR_HOST`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> SpannerEmulator:
        """Start, and wait until it accepts connections."""
        if self._process is not None and self._process.poll() is None:
            return self
        # A second emulator on one port would start without an error and share the connections.
        self.port = self.port or _free_port()
        self._process = subprocess.Popen(
            ["sh", "-c", _SUPERVISE, "late", str(self._program), f"--host_port={self.host}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise StoreUnavailable("the Spanner emulator did not start")
            time.sleep(_POLL_S)
        return self

    def kill(self) -> None:
        """Kill the emulator. All its data is lost. It may be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(_START_TIMEOUT_S)

    def __enter__(self) -> SpannerEmulator:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def ensure_instance(instance: Any) -> None:
    """Create the emulator's instance, unless it is there or another process creates it now."""
    from google.api_core.exceptions import AlreadyExists

    if not instance.exists():
        with contextlib.suppress(AlreadyExists):
            instance.create().result(_START_TIMEOUT_S)


def create_database(*, migrated: bool, url: str | None = None) -> str:
    """Create a database on the emulator that the environment names, with its instance if needed.

    Args:
        migrated: create the current schema in it; else it is empty.
        url: the URL of the database; by default it gets a unique name.

    Returns:
        Its URL.

    Raises:
        StoreUnavailable: the environment names no emulator, or it does not answer.
    """
    from late.schema import migrate

    url = url or url_of(f"late-{secrets.token_hex(6)}")
    project, instance_id, name = _names(url)
    instance = _client(project).instance(
        instance_id,
        configuration_name=f"projects/{project}/instanceConfigs/emulator-config",
        node_count=1,
        display_name=instance_id,
    )
    ensure_instance(instance)
    database = instance.database(name)
    if not database.exists():
        database.create().result(_START_TIMEOUT_S)
    if migrated:
        migrate.upgrade(url)
    return url


def drop_database(url: str) -> None:
    """Drop a database of the emulator. It may be gone already."""
    project, instance_id, name = _names(url)
    _client(project).instance(instance_id).database(name).drop()


def _names(url: str) -> tuple[str, str, str]:
    found = _PATH.search(url)
    assert found is not None, "a Spanner URL"
    return found[1], found[2], found[3]


def _client(project: str) -> Any:
    host = os.environ.get(HOST_VARIABLE)
    if not host:
        raise StoreUnavailable(f"{HOST_VARIABLE} is not set: nothing is made on the real service")
    name, _, port = host.rpartition(":")
    # Without this check the client would try for minutes.
    if not port.isdigit() or not _listens(int(port), name):
        raise StoreUnavailable(f"no emulator answers at {HOST_VARIABLE}={host}")
    from google.cloud import spanner

    return spanner.Client(project=project, disable_builtin_metrics=True)


def _listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
