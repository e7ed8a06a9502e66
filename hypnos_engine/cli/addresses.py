"""Whether the address of the configuration is free, or who has it; binds for an instant and closes again."""

import errno
import http.client
import json
import os
import socket
import ssl
from urllib.parse import urlsplit

from hypnos_engine.cli.findings import Check, broken, fine
from hypnos_engine.presence import RunningEngine

_ANSWER_TIMEOUT_S = 2.0
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, never bound to


def check_engine(published: RunningEngine | None) -> list[Check]:
    """This user's own engine, when one runs; an address that a dead one left behind says nothing."""
    if published is None:
        return []
    parts = urlsplit(published.address)
    version = running_version(parts.hostname or "127.0.0.1", parts.port or 80, tls=parts.scheme == "https")
    if version is None:
        return []
    return [fine("engine", f"Hypnos {version} is running at {published.address} (process {published.pid})")]


def check_address(host: str, port: int, *, tls: bool) -> Check:
    """Free, ours, another program's, or not to be had at all."""
    local = "127.0.0.1" if host in _ANY else host
    shown = f"[{local}]:{port}" if ":" in local else f"{local}:{port}"
    version = running_version(local, port, tls=tls)
    if version is not None:
        return fine("address", f"Hypnos {version} is running at {'https' if tls else 'http'}://{shown}")
    problem = bind_problem(host, port)
    if problem is None:
        return fine("address", f"{shown} is free")
    if problem.errno == errno.EADDRINUSE:
        holder = holder_of(port)
        says = f"port {port} is in use by {holder or 'another program'}"
        return broken("address", says, f"end it, or choose another: hypnos --port {port + 1 if port < 65535 else 9999}")
    if problem.errno == errno.EACCES:
        return broken("address", f"this user may not listen on port {port}", "choose a port above 1023")
    return broken("address", f"{host} cannot be listened on: {problem.strerror}", "correct server.host")


def running_version(host: str, port: int, *, tls: bool) -> str | None:
    """Version of the Hypnos that answers there; None when nothing, or something else, does."""
    connection: http.client.HTTPConnection
    if tls:
        # The question is who answers, not whether its certificate is good; nothing secret is sent.
        unverified = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=_ANSWER_TIMEOUT_S, context=unverified)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read(65536))
        return str(answer["version"]) if answer["service"] == "hypnos" else None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def bind_problem(host: str, port: int) -> OSError | None:
    """What keeps this user from listening there; None when nothing does."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if os.name == "posix":
                # Elsewhere this option would let two programs have the port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return error
    except UnicodeError:
        return OSError(errno.EINVAL, "it is no host name")
    return None


def holder_of(port: int) -> str | None:
    """Name and process id of the program that listens on a port, where the system lets this user see it."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        return None
    return None
