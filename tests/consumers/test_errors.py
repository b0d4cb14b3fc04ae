"""What the consumers of the examples say of errors that are no answer of the server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.broken import load
from tests.consumers.languages import EXAMPLES
from tests.node import NODE, needs_node


class Server(HTTPServer):
    """Answer requests in turn with the replies, each a status and a text; 0 is no answer."""

    def __init__(self, replies: list[tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.replies = iter(replies)
        self.sent: list[tuple[str, Any]] = []


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.sent.append((self.path.rpartition("/")[2], json.loads(body)))
        status, text = next(self.server.replies)
        if status:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def consumer(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield the consumer in Python, and in `sent` what a server of these replies has had."""
    server = Server(request.param)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    module = load()
    module.URL = f"http://127.0.0.1:{server.server_port}"
    module.sent = server.sent
    yield module
    server.shutdown()
    thread.join()
    server.server_close()


AGAIN = [(0, ""), (200, "{}"), (0, ""), (502, "<html>"), (200, "<html>"), (200, "{}")]


@pytest.mark.parametrize("consumer", [AGAIN], indirect=True)
def test_a_server_that_answers_again_is_told_once(
    consumer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer.post("extend", {})
    assert capsys.readouterr().err == "", "a single lost answer is nothing to tell"
    consumer.post("extend", {})
    away, back = capsys.readouterr().err.splitlines()
    assert "no answer, trying again until there is one: <HTTPError 502" in away
    assert back.endswith("answers again")


REFUSED = [(413, '{"error": "payload_too_large"}'), (204, "")]


@pytest.mark.parametrize(
    ("consumer", "result", "sent"),
    [
        (
            [(204, "")],
            {1, 2},
            [("nack", "TypeError('Object of type set is not JSON serializable')")],
        ),
        (REFUSED, "x", [("ack", None), ("nack", "the server refuses the ack")]),
    ],
    indirect=["consumer"],
)
def test_a_result_that_cannot_be_sent_is_a_failed_attempt(
    consumer: Any, result: Any, sent: list[tuple[str, str | None]]
) -> None:
    consumer.work = lambda task: ("ack", {"result": result})
    consumer.run({"task_id": "t", "attempt": 1, "receipt": "r"})
    assert [(path, body.get("reason")) for path, body in consumer.sent] == sent


@needs_node
def test_a_result_that_is_no_json_fails_the_attempt_of_a_service(tmp_path: Path) -> None:
    """And the service goes on."""
    source = (EXAMPLES / "node" / "handler.mjs").read_text()
    throws = 'throw new Error("this one always fails")'
    assert throws in source
    file = tmp_path / "handler.mjs"
    file.write_text(source.replace(throws, "return { result: 1n }"))
    secret = b"a secret of the service"
    environment = {"LATE_SECRET": f"whsec_{base64.b64encode(secret).decode()}", "PORT": "0"}
    with subprocess.Popen(
        [str(NODE), str(file)], env=environment, stdout=subprocess.PIPE, text=True
    ) as service:
        try:
            assert service.stdout is not None
            port = json.loads(service.stdout.readline())["port"]
            for _ in range(2):
                status, said = _execute(port, secret, b'{"type": "broken", "data": {}}')
                assert (status, "BigInt" in said) == (500, True)
        finally:
            service.terminate()


def _execute(port: int, secret: bytes, body: bytes) -> tuple[int, str]:
    stamp = str(int(time.time()))
    mac = hmac.digest(secret, f"id.{stamp}.".encode() + body, hashlib.sha256)
    head = {
        "webhook-id": "id",
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}", body, head)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    return refused.value.code, refused.value.read().decode()
