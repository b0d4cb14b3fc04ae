"""Run the steps of `deploy/Dockerfile` where no engine for containers is: `make image`.

Each stage is a folder that is entered by chroot, in a mount namespace of this process alone. Its
`/usr` is the machine's, read-only, with this Python at `/usr/local`, where the base image has one;
everything else is made by the Dockerfile's own COPY and RUN. Then both targets are tried as in a
cluster: the image's user, no capability, a read-only root, `/tmp` in memory, loopback only.

It is no engine: the base image, its size and its layers are not tried. It takes Linux, root, and
the package index.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.check_tree import tracked
from scripts.dist import first_line, readme, run

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
CLONE_NEWNET = 0x40000000  # `os.unshare` is there from Python 3.12 on.
READY_S = 60
"""A process that is not healthy by then will not be."""


@dataclasses.dataclass
class Stage:
    """What the Dockerfile says of one stage."""

    name: str
    base: str
    steps: list[tuple[str, str]]


def instructions(text: str) -> list[tuple[str, str]]:
    """Return (instruction, rest) pairs in their order, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(word.upper(), re.sub(r" {2,}", " ", rest).strip()) for word, rest in pairs]


def stages(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile whose FROM lines all have names."""
    found: list[Stage] = []
    for word, rest in instructions(text):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(name, base, []))
        elif found:
            found[-1].steps.append((word, rest))
    return found


def settled(stage: Stage, known: Sequence[Stage]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of a stage, and the last WORKDIR, USER, CMD and HEALTHCHECK."""
    base = next((each for each in known if each.name == stage.base), None)
    env, last = settled(base, known) if base else ({"PATH": PATH}, {"WORKDIR": "/"})
    for word, rest in stage.steps:
        if word == "ENV":
            env |= dict(part.split("=", 1) for part in shlex.split(rest))
        elif word in ("WORKDIR", "USER", "CMD", "HEALTHCHECK"):
            last[word] = rest
    return env, last


def mount(*words: str | Path) -> None:
    run(["mount", *words], ROOT)


def lay(root: Path) -> None:
    """Make the folder of a stage: what the base image would bring is the machine's."""
    root.mkdir()
    mount("-t", "tmpfs", "-o", "mode=755", "stage", root)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("app", "dev", "opt", "proc", "tmp", "usr", "var/cache/ldconfig"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    mount("-t", "tmpfs", "-o", "mode=755", "dev", root / "dev")
    for name in ("null", "urandom"):
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    mount("--bind", "/proc", root / "proc")
    for source, target in (("/usr", "usr"), (sys.base_prefix, "usr/local")):
        mount("--bind", source, root / target)
        mount("-o", "remount,bind,ro", root / target)
    # The certificates and the resolver are needed, and users are added to this copy.
    run(["cp", "-a", "/etc", root / "etc"], ROOT)
    run(["chroot", root, "/sbin/ldconfig"], ROOT)


def copy(rest: str, root: Path, workdir: str, known: dict[str, Path]) -> None:
    """Carry out COPY, from the files that git knows or from another stage."""
    *sources, target = [word for word in rest.split() if not word.startswith("--")]
    from_stage = re.search(r"--from=(\S+)", rest)
    place = root / os.path.join(workdir, target).strip("/")
    if from_stage:
        (source,) = sources
        place.parent.mkdir(parents=True, exist_ok=True)
        run(["cp", "-a", known[from_stage[1]] / source.strip("/"), place], ROOT)
        return
    kept = allowed((ROOT / ".dockerignore").read_text())
    wanted = [s for s in (kept if sources == ["."] else sources) if (ROOT / s).exists()]
    for name in tracked(ROOT):
        if any(name == each or name.startswith(f"{each}/") for each in wanted):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def allowed(ignore: str) -> list[str]:
    """Return the paths that a .dockerignore lets in."""
    return [line[1:] for line in ignore.splitlines() if line.startswith("!")]


def build(stage: Stage, known: Sequence[Stage], roots: dict[str, Path]) -> None:
    """Carry out the COPY and RUN steps of a stage in its folder."""
    root = roots[stage.name]
    env, workdir = {"PATH": PATH}, "/"
    for word, rest in stage.steps:
        if word == "ENV":
            env |= dict(part.split("=", 1) for part in shlex.split(rest))
        elif word == "WORKDIR":
            workdir = rest
            (root / rest.strip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            copy(rest, root, workdir, roots)
        elif word == "RUN":
            print(f"[{stage.name}] RUN {rest[:90]}", flush=True)
            given = [f"{name}={value}" for name, value in env.items()]
            run(["chroot", root, "env", *given, "sh", "-ec", f"cd {workdir} && {rest}"], ROOT)


def entered(root: Path, env: dict[str, str], last: dict[str, str]) -> list[str]:
    """Return the words before a command that runs it as the container would."""
    user, _, group = last["USER"].partition(":")
    given = [f"{name}={value}" for name, value in env.items()]
    limits = ["--no-new-privs", "--bounding-set=-all", "--clear-groups"]
    who = [f"--reuid={user}", f"--regid={group}", *limits]
    inside = ["env", "-i", *given, "sh", "-c", f'cd {last["WORKDIR"]} && exec "$@"', "sh"]
    return ["chroot", str(root), "setpriv", *who, *inside]


@contextmanager
def running(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process that must end with 0 after SIGTERM."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
        if process.wait(timeout=READY_S):
            raise SystemExit(f"{' '.join(words[-4:])}: ended with {process.returncode}")


def wait_healthy(before: Sequence[str], check: str, process: subprocess.Popen[str]) -> None:
    """Run the image's own health check until it passes."""
    words = json.loads(check[check.index("[") :])
    end = time.monotonic() + READY_S
    while subprocess.run([*before, *words], capture_output=True, check=False).returncode:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"not healthy: {' '.join(before[-1:])} {process.poll()}")
        time.sleep(0.2)


def try_worker(root: Path, env: dict[str, str], last: dict[str, str]) -> None:
    """Run the README's task in the image that services build on."""
    before = entered(root, env, last)
    print(run([*before, "late", "--version"], ROOT).strip())
    refused = subprocess.run([*before, "touch", "/app/x"], capture_output=True, check=False)
    if not refused.returncode or run([*before, "id", "-u"], ROOT).strip() == "0":
        raise SystemExit("the root can be written, or the user is root")
    run([*before, "late", "migrate", "sqlite:////tmp/shop.db"], ROOT)
    run([*before, "python", "shop.py"], ROOT)
    with running([*before, "late", "worker", "shop:app"]) as process:
        wait_healthy(before, last["HEALTHCHECK"], process)
        line = first_line(process)
    if line != "receipt for order 1 to ada@example.org\n":
        raise SystemExit(f"the worker said {line!r}")
    print("[worker] a task ran; health check, stop: well")


def try_serve(root: Path, env: dict[str, str], last: dict[str, str]) -> None:
    """Ask the serving image for its page."""
    env = env | {"LATE_URL": "sqlite:////tmp/queue.db"}
    before = entered(root, env, last)
    run([*before, "late", "migrate"], ROOT)
    with running([*before, *json.loads(last["CMD"])]) as process:
        wait_healthy(before, last["HEALTHCHECK"], process)
        trust = ssl.create_default_context(cafile=root / "tls" / "tls.crt")
        if "token" not in fetched("https://localhost:7280/ui/", trust):
            raise SystemExit("the page does not ask for a token")
    print("[serve] the page asks for a token; health check, stop: well")


def fetched(url: str, trust: ssl.SSLContext) -> str:
    """Return what is at the URL; the server may not listen yet."""
    end = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(url, context=trust) as answer:  # nosec B310
                return str(answer.read(), "utf-8")
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def make_files(worker: Path, serve: Path) -> None:
    """Put in what a service and its operator bring: a module, a certificate."""
    source = readme("python")[0].replace("shop.db", "/tmp/shop.db")  # nosec B108
    (worker / "app" / "shop.py").write_text(source)
    (serve / "tls").mkdir()
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    kind = ["-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    out = ["-keyout", serve / "tls" / "tls.key", "-out", serve / "tls" / "tls.crt"]
    run(["openssl", "req", *kind, *names, *out], ROOT)
    (serve / "tls" / "tls.key").chmod(0o444)


def inside(scratch: Path) -> None:
    """Build each stage, then try both targets; every mount ends with this process.

    Nothing is deleted here: what lies below `scratch` is in part the machine's own.
    """
    known = stages(DOCKERFILE.read_text())
    mount("-t", "tmpfs", "scratch", scratch)
    roots: dict[str, Path] = {}
    for stage in known:
        if stage.base in roots:  # `serve` is `worker` with other words
            roots[stage.name] = roots[stage.base]
            continue
        roots[stage.name] = scratch / stage.name
        lay(roots[stage.name])
        build(stage, known, roots)
    make_files(roots["worker"], roots["serve"])
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise SystemExit(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    run(["ip", "link", "set", "lo", "up"], ROOT)
    mount("-o", "remount,ro", roots["worker"])
    mount("-t", "tmpfs", "-o", "mode=1777", "tmp", roots["worker"] / "tmp")
    by_name = {stage.name: stage for stage in known}
    try_worker(roots["worker"], *settled(by_name["worker"], known))
    try_serve(roots["serve"], *settled(by_name["serve"], known))


def main(arguments: Sequence[str] | None = None) -> int:
    """Start `inside` in namespaces of its own.

    Raises:
        SystemExit: a step failed, with its output; or the machine lacks what this takes.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not sys.platform.startswith("linux") or os.geteuid():
        raise SystemExit("mount namespaces take Linux and root")
    if words:
        inside(Path(words[0]))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="late-image-"))
    try:
        again = [sys.executable, "-m", "scripts.image", str(scratch)]
        return subprocess.call(["unshare", "--mount", "--propagation", "private", *again], cwd=ROOT)
    finally:
        scratch.rmdir()  # Empty outside of the namespace, and never more than this one folder.


if __name__ == "__main__":
    sys.exit(main())
