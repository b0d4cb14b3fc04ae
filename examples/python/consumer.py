"""A consumer of `late serve` without packages: LATE_URL=... LATE_QUEUE=... python consumer.py"""

import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

VISIBILITY_S = float(os.environ.get("LATE_VISIBILITY_S", "30"))
GRACE_S = float(os.environ.get("LATE_GRACE_S", "20"))
stopped_at: list[float] = []


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
    url = f"{os.environ['LATE_URL']}/v1/{path}"
    tried = 0
    while not (stopped_at and tried > 8):
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), head)
            with urllib.request.urlopen(request, timeout=60) as answer:  # Ours. # nosec B310
                return json.loads(answer.read() or "{}")
        except (OSError, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code not in (429, 503):
                return None  # 409: the answer is there already, or the task is somebody else's.
            time.sleep(random.uniform(0, min(5, 0.1 * 2**tried)))
            tried += 1
    return None


def run(task):
    """Work in a thread, extend the visibility meanwhile, and answer at the end."""
    found = ["nack", {"outcome": "snooze", "after_s": 0, "reason": "the consumer stops"}]
    tell("began", task)

    def attempt():
        try:
            found[:] = work(task)
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
    post(path, {"receipt": task["receipt"], **body})


def tell(event, task):
    print(json.dumps({event: task["task_id"], "attempt": task["attempt"]}), flush=True)


def main():
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
