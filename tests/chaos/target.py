"""The database that a storm is about, and what may be done to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.chaos.network import Networks
from tests.chaos.plan import Traits


class Target:
    """The database of a storm."""

    def __init__(
        self,
        name: str,
        url: str,
        traits: Traits,
        networks: Networks,
        *,
        ttl_s: float,
        server: Any = None,
        heal: Callable[[], None] = lambda: None,
        abort: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.traits = traits
        self.networks = networks
        self.ttl_s = ttl_s
        self.server = server
        """With `kill` and `start`, where the storm may do that."""
        self.heal = heal
        """Ends what is left open in the database itself."""
        self.abort = abort
        """Aborts transactions that settle, where the database and not the network does that."""
