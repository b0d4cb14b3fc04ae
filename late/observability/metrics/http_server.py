"""`/metrics` for processes without an event loop: the autoscaler, `late metrics`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from late.errors import ConfigError, LateError
from late.observability.metrics.prometheus import CONTENT_TYPE

logger = logging.getLogger("late.observability")

PATIENCE_S = 5.0


class MetricsServer:
    """A server that listens as soon as it is made, in a thread; `port` is the real one.

    Args:
        page: makes the answer; called in a thread for each request. A `LateError` becomes a 503.

    Raises:
        ConfigError: the address is taken, or is not one of this machine.
    """

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        class Handler(_Handler):
            make = staticmethod(page)

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host[:64]}:{port}: {error.strerror or error}"
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="late-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. It may be called twice."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    make: Callable[[], bytes]
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            try:
                self._answer(200, CONTENT_TYPE, self.make())
            except LateError as error:
                logger.warning("no metrics: %s", error)
                self._answer(503, "text/plain", b"the database cannot be looked at\n")
        elif path in ("/livez", "/healthz"):
            self._answer(200, "application/json", b'{"live":true}')
        else:
            self._answer(404, "text/plain", b"there is /metrics and /livez\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)
