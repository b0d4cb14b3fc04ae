"""A consumer of `late serve` without packages: LATE_URL=... LATE_QUEUE=... python consumer.py"""

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

URL = os.environ.get("LATE_URL", "http://127.0.0.1:7280").rstrip("/")
VISIBILITY_S = float(os.environ.get("LATE_VISIBILITY_S", "30"))
GRACE_S = float(os.environ.get("LATE_GRACE_S", "20"))
stopped_at: list[float] = []
is_away: list[str] = []


def work(task):
    """Do one task. What it returns is the answer, and an error is a failed attempt."""
    name, given, attempt = task["name"], task["payload"], task["attempt"]
    if name == "work":  # A later attempt finds that nothing is left to do.
        time.sleep(given.get("seconds", 0) if attempt == 1 else 0)
    elif name == "flaky" and attempt < given["until_attempt"]:
        return "nack", {"outcome": "retry", "after_s": given["after_s"], "reason": "not yet"}
    elif name == "broken":
        return "nack", {"outcome": "fail", "reason": given["reason"]}
    elif name not in ("flaky", "echo"):
        return "nack", {"outcome": "not_capable", "reason": name}
    return "ack", {"result": given} if name == "echo" else {}


def post(path, body):
    """Send a request, again and again while no answer comes; None where the server refuses it."""
    head = {"Content-Type": "application/json"}
    if os.environ.get("LATE_TOKEN"):
        head["Authorization"] = f"Bearer {os.environ['LATE_TOKEN']}"
    request = urllib.request.Request(f"{URL}/v1/{path}", json.dumps(body).encode(), head)
    tried = 0
    while not (stopped_at and tried > 8):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # Ours. # nosec B310
                found = json.loads(answer.read() or "{}")
            away("")
            return found
        except (OSError, ValueError, http.client.HTTPException) as error:
            code = error.code if isinstance(error, urllib.error.HTTPError) else 0
            if code == 409:
                return {}  # The answer is there already, or the task is somebody else's.
            if code and code != 429 and code < 500:
                print(f"{path}: {code} {error.read().decode()}", file=sys.stderr, flush=True)
                return None
            if tried and code != 429:  # A single lost connection is nothing to tell.
                away(repr(error))
            time.sleep(random.uniform(0, min(5, 0.1 * 2**tried)))
            tried += 1
    return None


def away(why):
    """Say once that the server does not answer, and once that it answers again."""
    if bool(why) != bool(is_away):
        said = f"no answer, trying again until there is one: {why}" if why else "answers again"
        print(f"{URL}: {said}", file=sys.stderr, flush=True)
    is_away[:] = [why] if why else []


def run(task):
    """Work in a thread, extend the visibility meanwhile, and answer at the end."""
    found = ["nack", {"outcome": "snooze", "after_s": 0, "reason": "the consumer stops"}]
    tell("began", task)

    def attempt():
        try:
            answer = work(task)
            json.dumps(answer)  # A result that is no JSON is a failed attempt.
            found[:] = answer
        except Exception as error:
            found[:] = "nack", {"reason": repr(error)}
        tell("ended", task)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    extended = time.monotonic()
    while thread.is_alive() and not (stopped_at and time.monotonic() > stopped_at[0] + GRACE_S):
        thread.join(0.1)
        if time.monotonic() > extended + VISIBILITY_S / 3:
            post("extend", {"receipt": task["receipt"], "visibility_s": VISIBILITY_S})
            extended = time.monotonic()
    path, body = found
    if post(path, {"receipt": task["receipt"], **body}) is None:
        post("nack", {"receipt": task["receipt"], "reason": f"the server refuses the {path}"})


def tell(event, task):
    print(json.dumps({event: task["task_id"], "attempt": task["attempt"]}), flush=True)


def main():
    if not URL.startswith(("http://", "https://")):
        sys.exit(f"LATE_URL is not the URL of a server, as http://127.0.0.1:7280 is: {URL}")
    signal.signal(signal.SIGTERM, lambda *_: stopped_at.append(time.monotonic()))
    asked = {"wait_s": 1, "visibility_s": VISIBILITY_S}
    asked["consumer"] = os.environ.get("LATE_CONSUMER", "")
    while not stopped_at:
        received = post(f"queues/{os.environ['LATE_QUEUE']}/receive", asked)
        if received is None and not stopped_at:
            sys.exit("the server refuses this consumer")
        for task in received["tasks"] if received else ():
            run(task)


if __name__ == "__main__":
    main()
