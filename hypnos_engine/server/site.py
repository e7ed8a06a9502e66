"""Where the server listens, and how it stops: addresses, ports in use, and the order of a graceful end.

Decides no limit. Never leaves a socket or a request behind once `close` has returned.
"""

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Final

import psutil
from aiohttp import web

from hypnos_engine.domain.errors import PortInUse, StartRefused
from hypnos_engine.server.connection import Connection, Connections
from hypnos_engine.server.exchange import LIFECYCLE, OPTIONS

log: Final = logging.getLogger("hypnos.http")

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost"})
LOOPBACK: Final = ("127.0.0.1", "::1")
BACKLOG: Final = 512
CUT_S: Final = 5.0
"""How long requests that were cut off may take to say so."""
FLUSH_S: Final = 1.0
"""How long clients may take to read what was sent last."""
_PORT_TRIES: Final = 20
_NO_SUCH_ADDRESS: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}


class Site:
    """One application on one port. Used once: `start`, then `drain` or `close`, on the loop that started it.

    `127.0.0.1` means both loopback addresses; a machine without IPv6 has only the first. `::` means every address,
    those of IPv4 too where the system can listen to both at once. Port 0 picks a free one.
    """

    def __init__(self, app: web.Application, host: str = "127.0.0.1", port: int = 9999) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._name = LOOPBACK[0] if host in LOOPBACK_NAMES | {""} else host
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=CUT_S)
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._connections = Connections()

    @property
    def port(self) -> int:
        """The port listened on; before `start`, the one asked for."""
        return self._port

    @property
    def address(self) -> str:
        """What a client on this machine puts in front of the paths; known to answer once `start` has returned."""
        return f"http://{f'[{self._name}]' if ':' in self._name else self._name}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises PortInUse naming who has the port, or StartRefused; nothing stays open then."""
        self._sockets = self._bind(await self._resolve())
        self._port = self._sockets[0].getsockname()[1]
        self._name = _reachable_name(self._sockets) or self._name
        try:
            await self._listen()
        except BaseException:
            await self.close()
            raise

    async def _listen(self) -> None:
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        loop = asyncio.get_running_loop()
        options = self._app[OPTIONS]
        make_connection = partial(
            Connection,
            server,
            self._connections,
            stall_s=options.stall_s,
            version=options.version,
            loop=loop,
            keepalive_timeout=options.idle_connection_s,
        )
        for listening in self._sockets:
            self._servers.append(await loop.create_server(make_connection, sock=listening, backlog=BACKLOG))

    async def drain(self, seconds: float | None = None) -> None:
        """Stop accepting, let running requests end for `seconds` (None: the option), cut off the rest, close."""
        lifecycle = self._app[LIFECYCLE]
        lifecycle.draining = True
        self._stop_listening()
        for exchange in tuple(lifecycle.running):
            if exchange.route is not None and exchange.route.endless:
                exchange.cut()  # it would not end by itself
        await self._wait_for_requests(self._app[OPTIONS].drain_s if seconds is None else seconds)
        await self.close()

    async def close(self) -> None:
        """End every request and connection. Idempotent."""
        lifecycle = self._app[LIFECYCLE]
        lifecycle.draining = True
        self._stop_listening()
        for exchange in tuple(lifecycle.running):
            exchange.cut()
        await self._wait_for_requests(CUT_S)
        if self._runner.server is not None:
            await self._runner.cleanup()
        await self._connections.flush(FLUSH_S)

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        for listening in self._sockets:
            listening.close()
        self._servers.clear()
        self._sockets.clear()
        if self._runner.server is not None:
            self._runner.server.pre_shutdown()  # idle connections close now, busy ones after their request

    async def _wait_for_requests(self, seconds: float) -> None:
        tasks = {exchange.task for exchange in self._app[LIFECYCLE].running if exchange.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _resolve(self) -> list[tuple[socket.AddressFamily, str]]:
        if self._host in LOOPBACK_NAMES:
            return [(socket.AF_INET, LOOPBACK[0]), (socket.AF_INET6, LOOPBACK[1])]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise StartRefused(f"The host '{self._host}' (server.host) is not known: {error.strerror}.") from error
        return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))

    def _bind(self, addresses: list[tuple[socket.AddressFamily, str]]) -> list[socket.socket]:
        """Bind all addresses to one port; a free one that only some of them have is tried anew."""
        # Beside a socket for IPv4 the one for IPv6 has to leave that family alone.
        dual_stack = len(addresses) == 1 and _is_wildcard(addresses[0][1])
        for left in reversed(range(_PORT_TRIES if self._port == 0 else 1)):
            bound: list[socket.socket] = []
            port = self._port
            try:
                for family, address in addresses:
                    listening = _listening_socket(family, address, port, dual_stack=dual_stack)
                    if listening is not None:
                        bound.append(listening)
                        port = listening.getsockname()[1]
            except OSError as error:
                for listening in bound:
                    listening.close()
                if left and error.errno == errno.EADDRINUSE:
                    continue
                raise _start_error(error, self._host, port) from error
            if bound:
                return bound
        raise StartRefused(f"The address '{self._host}' (server.host) does not belong to this machine.")


def _is_wildcard(address: str) -> bool:
    return ipaddress.ip_address(address).is_unspecified


def _reachable_name(sockets: list[socket.socket]) -> str | None:
    """The loopback address that sockets on every address answer to; None when they are bound to one of their own."""
    for listening in sockets:
        if _is_wildcard(listening.getsockname()[0]):
            ipv6_only = listening.family == socket.AF_INET6 and listening.getsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_V6ONLY
            )
            return LOOPBACK[1] if ipv6_only else LOOPBACK[0]
    return None


def _claim_ipv6(listening: socket.socket, *, dual_stack: bool) -> None:
    """Say whether the socket takes IPv4 too. A system that cannot leaves it with IPv6."""
    if dual_stack:
        with suppress(OSError):
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            return
    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


def _listening_socket(
    family: socket.AddressFamily, address: str, port: int, *, dual_stack: bool
) -> socket.socket | None:
    """A bound socket; None where the machine has no such address."""
    listening = None
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif sys.platform == "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        if family == socket.AF_INET6:
            _claim_ipv6(listening, dual_stack=dual_stack)
        listening.bind((address, port))
        listening.listen(BACKLOG)  # binding alone does not show who else listens
        listening.setblocking(False)
    except OSError as error:
        if listening is not None:
            listening.close()
        if error.errno in _NO_SUCH_ADDRESS:
            return None
        raise
    return listening


def _start_error(error: OSError, host: str, port: int) -> StartRefused:
    if error.errno == errno.EADDRINUSE:
        owner = _owner_of(port)
        by = f" by {owner}" if owner else ""
        return PortInUse(f"Port {port} is in use{by}. Stop that program, or choose another port with --port.")
    if error.errno == errno.EACCES:
        return StartRefused(f"Port {port} may not be used by this user. Choose one above 1023 with --port.")
    return StartRefused(f"Cannot listen on {host}:{port}: {error.strerror or error}.")


def _owner_of(port: int) -> str | None:
    """Name and id of the process that listens on the port, where the system tells."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if local and local.port == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        return None
    return None
