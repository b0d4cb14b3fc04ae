"""`deploy/`: the image, the compose file, the units and the chart, as their own tools read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from late.cli.main import app as command_line
from late.config import WorkerConfig, load
from late.observability.alerts import Settings, prometheus, rules
from scripts.image import allowed, instructions, settled, stages
from scripts.lock import IMAGE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
STAGES = stages(DOCKERFILE)
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("late-")}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
OTHER_NAMES = {"LATE_URL"}
"""Variables that are read, and are no setting of a worker."""


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the parameters that the command line reads from these words.

    Raises:
        Exception: no such command or option, or a value that it does not take.
    """
    assert Path(words[0]).name == "late"
    name, command, rest, context = "late", get_command(command_line), words[1:], None
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not hasattr(command, "resolve_command"):
            return context.params
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)


def check_settings(environment: dict[str, str]) -> None:
    """Fail where a variable is none that is read, or its value is refused."""
    own = {name: value for name, value in environment.items() if name.startswith("LATE_")}
    load(own)
    known = {f"LATE_{name.upper()}" for name in WorkerConfig.__struct_fields__}
    assert own.keys() <= known | OTHER_NAMES


def compose_problems(document: dict[str, Any]) -> list[str]:
    """Return what the schema of the Compose specification objects to."""
    import jsonschema

    # Found and not imported: the package's commands take seconds to load.
    package = find_spec("check_jsonschema")
    assert package is not None
    assert package.origin is not None
    vendored = Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    checker = jsonschema.validators.validator_for(schema)(schema)
    return [each.message for each in checker.iter_errors(document)]


@pytest.mark.parametrize(
    "wrong", ["late worker --procesess 2 a:b", "late wrker a:b", "late serve -x"]
)
def test_a_command_that_late_does_not_have_is_refused(wrong: str) -> None:
    with pytest.raises(Exception, match="No such"):
        parsed(wrong.split())


def test_the_dockerfile_has_nothing_that_hadolint_objects_to() -> None:
    done = subprocess.run([BIN / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_both_images_run_a_command_of_late_as_a_user_who_is_not_root() -> None:
    assert [stage.name for stage in STAGES] == ["build", "worker", "serve"]
    for stage in STAGES[1:]:
        env, last = settled(stage, STAGES)
        assert last["USER"] == "10001:10001"
        check_settings(env)
        if "--help" not in last["CMD"]:
            assert parsed(json.loads(last["CMD"]))["auth"]
        assert re.search(r"--interval=\d+s .*CMD \[", last["HEALTHCHECK"])


def test_the_image_is_built_from_what_its_context_has() -> None:
    kept = allowed((ROOT / ".dockerignore").read_text())
    assert all((ROOT / name).exists() for name in kept)
    for word, rest in instructions(DOCKERFILE):
        if word == "COPY" and "--from" not in rest:
            assert {*rest.split()[:-1]} - {"."} <= {*kept}
    wheel = (ROOT / "pyproject.toml").read_text().partition("[tool.hatch.build.targets.wheel]")[2]
    for source in re.findall(r'"([\w/]+)" = "late/_', wheel):
        assert any(source == name or source.startswith(f"{name}/") for name in kept), source


def test_the_image_has_every_extra_of_its_lock() -> None:
    lock = (ROOT / "requirements-image.lock").read_text()
    assert {"postgres", "serve", "spanner"} <= {*IMAGE}
    for package in ("psycopg", "uvicorn", "grpcio", "google-cloud-spanner", "uvloop"):
        assert re.search(rf"^{package}==", lock, re.M), package


def test_the_compose_file_passes_the_schema_of_its_specification() -> None:
    assert compose_problems(COMPOSE) == []
    wrong = json.loads(json.dumps(COMPOSE))
    wrong["services"]["worker"]["replica"] = 2
    assert len(compose_problems(wrong)) == 1


@pytest.mark.parametrize("name", OURS)
def test_each_service_of_ours_is_closed_and_runs_what_late_has(name: str) -> None:
    service = OURS[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert f"late-{service['build']['target']}" == service["image"]
    check_settings(service.get("environment", {}))
    if name == "certificate":
        return  # a shell, once
    assert "user" not in service
    given = parsed(service["command"])
    if name in ("worker", "serve"):
        assert (DEPLOY / "compose" / "app" / f"{given['target'].partition(':')[0]}.py").exists()
        grace = float(service["environment"]["LATE_GRACE_S"])
        assert int(service["stop_grace_period"].removesuffix("s")) >= grace + 15


def test_the_compose_file_opens_ports_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_page_is_served_everywhere() -> None:
    pods = yaml.safe_load_all((DEPLOY / "kubernetes" / "serve.yaml").read_text())
    (container,) = next(iter(pods))["spec"]["template"]["spec"]["containers"]
    image = json.loads(settled(STAGES[-1], STAGES)[1]["CMD"])
    for words in (OURS["serve"]["command"], container["command"], image):
        assert "web" in parsed(words)["roles"].split(",")


def test_prometheus_asks_services_that_are_there_and_has_the_rules_of_this_version() -> None:
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    workers, database = config["scrape_configs"]
    (found,) = workers["dns_sd_configs"]
    for name in found["names"]:
        assert SERVICES[name]["environment"]["LATE_HEALTH_HOST"] == "0.0.0.0"
    env, _ = settled(STAGES[1], STAGES)
    assert found["port"] == int(env["LATE_HEALTH_PORT"])
    ((target,),) = [each["targets"] for each in database["static_configs"]]
    host, _, port = target.partition(":")
    assert int(port) == parsed(SERVICES[host]["command"])["port"]
    rendered = prometheus.render(rules({}, Settings()))
    assert (DEPLOY / "compose" / "late.rules.yml").read_text() == rendered, (
        "late alerts render --force --out deploy/compose/late.rules.yml"
    )


def test_every_file_that_is_mounted_is_there() -> None:
    mounts = [each for service in SERVICES.values() for each in service.get("volumes", [])]
    sources = [each.partition(":")[0] for each in mounts]
    for source in sources:
        if source.startswith("."):
            assert (DEPLOY / "compose" / source).exists(), source
        else:
            assert source in COMPOSE["volumes"]


def unit(path: Path) -> dict[str, list[str]]:
    """Return option -> values of a unit file, in their order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_each_unit_runs_what_late_has_with_settings_that_it_reads(path: Path) -> None:
    said = unit(path)
    (start,) = said["ExecStart"]
    given = parsed(start.replace("${APP}", "shop.tasks:app").split())
    environment = dict(
        word.split("=") for line in said.get("Environment", []) for word in line.split()
    )
    check_settings(environment)
    assert said["User"] == ["late"]
    if "target" in given:
        stop = int(said["TimeoutStopSec"][0])
        assert stop >= float(environment["LATE_GRACE_S"]) + 15
    if "roles" in given:
        assert given["auth"]
        assert "web" in given["roles"].split(",")


def test_the_units_are_valid_and_sandboxed(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd: systemd-analyze is not here")
    names = []
    for path in UNITS:
        # The program is not installed here; another one stands for it.
        text = path.read_text().replace("/opt/late/bin/late", "/bin/true")
        (tmp_path / path.name).write_text(text)
        names.append(path.name.replace("@", "@shop"))
    tool = ["systemd-analyze"]
    done = subprocess.run(
        [*tool, "verify", "--man=no", *names], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    for path in UNITS:
        words = [*tool, "security", "--offline=yes", "--threshold=15", f"./{path.name}"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_user_and_the_folders_are_made(tmp_path: Path) -> None:
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("no systemd: systemd-sysusers is not here")
    (tmp_path / "etc").mkdir()
    for tool, *more in (("sysusers",), ("tmpfiles", "--create")):
        config = DEPLOY / "systemd" / f"late.{tool}.conf"
        words = [f"systemd-{tool}", f"--root={tmp_path}", *more, config]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "etc" / "passwd").read_text().startswith("late:")
    assert (tmp_path / "etc" / "late").stat().st_mode & 0o777 == 0o700
