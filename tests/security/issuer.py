"""An identity provider of the tests' own, on this machine: real HTTP, real keys."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CLIENT, SECRET, AUDIENCE = "late-page", "s3cret:&", "late-queues"
RSA = rsa.generate_private_key(65_537, 2_048)
OTHER = rsa.generate_private_key(65_537, 2_048)
EC = ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """Signs tokens, and answers as a provider does. What a test sets, the next answer has."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"k1": RSA}
        self.more_keys: list[dict[str, Any]] = []
        self.person: dict[str, Any] = {
            "sub": "u-1",
            "email": "alice@example.com",
            "email_verified": True,
            "groups": ["sre"],
        }
        self.over: dict[str, Any] = {}
        """Claims of the next ID token in place of the right ones."""
        self.signing: dict[str, Any] = {"kid": "k1"}
        """How the next ID token is signed; see `sign`."""
        self.id_token: str | None = None
        self.asked: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.metadata: dict[str, Any] = {}
        self.away = False
        self.url = ""

    def sign(
        self,
        claims: dict[str, Any],
        *,
        kid: str | None = "k1",
        key: Any = None,
        algorithm: str | None = None,
        head: dict[str, Any] | None = None,
    ) -> str:
        chosen = key if key is not None else self.keys.get(kid or "k1", RSA)
        named = algorithm or (
            "ES256" if isinstance(chosen, ec.EllipticCurvePrivateKey) else "RS256"
        )
        headers = {**({} if kid is None else {"kid": kid}), **(head or {})}
        return jwt.encode(claims, chosen, named, headers=headers)

    def claims(self, **over: Any) -> dict[str, Any]:
        """The claims of a good token of a service; None takes one away."""
        now = int(time.time())
        made = {"iss": self.url, "sub": "svc-orders", "aud": AUDIENCE, "iat": now, "exp": now + 300}
        return {name: value for name, value in {**made, **over}.items() if value is not None}

    def service(self, **over: Any) -> str:
        return self.sign(self.claims(**over))

    @property
    def public(self) -> bytes:
        return RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def answer(self, path: str, form: dict[str, str], basic: str) -> tuple[int, dict[str, Any]]:
        if self.away:
            return 503, {}
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                **self.metadata,
            }
        if path == "/keys":
            listed = [_jwk(kid, key) for kid, key in self.keys.items()]
            return 200, {"keys": [*listed, *self.more_keys]}
        if path == "/token":
            return self._token(form, basic)
        return 404, {}

    def authorize(self, url: str) -> str:
        """What a person's browser does: ask, sign in, and be sent back to the returned address."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        sent = {"code": code, "state": asked["state"], "iss": self.url}
        return f"{asked['redirect_uri']}?{urlencode(sent)}"

    def _token(self, form: dict[str, str], basic: str) -> tuple[int, dict[str, Any]]:
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None or basic != f"{CLIENT}:s3cret%3A%26":
            return 400, {"error": "invalid_grant"}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (challenge, form["redirect_uri"]) != (asked["code_challenge"], asked["redirect_uri"]):
            return 400, {"error": "invalid_grant"}
        right = {"aud": CLIENT, "nonce": asked["nonce"], **self.person}
        made = self.claims(**{**right, **self.over})
        text = self.id_token or self.sign(made, **self.signing)
        return 200, {"id_token": text, "access_token": "x", "token_type": "Bearer"}


def _jwk(kid: str, key: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": kid}
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


@contextmanager
def issuer(host: str = "127.0.0.1") -> Iterator[Issuer]:
    """A provider on a free port; `localhost` is another site than `127.0.0.1` to a browser."""
    it = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            sent = parse_qs(self.rfile.read(size).decode())
            basic = self.headers.get("authorization", "").removeprefix("Basic ")
            it.asked.append(self.path)
            if self.path.startswith("/authorize?"):
                self.send_response(302)
                self.send_header("Location", it.authorize(self.path))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            form = {name: values[0] for name, values in sent.items()}
            status, found = it.answer(self.path, form, base64.b64decode(basic).decode())
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    it.url = f"http://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
        thread.join(120)
