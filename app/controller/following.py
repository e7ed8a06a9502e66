"""How the desktop learns what the engine does: its stream of events, or gentle polling where it has none.

The one place that knows of the difference. Never gives up on an engine that is merely away.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from app.state import DECISIONS_KEPT, Decision, Lost, Readiness, Recalled, Snapshot, Told, Update
from hypnos_engine.api import event_stream
from hypnos_engine.api.client import HypnosClient
from hypnos_engine.domain.errors import HypnosError, NotFound

READY_POLL_S = 0.3
STATUS_POLL_S = 2.0
"""Between two looks at an engine that has no stream of events."""
RETRY_S = 2.0


class Following:
    """One engine, followed while `run` runs; `tell` is called on its loop, once per update."""

    def __init__(self, client: HypnosClient, tell: Callable[[Update], None]) -> None:
        self._client = client
        self._tell = tell
        self._again = asyncio.Event()

    def look_again(self) -> None:
        """Begin anew at once: after sleep, connections that look open lead nowhere."""
        self._again.set()

    async def run(self) -> None:
        """Follow until cancelled; nothing it started is left then."""
        while True:
            self._again.clear()
            tasks = [asyncio.create_task(work) for work in (self._follow(), self._watch_readiness())]
            again = asyncio.create_task(self._again.wait())
            try:
                await asyncio.wait({tasks[0], again}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*tasks, again):
                    task.cancel()
                await asyncio.gather(*tasks, again, return_exceptions=True)
            if not tasks[0].cancelled():
                tasks[0].result()  # it ends by itself only through a mistake of this program

    async def _follow(self) -> None:
        """By events, or by polling an engine that knows no such route."""
        by_polling = False
        while True:
            try:
                await (self._poll() if by_polling else self._listen())
            except NotFound:
                by_polling = True
            except HypnosError as error:
                self._tell(Lost(error.message))
                await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        recalled = await self._client.decisions(DECISIONS_KEPT)
        self._tell(Recalled(tuple(Decision(d.id, d.unix_ms, d.kind, d.model, d.because) for d in recalled)))
        async with aclosing(self._client.memory_events(on_lost=self._lost)) as events:
            async for event in events:
                self._tell(Told(event))

    def _lost(self, lost: event_stream.Lost) -> None:
        self._tell(Lost(lost.error.message))

    async def _poll(self) -> None:
        while True:
            self._tell(Snapshot(await self._client.memory_status()))
            await asyncio.sleep(STATUS_POLL_S)

    async def _watch_readiness(self) -> None:
        """Until the startup models are in place; what happens later is told by the other task."""
        while True:
            try:
                answer = await self._client.ready()
            except HypnosError:
                await asyncio.sleep(RETRY_S)
                continue
            self._tell(Readiness(answer.ready, str(answer.reason or "")))
            if answer.ready:
                return
            await asyncio.sleep(READY_POLL_S)
