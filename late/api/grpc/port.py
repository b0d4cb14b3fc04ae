"""Open the port of a gRPC server."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import grpc

from late.errors import ConfigError


class TlsFiles(Protocol):
    """The files of a server's certificate, of its key, and of the authority of its clients."""

    @property
    def cert(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def ca(self) -> str | None: ...


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
