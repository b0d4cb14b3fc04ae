"""Alert rules, the Terraform module, the dashboard and the runbooks are what they must be."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import promql_parser
import pytest
import typer
import yaml

from late.cli.main import app
from late.model.queue_settings import QueueSettings
from late.observability.alerts import ALERTS, Settings, dashboard, prometheus, rules, terraform
from late.observability.metrics import METRICS
from tests.unit.cli_kit import Cli

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
QUEUES = {
    "payments": QueueSettings(owner="team-pay", severity="page", objective_s=30),
    "mail.v2": QueueSettings(owner="team-mail"),
    "limited": QueueSettings(rate=5.0),
}
NAME = re.compile(r"\blate_[a-z_]+")


def named(expr: str) -> set[str]:
    """The metrics of an expression, histograms by their own name."""
    found = set(NAME.findall(expr))
    return {re.sub("_(bucket|sum|count)$", "", n) if n not in METRICS else n for n in found}


def test_every_rule_is_promql_over_metrics_that_there_are() -> None:
    for rule in rules(QUEUES):
        promql_parser.parse(rule.expr)
        assert named(rule.expr), rule.alert.name
        assert named(rule.expr) <= METRICS.keys(), rule.alert.name


def test_labels_that_are_asked_for_are_labels_of_the_metric() -> None:
    for alert in ALERTS:
        given = set.union(*(set(METRICS[n].labels) for n in named(alert.expr)))
        asked = set(re.findall(r"\$labels\.([a-z]+)", alert.summary))
        grouped = {
            label.strip()
            for by in re.findall(r"(?:by|on) \(([^)]*)\)", alert.expr)
            for label in by.split(",")
        }
        assert asked <= grouped | {"instance"}, alert.name
        assert grouped <= given | {"instance", "le"}, alert.name


def test_a_label_that_is_matched_is_one_of_its_metric() -> None:
    for alert in ALERTS:
        for name, label in re.findall(r"\b(late_[a-z_]+)\{([a-z]+)[=!]", alert.expr):
            bare = name if name in METRICS else re.sub("_(bucket|sum|count)$", "", name)
            assert label in METRICS[bare].labels, alert.name


def test_a_blind_autoscaler_is_one_without_fresh_metrics_too() -> None:
    [alert] = [each for each in ALERTS if each.name == "LateAutoscalerNoMetrics"]
    assert 'late_autoscaler_looks_total{rule="hold"}' in alert.expr


def test_no_alert_waits_for_the_increase_of_a_series_that_begins_with_it() -> None:
    """Prometheus sees no increase in the first value of a series: counters without labels begin at
    zero, others must count more than once to be noticed."""
    repeating = {"LateTasksUnknown"}  # parked again each minute
    for alert in ALERTS:
        for name in re.findall(r"increase\((late_[a-z_]+)", alert.expr):
            few = alert.expr.endswith("> 0") and METRICS[name].labels
            assert not few or alert.name in repeating, alert.name


def test_queues_with_labels_have_rules_of_their_own() -> None:
    found = [rule for rule in rules(QUEUES, Settings(owner="platform")) if rule.alert.per_queue]
    old = {rule.queue: rule for rule in found if rule.alert.name == "LateQueueIsOld"}
    assert old.keys() == {None, "payments", "mail.v2"}
    assert old["payments"].labels == {"severity": "page", "owner": "team-pay"}
    assert old["payments"].expr.endswith('{queue="payments"}) > 30')
    assert old["mail.v2"].labels == {"severity": "ticket", "owner": "team-mail"}
    assert old["mail.v2"].expr.endswith("> 600")
    assert old[None].labels == {"severity": "ticket", "owner": "platform"}
    assert 'queue!~"mail\\\\.v2|payments"' in old[None].expr, "those have their own"


def test_a_budget_goes_to_the_owner_that_it_is_of() -> None:
    found = rules({}, Settings(owner="platform"), {"Total": "", "pay": "pay", "a.b": "a.b"})
    own = {rule.part: rule for rule in found if rule.alert.name == "LateBudgetOverrun"}
    assert {part: rule.labels["owner"] for part, rule in own.items()} == {
        None: "platform", "Total": "platform", "pay": "pay", "a.b": "a.b",
    }  # fmt: skip
    assert 'late_budget_expected_ratio{part="pay"}) > 1' in own["pay"].expr
    assert 'part!~"Total|pay|a\\\\.b"' in own[None].expr, "those have their own"
    for rule in own.values():
        promql_parser.parse(rule.expr)
    made = yaml.safe_load(prometheus.render(own.values()))["groups"][0]["rules"]
    assert [each["labels"].get("part") for each in made] == [None, "Total", "pay", "a.b"]
    assert '"LateBudgetOverrun pay"' in terraform.files(own.values())["main.tf"]


def test_a_name_cannot_leave_its_matcher() -> None:
    for name in ('a"} or vector(1) #', "a.*", "a\\", "a|b"):
        for rule in rules({name: QueueSettings(owner="x")}):
            promql_parser.parse(rule.expr)
        own = [r for r in rules({name: QueueSettings(owner="x")}) if r.queue == name]
        assert len(own) == sum(alert.per_queue for alert in ALERTS)


def test_prometheus_gets_what_it_loads() -> None:
    found = yaml.safe_load(prometheus.render(rules(QUEUES)))
    [group] = found["groups"]
    assert len(group["rules"]) == len(rules(QUEUES))
    for rule in group["rules"]:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_promtool_finds_nothing_in_rules_of_several_objectives(tmp_path: Path) -> None:
    """Without promtool the same is asked of the rules themselves: no two of one name and labels."""
    queues = {name: QueueSettings(objective_s=30) for name in ("payments", "mail", "a b{}")}
    text = prometheus.render(rules(queues, Settings(runbooks="https://example.org/runbooks")))
    made = yaml.safe_load(text)["groups"][0]["rules"]
    names = [(rule["alert"], tuple(sorted(rule["labels"].items()))) for rule in made]
    assert len(set(names)) == len(names)
    assert all(rule["annotations"]["runbook_url"].startswith("https://") for rule in made)
    if promtool := shutil.which("promtool"):
        (tmp_path / "late.rules.yml").write_text(text)
        command = (promtool, "check", "rules", "--lint=all", "--lint-fatal", "late.rules.yml")
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_folder_of_runbooks_is_no_url() -> None:
    [first, *_] = rules({})
    assert first.annotations["runbook"] == "docs/runbooks/no-workers.md"
    assert "runbook_url" not in first.annotations


def test_the_cause_pages_and_not_only_its_symptoms() -> None:
    causes = {"LateBreakerOpen", "LateOutage", "LateTargetFails", "LateSettlementUnanswered"}
    assert {each.name for each in ALERTS if each.severity == "page"} >= causes


def test_counts_of_an_increase_are_whole() -> None:
    """Prometheus extends an increase to the borders of its time, so it is a fraction."""
    counted = [each for each in ALERTS if "increase(" in each.expr and "$value" in each.summary]
    assert counted
    for each in counted:
        assert "printf `%.0f`" in each.summary or "humanizeDuration" in each.summary, each.name


def test_terraform_gets_a_module() -> None:
    files = terraform.files(rules(QUEUES))
    made: dict[str, Any] = hcl2.loads(files["main.tf"])  # type: ignore[assignment]
    hcl2.loads(files["variables.tf"])
    assert len(made["resource"]) == len(rules(QUEUES))
    names = [name for each in made["resource"] for kind in each.values() for name in kind]
    assert len(set(names)) == len(names)
    assert files["main.tf"].count("condition_prometheus_query_language") == len(rules(QUEUES))
    assert '"page/team-pay"' in files["main.tf"]
    assert "{{" not in files["main.tf"], "Google does not know Prometheus' placeholders"
    durations = {int(text) for text in re.findall(r'duration += "(\d+)s"', files["main.tf"])}
    assert all(duration % 30 == 0 for duration in durations), "Google takes no other"


def test_terraform_reads_a_text_as_it_is() -> None:
    assert terraform.text("${var.x} %{if}") == '"$${var.x} %%{if}"'


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    made = json.loads(dashboard.render())
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            promql_parser.parse(target["expr"].replace("$__rate_interval", "5m"))
            assert named(target["expr"]) <= METRICS.keys(), panel["title"]
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in made["panels"]]
    assert len(set(places)) == len(places), "no panel lies on another one"


def test_the_dashboard_in_the_tree_is_the_one_that_is_made() -> None:
    kept = (ROOT / "deploy" / "grafana" / "late.json").read_text()
    assert kept == dashboard.render(), "run: late alerts dashboard --force --out ..."


# --- runbooks ------------------------------------------------------------------------------------


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert {alert.runbook for alert in ALERTS} == {p.stem for p in RUNBOOKS.glob("*.md")}


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_runbook_says_cause_check_and_remedy_in_commands_that_there_are(page: Path) -> None:
    text = page.read_text()
    assert re.findall("^## (.+)$", text, re.M) == ["Cause", "Check", "Remedy"]
    [block] = re.findall("^```sh\n(.*?)^```", text, re.M | re.S)
    commands = block.splitlines() + re.findall(r"`(late [^`]+)`", text.replace("\n", " "))
    assert commands
    for command in commands:
        parse(command)


@cache
def commands_of_late() -> Any:
    return typer.main.get_command(app)


def parse(command: str) -> None:
    """Read it as the command line would, up to doing it: a number stands for what is one."""
    words = ["7" if word == "N" else word for word in shlex.split(command)[1:]]
    node = commands_of_late()
    while words and words[0] in getattr(node, "commands", {}):
        node = node.commands[words.pop(0)]
    leaf = not hasattr(node, "commands") or node.invoke_without_command
    assert leaf or not words, f"no such command: {command}"
    if leaf:
        node.make_context(command, words)  # refuses what is unknown, and what is not given


# --- the commands --------------------------------------------------------------------------------


def test_render_takes_owners_from_the_knobs(cli: Cli, tmp_path: Path) -> None:
    cli.fine("queue", "set", "payments", "owner=team-pay", "severity=page", "objective_s=30")
    made = yaml.safe_load(cli.fine("alerts", "render", "--freshness", "5m").out)
    own = [rule for rule in made["groups"][0]["rules"] if 'queue="payments"' in rule["expr"]]
    assert {rule["labels"]["severity"] for rule in own} == {"page"}
    assert any("> bool 300" in rule["expr"] for rule in made["groups"][0]["rules"])
    folder = tmp_path / "module"
    cli.fine("alerts", "render", "--format", "terraform", "--out", str(folder))
    assert {path.name for path in folder.iterdir()} == {"main.tf", "variables.tf"}
    assert "--force" in cli.refused("alerts", "render", "--format", "terraform", "--out",
                                    str(folder))  # fmt: skip
    cli.fine("alerts", "render", "--format", "terraform", "--out", str(folder), "--force")


def test_render_takes_budgets_of_a_close(cli: Cli, tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.yaml"
    budgets.write_text(
        "version: 1\ntotal: 9\nparts: {pay: 5}\nmonths:\n  2026-12: {parts: {growth: 1}}\n"
    )
    made = yaml.safe_load(cli.fine("alerts", "render", "--budgets", str(budgets)).out)
    own = [rule for rule in made["groups"][0]["rules"] if rule["alert"] == "LateBudgetOverrun"]
    assert [(rule["labels"].get("part"), rule["labels"].get("owner")) for rule in own] == [
        (None, None), ("Total", None), ("growth", "growth"), ("pay", "pay"),
    ]  # fmt: skip
    budgets.write_text("version: 1\nparts: {pay: much}\n")
    assert "budgets.yaml" in cli.refused("alerts", "render", "--budgets", str(budgets))


def test_render_needs_no_database(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATE_URL")
    assert len(yaml.safe_load(cli.fine("alerts", "render").out)["groups"][0]["rules"]) == len(
        ALERTS
    )
    assert len(cli.fine("alerts", "list", "--json").json["alerts"]) == len(ALERTS)
    assert "LateNoWorkers" in cli.fine("alerts", "list").out
    assert json.loads(cli.fine("alerts", "dashboard").out)["uid"] == "late"


def test_render_refuses_what_is_no_time(cli: Cli) -> None:
    assert "--freshness" in cli.refused("alerts", "render", "--freshness", "soon")


def test_knobs_of_alerts_are_checked_and_bind_nothing(cli: Cli) -> None:
    assert "severity" in cli.refused("queue", "set", "payments", "severity=loud")
    assert "objective_s" in cli.refused("queue", "set", "payments", "objective_s=0")
    from late.model import queue_settings

    assert not queue_settings.binds(QueueSettings(severity="page", objective_s=3.0))
