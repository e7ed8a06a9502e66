"""A holder that holds nothing: for engines without weights, and for tests. Looks at sizes only, reads no file."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from hypnos_engine.engines.holder import Held, HolderReport, LostSink

_STEPS = 4


class FakeHolder:
    """Claims to hold what exists; implements PageHolder."""

    def __init__(self, on_lost: LostSink, *, why_not_locked: str | None = None) -> None:
        """`why_not_locked` makes it one whose pages are kept warm."""
        self._on_lost = on_lost
        self._why_not_locked = why_not_locked
        self._filling: dict[str, object] = {}
        self._held: dict[str, Held] = {}
        self._alive = False
        self._stopped = False

    async def fill(self, files: str, paths: Sequence[Path], on_progress: Callable[[float], None]) -> int:
        """As PageHolder.fill."""
        await self.drop(files)
        size_bytes = _size_bytes(paths)
        if self._stopped or not size_bytes:
            return 0
        self._alive = True
        mine = self._filling[files] = object()
        try:
            for step in range(_STEPS):
                await asyncio.sleep(0)
                if self._filling.get(files) is not mine:
                    return 0
                on_progress((step + 1) / _STEPS)
        finally:
            if self._filling.get(files) is mine:
                del self._filling[files]
        locked_bytes = size_bytes if self._why_not_locked is None else 0
        self._held[files] = Held(files, size_bytes, size_bytes, locked_bytes)
        return size_bytes

    async def drop(self, files: str) -> None:
        """As PageHolder.drop."""
        self._filling.pop(files, None)
        self._held.pop(files, None)

    def report(self) -> HolderReport:
        """As PageHolder.report."""
        why = self._why_not_locked if self._held else None
        return HolderReport(self._alive, self._alive and why is None, why, tuple(self._held.values()))

    async def stop(self) -> None:
        """As PageHolder.stop."""
        self._stopped = True
        self._alive = False
        self._filling.clear()
        self._held.clear()

    def lose(self, files: str) -> None:
        """Let the pages of a set leave memory."""
        if self._held.pop(files, None) is not None:
            self._on_lost(files)

    def die(self) -> None:
        """End as a process does that is killed."""
        self._alive = False
        self._filling.clear()
        for files in list(self._held):
            self.lose(files)


def _size_bytes(paths: Sequence[Path]) -> int:
    try:
        return sum(path.stat().st_size for path in paths) if all(path.is_file() for path in paths) else 0
    except OSError:
        return 0
