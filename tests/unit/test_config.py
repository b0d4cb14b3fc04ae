"""Settings: checked at construction, the message names field and value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from late.config import Members, WorkerConfig, load
from late.errors import ConfigError


def test_defaults_are_what_the_design_says() -> None:
    config = WorkerConfig()
    assert (config.concurrency, config.page_size, config.window) == (16, 1000, 2000)
    assert (config.horizon_s, config.timers_max) == (10.0, 10_000)
    assert (config.lease_ttl_s, config.takeovers_max) == (5.0, 4)
    assert (config.settle_delay_s, config.settle_batch) == (0.400, 1000)
    assert (config.poll_max_s, config.grace_s, config.prune_every_s) == (None, 30.0, 15.0)
    assert config.journal_keep_s == 7 * 86_400
    assert config.process_workers == 2
    assert config.beat_every_s == 1.0, "who joins or leaves is seen within a second"
    assert WorkerConfig(lease_ttl_s=1.5).beat_every_s == 0.5
    assert (config.membership, config.member) == ("database", None)
    assert config.margin_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("concurrency", -1),
        ("concurrency", "16"),
        ("concurrency", True),
        ("concurrency", 1.5),
        ("concurrency", None),
        ("window", 10_001),
        ("page_size", 0),
        ("horizon_s", math.nan),
        ("horizon_s", math.inf),
        ("lease_ttl_s", 0),
        ("settle_delay_s", -0.001),
        ("grace_s", -1),
        ("journal_keep_s", "a week"),
        ("capacity", 0.0),
        ("takeovers_max", 0),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerConfig(**{field: value})
    assert f"{field}={value!r}" in str(caught.value)


def test_an_integer_is_fine_for_seconds() -> None:
    assert WorkerConfig(grace_s=0).grace_s == 0


def test_a_page_must_fit_into_the_window() -> None:
    with pytest.raises(ConfigError, match=r"page_size=1000 is over window=500"):
        WorkerConfig(window=500)
    assert WorkerConfig(window=500, page_size=500).window == 500


def test_a_heartbeat_must_fit_into_the_lease() -> None:
    with pytest.raises(ConfigError, match=r"heartbeat_s=4\.8 .* below lease_ttl_s=5"):
        WorkerConfig(heartbeat_s=4.8)
    with pytest.raises(ConfigError, match=r"lease_margin_s=4"):
        WorkerConfig(lease_margin_s=4.5)


def test_keyword_before_environment_before_default() -> None:
    environ = {"LATE_CONCURRENCY": "32", "LATE_GRACE_S": " 5 ", "LATE_WINDOW": "", "LATE_URL": "x"}
    config = load(environ, concurrency=64, page_size=None)
    assert config.concurrency == 64
    assert config.grace_s == 5.0
    assert config.window == 2000
    assert config.page_size == 1000


def test_every_setting_can_come_from_the_environment() -> None:
    texts_of = {"membership", "member", "health_host", "wake_host", "listen_url", "read_url"}
    for field in set(WorkerConfig.__struct_fields__) - texts_of - {"lanes"}:
        with pytest.raises(ConfigError, match=f"^LATE_{field.upper()}='many':"):
            load({f"LATE_{field.upper()}": "many"})
    texts = load({"LATE_MEMBERSHIP": "static:a,b", "LATE_MEMBER": "a", "LATE_WAKE_HOST": "::1"})
    assert (texts.membership, texts.member, texts.wake_host) == ("static:a,b", "a", "::1")


def test_lanes_are_names_with_commas_or_spaces_between_them() -> None:
    assert WorkerConfig().lane_names == load({"LATE_LANES": " "}).lane_names == ()
    assert load({"LATE_LANES": "my.bulk, a,my.bulk"}).lane_names == ("a", "my.bulk")
    assert load({"LATE_LANES": "a b"}, {"lanes": "c"}).lane_names == ("a", "b")
    assert load({"LATE_LANES": "a"}, lanes="").lane_names == (), "a flag may ask for all"
    assert load({}, {"lanes": "c"}).lane_names == ("c",)
    with pytest.raises(ConfigError, match=r"^lanes: 'b~' is no name of a lane: names match"):
        WorkerConfig(lanes="a,b~")


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("database", Members()),
        ("static: Host-1, 10.0.0.7 ,::1", Members("static", ("host-1", "10.0.0.7", "::1"))),
        ("dns:late.default.svc.cluster.local", Members("dns", ("late.default.svc.cluster.local",))),
    ],
)
def test_a_membership_is_a_source_and_its_names(text: str, members: Members) -> None:
    assert Members.parse(text) == members
    assert WorkerConfig(membership=text).membership == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "expected database, static:a,b,c or dns:name"),
        ("many", "expected database, static:a,b,c or dns:name"),
        ("database:x", "expected database, static:a,b,c or dns:name"),
        ("static:", "LATE_MEMBER"),
        ("static:a,,b", "LATE_MEMBER"),
        ("static:a b", "LATE_MEMBER"),
        ("static:a,10.0.0.7:8080", "without ports"),
        ("static:host-1:8080", "without ports"),
        ("static:a,A", "on the list twice"),
        ("static:::1,0:0:0:0:0:0:0:1", "on the list twice"),
        ("dns:", "without a port"),
        ("dns:https://x", "without a port"),
        ("dns:late:8080", "without a port"),
        (f"dns:{'x' * 64}.org", "without a port"),
    ],
)
def test_a_wrong_membership_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="membership=") as caught:
        WorkerConfig(membership=text)
    assert hint in str(caught.value)


@pytest.mark.parametrize("member", ["", "a|b", "a b", "-a", "x" * 200])
def test_a_wrong_member_is_refused(member: str) -> None:
    with pytest.raises(ConfigError, match="member="):
        WorkerConfig(member=member)


def test_an_unknown_keyword_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"concurency; did you mean concurrency\?"):
        load({}, concurency=3)
    with pytest.raises(ConfigError, match=r"there are: concurrency, "):
        load({}, zzz=3)
