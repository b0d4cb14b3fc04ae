"""A PgBouncer in transaction mode before a server of ours."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from late.testing.servers.postgres import PostgresServer

START_S = 30.0
CONFIG = """\
[databases]
* = host=127.0.0.1 port={server} user=postgres password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 40
# Idle connections to databases of tests that have ended
server_idle_timeout = 5
"""


def find_pgbouncer() -> str | None:
    """The program; Debian has it where only root's shell looks."""
    return shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")


class PgBouncer:
    """Runs in front of `server` from now on, until it is closed; any user and password will do."""

    def __init__(self, server: PostgresServer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._folder = Path(tempfile.mkdtemp(prefix="late-bouncer-"))
        self._folder.chmod(0o755)
        password = server.url.split(":")[2].split("@")[0]
        self._config = self._folder / "pgbouncer.ini"
        self._config.write_text(
            CONFIG.format(server=server.port, password=password, port=self.port)
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Without a database."""
        return f"postgresql://postgres:any@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it listens."""
        program = find_pgbouncer()
        assert program is not None, "apt-get install pgbouncer"
        user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, str(self._config)], stdout=log, stderr=log, user=user
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End it at once, with every connection through it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
