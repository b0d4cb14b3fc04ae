"""Client certificates that an authority has signed for something else: none counts for a token."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

import late
from late.api.access.certificates import names_of
from late.api.server import Server
from late.api.settings import ServeSettings
from late.control import Control
from tests.support import sqlite
from tests.unit.test_access import ask, certificate, stats

TOKENS = ("billing.example", "urn:billing", "192.0.2.1", "ann:example.com")
DIRECTORY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "billing.example")])
TAKEN: dict[str, tuple[str, list[x509.GeneralName]]] = {
    "dns": ("nobody", [x509.DNSName("billing.example")]),
    "uri": ("nobody", [x509.UniformResourceIdentifier("urn:billing")]),
    "second": ("nobody", [x509.DNSName("a.example"), x509.DNSName("billing.example")]),
    "common": ("billing.example", []),
}
REFUSED: dict[str, tuple[str, list[x509.GeneralName]]] = {
    "beside": ("billing.example", [x509.DNSName("other.example")]),
    "address": ("192.0.2.1", [x509.IPAddress(ipaddress.ip_address("192.0.2.1"))]),
    "mail": ("nobody", [x509.RFC822Name("billing.example")]),
    "directory": ("billing.example", [x509.DirectoryName(DIRECTORY)]),
}
"""The common name and the alternative names of a certificate, by the name of its file."""


async def test_only_names_that_an_authority_has_checked_count(tmp_path: Path) -> None:
    certificate(tmp_path, "ca")
    certificate(tmp_path, "localhost", by="ca")
    for name, (common, names) in {**TAKEN, **REFUSED}.items():
        certificate(tmp_path, name, by="ca", common=common, names=names)
    url = sqlite.database(tmp_path / "q.db")
    with Control(url) as control:
        for name in TOKENS:
            control.tokens.create(name, scopes=["view"], queues=["*"], certificate=True)
    app = late.App(url)
    app.route("payments", target="pull")
    files = {f"tls_{kind}": str(tmp_path / file) for kind, file in (
        ("cert", "localhost.pem"), ("key", "localhost.key"), ("ca", "ca.pem"))}  # fmt: skip
    server = Server(app, ServeSettings(http_port=0, grpc_port=0, auth=True, **files))
    await server.start()
    try:
        assert server.http is not None
        assert server.grpc is not None
        seen = {}
        for name in (*TAKEN, *REFUSED):
            status = await asyncio.to_thread(ask, server.http.port, tmp_path, name)
            seen[name] = status, await stats(server.grpc.port, tmp_path, name)
    finally:
        await server.stop()
    assert seen == {
        **dict.fromkeys(TAKEN, (200, "OK")),
        **dict.fromkeys(REFUSED, (401, "UNAUTHENTICATED")),
    }


@pytest.mark.parametrize("certificate", [None, {}, {"subject": ()}])
def test_without_a_certificate_there_is_no_name(certificate: object) -> None:
    assert names_of(certificate) == ()
