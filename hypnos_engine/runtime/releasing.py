"""Frees files of models for whoever changes them on disk: workers and held pages go first, requests wait meanwhile.

Decides nothing about who may change a file, and changes none. Without it a system that
forbids the replacement of mapped files (Windows) would refuse, and elsewhere a worker would go on with bytes that are
gone.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hypnos_engine.catalog.roots import Located, locate
from hypnos_engine.domain.errors import Cancelled, ModelBusy
from hypnos_engine.domain.kinds import Pages, Residency
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.runtime.dispatcher import Dispatcher
from hypnos_engine.runtime.model_files import ModelFiles
from hypnos_engine.scheduler import events as ev


class Releasing:
    """Used on the dispatcher's loop. Several may hold the same files at once; the last one gives them back."""

    def __init__(self, dispatcher: Dispatcher, files: ModelFiles, roots: Sequence[Path]) -> None:
        self._dispatcher = dispatcher
        self._files = files
        self._roots = tuple(roots)
        self._taken: Counter[str] = Counter()

    @asynccontextmanager
    async def release(self, files: Sequence[Path], within_s: float) -> AsyncGenerator[tuple[ModelId, ...], None]:
        """Within the block no worker and no held page has any of `files` open; see `LocalRuntime.release`."""
        sets = await self._file_sets(tuple(files))
        self._take(sets)
        try:
            gone = await self._dispatcher.until(
                lambda: self._dispatcher.stopping or self._are_closed(sets), within_s=within_s
            )
            if self._dispatcher.stopping:
                raise Cancelled("Hypnos is shutting down.")
            if not gone:
                raise ModelBusy(
                    f"Models with these files were in use for more than {within_s:.0f} s: nothing is changed."
                )
            yield tuple(spec.id for spec in self._users(sets))
            self._files.look_again()
            await asyncio.gather(*(self._files.look(spec) for spec in self._users(sets)))
        finally:
            self._files.look_again()  # also where the block failed: something may have been changed before
            self._give_back(sets)

    async def _file_sets(self, files: tuple[Path, ...]) -> frozenset[str]:
        """The file sets that any of these files belongs to, also those of models whose files are not there yet."""
        specs = [state.spec for state in self._dispatcher.scheduler.state.models.values()]
        known = {spec.id: found.files for spec in specs if (found := self._files.get(spec.id)) is not None}
        loop = asyncio.get_running_loop()
        used = await loop.run_in_executor(None, _used_by, specs, known, self._roots, files)
        return frozenset(spec.weights_path for spec in used)

    def _take(self, sets: frozenset[str]) -> None:
        self._taken.update(sets)
        self._dispatcher.post(ev.FilesTaken(sets))

    def _give_back(self, sets: frozenset[str]) -> None:
        self._taken.subtract(sets)
        free = frozenset(name for name in sets if self._taken[name] <= 0)
        self._taken = +self._taken
        self._dispatcher.post(self._dispatcher.sample(), ev.FilesReturned(free))

    def _users(self, sets: frozenset[str]) -> list[ModelSpec]:
        states = self._dispatcher.scheduler.state.models.values()
        return [state.spec for state in states if state.files in sets]

    def _are_closed(self, sets: frozenset[str]) -> bool:
        state = self._dispatcher.scheduler.state
        workers = any(m.residency is not Residency.COLD for m in state.models.values() if m.files in sets)
        held = any(files.pages is not Pages.ABSENT for path, files in state.files.items() if path in sets)
        return not workers and not held


def _used_by(
    specs: Sequence[ModelSpec],
    known: dict[ModelId, tuple[Path, ...]],
    roots: Sequence[Path],
    files: Sequence[Path],
) -> list[ModelSpec]:
    """The models that any of the files, or anything below one of them, belongs to."""
    wanted = {_real(file) for file in files}
    return [s for s in specs if _paths(s, known.get(s.id, ()), roots) & wanted or _holds(s, roots, wanted)]


def _paths(spec: ModelSpec, seen: Sequence[Path], roots: Sequence[Path]) -> set[str]:
    named = [path for path in configured_paths(spec).values() if path]
    found = [place for path in named if isinstance(place := locate(path, roots), Located)]
    nowhere = [root / path for path in named for root in roots]
    return {_real(path) for path in (*seen, *(place.path for place in found), *nowhere)}


def _holds(spec: ModelSpec, roots: Sequence[Path], wanted: set[str]) -> bool:
    """Whether one of the files lies in a folder of the model, or a wanted folder holds one of the model's files."""
    for path in filter(None, configured_paths(spec).values()):
        place = locate(path, roots)
        if isinstance(place, Located):
            real = Path(_real(place.path))
            if any(Path(one).is_relative_to(real) or real.is_relative_to(one) for one in wanted):
                return True
    return False


def _real(path: Path) -> str:
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        return os.path.normcase(path.resolve())
    return os.path.normcase(path.absolute())


def configured_paths(spec: ModelSpec) -> dict[str, str]:
    """The paths that a block names, by the name of the setting."""
    paths = {
        "weights_path": spec.weights_path,
        "aux_path": spec.aux_path,
        "text_encoder_path": spec.text_encoder_path,
        "tokenizer_path": spec.tokenizer_path,
        "voices_path": spec.voices_path,
    }
    return {name: path for name, path in paths.items() if path}
