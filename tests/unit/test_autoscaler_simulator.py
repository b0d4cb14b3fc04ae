"""The figures that the autoscaler is trusted by, on the traces that ship with it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from late.autoscaler.policy import Hint, Policy
from late.autoscaler.simulation import chart, traces
from late.autoscaler.simulation.baselines import LatePolicy
from late.autoscaler.simulation.simulator import SHIPPED_POLICY, Run, compare, simulate
from late.autoscaler.simulation.traces import DAY, Conditions, Trace
from late.errors import ConfigError
from tests.unit.cli_kit import Cli


@cache
def shown(name: str) -> dict[str, Run]:
    return {run.name: run for run in compare(traces.SHIPPED[name](), SHIPPED_POLICY)}


@pytest.mark.parametrize("name", traces.SHIPPED)
def test_the_promised_figures_on_every_shipped_trace(name: str) -> None:
    figures = shown(name)["late"].figures
    assert figures.within >= 0.90
    assert figures.hot < 0.005
    assert figures.turns == 0
    assert figures.cost_peak <= 0.60
    assert figures.cost_clairvoyant <= 1.15


@pytest.mark.parametrize("seed", [1, 2])
def test_the_figures_are_no_luck_of_one_seed(seed: int) -> None:
    trace = traces.rough(seed=100 + seed)
    figures = simulate(
        trace, LatePolicy(SHIPPED_POLICY), SHIPPED_POLICY, name="late", seed=seed
    ).figures
    assert figures.within >= 0.90
    assert figures.hot < 0.005
    assert figures.turns == 0
    assert figures.refused > 50
    assert figures.cost_clairvoyant <= 1.15


@pytest.mark.parametrize("name", traces.SHIPPED)
def test_beside_the_rules_of_other_autoscalers(name: str) -> None:
    """Not better in everything: where metrics are good, a linear rule is as good."""
    late, stepwise, linear, direct = (
        shown(name)[each].figures for each in ("late", "stepwise", "linear", "direct")
    )
    assert late.within >= max(stepwise.within, direct.within)
    assert late.within >= linear.within - 0.02
    assert late.steps < min(stepwise.steps, linear.steps * 1.1)
    assert late.cost_peak <= stepwise.cost_peak * 1.02
    assert late.cost_peak < direct.cost_peak / 2
    assert late.hot <= min(stepwise.hot, linear.hot)


def test_a_run_is_the_same_twice() -> None:
    trace = Trace("part", traces.rough().load[: 2 * DAY], traces.rough().world)
    twice = [
        simulate(trace, LatePolicy(SHIPPED_POLICY), SHIPPED_POLICY, name="late").size
        for _ in range(2)
    ]
    assert twice[0] == twice[1]


def test_an_overload_hides_what_is_missing_and_is_worked_off() -> None:
    # Given ten nodes, thirty minutes of twenty nodes' work, and nobody who does anything
    policy = Policy(min=10, max=10)
    trace = Trace("flat", (20.0,) * 30 + (2.0,) * 60, Conditions(noise=0))
    run = simulate(trace, LatePolicy(policy), policy, name="late")
    # Then the CPU stands at 100 % until all that waits is done
    assert run.waiting[29] == pytest.approx(300, rel=0.01)
    assert all(cpu == pytest.approx(100) for cpu in run.cpu[:60])
    assert run.waiting[-1] == 0
    assert sum(s * c / 100 for s, c in zip(run.size, run.cpu, strict=True)) == pytest.approx(
        sum(trace.load)
    )


def test_new_nodes_come_late_and_take_their_share_slowly() -> None:
    policy = Policy(min=1, max=100)
    trace = Trace(
        "step", (6.0,) * 10 + (12.0,) * 30, Conditions(noise=0, provision=5, ramp=4, delay=1)
    )
    run = simulate(trace, LatePolicy(policy), policy, name="late")
    grown = next(i for i in range(10, 40) if run.size[i] > run.size[9])
    assert grown >= 10 + 5
    assert run.cpu[grown] > run.cpu[grown + 6]


def test_metrics_that_are_missing_hold_the_size() -> None:
    trace = Trace(
        "blind", (6.0,) * 60 + (1.0,) * 120, Conditions(noise=0, gap=1.0, gap_length=1000)
    )
    run = simulate(trace, LatePolicy(SHIPPED_POLICY), SHIPPED_POLICY, name="late")
    assert run.figures.steps == 0


def peak_cpu(policy: Policy) -> float:
    """The highest CPU of the third Friday's evening."""
    run = simulate(traces.friday(), LatePolicy(policy), policy, name="late")
    start = 18 * DAY + 18 * 60
    return max(run.cpu[start : start + 60])


def test_hints_and_earlier_weeks_soften_the_friday_peak() -> None:
    plain = peak_cpu(SHIPPED_POLICY)
    hint = Hint(at="17:45", minutes=120, size=45, days=("fri",))
    hinted = msgspec.structs.replace(SHIPPED_POLICY, hints=(hint,))
    learned = msgspec.structs.replace(SHIPPED_POLICY, predict_weeks=3)
    assert peak_cpu(hinted) < plain - 3
    assert peak_cpu(learned) < plain - 3


NOISY = Policy(
    min=3, max=200, smooth=2, stable_s=120, up_cooldown_s=120, down_cooldown_s=600, trend_lead_s=900
)
"""The policy that docs/autoscaler.md advises for noise, chosen by the first 13 days of trips."""


def test_the_recorded_trace_is_27_days_of_trips() -> None:
    trace = traces.trips()
    assert len(trace.load) == 27 * DAY
    assert datetime.fromtimestamp(trace.start_us / 1e6, UTC) == datetime(2019, 3, 4, tzinfo=UTC)
    assert 15 < sum(trace.load) / len(trace.load) < 20
    # At four in the morning few travel, at seven in the evening many
    night, evening = (
        sum(trace.load[day * DAY + hour * 60] for day in range(27)) for hour in (4, 19)
    )
    assert evening > 3 * night


def test_on_noisy_load_it_is_better_than_the_others_on_both_axes() -> None:
    """On the 14 days by which its policy was not chosen."""
    trips = traces.trips()
    judged = msgspec.structs.replace(trips, load=trips.load[13 * DAY :])
    late, stepwise, linear, _ = (run.figures for run in compare(judged, NOISY))
    for other in (stepwise, linear):
        assert late.hot < other.hot * 0.75
        assert late.cost_clairvoyant < other.cost_clairvoyant
    assert late.hot < 0.01
    assert late.cost_clairvoyant <= 1.10
    assert late.turns == 0


def test_the_policy_for_noisy_load_does_no_harm_on_good_metrics() -> None:
    figures = simulate(traces.daily(), LatePolicy(NOISY), NOISY, name="late").figures
    assert figures.within >= 0.90
    assert figures.hot == 0
    assert figures.cost_clairvoyant <= 1.02


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    trace = Trace("a<b", traces.daily().load[:DAY])
    runs = [simulate(trace, LatePolicy(SHIPPED_POLICY), SHIPPED_POLICY, name="late & co")]
    page = chart.page(trace, SHIPPED_POLICY, runs)
    root = ElementTree.fromstring(
        page.replace("<!doctype html>", "").replace('<meta charset="utf-8">', "")
    )
    assert len(root.findall(".//svg")) == 2
    assert "http" not in page
    assert "a&lt;b" in page


def test_simulate_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    rows = "\n".join(str(3 + i % 5) for i in range(300))
    (tmp_path / "load.csv").write_text(f"load\n{rows}\n")
    (tmp_path / "policy.toml").write_text("min = 2\nmax = 20\n")
    arguments = ("autoscale", "simulate", "--trace", "load.csv", "-p", "policy.toml")
    found = cli.fine(*arguments, "--chart", "page.html", "--json").json
    assert found["minutes"] == 300
    assert set(found["runs"]) == {"late", "stepwise", "linear", "direct"}
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "late" in cli.fine(*arguments).out
    assert "--force" in cli.refused(*arguments, "--chart", "page.html")
    assert cli.fine(*arguments, "--chart", "page.html", "--force")
    assert sorted(p.name for p in tmp_path.iterdir() if "page" in p.name) == ["page.html"]


def test_wrong_traces_are_refused(cli: Cli, tmp_path: Path) -> None:
    refused = {"none.csv": None, "empty.csv": "load\n", "column.csv": "cpu\n1\n",
               "word.csv": "load\n1\nmuch\n", "minus.csv": "load\n-1\n"}  # fmt: skip
    words = {"none.csv": "neither", "empty.csv": "empty", "column.csv": "`load`",
             "word.csv": "line 3: load = 'much'", "minus.csv": "line 2: load = '-1'"}  # fmt: skip
    for name, text in refused.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        assert words[name] in cli.refused("autoscale", "simulate", "--trace", name)
    with pytest.raises(ConfigError):
        traces.read(tmp_path)
