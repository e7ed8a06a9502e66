"""Lets the holder fill and drop the pages of tier 2; tells each outcome with exactly one event.

It decides nothing about what is held. A disk or a holder that hangs is given up, so that the scheduler is never left
waiting for an answer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.model import ModelId
from hypnos_engine.engines.holder import HolderReport, PageHolder
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev

log = logging.getLogger("hypnos.scheduler")

SILENT_S = 120.0
"""A fill without progress for so long is given up: its disk hangs."""

Paths = Callable[[str, ModelId], Sequence[Path]]
"""The files of a file set, by its name and a model that uses it; empty when they are not known."""


class PageFiller:
    """Used on one loop. Without a holder nothing is ever held."""

    def __init__(
        self,
        holder: PageHolder | None,
        paths: Paths,
        *,
        post: Callable[..., None],
        sample: Callable[[], ev.MachineSampled],
        silent_s: float = SILENT_S,
    ) -> None:
        self.filled: dict[str, float] = {}
        """How far each fill in flight is, 0 to 1."""
        self._holder = holder
        self._paths = paths
        self._post = post
        self._sample = sample
        self._silent_s = silent_s
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def tasks(self) -> int:
        """Fills and drops under way."""
        return len(self._tasks)

    def report(self) -> HolderReport | None:
        """What is held, as newest known; None without a holder."""
        return None if self._holder is None else self._holder.report()

    def fill(self, effect: fx.FillPages) -> None:
        """Read a file set and hold it; PagesFilled follows."""
        paths = self._paths(effect.files, effect.model)
        if self._holder is None or not paths or self._stopping:
            self._post(ev.PagesFilled(effect.files, 0))
            return
        self._own(self._fill(self._holder, effect.files, paths), f"fill {effect.files}")

    def drop(self, effect: fx.DropPages) -> None:
        """Let go of a file set; PagesDropped follows."""
        if self._holder is None or self._stopping:
            self._post(ev.PagesDropped(effect.files))
            return
        self._own(self._drop(self._holder, effect.files), f"drop {effect.files}")

    def lost(self, files: str) -> None:
        """Pages are not resident any more: the holder's word, called on the loop."""
        if not self._stopping:
            self._post(self._sample(), ev.PagesLost(files))

    async def stop(self) -> None:
        """Give up what is under way; what is held is the holder's to let go of."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, holder: PageHolder, files: str, paths: Sequence[Path]) -> None:
        held_bytes = 0
        try:
            async with asyncio.timeout(self._silent_s) as patience:

                def progressed(fraction: float) -> None:
                    if fraction > self.filled.get(files, 0.0):
                        self.filled[files] = fraction
                        if not patience.expired():
                            patience.reschedule(self._loop.time() + self._silent_s)

                held_bytes = await holder.fill(files, paths, progressed)
        except TimeoutError:
            log.warning("keeping %s in RAM made no progress for %g s and was given up", files, self._silent_s)
        except HypnosError as error:
            log.warning("%s could not be kept in RAM: %s", files, error)
        except Exception:
            log.exception("keeping %s in RAM failed unexpectedly", files)
        finally:
            self.filled.pop(files, None)
            self._post(self._sample(), ev.PagesFilled(files, held_bytes))

    async def _drop(self, holder: PageHolder, files: str) -> None:
        try:
            await holder.drop(files)  # it ends by itself: a holder that does not let go is ended
        except Exception:
            log.exception("letting go of %s failed unexpectedly", files)
        finally:
            self._post(self._sample(), ev.PagesDropped(files))

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
