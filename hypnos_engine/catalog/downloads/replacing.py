"""Keeps everybody away from files while a child puts new ones in their place; changes no file itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from hypnos_engine.catalog.downloads.processes import Child
from hypnos_engine.domain.errors import HypnosError

WITHIN_S: Final = 30.0
"""How long a model whose files are replaced may go on with what it does."""

Release = Callable[[Sequence[Path], float], AbstractAsyncContextManager[object]]
"""Within the block nobody has the files open. Raises HypnosError when that takes longer than so many seconds."""


@asynccontextmanager
async def nobody_has_them(_files: Sequence[Path], _within_s: float) -> AsyncIterator[None]:
    """A `Release` where no engine runs."""
    yield


class Replacements:
    """The replacements of one run of one child. `close` it once the child has ended."""

    def __init__(self, child: Child, root: Path, release: Release) -> None:
        self._child, self._root, self._release = child, root, release
        self._tasks: list[asyncio.Task[None]] = []
        self._replaced = asyncio.Event()
        self._granted = False
        self.in_use: str | None = None
        """Why files could not be replaced; then the child was stopped."""

    def begin(self, paths: Sequence[str]) -> None:
        """The child waits to replace these paths below the models folder."""
        self._replaced, self._granted = asyncio.Event(), False
        self._tasks.append(asyncio.get_running_loop().create_task(self._let(paths, self._replaced)))

    def ended(self) -> None:
        """The files have their names."""
        self._replaced.set()

    async def close(self) -> None:
        """Give back what is still kept free."""
        self._replaced.set()
        if self._tasks and not self._granted:
            self._tasks[-1].cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _let(self, paths: Sequence[str], replaced: asyncio.Event) -> None:
        try:
            async with self._release([self._root / path for path in paths], WITHIN_S):
                self._granted = True
                self._child.grant()
                await replaced.wait()
        except HypnosError as error:
            self.in_use = error.message
            self._child.stop()
