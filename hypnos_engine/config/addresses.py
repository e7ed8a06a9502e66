"""Kinds for what names another party: hosts, web origins, API keys. A refused key never appears in the refusal."""

import hashlib
import ipaddress
import re

from hypnos_engine.config.kinds import Kind, Refused, Text, check_text, found

LOCAL_LABEL = "local"
"""The label of requests that need no key; a key with it would share their caches."""

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_ORIGIN = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>\[[^\]/]*\]|[^:/\[\]]+)(:(?P<port>[0-9]{1,5}|\*))?"
)
_HOST_PORT = re.compile(r"(?P<host>\[[^\]/]*\]|[^:/\[\]]+)(:(?P<port>[0-9]{1,5}))?")


def digest_of(key: str) -> str:
    """Return the lower-case SHA-256 of an API key, blanks around it removed (contract §2-06)."""
    return hashlib.sha256(key.strip().encode("utf-8", "surrogatepass")).hexdigest()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_host(text: str) -> bool:
    if text.startswith("["):
        return text.endswith("]") and ":" in text and _is_address(text[1:-1])
    if re.fullmatch(r"[0-9.]+", text):
        return _is_address(text)
    name = text.removesuffix(".")
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


def _port_fits(port: str | None) -> bool:
    return port is None or port == "*" or 1 <= int(port) <= 65535


def _bind_host(text: str) -> str:
    host = text.strip()
    if host.startswith("[") and _is_host(host):
        return host[1:-1]
    if _is_address(host) or (_is_host(host) and not host.startswith("[")):
        return host
    match = _HOST_PORT.fullmatch(host)
    suggestion = "the port belongs in server.port" if match and match["port"] and _is_host(match["host"]) else ""
    raise Refused(f"expected {BIND_HOST.expected}, found {found(text)}", suggestion)


def _allowed_host(text: str) -> str:
    match = _HOST_PORT.fullmatch(text.strip())
    if match is None or not _is_host(match["host"]) or not _port_fits(match["port"]):
        raise Refused(f"expected {ALLOWED_HOST.expected}, found {found(text)}")
    return text.strip().lower()


def _web_origin(text: str) -> str:
    origin = text.strip()
    match = _ORIGIN.fullmatch(origin)
    if match and match["host"] != "*" and _is_host(match["host"]) and _port_fits(match["port"]):
        return origin.lower()
    shorter = _ORIGIN.match(origin)
    suggestion = (
        f'write "{shorter[0]}"' if shorter and _is_host(shorter["host"]) and _port_fits(shorter["port"]) else ""
    )
    if origin == "*":
        suggestion = "name each origin; only the port may be a star"
    raise Refused(f"expected {WEB_ORIGIN.expected}, found {found(text)}", suggestion)


def _secret(text: str) -> str:
    key = text.strip()
    if not key:
        raise Refused("expected an API key, found nothing between the quotation marks")
    if len(key) > 512 or not all("!" <= char <= "~" for char in key):
        raise Refused(
            "an API key is at most 512 ASCII letters, digits and signs without blanks: what a header can carry",
            "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return digest_of(key)


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text.strip()):
        raise Refused("expected the 64 hexadecimal digits of a SHA-256")
    return text.strip().lower()


def _label(text: str) -> str:
    if text.strip().lower() == LOCAL_LABEL:
        raise Refused(f'the label "{LOCAL_LABEL}" stands for the programs of this computer', "choose another label")
    return check_text(text, LABEL.expected, longest=64)


BIND_HOST: Text[str] = Text("an IP address or a host name", _bind_host)
ALLOWED_HOST: Text[str] = Text(
    'a host name or address, with or without a port, like "hypnos.local:9999"', _allowed_host
)
WEB_ORIGIN: Text[str] = Text('a web origin like "http://localhost:3000" or "http://nas.local:*"', _web_origin)
LABEL: Text[str] = Text("a name of at most 64 characters", _label)


class _Unshown:
    """Reads like `Text`, but its refusals never repeat what was written."""

    def __init__(self, expected: str, inner: Text[str]) -> None:
        self.expected = expected
        self._inner = inner

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise Refused(f"expected {self.expected}, found something else")
        return self._inner.check(value)

    def read_text(self, text: str) -> str:
        return self._inner.check(text)


SECRET: Kind[str] = _Unshown("an API key in quotation marks", Text("", _secret))
"""Reads a key and returns its SHA-256 alone."""

DIGEST: Kind[str] = _Unshown("the SHA-256 of an API key as 64 hexadecimal digits", Text("", _digest))
