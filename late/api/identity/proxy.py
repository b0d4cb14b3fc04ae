"""People whom a proxy names in a header. Only the proxy's own address is believed."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from late import events
from late.api.errors import BadRequest, Forbidden
from late.api.identity.names import is_name, name_of
from late.api.identity.roles import Claim, RoleMap
from late.api.identity.settings import ProxySettings
from late.errors import ConfigError
from late.model import validation as validate
from late.model.access.rights import Caller

LIFETIME_US = 60_000_000
"""A stream of a visitor ends after this time, and comes again through the proxy."""
GROUPS_MAX = 500
Headers = Sequence[tuple[bytes, bytes]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxy:
    """Reads the headers of a proxy.

    Raises:
        ConfigError: no address is named, or one that is everybody's.
    """

    def __init__(self, settings: ProxySettings, roles: RoleMap) -> None:
        if not settings.addresses:
            raise ConfigError("--user-header takes --trusted-proxy: the address of the proxy")
        self._networks = [_network(text) for text in settings.addresses]
        self._user = _header(settings.user_header)
        self._groups = _header(settings.groups_header)
        if self._user == self._groups:
            raise ConfigError("--user-header and --groups-header are the same")
        self._roles = roles
        self._told = False

    def caller(self, address: str, headers: Headers, now_us: int) -> Caller | None:
        """The person whom the proxy names; None if it names nobody, or is not the proxy.

        Raises:
            BadRequest: a header is there twice, in two spellings, or cannot be read.
            Forbidden: no rule gives the person a role.
        """
        found = [pair for pair in headers if _plain(pair[0]) in (self._user, self._groups)]
        if not found:
            return None
        if not self._believes(address):
            if not self._told:  # once: it is a line for each request otherwise
                self._told = True
                events.default.emit(events.HEADER_IGNORED, address=address[:64])
            return None
        user, groups = _one(found, self._user), _one(found, self._groups)
        if user is None:
            return None
        if not is_name(user) or "," in user:
            raise BadRequest("the proxy names nobody in a form that can be read")
        claims = [Claim("user", user)]
        claims += [
            Claim("group", each.strip())
            for each in (groups or "").split(",")[:GROUPS_MAX]
            if each.strip()
        ]
        rights = self._roles.rights(claims)
        if not rights:
            raise Forbidden(
                f"you are {user}, and no role here is for you or for one of your groups: "
                "an operator gives one with late serve --role"
            )
        return Caller(
            name_of("proxy", user),
            rights,
            actor=f"proxy:{user}",
            expires_at_us=now_us + LIFETIME_US,
        )

    def _believes(self, address: str) -> bool:
        try:
            peer = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        return any(peer in network for network in self._networks)


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ConfigError(f"--trusted-proxy {text[:80]!r}: {error}") from None
    if network.prefixlen == 0:
        raise ConfigError(f"--trusted-proxy {text[:80]!r} is everybody: name the proxy")
    return network


def _header(name: str) -> bytes:
    if not validate.is_name(name) or "_" in name:
        raise ConfigError(f"header {name[:80]!r}: letters, digits and - as in X-Forwarded-User")
    return name.lower().encode()


def _plain(name: bytes) -> bytes:
    """A header's name as programs behind a proxy may read it: they take `_` for `-`."""
    return name.lower().replace(b"_", b"-")


def _one(found: Headers, name: bytes) -> str | None:
    """The one value of a header. A client that sends its own beside the proxy's makes it two."""
    values = [pair for pair in found if _plain(pair[0]) == name]
    if not values:
        return None
    if len(values) > 1 or values[0][0].lower() != name:
        raise BadRequest("a header of the proxy is there twice, or in another spelling")
    try:
        return values[0][1].decode().strip()
    except UnicodeDecodeError:
        raise BadRequest("a header of the proxy is not UTF-8") from None
