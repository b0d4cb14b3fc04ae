"""Who is let in: tokens, scopes, patterns, certificates, and where one may listen at all."""

from __future__ import annotations

import asyncio
import datetime as dt
import http.client
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

import late
from late.api.http.uvicorn_server import Tls
from late.api.limits import Pace, check_bind
from late.api.server import Server
from late.api.settings import ServeSettings
from late.control import Control
from late.errors import ConfigError
from late.model.access import tokens
from late.model.access.rights import SCOPES, Caller, of_token
from late.schema.engine import make_engine, reading
from late.schema.tables import audit, token
from late.v1 import queue_pb2, queue_pb2_grpc
from late.worker.background import BackgroundService
from tests.support import sqlite
from tests.unit.api_kit import served
from tests.unit.cli_kit import Cli

PUT = {"name": "charge", "payload": {}}
TASKS = "/v1/queues/payments/tasks"


async def test_every_scope_allows_its_own(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it:
        texts = {scope: it.token(scope, scope) for scope in SCOPES}
        await it.service.access.load()
        found = {}
        for scope, text in texts.items():
            it.call.token = text
            found[scope] = [
                (await it.call("POST", TASKS, PUT)).status,
                (await it.call("POST", "/v1/queues/payments/receive", {"wait_s": 0})).status,
                (await it.call("POST", "/v1/ack", {"receipt": "x"})).status,
                (await it.call("GET", "/v1/queues")).status,
            ]
        assert found == {
            "enqueue": [201, 403, 403, 200],
            "consume": [403, 200, 404, 200],
            "view": [403, 403, 403, 200],
            "operate": [403, 403, 403, 200],
        }


async def test_a_token_is_for_its_queues_only(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db")

    @app.task(queue="mail")
    async def send() -> None: ...

    async with served(tmp_path, auth=True, app=app) as it:
        it.call.token = it.token("payer", "enqueue", "consume", queues=("pay*",))
        await it.service.access.load()
        assert (await it.call("POST", TASKS, PUT)).status == 201
        refused = [
            await it.call("POST", "/v1/queues/mail/tasks", {"name": "send"}),
            await it.call("POST", "/v1/tasks", {"tasks": [{"name": "send"}]}),  # by its own queue
            await it.call("POST", "/v1/queues/mail/receive", {"wait_s": 0}),
            await it.call("GET", "/v1/queues/mail"),
        ]
        assert [answer.status for answer in refused] == [403] * 4
        shown = (await it.call("GET", "/v1/queues")).json["queues"]
        assert [queue["queue"] for queue in shown] == ["payments"]


async def test_whoever_is_not_known_is_told_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it:
        good = it.token("web", "enqueue")
        gone = it.token("gone", "enqueue")
        with Control(it.url) as control:
            control.tokens.revoke("gone")
        await it.service.access.load()
        answers = []
        for text in (None, good[:-1], good + "x", gone, "late.nobody.secret", "nonsense", "late.."):
            it.call.token = text
            answers.append(await it.call("POST", TASKS, PUT))
        assert {(a.status, a.body) for a in answers} == {(401, answers[0].body)}
        assert answers[0].headers["www-authenticate"] == "Bearer"
        it.call.token = good
        assert (await it.call("POST", TASKS, PUT)).status == 201


async def test_a_revoked_token_stops_counting_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.access.auth.READ_EVERY_S", 0.05)
    async with served(tmp_path, auth=True) as it:
        watching = asyncio.create_task(BackgroundService(it.service.access.jobs()).run())
        it.call.token = it.token("web", "enqueue")

        async def answers(status: int) -> None:
            async with asyncio.timeout(120):
                while (await it.call("POST", TASKS, PUT)).status != status:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        await answers(201)
        with Control(it.url) as control:
            control.tokens.revoke("web")
        await answers(401)
        watching.cancel()


async def test_a_defect_in_a_background_job_stops_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dead loop revoked tokens would count for ever."""
    monkeypatch.setattr("late.api.access.auth.READ_EVERY_S", 0.05)
    url = sqlite.database(tmp_path / "q.db")
    server = Server(late.App(url), ServeSettings(http_port=0, auth=True, roles=("web",)))
    await server.start()

    def broken(*_: object) -> None:
        raise ArithmeticError("a defect")

    monkeypatch.setattr("late.api.access.auth.in_thread", broken)
    async with asyncio.timeout(120):
        assert await server.wait() == 1
    assert server.stopped


def test_a_token_expires_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "q.db")
    with Control(url) as control:
        text, row = control.tokens.create(
            "web", scopes=["enqueue"], queues=["pay*"], lifetime_us=1_000_000
        )
        with pytest.raises(ConfigError, match="already"):
            control.tokens.create("web", scopes=["enqueue"], queues=["*"])
    assert text is not None
    assert tokens.name_of(text) == "web"
    before = row.created_at_us + 999_999
    assert tokens.admits(row, text, before) == Caller(
        "web", of_token(["enqueue"], ("pay*",)), row.digest, actor="token:web"
    )
    assert tokens.admits(row, text, before + 1) is None
    engine = make_engine(url)
    with reading(engine) as connection:
        kept = [
            tuple(found) for table in (token, audit) for found in connection.execute(table.select())
        ]
    engine.dispose()
    assert len(kept) == 2
    assert text.rpartition(".")[2] not in str(kept)


@pytest.mark.parametrize(
    ("name", "scopes", "queues"),
    [
        ("no good", ["enqueue"], ["*"]),
        ("web", [], ["*"]),
        ("web", ["admin"], ["*"]),
        ("web", ["enqueue"], []),
        ("web", ["enqueue"], ["no good"]),
        ("web", ["enqueue"], ["[a-z]"]),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    name: str, scopes: list[str], queues: list[str]
) -> None:
    with pytest.raises(ConfigError):
        tokens.checked(name, scopes, queues)


async def test_a_caller_has_its_pace(tmp_path: Path) -> None:
    now = 0.0
    pace = Pace(rate=2.0, burst=2.0, clock=lambda: now)
    async with served(tmp_path, auth=True, pace=pace) as it:
        first, other = it.token("one", "enqueue"), it.token("two", "enqueue")
        await it.service.access.load()
        it.call.token = first
        got = [await it.call("GET", "/v1/queues") for _ in range(3)]
        assert [answer.status for answer in got] == [200, 200, 429]
        assert got[2].headers["retry-after"] == "1"
        it.call.token = other
        assert (await it.call("GET", "/v1/queues")).status == 200
        it.call.token = first
        now += 0.5
        assert (await it.call("GET", "/v1/queues")).status == 200


async def test_without_tokens_a_strange_name_of_this_machine_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for host, status in (
            ("localhost", 200),
            ("127.0.0.1:7280", 200),
            ("[::1]:7280", 200),
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
        ):
            answer = await it.call("GET", "/v1/queues", headers={"Host": host})
            assert answer.status == status, host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "queue.example", ""])
def test_nobody_listens_for_others_without_tls_and_tokens(host: str) -> None:
    for tls, auth in ((False, False), (True, False), (False, True)):
        with pytest.raises(ConfigError, match=r"TLS|tokens"):
            check_bind(host, tls=tls, auth=auth)
    check_bind(host, tls=True, auth=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_this_machine_may_be_served_without(host: str) -> None:
    check_bind(host, tls=False, auth=False)


def test_the_command_line_refuses_it_before_anything_is_opened(cli: Cli) -> None:
    told = cli.refused("serve", "--pull", "payments", "--host", "0.0.0.0")
    assert "TLS" in told
    assert "--auth" in told
    cli.refused("serve", "--http-port", "-1")
    cli.refused("serve", "--tls-cert", "nowhere.pem")


def test_the_commands_about_tokens(cli: Cli) -> None:
    text = cli.fine("token", "create", "web", "--scope", "enqueue", "--queue", "pay*").out.strip()
    assert tokens.name_of(text) == "web"
    cli.fine("token", "create", "mtls.example", "--scope", "consume", "--certificate")
    cli.fine("token", "revoke", "web")
    shown = cli.fine("token", "list", "--json").json["tokens"]
    assert [(t["name"], t["kind"], t["live"]) for t in shown] == [
        ("mtls.example", "certificate", True),
        ("web", "secret", False),
    ]
    assert "pay*" in cli.fine("token", "list").out
    cli.refused("token", "revoke", "nobody")
    cli.refused("token", "create", "other", "--scope", "everything")


# ---------------------------------------------------------------- TLS


def _key(path: Path, weak: bool = False) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    key = (
        rsa.generate_private_key(65_537, 1_024) if weak else ec.generate_private_key(ec.SECP256R1())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return key


SIGNS = x509.KeyUsage(
    digital_signature=True, key_cert_sign=True, crl_sign=True, key_encipherment=False,
    data_encipherment=False, key_agreement=False, content_commitment=False, encipher_only=False,
    decipher_only=False,
)  # fmt: skip


def certificate(
    folder: Path,
    name: str,
    by: str | None = None,
    *,
    weak: bool = False,
    common: str | None = None,
    names: Sequence[x509.GeneralName] | None = None,
) -> None:
    """`name.pem` and `name.key`, signed by itself or by the authority `by`; `weak` as OpenSSL takes
    none any more. Its common and its alternative names are `name`, unless others are given."""
    key = _key(folder / f"{name}.key", weak)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common or name)])
    names = [x509.DNSName(name)] if names is None else names
    issuer, signer = subject, key
    if by is not None:
        issuer = x509.load_pem_x509_certificate((folder / f"{by}.pem").read_bytes()).subject
        loaded: Any = serialization.load_pem_private_key(
            (folder / f"{by}.key").read_bytes(), password=None
        )
        signer = loaded
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    # From Python 3.13 on a client refuses a certificate that does not say who has signed it, and an
    # authority that does not say what its key is for.
    for extension in (
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ):
        made = made.add_extension(extension, critical=False)
    if by is None:
        made = made.add_extension(SIGNS, critical=True)
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = made.sign(signer, hashes.SHA256())
    (folder / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _revoked(folder: Path, by: str, path: Path) -> None:
    """A list of revoked certificates, and none beside it."""
    issuer = x509.load_pem_x509_certificate((folder / f"{by}.pem").read_bytes()).subject
    key: Any = serialization.load_pem_private_key((folder / f"{by}.key").read_bytes(), None)
    now = dt.datetime.now(dt.UTC)
    made = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(now)
    made = made.next_update(now + dt.timedelta(hours=1))
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def ask(port: int, folder: Path, client: str | None) -> int:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if client is not None:
        context.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    link = http.client.HTTPSConnection("localhost", port, context=context, timeout=120)
    try:
        link.request("GET", "/v1/queues")
        return link.getresponse().status
    finally:
        link.close()


def ask_plainly(port: int) -> int:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    link.request("GET", "/livez")
    return link.getresponse().status


async def stats(port: int, folder: Path, client: str) -> str:
    pem = [(folder / n).read_bytes() for n in ("ca.pem", f"{client}.key", f"{client}.pem")]
    credentials = grpc.ssl_channel_credentials(*pem)
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        try:
            await queue_pb2_grpc.QueueStub(channel).Stats(queue_pb2.StatsRequest(), timeout=120)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"


def test_what_is_wrong_with_a_certificate_names_its_file(tmp_path: Path) -> None:
    certificate(tmp_path, "ca")
    certificate(tmp_path, "localhost", by="ca")
    certificate(tmp_path, "other", by="ca")
    certificate(tmp_path, "weak", weak=True)
    cert, key, ca = (str(tmp_path / name) for name in ("localhost.pem", "localhost.key", "ca.pem"))
    locked, junk = tmp_path / "locked.key", tmp_path / "junk.pem"
    private = ec.generate_private_key(ec.SECP256R1())
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    junk.write_text("not PEM")
    Tls(cert, key, ca)
    absent, other = str(tmp_path / "absent.pem"), str(tmp_path / "other.key")
    weak, weak_key, revoked = (str(tmp_path / n) for n in ("weak.pem", "weak.key", "revoked.pem"))
    _revoked(tmp_path, "ca", Path(revoked))
    for files, words in (
        ((absent, key), f"TLS: {absent}: No such file"),
        ((cert, absent), f"TLS: {absent}: No such file"),
        ((cert, key, absent), f"TLS: {absent}: No such file"),
        ((str(junk), key), f"TLS: {junk}: no certificate"),
        ((key, key), f"TLS: {key}: no certificate"),
        ((cert, str(junk)), f"TLS: {junk}: no private key"),
        ((cert, str(locked)), f"TLS: {locked}: no private key in PEM, without a password"),
        ((cert, other), f"TLS: {other} is not the key of {cert}"),
        ((cert, key, str(junk)), f"TLS: {junk}: no certificate"),
        ((revoked, key), f"TLS: {revoked}: no certificate"),
        ((weak, weak_key), f"TLS: {weak}: refused by OpenSSL, EE_KEY_TOO_SMALL"),
        ((weak, key), f"TLS: {weak}: refused by OpenSSL, EE_KEY_TOO_SMALL"),
        ((cert, weak_key), f"TLS: {weak_key} is not the key of {cert}"),
        ((weak, str(junk)), f"TLS: {junk}: no private key"),
    ):
        with pytest.raises(ConfigError) as refused:
            Tls(*files)
        assert str(refused.value).startswith(words)


async def test_a_client_certificate_counts_under_the_token_of_its_name(tmp_path: Path) -> None:
    certificate(tmp_path, "ca")
    certificate(tmp_path, "strangers")
    certificate(tmp_path, "localhost", by="ca")
    certificate(tmp_path, "billing.example", by="ca")
    certificate(tmp_path, "unknown.example", by="ca")
    certificate(tmp_path, "forged.example", by="strangers")
    url = sqlite.database(tmp_path / "q.db")
    with Control(url) as control:
        for name in ("billing.example", "forged.example"):
            control.tokens.create(name, scopes=["consume"], queues=["*"], certificate=True)
    app = late.App(url)
    app.route("payments", target="pull")
    listen = ServeSettings(
        http_port=0,
        grpc_port=0,
        auth=True,
        tls_cert=str(tmp_path / "localhost.pem"),
        tls_key=str(tmp_path / "localhost.key"),
        tls_ca=str(tmp_path / "ca.pem"),
    )
    server = Server(app, listen)
    await server.start()
    try:
        assert server.http is not None
        assert server.grpc is not None
        port = server.http.port
        assert await asyncio.to_thread(ask, port, tmp_path, "billing.example") == 200
        assert await asyncio.to_thread(ask, port, tmp_path, "unknown.example") == 401
        assert await asyncio.to_thread(ask, port, tmp_path, None) == 401
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(ask, port, tmp_path, "forged.example")
        assert await stats(server.grpc.port, tmp_path, "billing.example") == "OK"
        assert await stats(server.grpc.port, tmp_path, "unknown.example") == "UNAUTHENTICATED"
        assert await stats(server.grpc.port, tmp_path, "forged.example") == "UNAVAILABLE"
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            await asyncio.to_thread(ask_plainly, port)
    finally:
        await server.stop()
