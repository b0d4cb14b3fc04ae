"""A real Chromium, driven over a pipe by its own protocol (Chrome DevTools): nothing to install
but the browser, no port, no driver of its own version.

Everything here blocks, in the caller's thread; one thread reads what the browser says. Each wait
is for a state of the page and ends with `PATIENCE_S`, which only something broken reaches.

Source: the protocol's own description, chromedevtools.github.io/devtools-protocol.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
LOOK_EVERY_S = 0.03
FLAGS = (
    "--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-sync", "--hide-scrollbars",
    "--mute-audio", "--password-store=basic", "--remote-debugging-pipe",
    # A window behind others is drawn all the same.
    "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    # Nothing but this machine, whatever a page names.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)  # fmt: skip


# Not by a shell: some know no descriptor above 9. The first pipe has the lower numbers, so neither
# is written over before it was copied.
BECOME = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


class BrowserError(Exception):
    """The browser refused, is gone, or a page never came to the state that was waited for."""


class Chromium:
    """One browser, with a profile of its own that is gone afterwards."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="late-chromium-")
        # What we write and the browser reads, and the other way round: its descriptors 3 and 4.
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        self._numbers = count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._heard: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        self._change = threading.Condition()
        self._gone = False
        flags = [*FLAGS, f"--user-data-dir={self._folder}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # its sandbox does not work for root
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-IS", "-c", BECOME, str(its_in), str(its_out), program, *flags],
                pass_fds=(its_in, its_out),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"HOME": self._folder},
            )
        finally:
            os.close(its_in)
            os.close(its_out)
        self._reader = threading.Thread(target=self._read, name="chromium", daemon=True)
        self._reader.start()

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all that it has started."""
        with suppress(BrowserError, OSError):
            self.call("Browser.close", patience_s=10)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
        os.close(self._out)
        # Its pipe ends when the last of its processes has: only ours, by their session.
        self._reader.join(120)
        if self._reader.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._reader.join(PATIENCE_S)
        os.close(self._in)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """One call of the protocol; raises `BrowserError` for a refusal."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        with self._change:
            if not self._change.wait_for(lambda: number in self._answers or self._gone, patience_s):
                raise BrowserError(f"no answer to {method}")
            answer = self._answers.pop(number, None)
        if answer is None:
            raise BrowserError(f"the browser ended before it answered {method}")
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        return dict(answer["result"])

    def listen(self, session: str, heard: Callable[[str, dict[str, Any]], None]) -> None:
        """Events of a session, told in the reading thread."""
        with self._change:
            self._heard[session] = heard

    def _read(self) -> None:
        rest = b""
        while part := os.read(self._in, 1 << 16):
            *messages, rest = (rest + part).split(b"\0")
            for text in messages:
                self._take(json.loads(text))
        with self._change:
            self._gone = True
            self._change.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            with self._change:
                self._answers[message["id"]] = message
                self._change.notify_all()
            return
        with self._change:
            heard = self._heard.get(message.get("sessionId", ""))
        if heard is not None:
            heard(message["method"], message["params"])


class Person:
    """Somebody with a browser of his own: cookies are not shared between two."""

    def __init__(self, chromium: Chromium) -> None:
        self.chromium = chromium
        made = chromium.call("Target.createBrowserContext", {"disposeOnDetach": True})
        self._context = made["browserContextId"]

    def tab(self, width: int = 1280, height: int = 900, **media: str) -> Tab:
        """A new tab; `media` such as `prefers_color_scheme="dark"`."""
        made = self.chromium.call(
            "Target.createTarget",
            {"url": "about:blank", "browserContextId": self._context, "newWindow": True},
        )
        tab = Tab(self.chromium, made["targetId"])
        tab.resize(width, height)
        features = [{"name": n.replace("_", "-"), "value": v} for n, v in media.items()]
        tab.call("Emulation.setEmulatedMedia", {"features": features})
        return tab

    def leave(self) -> None:
        """Close all tabs and forget the cookies."""
        self.chromium.call("Target.disposeBrowserContext", {"browserContextId": self._context})


class Tab:
    """One page as its reader has it."""

    def __init__(self, chromium: Chromium, target: str) -> None:
        self.chromium = chromium
        self.target = target
        attached = chromium.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        self.faults: list[str] = []
        """Errors of scripts, what the policy refused, and what the browser complained of."""
        self.dialogs: list[str] = []
        """What a script has shown in a box: none of ours does."""
        self.received = 0
        """Bytes that came over the network."""
        self._scripts = True
        chromium.listen(self._session, self._heard)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self.chromium.call(method, params, session=self._session)

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            self.faults.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
            # Not `call`: its answer would be read by this very thread.
            threading.Thread(target=self._dismiss, daemon=True).start()
        elif method == "Network.loadingFinished":
            self.received += int(params["encodedDataLength"])

    def _dismiss(self) -> None:
        with suppress(BrowserError, OSError):
            self.call("Page.handleJavaScriptDialog", {"accept": False})

    # --- looking

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, a promise's when it is kept."""
        found = self.call(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True},
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return found["result"].get("value")

    def wait(self, script: str, what: str = "") -> Any:
        """The value of an expression as soon as it is true for JavaScript."""
        end = time.monotonic() + PATIENCE_S
        while True:
            found = None
            # A page that is being left has nothing to evaluate in.
            with suppress(BrowserError):
                found = self.evaluate(script)
            # An element comes as an empty object, and is there.
            if found not in (None, False, 0, ""):
                return found
            if time.monotonic() > end:
                raise BrowserError(
                    f"never so: {what or script}; the page says {self.text()[:2000]}"
                )
            time.sleep(LOOK_EVERY_S)

    def text(self, selector: str = "body") -> str:
        """What a reader sees of it."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def count(self, selector: str) -> int:
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def url(self) -> str:
        return str(self.evaluate("location.href"))

    def shows(self, text: str, selector: str = "main") -> None:
        """Wait until it can be read."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{place} && {place}.innerText.includes({json.dumps(text)})", f"{text!r}")

    def picture(self, path: Path) -> None:
        """What is in the window, as PNG or, a third of the size, as WebP: by the path's end."""
        kind = path.suffix.removeprefix(".")
        options: dict[str, Any] = {"quality": 40} if kind == "webp" else {}
        data = self.call("Page.captureScreenshot", {"format": kind, **options})["data"]
        path.write_bytes(base64.b64decode(data))

    # --- acting

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False},
        )

    def go(self, url: str) -> None:
        """Load a page, whole."""
        found = self.call("Page.navigate", {"url": url})
        if found.get("errorText"):
            raise BrowserError(f"{url}: {found['errorText']}")
        self.wait("document.readyState === 'complete'", url)
        self._dressed()

    def follow(self, act: Callable[[], None]) -> None:
        """Do what leads to another page, and wait for it."""
        self.evaluate("window.lateBefore = true")
        act()
        self.wait("!window.lateBefore && document.readyState === 'complete'", "another page")
        self._dressed()

    def without_scripts(self) -> None:
        """From the next page on."""
        self._scripts = False
        self.call("Emulation.setScriptExecutionDisabled", {"value": True})

    def _dressed(self) -> None:
        """Wait for our script, which runs before the page is complete, to have come to its end."""
        if self._scripts:
            self.wait("new Promise((done) => requestAnimationFrame(() => done(true)))")

    def press(self, selector: str, text: str = "") -> None:
        """Click in the middle of the first that matches, and holds `text`, as a hand would: it has
        to be there, in sight and under nothing. Where it has moved away before the click it is
        pressed again: a live page is exchanged at any time."""
        end = time.monotonic() + PATIENCE_S
        while not self._press(selector, text):
            if time.monotonic() > end:
                raise BrowserError(f"{selector} {text!r}: never hit")

    def _press(self, selector: str, text: str) -> bool:
        """Click once, and return whether that was hit."""
        at = self.wait(
            f"""(() => {{
              const found = [...document.querySelectorAll({json.dumps(selector)})]
                .find((each) => each.innerText.includes({json.dumps(text)}));
              if (!found) return null;
              found.scrollIntoView({{block: "center", inline: "center"}});
              // The first line of it: the middle of a link on two lines may be beside both.
              const box = found.getClientRects()[0];
              const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
              const top = document.elementFromPoint(x, y);
              if (!found.contains(top)) return null;
              window.lateMissed = true;
              found.addEventListener("click", () => {{ window.lateMissed = false; }}, true);
              return {{x, y}};
            }})()""",
            f"{selector} {text!r} to press",
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                {"type": kind, "button": "left", "clickCount": 1, **at},
            )
        # A page that is being left, and the next one, know of no press: it was one that led there.
        # Without scripts nothing is exchanged, and nobody hears of the click.
        with suppress(BrowserError):
            return not self._scripts or self.evaluate("window.lateMissed") is not True
        return True

    def type(self, selector: str, text: str) -> None:
        """Write into a field, in place of what is there."""
        self.evaluate(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            " it.focus(); it.select(); })()"
        )
        self.call("Input.insertText", {"text": text})

    def choose(self, selector: str, value: str) -> None:
        """One option of a list."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")

    def key(self, name: str) -> None:
        """One key: a letter, or one with a name such as `ArrowDown`."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": name} if kind == "keyDown" and len(name) == 1 else {}
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": name, **text})

    def offline(self, cut: bool) -> None:
        """Cut this tab from the network, or join it again."""
        self.call(
            "Network.emulateNetworkConditions",
            {"offline": cut, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1},
        )

    def close(self) -> None:
        self.chromium.call("Target.closeTarget", {"targetId": self.target})
