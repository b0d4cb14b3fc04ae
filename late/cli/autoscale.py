"""`late autoscale`: run, status, history, simulate, workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output
from late.cli.config import configuration
from late.cli.config.catalogue import AUTOSCALER, VARIABLES
from late.cli.signals import stop_event
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.autoscaler.autoscaler import Autoscaler
    from late.autoscaler.keda.demand import Signals
    from late.autoscaler.metrics.source import Source
    from late.autoscaler.policy import Units
    from late.autoscaler.targets.sizer import Sizer
    from late.control import Control

ONCE_S = 600.0
"""The longest time that `run --once` waits for its resize."""

app = typer.Typer(help="Let the database's size follow its load.", no_args_is_help=True)

PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", "-p", metavar="FILE", help="TOML; see docs/autoscaler.md."),
]


LaneOption = Annotated[
    str | None, typer.Option(metavar="LANE", help="The shards of a lane, by its own figures.")
]
ShardRateOption = Annotated[
    float, typer.Option(metavar="N", min=1, help="With --lane: attempts a second of a shard.")
]
MetricsPortOption = Annotated[
    int | None, typer.Option(help="Serve /metrics here; 0: any.", min=0, max=65_535)
]
MetricsHostOption = Annotated[str, typer.Option(help="The address for /metrics.")]
NameOption = Annotated[
    str | None, typer.Option(help="The controller's name; default: what it sizes.")
]
DrainOption = Annotated[
    float, typer.Option(metavar="S", min=1, help="With --lane: time for a backlog to go.")
]


@app.command()
def simulate(
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="daily, friday, burst, rough, trips, or CSV with a column `load`: nodes at 100 % "
            "CPU, one line a minute, from Monday 00:00 UTC or what a column `at` says.",
        ),
    ],
    policy: PolicyOption = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the charts.")
    ] = None,
    force: options.Force = False,
    seed: Annotated[int, typer.Option(help="The seed of noise, gaps and failures.")] = 7,
    json: options.Json = False,
) -> None:
    """Show what a policy would have done on a load, beside the rules of other autoscalers.

    Needs no database. The clairvoyant that costs are compared with has the least size for the
    target at every minute.
    """
    from late.autoscaler import policy as policies
    from late.autoscaler.simulation import chart as charts
    from late.autoscaler.simulation import simulator, traces

    output.refuse_existing(chart, force=force)
    chosen = simulator.SHIPPED_POLICY if policy is None else policies.read(policy)
    named = traces.SHIPPED | traces.RECORDED
    make = named.get(trace)
    if make is None and not Path(trace).exists():
        known = ", ".join(named)
        raise ConfigError(f"no trace {trace[:128]!r}: neither a file nor one of {known}")
    load = traces.read(Path(trace)) if make is None else make()
    runs = simulator.compare(load, chosen, seed=seed)
    if chart is not None:
        output.write_whole(chart, charts.page(load, chosen, runs))
    if json:
        figures = {run.name: run.figures for run in runs}
        found = {"trace": load.name, "minutes": len(load.load), "runs": figures}
        output.as_json({**found, "steps_by_rule": runs[0].by_rule})
        return
    columns = [charts.COLUMNS[0], *(f"{name}>" for name in charts.COLUMNS[1:])]
    output.table(f"Trace {load.name}", columns, [charts.cells(run) for run in runs])
    steps = ", ".join(f"{rule} {count}" for rule, count in runs[0].by_rule.items())
    typer.echo(f"steps of `late` by rule: {steps or 'none'}")
    if chart is not None:
        output.note(f"chart: {chart}")


@app.command(context_settings={"auto_envvar_prefix": VARIABLES[AUTOSCALER].rstrip("_")})
def run(
    policy: Annotated[
        Path, typer.Option("--policy", "-p", metavar="FILE", help="TOML; see docs/autoscaler.md.")
    ],
    config: configuration.Config = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="FILE", help="CSV that is appended to, or `monitoring`.")
    ] = None,
    spanner: Annotated[
        str | None,
        typer.Option(metavar="INSTANCE", help="projects/P/instances/I, by InstanceAdmin."),
    ] = None,
    size_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Prints the present size.")
    ] = None,
    resize_command: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Resizes to {size}. No shell reads it.")
    ] = None,
    lane: LaneOption = None,
    shard_rate: ShardRateOption = 1000,
    drain: DrainOption = 60,
    name: NameOption = None,
    every: Annotated[float, typer.Option(metavar="S", min=1, help="Seconds between looks.")] = 30,
    once: Annotated[bool, typer.Option("--once", help="One look, and what it decided.")] = False,
    dry_run: options.DryRun = False,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = "127.0.0.1",
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Size a database, or the shards of a lane, until SIGTERM or SIGINT.

    Several may run: one acts, the others wait.

    Decisions and the right to act are in the database of --url. What cannot work is refused at the
    start; what stops working later is survived.
    """
    import msgspec

    from late.autoscaler import policy as policies
    from late.autoscaler.autoscaler import Autoscaler
    from late.autoscaler.metrics.factory import create_source

    read = policies.read(policy)
    wanted = msgspec.structs.replace(read, dry_run=dry_run or read.dry_run)
    _check_options(lane, metrics, bool(spanner or size_command or resize_command))
    with options.control_of(url) as control:
        if metrics is None:
            sizer, source = _of_lane(control, str(lane), wanted.units, shard_rate, drain)
            where = f"--lane {lane}"
        else:
            sizer = _sizer(name, spanner, size_command, resize_command, wanted.units)
            total = bool(wanted.target_cpu_total)
            source = create_source(metrics, spanner, wanted.units, total=total)
            where = f"--spanner {spanner}" if spanner else f"--size-command {size_command}"
        _check(sizer, where)
        scaler = Autoscaler(
            wanted,
            source,
            sizer,
            control.autoscalers.journal(),
            owner=_owner(),
            controller=name,
            every_s=every,
            ttl_s=max(3 * every, 15.0),
        )
        if once:
            _once(scaler, json)
        else:
            _until_stopped(scaler, metrics_host, metrics_port)


def _check_options(lane: str | None, metrics: str | None, sizes_a_database: bool) -> None:
    """Refuse options that exclude each other.

    Raises:
        ConfigError: neither or both of `--lane` and `--metrics`, or a lane and a database to size.
    """
    if (lane is None) == (metrics is None):
        raise ConfigError("give --metrics, or --lane, whose figures are in the database")
    if lane is not None and sizes_a_database:
        raise ConfigError("--lane sizes a lane: leave --spanner and the commands out")


def _check(sizer: Sizer, where: str) -> None:
    """Refuse at the start what is survived later: a sizer that cannot tell the size."""
    from late.autoscaler.targets.sizer import ResizeError

    try:
        sizer.size()
    except ResizeError as error:
        raise ConfigError(f"{where}: {error}") from error


def _sizer(
    name: str | None, spanner: str | None, size: str | None, resize: str | None, units: Units
) -> Sizer:
    import shlex

    if units == "shards":
        raise ConfigError('units = "shards" is for --lane')
    if (spanner is None) == (size is None and resize is None):
        raise ConfigError("give --spanner, or --size-command and --resize-command")
    if spanner is not None:
        from late.autoscaler.targets.spanner import SpannerSizer

        return SpannerSizer(spanner, units)
    if size is None or resize is None:
        raise ConfigError("--size-command and --resize-command go together")
    from late.autoscaler.targets.command import CommandSizer

    try:
        commands = shlex.split(size), shlex.split(resize)
    except ValueError as error:
        raise ConfigError(f"a command cannot be read: {error}") from None
    return CommandSizer(name or "database", size=commands[0], resize=commands[1])


def _of_lane(
    control: Control, name: str, units: Units, shard_rate: float, drain_s: float
) -> tuple[Sizer, Source]:
    from late.autoscaler.targets.lanes import LaneSizer, LaneSource

    if units != "shards":
        raise ConfigError('a lane is sized in shards: the policy must say units = "shards"')

    def width() -> int:
        found = control.lanes.layout().lane(name)
        if found is None:
            raise ConfigError(f"no lane {name[:128]!r}")
        return found.shards

    def signals() -> list[Signals]:
        real = [each.name for each in control.groups.all() if each.shadow_of is None]
        return control.status.lane_signals(real, name)

    source = LaneSource(width, signals, shard_rate=shard_rate, drain_s=drain_s)
    return LaneSizer(name, width, lambda shards: control.lanes.resize(name, shards)), source


def _owner() -> str:
    import os
    import secrets
    import socket

    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _once(scaler: Autoscaler, json: bool) -> None:
    import threading

    decision = scaler.look()
    if not scaler.await_resize(ONCE_S):
        output.note(f"the resize takes longer than {ONCE_S:g} s: it goes on without this command")
    stopped = threading.Event()
    stopped.set()
    scaler.run(stopped)  # gives the term back, so that the next need not wait
    result = None if decision is None else scaler.result
    if json:
        output.as_json({"decision": decision, "result": result})
    elif decision is None:
        typer.echo("nothing decided, because another autoscaler acts: see `late autoscale status`")
    else:
        change = f"{decision.from_size} to {decision.to_size}" if decision.changes else "no change"
        why = f". {decision.why}" if decision.why else ""
        typer.echo(output.plain(f"{decision.rule}: {change}, {result}{why}"))
    if result is not None and result.startswith("failed"):
        raise typer.Exit(1)


def _until_stopped(scaler: Autoscaler, host: str, port: int | None) -> None:
    from late import events
    from late.observability import metrics
    from late.observability.logs import configure, log_events
    from late.observability.metrics.http_server import MetricsServer

    stop = stop_event()
    registry, server = metrics.Registry(), None
    if port is not None:
        server = MetricsServer(host, port, lambda: metrics.render(registry))
        output.note(f"metrics on http://{host}:{server.port}/metrics")
    configure()
    ends = [log_events(events.default, "late.autoscaler"), metrics.follow(events.default, registry)]
    try:
        scaler.run(stop)
    finally:
        for end in ends:
            end()
        if server is not None:
            server.stop()


@app.command()
def status(url: options.Url = None, json: options.Json = False) -> None:
    """Show who controls what, and what the last look found."""
    with options.control_of(url) as control:
        found = control.autoscalers.all()
    output.listed(
        json,
        {"controllers": found},
        "Autoscalers",
        ("name", "acts", "epoch>", "decisions>", "last look", "and found"),
        [
            (each.name, each.owner or "nobody", each.epoch, each.decisions,
             output.moment(each.looked_at_us), each.last)
            for each in found
        ],
    )  # fmt: skip


@app.command()
def history(
    name: Annotated[str | None, typer.Option(help="Only this controller.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    changes: Annotated[
        bool, typer.Option("--changes", help="Leave out those that change nothing.")
    ] = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show what was decided and why, the latest first."""
    with options.control_of(url) as control:
        found = control.autoscalers.decisions(name=name, limit=limit, changes=changes)
    output.listed(
        json,
        {"decisions": found},
        "Decisions",
        ("when", "controller", "#>", "rule", "from>", "to>", "wanted>", "result", "why"),
        [
            (output.moment(each.at_us), each.controller, each.seq, each.rule, each.from_size,
             each.to_size, each.wanted, each.result, each.why)
            for each in found
        ],
    )  # fmt: skip


@app.command()
def workers(
    host: options.Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any.", min=0, max=65_535)] = 7290,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="KEDA's certificate must be signed by it.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the signals of --group once instead.")
    ] = False,
    group: Annotated[str, typer.Option(help="With --show: the consumer group.")] = "default",
    queue: Annotated[str | None, typer.Option(help="With --show: only this queue.")] = None,
    slots: Annotated[int, typer.Option(min=1, help="With --show: tasks of a worker at once.")] = 16,
    drain: Annotated[
        float, typer.Option(metavar="S", min=1, help="With --show: time for a backlog to go.")
    ] = 60.0,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Tell KEDA how many workers are wanted (its external scaler, gRPC), until SIGTERM or SIGINT.

    Another machine is served only with TLS and --tls-ca, by which clients are known.
    """
    from late.autoscaler.keda.demand import workers_wanted

    with options.control_of(url) as control:
        if show:
            (seen,) = control.status.signals([(group, queue)])
            drains_s = seen.drain_s if seen.drain_s != float("inf") else None
            found = {
                "group": group, "queue": queue, "backlog": seen.backlog, "age_s": seen.age_s,
                "rate": seen.rate,
                "busy_s": seen.busy_s, "drain_s": drains_s, "workers": seen.workers,
                "saturation": seen.saturation(slots),
                "helped": seen.backlog if seen.helped is None else seen.helped,
                "limits": list(seen.limits),
                "wanted": workers_wanted(seen, slots=slots, drain_s=drain),
            }  # fmt: skip
            if json:
                output.as_json(found)
            else:
                output.fields((found | {"limits": "; ".join(seen.limits) or None}).items())
            return
        control.check()
        _serve(control, host, port, tls_cert, tls_key, tls_ca)


def _serve(
    control: Control, host: str, port: int, cert: str | None, key: str | None, ca: str | None
) -> None:
    try:
        import grpc

        from late.autoscaler.keda.server import KedaServer, SignalsCache
    except ModuleNotFoundError as error:
        raise ConfigError('gRPC is not installed: pip install "late-queue[grpc]"') from error
    from late.api.limits import loopback

    given = [each for each in (cert, key, ca) if each is not None]
    if len(given) not in (0, 3):
        raise ConfigError("--tls-cert, --tls-key and --tls-ca go together")
    if not given and not loopback(host):
        raise ConfigError(
            f"{host[:64]!r} can be reached from other machines: that takes --tls-cert, --tls-key "
            "and --tls-ca"
        )
    credentials = None
    if cert is not None and key is not None and ca is not None:
        try:
            texts = [Path(each).read_bytes() for each in (key, cert, ca)]
        except OSError as error:
            raise ConfigError(f"TLS: {error}") from None
        credentials = grpc.ssl_server_credentials(
            [(texts[0], texts[1])], root_certificates=texts[2], require_client_auth=True
        )
    cache = SignalsCache(lambda group, queue: control.status.signals([(group, queue)])[0])
    stop = stop_event()
    server = KedaServer(cache, host, port, credentials=credentials)
    typer.echo(f"external scaler on {host}:{server.port}")
    stop.wait()
    server.stop()
