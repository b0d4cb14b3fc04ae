"""Rules as a Terraform module for Google Cloud: alert policies in PromQL, for Managed Service for
Prometheus. Pure.

Source: hashicorp/terraform-provider-google, `google_monitoring_alert_policy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from late.observability.alerts.rules import Rule

HEAD = """# Made by `late alerts render --format terraform`: change the knobs of a queue (owner,
# severity, objective_s) or the options of the command, and not this file.
"""
_LABEL = re.compile(r"\{\{ \$labels\.([a-z_]+) \}\}")
_VALUE = re.compile(r"\{\{ \$value[^}]*\}\}")

VARIABLES = (
    HEAD
    + """
terraform {
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}

variable "project" {
  description = "The project that has the metrics."
  type        = string
}

variable "channels" {
  description = "Notification channels by severity, or severity and owner: page, ticket/TEAM."
  type        = map(list(string))
  default     = {}
}
"""
)


def files(rules: Iterable[Rule]) -> dict[str, str]:
    """Render the files of the module: name -> content."""
    return {"main.tf": HEAD + "".join(map(_policy, rules)), "variables.tf": VARIABLES}


def _policy(rule: Rule) -> str:
    title = " ".join([rule.alert.name, *rule.subject.values()])
    labels = "".join(f"    {key} = {text(_label(value))}\n" for key, value in rule.labels.items())
    channels = f"lookup(var.channels, {text(rule.severity)}, [])"
    if rule.owner:
        own = text(f"{rule.severity}/{rule.owner}")
        channels = f"lookup(var.channels, {own}, {channels})"
    severity = "CRITICAL" if rule.severity == "page" else "WARNING"
    return f"""
resource "google_monitoring_alert_policy" "{_name(title)}" {{
  project      = var.project
  display_name = {text(title)}
  combiner     = "OR"
  severity     = "{severity}"

  conditions {{
    display_name = {text(rule.alert.name)}
    condition_prometheus_query_language {{
      query               = {text(rule.expr)}
      duration            = "{_seconds(rule.alert.hold)}s"
      evaluation_interval = "30s"
      alert_rule          = "{rule.alert.name}"
      rule_group          = "late"
    }}
  }}

  notification_channels = {channels}

  user_labels = {{
{labels}  }}

  documentation {{
    content   = {text(f"{_plain(rule.alert.summary)} What to do: {rule.runbook}")}
    mime_type = "text/markdown"
  }}
}}
"""


def text(value: str) -> str:
    """Quote a text as a string of HCL, in which `${` and `%{` would begin templates."""
    quoted = msgspec.json.encode(value).decode()
    return quoted.replace("${", "$${").replace("%{", "%%{")


def _name(title: str) -> str:
    """Make a resource's name; different titles have different names."""
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in title)


def _label(value: str) -> str:
    """Make a label for Google: lower case letters, digits, `_` and `-`, at most 63 characters."""
    kept = "".join(c if c.isalnum() or c in "_-" else "_" for c in value.lower())
    return kept[:63]


def _seconds(hold: str) -> int:
    return int(hold[:-1]) * {"s": 1, "m": 60, "h": 3600}[hold[-1]]


def _plain(summary: str) -> str:
    """Remove Prometheus' placeholders, which Google does not know."""
    summary = _LABEL.sub(r"${metric.label.\1}", summary)
    summary = summary.replace("{{ $value | humanizeDuration }}", "too long")
    return _VALUE.sub("some", summary)
