"""Open the port of a gRPC server, and bound what it takes from strangers."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import grpc

from late.api import limits
from late.errors import ConfigError


class TlsFiles(Protocol):
    """The files of a server's certificate, of its key, and of the authority of its clients."""

    @property
    def cert(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def ca(self) -> str | None: ...


def bounds(
    *, message: int, connections: int, streams: int = limits.STREAMS
) -> list[tuple[str, int]]:
    """Make the options of a server that takes messages of up to `message` bytes.

    gRPC takes in as much of a message as the window of its stream allows, also while nobody reads
    it. By default it widens the window to megabytes, for fast connections far away. Here the window
    is fixed, and grows for a message that is being read.
    """
    return [
        ("grpc.max_receive_message_length", message),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.max_metadata_size", 16 * limits.KIB),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", round(limits.HEADER_S * 1_000)),
        ("grpc.max_connection_idle_ms", round(limits.IDLE_S * 1_000)),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", limits.LOOKAHEAD_BYTES),
        ("grpc.so_reuseport", 0),
        # Calls that the loop has not seen yet. Beyond 1,000, which strangers open at once, gRPC
        # cancels some by chance, also those of callers.
        ("grpc.server.max_pending_requests", 8_000),
        ("grpc.server.max_pending_requests_hard_limit", 8_000),
        # It cancels such a call after 30 s by default. Its client knows how long it waits.
        ("grpc.server_max_unrequested_time_in_server", round(limits.UNSEEN_S)),
    ]


def open_port(server: grpc.aio.Server, host: str, port: int, tls: TlsFiles | None) -> int:
    """Let `server` listen on `port`, or on a free one for 0, and return the port.

    Raises:
        ConfigError: the address is taken, or is not one of this machine, or a file cannot be read.
    """
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            return server.add_insecure_port(at)
        return server.add_secure_port(at, _credentials(tls))
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"cannot listen on {at}: {str(error)[:200]}") from None


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    key, cert = Path(tls.key).read_bytes(), Path(tls.cert).read_bytes()
    ca = None if tls.ca is None else Path(tls.ca).read_bytes()
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=ca, require_client_auth=ca is not None
    )
