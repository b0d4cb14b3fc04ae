"""`deploy/`: valid for Kubernetes, of one piece, and true to what the commands take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from late.autoscaler import policy
from late.autoscaler.keda.server import parse_metadata
from late.cli.main import app as command_line
from late.config import load
from late.observability.metrics.catalogue import METRICS

HERE = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(path for path in HERE.glob("*.yaml") if path.name != "kustomization.yaml")


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


ALL = [(path.name, each) for path in FILES for each in documents(path)]
POLICIES = [each for _, each in ALL if each["kind"] == "NetworkPolicy"]
BY_NAME = {f"{name}:{each['kind']}": each for name, each in ALL if each not in POLICIES}
BY_NAME |= {f"{each['metadata']['name']}:NetworkPolicy": each for each in POLICIES}
PODS = {
    key: each["spec"]["template"]["spec"]
    for key, each in BY_NAME.items()
    if each["kind"] in ("Deployment", "Job")
}
CONTAINERS = {f"{key}:{c['name']}": c for key, pod in PODS.items() for c in pod["containers"]}


@pytest.mark.parametrize("key", BY_NAME)
def test_the_manifests_pass_the_schemas_of_kubernetes(key: str) -> None:
    import kubernetes_validate

    each = BY_NAME[key]
    if each["apiVersion"].startswith("keda.sh/"):
        return  # below: the package has what Kubernetes itself has
    for version in ("1.30", "1.35"):
        kubernetes_validate.validate(each, version, strict=True)


def test_a_wrong_manifest_does_not_pass() -> None:
    import kubernetes_validate

    wrong = json.loads(json.dumps(BY_NAME["worker.yaml:Deployment"]))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.35", strict=True)


def test_the_kustomization_names_every_file() -> None:
    text = (HERE / "kustomization.yaml").read_text()
    listed = set(yaml.safe_load(text)["resources"])
    offered = set(re.findall(r"^  #? ?- (\S+\.yaml)$", text, re.M)) | listed
    assert offered == {path.name for path in FILES}


@pytest.mark.parametrize("key", CONTAINERS)
def test_each_command_is_one_that_late_has(key: str) -> None:
    words = CONTAINERS[key]["command"]
    assert words[0] == "late"
    names = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)]
    help_text = CliRunner().invoke(command_line, [*names, "--help"], env={"COLUMNS": "200"})
    assert help_text.exit_code == 0, help_text.output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", help_text.output)
    for word in words[1:]:
        if word.startswith("--"):
            assert re.search(rf"{word.partition('=')[0]}\b", plain), word


@pytest.mark.parametrize("key", CONTAINERS)
def test_each_port_is_listened_on_and_declared_and_of_one_container(key: str) -> None:
    container = CONTAINERS[key]
    declared = {each["containerPort"] for each in container.get("ports", [])}
    given = {int(m[1]) for w in container["command"] if (m := re.match(r"--\S*port=(\d+)$", w))}
    env = {each["name"]: each.get("value") for each in container.get("env", [])}
    assert declared == given | {int(env[n]) for n in env if n == "LATE_HEALTH_PORT"}
    pod = PODS[key.rpartition(":")[0]]
    names = [port["name"] for each in pod["containers"] for port in each.get("ports", [])]
    ports = [port["containerPort"] for each in pod["containers"] for port in each.get("ports", [])]
    assert len(set(names)) == len(names)
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("key", CONTAINERS)
def test_each_setting_is_one_that_late_has(key: str) -> None:
    given = {each["name"]: each.get("value") for each in CONTAINERS[key].get("env", [])}
    settings = {name: value for name, value in given.items() if name.startswith("LATE_")}
    load({name: value for name, value in settings.items() if value is not None})
    unset = {name for name, value in settings.items() if value is None}
    assert unset <= {"LATE_URL", "LATE_HEALTH_HOST"}


def test_the_health_port_is_open_on_the_pods_address_alone() -> None:
    for container in CONTAINERS.values():
        env = {each["name"]: each for each in container.get("env", [])}
        if "LATE_HEALTH_PORT" in env:
            source = env["LATE_HEALTH_HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
            assert source == "status.podIP"


def test_each_port_of_a_pod_is_for_those_that_a_policy_names() -> None:
    for key, pod in PODS.items():
        labels = BY_NAME[key]["spec"]["template"]["metadata"]["labels"]
        mine = [
            each["spec"]
            for each in POLICIES
            if each["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        ]
        assert any("ingress" not in each for each in mine), key
        rules = [rule for each in mine for rule in each.get("ingress", [])]
        assert all(rule.get("from") for rule in rules), key
        opened = {port["port"] for rule in rules for port in rule["ports"]}
        ports = {port["name"] for c in pod["containers"] for port in c.get("ports", [])}
        assert ports <= opened, key


def test_a_pod_has_longer_to_stop_than_its_worker_takes() -> None:
    for key, container in CONTAINERS.items():
        env = {each["name"]: each.get("value") for each in container.get("env", [])}
        if "LATE_GRACE_S" in env:
            pod = PODS[key.rpartition(":")[0]]
            # The notice, the last settlement and the hand-over come on top of the running tasks.
            assert pod["terminationGracePeriodSeconds"] >= float(env["LATE_GRACE_S"]) + 15, key


def test_a_drained_node_takes_one_worker_at_a_time() -> None:
    for name in ("worker.yaml", "serve.yaml"):
        budget = BY_NAME[f"{name}:PodDisruptionBudget"]["spec"]
        labels = BY_NAME[f"{name}:Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= labels.items()
        assert budget["selector"] == BY_NAME[f"{name}:Deployment"]["spec"]["selector"]


def test_what_scales_the_workers_names_them_and_nothing_else_does() -> None:
    scaled = BY_NAME["keda.yaml:ScaledObject"]["spec"]
    worker = BY_NAME["worker.yaml:Deployment"]
    assert scaled["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert "replicas" not in worker["spec"]
    assert scaled["minReplicaCount"] <= scaled["fallback"]["replicas"] <= scaled["maxReplicaCount"]


def test_the_trigger_is_what_the_scaler_understands() -> None:
    scaled = BY_NAME["keda.yaml:ScaledObject"]["spec"]
    [trigger] = scaled["triggers"]
    assert trigger["type"] in ("external", "external-push")
    assert trigger["metricType"] == "AverageValue"
    metadata = dict(trigger["metadata"])
    host, _, port = metadata["scalerAddress"].partition(":")
    service = BY_NAME["scaler.yaml:Service"]
    namespace = yaml.safe_load((HERE / "kustomization.yaml").read_text())["namespace"]
    assert host == f"{service['metadata']['name']}.{namespace}"
    assert int(port) in [each["port"] for each in service["spec"]["ports"]]
    wish = parse_metadata(metadata)
    concurrency = next(
        each["value"]
        for each in CONTAINERS["worker.yaml:Deployment:worker"]["env"]
        if each["name"] == "LATE_CONCURRENCY"
    )
    assert (wish.group, wish.slots) == ("default", int(concurrency))
    auth = BY_NAME["keda.yaml:TriggerAuthentication"]
    assert trigger["authenticationRef"]["name"] == auth["metadata"]["name"]


def test_the_hpa_asks_for_a_metric_that_is_served_and_limits_as_keda_does() -> None:
    spec = BY_NAME["hpa.yaml:HorizontalPodAutoscaler"]["spec"]
    scaled = BY_NAME["keda.yaml:ScaledObject"]["spec"]
    [metric] = [each["external"] for each in spec["metrics"]]
    assert "group" in METRICS[metric["metric"]["name"]].labels
    assert metric["metric"]["selector"]["matchLabels"].keys() <= {"group"}
    assert spec["scaleTargetRef"]["name"] == scaled["scaleTargetRef"]["name"]
    assert (spec["minReplicas"], spec["maxReplicas"], spec["behavior"]) == (
        scaled["minReplicaCount"],
        scaled["maxReplicaCount"],
        scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    )


def test_what_is_scraped_is_served_there() -> None:
    for key, pod in PODS.items():
        meta = BY_NAME[key]["spec"]["template"]["metadata"].get("annotations", {})
        if meta.get("prometheus.io/scrape") == "true":
            ports = {str(p["containerPort"]) for c in pod["containers"] for p in c["ports"]}
            assert meta["prometheus.io/port"] in ports, key


@pytest.mark.parametrize("name", ["database.toml", "lane.toml"])
def test_the_policies_are_accepted(name: str) -> None:
    text = BY_NAME["autoscaler.yaml:ConfigMap"]["data"][name]
    made = policy.parse(text, name)
    assert (made.units == "shards") == (name == "lane.toml")


def test_nothing_runs_as_root_or_writes_to_its_image() -> None:
    for key, pod in PODS.items():
        assert pod["securityContext"]["runAsNonRoot"], key
    for key, container in CONTAINERS.items():
        limits = container["securityContext"]
        assert limits["readOnlyRootFilesystem"], key
        assert not limits["allowPrivilegeEscalation"], key
        assert limits["capabilities"]["drop"] == ["ALL"], key
        assert "memory" in container["resources"]["limits"], key
