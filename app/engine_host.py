"""How the desktop comes by its engine: it runs one itself, or becomes the window of one that serves already.

The only place of the desktop that imports the engine's composition root. Decides nothing about models.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypnos_engine import presence
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.config import load as config
from hypnos_engine.config.paths import Folders, standard_folders
from hypnos_engine.daemon import ServeRequest, ServingEngine, running_engine
from hypnos_engine.domain.errors import AlreadyRunning, HypnosError, StartRefused

__all__ = [
    "Reached",
    "ServeRequest",
    "config_file",
    "free_port_beside",
    "next_free_port",
    "reached_engine",
    "was_replaced",
]

APPEAR_S = 10.0
"""How long an engine that another program is just starting may take to say where it is."""
APPEAR_POLL_S = 0.1
PORTS_TRIED = 100


@dataclass(frozen=True, slots=True)
class Reached:
    """An engine that answers."""

    address: str
    token: str = field(repr=False)
    own: bool
    """It lives in this program."""
    first_notices: tuple[str, ...] = ()
    config_file: Path | None = None
    _serving: ServingEngine | None = field(default=None, repr=False)

    async def stage(self) -> None:
        """Bring an own engine's startup models to their tiers; nothing for another's."""
        if self._serving is not None:
            await self._serving.stage()

    async def drain(self, longest_s: float) -> None:
        """Let the running requests of an own engine end; nothing for another's."""
        if self._serving is not None:
            await self._serving.drain(longest_s)


@asynccontextmanager
async def reached_engine(request: ServeRequest) -> AsyncIterator[Reached]:
    """An engine for the length of the block. Ends it afterwards only when it is this program's own.

    1. One of the same user that serves already.
    2. An own one. Raises StartRefused and its kin when there can be none.
    3. One that another program began to start at the same moment.
    """
    folders = standard_folders()
    found = await _serving_already(folders)
    if found is not None:
        yield found
        return
    async with AsyncExitStack() as stack:
        try:
            serving = await stack.enter_async_context(running_engine(request))
        except AlreadyRunning:
            reached = await _appearing(folders)
        else:
            reached = _own(serving, folders)
        yield reached


def _own(serving: ServingEngine, folders: Folders) -> Reached:
    published = presence.read(folders.run)
    if published is None:
        raise StartRefused(f"The file {folders.run / presence.FILE_NAME} was removed while Hypnos started. Try again.")
    announcement = serving.announcement
    return Reached(
        announcement.address,
        published.token,
        own=True,
        first_notices=announcement.notices,
        config_file=announcement.config_path,
        _serving=serving,
    )


async def _serving_already(folders: Folders) -> Reached | None:
    """An engine that answers at the published address; None when there is none, or a dead one's file."""
    published = presence.read(folders.run)
    if published is None or not presence.is_locked(folders.run):
        return None
    if published.protocol != presence.PROTOCOL_VERSION:
        raise AlreadyRunning(
            f"A Hypnos of another version serves at {published.address} (process {published.pid}). Stop it first."
        )
    async with HypnosClient(published.address, published.token) as client:
        try:
            await asyncio.wait_for(client.health(), APPEAR_S)
        except (HypnosError, TimeoutError):
            return None
    return Reached(published.address, published.token, own=False)


async def _appearing(folders: Folders) -> Reached:
    deadline = asyncio.get_running_loop().time() + APPEAR_S
    while asyncio.get_running_loop().time() < deadline:
        if (found := await _serving_already(folders)) is not None:
            return found
        await asyncio.sleep(APPEAR_POLL_S)
    raise AlreadyRunning("Another Hypnos of this user runs, but does not say where it serves. Stop it, then try again.")


def was_replaced(reached: Reached) -> bool:
    """Whether an engine other than this one has published itself since."""
    published = presence.read(standard_folders().run)
    return published is not None and published.token != reached.token


def free_port_beside(request: ServeRequest) -> int | None:
    """The next port above the asked one that nothing listens on at this moment; None when there is none nearby."""
    port = request.port
    if port is None:
        try:
            port = config.load(request.config, os.environ, {}, folders=standard_folders()).server.port
        except HypnosError:
            return None
    return next_free_port(port)


def next_free_port(after: int) -> int | None:
    """The next port above that nothing listens on at this moment; None when there is none nearby."""
    for port in range(after + 1, min(after + PORTS_TRIED, 65535) + 1):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return None


def config_file(request: ServeRequest) -> Path | None:
    """The configuration that a start would read."""
    named = os.environ.get("HYPNOS_CONFIG", "").strip()
    if request.config is not None:
        return request.config
    if named:
        return Path(named)
    try:
        return standard_folders().config_file
    except HypnosError:
        return None
