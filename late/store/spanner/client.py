"""Clients of Spanner: one per role, so that the database can tell urgent from background work.

| role | priority | who |
|---|---|---|
| `foreground` | high | enqueue, settle, heartbeats: a caller waits, or a lease runs out |
| `background` | low | the tail, pruning, reports: they can catch up |

A role is a priority on every request and a tag on every transaction and read, so that Spanner's
statistics show the cost of the queue beside the service's own work. A call with a priority or tag
of its own keeps it. A transaction whose tag says `late-background` has low priority in each
request, whatever the client's role: so are the transactions of handlers of background tasks.

The client makes the sessions: one multiplexed session for everything, as Google advises. The
emulator allows one read-write transaction per session, so there the client's session pool is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import grpc
from google.auth.credentials import Scoped
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.spanner_v1 import BurstyPool, Client, RequestOptions, SpannerClient
from google.cloud.spanner_v1.database import SPANNER_DATA_SCOPE, Database
from google.cloud.spanner_v1.services.spanner.transports.grpc import SpannerGrpcTransport

from late import events
from late.observability.conflicts import Role as Role
from late.schema.spanner.address import HOST_VARIABLE, emulator_settings, no_credentials
from late.schema.spanner.address import place_of as place_of
from late.schema.spanner.address import turn as turn
from late.store.spanner import conflict_watch
from late.store.spanner.grpc_calls import Stamp
from late.store.spanner.grpc_channels import OPTIONS, ChannelPool

PRIORITIES: dict[Role, int] = {
    "foreground": RequestOptions.Priority.PRIORITY_HIGH,
    "background": RequestOptions.Priority.PRIORITY_LOW,
}
CHANNELS = 4
"""Connections per client: one that breaks takes a quarter of the calls in flight with it."""


class _Database(Database):
    """The client's database with a tag on every transaction, and a way to close its channels."""

    late_tag: str
    late_channels: ChannelPool

    def run_in_transaction(self, func: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        kw.setdefault("transaction_tag", self.late_tag)
        run: Callable[..., Any] = super().run_in_transaction
        # The client marks the thread as in a transaction before it has a session. If it gets none,
        # the mark stays, and all further transactions of the thread are refused.
        running = getattr(self._local, "transaction_running", False)
        try:
            return run(func, *args, **kw)
        finally:
            self._local.transaction_running = running


def open_database(
    url: str,
    *,
    priority: Role,
    channels: int = CHANNELS,
    directed: dict[str, Any] | None = None,
    emitter: events.Emitter = events.default,
) -> Database:
    """Open a client of the database at `url`. It connects in the background and makes no call yet.

    The result is safe to use from any thread and is closed by `close_database`. Blocking: in a
    coroutine, call it and everything of it in a thread.

    Args:
        directed: the replicas that are to answer reads outside of transactions that write; see
            `address.options_of`.

    Raises:
        ConfigError: the URL is of another shape, or there are no credentials to be found.
    """
    place = place_of(url)
    host = os.environ.get(HOST_VARIABLE)
    emulator_settings()
    try:
        # The client is typed in parts only; these names are Any so that the checker allows calls.
        client: Any = Client(
            project=place.project, disable_builtin_metrics=True, directed_read_options=directed
        )
    except DefaultCredentialsError as error:
        raise no_credentials(error) from error
    tag = f"late-{priority}"
    pool = ChannelPool(
        [_channel(client, host) for _ in range(channels)],
        stamp=Stamp(int(PRIORITIES[priority]), tag),
        emitter=emitter,
    )
    make: Any = _Database
    make_pool: Any = BurstyPool
    sessions = make_pool()
    database: _Database = make(place.database, client.instance(place.instance), pool=sessions)
    bind: Any = sessions.bind
    bind(database)
    database.late_tag = tag
    database.late_channels = pool
    # The client would make one channel with settings of its own at the first call.
    database._spanner_api = SpannerClient(
        client_info=client._client_info, transport=SpannerGrpcTransport(channel=pool)
    )
    conflict_watch.watch(database._spanner_api)
    return database


def close_database(database: Database) -> None:
    """Close the channels; calls in flight end with CANCELLED. Calling it twice is fine.

    Not `Database.close()`: it joins a thread that sleeps for ten minutes at a time. The thread is a
    daemon and ends by itself once it sees the event set below; the server drops unused sessions.
    """
    manager: Any = database.sessions_manager
    stop = manager._multiplexed_session_terminate_event
    if stop is not None:
        stop.set()
    if isinstance(database, _Database):
        database.late_channels.close()


def _channel(client: Any, emulator: str | None) -> grpc.Channel:
    if emulator:
        return grpc.insecure_channel(emulator, options=OPTIONS)
    credentials: Any = client.credentials
    if isinstance(credentials, Scoped):
        scoped: Any = credentials.with_scopes
        credentials = scoped((SPANNER_DATA_SCOPE,))
    channel: grpc.Channel = SpannerGrpcTransport.create_channel(
        credentials=credentials, options=OPTIONS
    )
    return channel
