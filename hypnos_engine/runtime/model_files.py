"""What is known of the files of every model, looked at anew now and then; decides how often, and opens headers only."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.runtime.inspection import Inspection, Tested, inspect_files
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.state import State

REINSPECT_S = 1.0
"""A model that is not loaded is looked at again on request, at most this often: its file may have been replaced."""

_Files = tuple[ModelId, str, str | None]
"""Whose files, and which: a model may get others while it runs."""


class ModelFiles:
    """Used on one loop; looks at files off it."""

    def __init__(
        self,
        roots: Sequence[Path],
        state: State,
        *,
        clock: Callable[[], float],
        post: Callable[[ev.Event], None],
        on_replaced: Callable[[str], None],
        tested: Tested = lambda: None,
    ) -> None:
        """`on_replaced` is told a weights path under which other files lie than before."""
        self._roots = tuple(roots)
        self._state = state
        self._clock = clock
        self._post = post
        self._on_replaced = on_replaced
        self._tested = tested
        self._known: dict[_Files, Inspection] = {}
        self._seen_at: dict[_Files, float] = {}

    def get(self, model: ModelId) -> Inspection | None:
        """What is known of a model's files as it is configured now; None before they were looked at."""
        state = self._state.models.get(model)
        return None if state is None else self._known.get(_key(state.spec))

    async def look(self, spec: ModelSpec) -> Inspection:
        """Look at a model's files, unless that was done a moment ago; the scheduler is told what is new."""
        known = self._known.get(_key(spec))
        if known is None or self._clock() - self._seen_at.get(_key(spec), float("-inf")) >= REINSPECT_S:
            return await self._inspect(spec)
        return known

    def look_again(self) -> None:
        """Look at every model anew when it is asked for, however short ago it was looked at."""
        self._seen_at.clear()

    def forget(self, model: ModelId) -> None:
        """The model is no more."""
        for key in [key for key in self._known if key[0] == model]:
            del self._known[key]
            self._seen_at.pop(key, None)

    async def _inspect(self, spec: ModelSpec) -> Inspection:
        key = _key(spec)
        self._seen_at[key] = self._clock()
        known = self._known.get(key)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, inspect_files, spec, self._roots, known, self._tested)
        if found is known:
            return found
        self._known[key] = found
        if known is not None and known.files and (known.files, known.identity) != (found.files, found.identity):
            self._on_replaced(spec.weights_path)
        state = self._state.models.get(spec.id)
        if state is not None and _key(state.spec) == key:
            self._post(ev.ModelInspected(spec.id, found.shape, found.problem))
        return found


def _key(spec: ModelSpec) -> _Files:
    return spec.id, spec.weights_path, spec.aux_path
