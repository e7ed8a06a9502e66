"""Who may call what: API keys, browser origins and Host names, as pure questions about header values.

Never logs or returns a key; every comparison of a key takes the same time whichever key it is.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from hypnos_engine.domain.errors import InvalidApiKey, PermissionDenied
from hypnos_engine.server.options import AccessKey

LOCAL = AccessKey(label="local", sha256="", admin=True)
"""Whose request it is when no key is configured."""

PORT_MAX: Final = 65535
_REMEMBERED: Final = 64
"""Host names whose meaning is kept: a client sends the same one with each request."""
_IMPLIED_PORTS: Final = {80, 443}
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\\\[\]]+)(:(?P<port>[0-9]{0,5}))?", re.ASCII)


def find_key(authorization: str | None, keys: Sequence[AccessKey]) -> AccessKey:
    """Return the caller's key (contract §2). Raises InvalidApiKey, which says what is wrong but not what was sent."""
    if not keys:
        return LOCAL
    if authorization is None or not authorization.strip():
        raise InvalidApiKey("Missing API key. Send it as `Authorization: Bearer <key>` (server.api_keys).")
    scheme, *rest = authorization.split(maxsplit=1)
    if scheme.lower() != "bearer" or not rest:
        raise InvalidApiKey("Malformed Authorization header. Send the API key as `Authorization: Bearer <key>`.")
    secret = rest[0].strip()
    digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
    found = None
    for key in keys:  # no early end: the time must not tell which key matched
        if hmac.compare_digest(digest, key.sha256.lower()):
            found = key
    if found is None:
        raise InvalidApiKey("Unknown API key. Ask the operator for one (server.api_keys).")
    return found


def check_admin(key: AccessKey) -> None:
    """Raise PermissionDenied unless the key may change the model pool."""
    if not key.admin:
        raise PermissionDenied(
            "This needs an admin key: an entry of server.api_keys, or one of [[server.keys]] with admin = true."
        )


def host_is_allowed(host: str | None, allowed_hosts: Sequence[str]) -> bool:
    """True when the Host header names this computer; a browser tricked by a DNS answer sends another name.

    An entry of `allowed_hosts` with a port allows the name on that port only, one without allows it on every port.
    Programs that send no Host header are no browsers and pass.
    """
    if not host:
        return True
    called = _parse_host(host)
    if called is None:
        return False
    return _is_loopback_name(called.name) or any(_names(entry, called) for entry in allowed_hosts)


def origin_is_allowed(origin: str, host: str | None, allowed_origins: Sequence[str]) -> bool:
    """True for pages of this server, of any loopback origin, and of the operator's list (contract §1.3)."""
    try:
        parts = urlsplit(origin)
        port, name = parts.port, (parts.hostname or "").lower()
    except ValueError:
        return False
    well_formed = parts.scheme in {"http", "https"} and name and origin == f"{parts.scheme}://{parts.netloc}"
    own = _is_loopback_name(name) or (host is not None and parts.netloc.lower() == host.lower())
    return (bool(well_formed) and own) or any(
        _origin_matches(origin, parts.scheme, name, port, entry) for entry in allowed_origins
    )


def _origin_matches(origin: str, scheme: str, name: str, port: int | None, entry: str) -> bool:
    entry = entry.rstrip("/").lower()
    if entry == "*":
        return True
    if entry.endswith(":*"):
        return f"{scheme}://{f'[{name}]' if ':' in name else name}" == entry.removesuffix(":*")
    return origin.rstrip("/").lower() == entry


@lru_cache(maxsize=_REMEMBERED)
def _is_loopback_name(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class _Host:
    name: str
    """Lower case, without a trailing dot; an address in its shortest spelling, without brackets."""
    port: int | None


def _names(entry: str, called: _Host) -> bool:
    allowed = _parse_host(entry)
    if allowed is None or allowed.name != called.name:
        return False
    # A client leaves out the port that its scheme implies; a proxy in front of the server may speak https.
    ports = _IMPLIED_PORTS if called.port is None else {called.port}
    return allowed.port is None or allowed.port in ports


@lru_cache(maxsize=_REMEMBERED)
def _parse_host(text: str) -> _Host | None:
    """Read `name`, `name:port`, an IPv4 address, or an IPv6 address in brackets; None for anything else."""
    match = _HOST.fullmatch(text.strip())
    if match is None:
        return None
    name, port = match["name"].lower().removesuffix("."), match["port"]
    if name.startswith("["):
        try:
            name = ipaddress.IPv6Address(name[1:-1]).compressed
        except ValueError:
            return None
    if port and int(port) > PORT_MAX:
        return None
    return _Host(name, int(port) if port else None) if name else None
