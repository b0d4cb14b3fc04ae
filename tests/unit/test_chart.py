"""`deploy/helm/late`, rendered by Helm's own library: valid, and true to `deploy/kubernetes`."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tomllib
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "late"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
EVERYTHING = {
    "keda": {"enabled": True},
    "autoscaler": {"enabled": True, "database": {"spanner": "projects/P/instances/I"}},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podAnnotations": {"team": "pay"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
    "worker": {"args": ["--set=window=1000"]},
    "serve": {"webChanges": True, "apiChanges": True, "args": ["--signed-urls"]},
    "env": {"LATE_SETTLE_BATCH": "500"},
}
AS_KUSTOMIZED = {key: EVERYTHING[key] for key in ("keda", "autoscaler")}
# In a process of its own: the library brings the runtime of Go, with signals and threads.
RENDER = """
import json, sys
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError
folder, *asked = json.load(sys.stdin)
found = []
with Chart.load(folder) as chart:
    for values in asked:
        try:
            found.append(chart.render(values=values, name="late", namespace="jobs"))
        except HelmError as error:
            found.append(str(error))
json.dump([lint(folder, strict=True)["messages"], *found], sys.stdout)
"""


@functools.cache
def helm(*asked: str) -> list[Any]:
    """Return what Helm's linter says, and for each JSON of values the files or the error."""
    words = json.dumps([str(CHART), *map(json.loads, asked)])
    command = [sys.executable, "-c", RENDER]
    done = subprocess.run(command, input=words, capture_output=True, text=True, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the documents that these values make."""
    _, files = helm(json.dumps(values))
    assert isinstance(files, dict), files
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def kustomized() -> list[dict[str, Any]]:
    """Return the documents of `deploy/kubernetes`."""
    paths = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    texts = [path.read_text() for path in paths if path.name != "kustomization.yaml"]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def named(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents}


def test_it_passes_the_schemas_of_kubernetes() -> None:
    import kubernetes_validate

    found = rendered(EVERYTHING)
    assert len(named(found)) == len(found)
    for each in found:
        if each["apiVersion"].startswith(("keda.sh/", "monitoring.coreos.com/")):
            continue  # the package has what Kubernetes itself has
        kubernetes_validate.validate(each, "1.35", strict=True)


def test_the_linter_has_nothing_to_say_but_that_there_is_no_icon() -> None:
    messages, _ = helm("{}")
    assert [each["error"] for each in messages] == ["icon is recommended"]


@pytest.mark.parametrize("key", [key for key in named(kustomized()) if key.startswith(("D", "J"))])
def test_it_runs_what_the_manifests_run(key: str) -> None:
    """So what `test_deploy.py` proves of the commands, ports, settings and limits holds here."""
    made, wanted = named(rendered(AS_KUSTOMIZED))[key], named(kustomized())[key]
    mine, theirs = made["spec"]["template"]["spec"], wanted["spec"]["template"]["spec"]
    for ours, other in zip(mine["containers"], theirs["containers"], strict=True):
        given = {k: v for k, v in ours.items() if k not in ("image", "imagePullPolicy", "env")}
        assert given == {k: v for k, v in other.items() if k not in ("image", "env")}
        assert sorted(ours["env"], key=itemgetter("name")) == sorted(
            other["env"], key=itemgetter("name")
        )
    assert mine["securityContext"].items() >= theirs["securityContext"].items()
    for name in ("terminationGracePeriodSeconds", "volumes", "automountServiceAccountToken"):
        if name in theirs:
            assert mine[name] == theirs[name]
    for name in ("strategy", "replicas", "minReadySeconds", "backoffLimit"):
        assert made["spec"].get(name) == wanted["spec"].get(name)


def test_it_has_the_services_budgets_policies_and_triggers_of_the_manifests() -> None:
    made, wanted = named(rendered(AS_KUSTOMIZED)), named(kustomized())
    wanted.pop("HorizontalPodAutoscaler/late-worker")  # what is there instead of KEDA
    assert made.keys() == wanted.keys()
    for key, other in wanted.items():
        for part in ("ports", "maxUnavailable", "triggers", "advanced", "fallback"):
            assert made[key].get("spec", {}).get(part) == other.get("spec", {}).get(part), key
        for ours, theirs in zip(
            made[key].get("spec", {}).get("ingress", []),
            other.get("spec", {}).get("ingress", []),
            strict=True,
        ):
            assert ours["ports"] == theirs["ports"]
    for name in ("database.toml", "lane.toml"):
        policies = [each["ConfigMap/late-autoscaler"]["data"][name] for each in (made, wanted)]
        assert tomllib.loads(policies[0]) == tomllib.loads(policies[1])


def test_what_selects_pods_finds_those_of_this_release_alone() -> None:
    for key, each in named(rendered(EVERYTHING)).items():
        spec = each.get("spec", {})
        found = spec.get("selector", spec.get("podSelector"))
        if found is not None:
            labels = found.get("matchLabels", found)
            assert labels["app.kubernetes.io/instance"] == "late", key


def test_the_options_that_are_asked_for_are_given() -> None:
    made = named(rendered(EVERYTHING))
    (worker,) = made["Deployment/late-worker"]["spec"]["template"]["spec"]["containers"]
    (serve,) = made["Deployment/late-serve"]["spec"]["template"]["spec"]["containers"]
    assert worker["command"][-1] == "--set=window=1000"
    assert {"--web-changes", "--api-changes", "--signed-urls"} <= {*serve["command"]}
    assert {"name": "LATE_SETTLE_BATCH", "value": "500"} in worker["env"]
    fixed = named(rendered({"worker": {"replicas": 3}, "serve": {"enabled": False}}))
    assert fixed["Deployment/late-worker"]["spec"]["replicas"] == 3
    assert not [key for key in fixed if "serve" in key]


@pytest.mark.parametrize(
    "values",
    [
        {"worker": {"concurency": 4}},
        {"worker": {"concurrency": 0}},
        {"serve": {"roles": "api,page"}},
        {"app": "shop tasks"},
        {"env": {"LATE_WINDOW": 1000}},
    ],
    ids=lambda values: json.dumps(values),
)
def test_values_that_it_does_not_know_are_refused(values: dict[str, Any]) -> None:
    _, refused = helm(json.dumps(values))
    assert isinstance(refused, str)
    assert "schema" in refused or "values" in refused


def test_the_schema_knows_every_value() -> None:
    def same(values: dict[str, Any], schema: dict[str, Any]) -> None:
        for name, part in schema["properties"].items():
            if name != "global":
                assert name in values
                if "properties" in part:
                    same(values[name], part)
        assert values.keys() <= schema["properties"].keys()

    same(VALUES, SCHEMA)


def test_it_is_for_this_version() -> None:
    said = yaml.safe_load((CHART / "Chart.yaml").read_text())
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert said["appVersion"] == tomllib.load(file)["project"]["version"]
