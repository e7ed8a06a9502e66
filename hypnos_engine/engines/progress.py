"""Passes load progress on at most ten times a second, the newest always in the end. Never raises into the channel."""

import asyncio
import logging

from hypnos_engine.engines.base import ProgressSink
from hypnos_engine.ipc import messages as m

log = logging.getLogger(__name__)

INTERVAL_S = 0.1


class ProgressThrottle:
    """Between one load and the sink that its caller gave."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: ProgressSink) -> None:
        self._loop = loop
        self._sink = sink
        self._newest: m.LoadProgress | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def put(self, progress: m.LoadProgress) -> None:
        """Pass `progress` on now, or once the interval since the last one is over, unless a newer one replaces it."""
        if self._closed:
            return
        self._newest = progress
        if self._timer is None:
            self._pass_on()

    def close(self) -> None:
        """Pass nothing on any more. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _pass_on(self) -> None:
        self._timer = None
        progress, self._newest = self._newest, None
        if progress is None or self._closed:
            return
        self._timer = self._loop.call_later(INTERVAL_S, self._pass_on)
        try:
            self._sink(progress)
        except Exception:
            log.exception("the receiver of load progress failed")
