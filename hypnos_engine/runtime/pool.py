"""Changes the pool of models while the program runs: checks what comes in, makes the change, keeps it (contract §6.4).

Decides what is accepted and in which order changes of one model happen; when a model may go is the scheduler's word. A
caller that leaves does not undo a change, and a change that could not be made leaves everything as it was.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hypnos_engine.catalog.blocks import model_of
from hypnos_engine.catalog.choosing import choose
from hypnos_engine.catalog.entries import Entry, Variant
from hypnos_engine.catalog.files import Architectures, look_at_variant
from hypnos_engine.catalog.roots import Located, Missing, locate
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.config.overlay import Overlay
from hypnos_engine.config.problems import shown_text
from hypnos_engine.config.render import parse_model
from hypnos_engine.domain.errors import ConfigurationInvalid, HypnosError, InvalidRequest, ModelBusy, ModelNotFound
from hypnos_engine.domain.kinds import EngineKind, Priority
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.runtime.inspection import inspect_files
from hypnos_engine.runtime.releasing import configured_paths
from hypnos_engine.runtime.snapshot import ModelView

log = logging.getLogger("hypnos")

DRAIN_S = 120.0
"""How long a change waits for running requests unless it says something else (contract §6.4)."""
_SHIPPED_WITHOUT_FILES = frozenset({EngineKind.FAKE})
T = TypeVar("T")


class Action(StrEnum):
    ADDED = "added"
    REPLACED = "replaced"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class FromCatalog:
    """A catalog entry's variant, as `<id>` or `<id>:<quant>`."""

    spec: str


@dataclass(frozen=True, slots=True)
class FromBlock:
    """One `[[models]]` block in the configuration's TOML."""

    text: str


Source = FromCatalog | FromBlock


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the pool that was made."""

    model: ModelId
    action: Action
    persisted: bool
    """False when it holds until the next start only."""
    view: ModelView | None
    """The model as it is now; None when it was removed."""


class Members(Protocol):
    """The models in service, as they can be changed. Implemented by `LocalRuntime`."""

    def model(self, model: ModelId) -> ModelView | None:
        """Its present state; None for an unknown id."""
        ...

    def pins_problem(self, spec: ModelSpec, shape: ModelShape | None) -> HypnosError | None:
        """Why the pinned models would not fit together with this one."""
        ...

    async def add(self, spec: ModelSpec) -> ModelView:
        """Take a new model into service, cold. Raises InvalidRequest when there is one of its name."""
        ...

    async def replace(self, spec: ModelSpec, within_s: float) -> ModelView:
        """Raises ModelNotFound, and ModelBusy when running requests have not ended in time: then all stays."""
        ...

    async def remove(self, model: ModelId, within_s: float) -> None:
        """Errors as `replace`."""
        ...


@dataclass(slots=True)
class _Line:
    """Those who change one model, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


@dataclass(frozen=True, slots=True)
class _Checked:
    """What was asked for, as far as it can be told without the pool."""

    spec: ModelSpec
    shape: ModelShape | None
    reasons: tuple[str, ...]
    """Why it cannot be taken; empty when it can."""


class Pool:
    """Used on the loop of its members. `close` gives up what is under way."""

    def __init__(self, members: Members, roots: Sequence[Path], shelf: Shelf, overlay: Overlay | None) -> None:
        """`roots` are the models folders. Without an overlay nothing outlasts the program."""
        self._members = members
        self._roots = tuple(roots)
        self._shelf = shelf
        self._overlay = overlay
        self._lines: dict[ModelId, _Line] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def add(self, source: Source) -> Change:
        """Take a model into service, cold; its first request loads it.

        Raises InvalidRequest with every reason why it is not taken.
        """
        return await self._own(self._add(source))

    async def replace(self, model: ModelId, source: Source, drain_s: float = DRAIN_S) -> Change:
        """Put another model in the place of one, which keeps its id.

        Raises ModelNotFound, InvalidRequest with every reason why it is not taken, and ModelBusy when running requests
        have not ended within `drain_s` seconds: then the old model goes on.
        """
        return await self._own(self._replace(model, source, drain_s))

    async def remove(self, model: ModelId, drain_s: float = DRAIN_S) -> Change:
        """Take a model out of the pool. Raises ModelNotFound, and ModelBusy as `replace`."""
        return await self._own(self._remove(model, drain_s))

    async def close(self) -> None:
        """Give up changes that are waiting, and let those be written that were made. Idempotent."""
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- changes ----------------------------------------------------------------------------------------------------

    async def _add(self, source: Source) -> Change:
        checked = await self._off_loop(self._check, source, None)
        name = checked.spec.id
        async with self._in_line(name, DRAIN_S):
            taken = [] if self._members.model(name) is None else [f"There is a model {shown_text(name)} already."]
            self._refuse((*taken, *checked.reasons, *self._pins(checked)))
            view = await self._members.add(checked.spec)
            return Change(name, Action.ADDED, await self._keep(lambda to: to.put(checked.spec), name), view)

    async def _replace(self, model: ModelId, source: Source, drain_s: float) -> Change:
        self._known(model)
        checked = await self._off_loop(self._check, source, model)
        async with self._in_line(model, drain_s) as left_s:
            self._known(model)
            self._refuse((*checked.reasons, *self._pins(checked)))
            view = await self._members.replace(checked.spec, left_s)
            return Change(model, Action.REPLACED, await self._keep(lambda to: to.put(checked.spec), model), view)

    async def _remove(self, model: ModelId, drain_s: float) -> Change:
        self._known(model)
        async with self._in_line(model, drain_s) as left_s:
            self._known(model)
            await self._members.remove(model, left_s)
            return Change(model, Action.REMOVED, await self._keep(lambda to: to.remove(model), model), None)

    def _known(self, model: ModelId) -> None:
        if self._members.model(model) is None:
            raise ModelNotFound(f"There is no model {shown_text(model)}. GET /v1/models lists the models in service.")

    def _pins(self, checked: _Checked) -> tuple[str, ...]:
        if checked.reasons or checked.spec.priority is not Priority.REALTIME_PINNED or not checked.spec.enabled:
            return ()
        problem = self._members.pins_problem(checked.spec, checked.shape)
        return () if problem is None else (problem.message,)

    @staticmethod
    def _refuse(reasons: Sequence[str]) -> None:
        """Raise InvalidRequest with all reasons, if there are any."""
        if len(reasons) == 1:
            raise InvalidRequest(f"The model is not taken into the pool. {reasons[0]}")
        if reasons:
            listed = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(reasons, 1))
            raise InvalidRequest(f"The model is not taken into the pool for {len(reasons)} reasons:\n{listed}")

    @asynccontextmanager
    async def _in_line(self, model: ModelId, within_s: float) -> AsyncGenerator[float, None]:
        """Wait for those who change the same model; gives the seconds that are left. Raises ModelBusy."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        line = self._lines.setdefault(model, _Line())
        line.length += 1
        try:
            try:
                async with asyncio.timeout_at(until if line.lock.locked() else None):
                    await line.lock.acquire()
            except TimeoutError:
                raise ModelBusy(f"The model {shown_text(model)} is being changed by somebody else.") from None
            try:
                yield max(0.0, until - loop.time())
            finally:
                line.lock.release()
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[model]

    async def _keep(self, write: Callable[[Overlay], None], model: ModelId) -> bool:
        """Write a change that was made into the overlay; whether that worked."""
        overlay = self._overlay
        if overlay is None:
            return False
        writing = asyncio.ensure_future(self._off_loop(write, overlay))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})  # the change was made: what says so is written to its end
            raise
        except HypnosError as error:
            log.warning("the change of %s holds until the next start only: %s", model, error)
            return False
        except Exception:
            log.exception("the change of %s holds until the next start only", model)
            return False
        return True

    # --- checks -----------------------------------------------------------------------------------------------------

    def _check(self, source: Source, named: ModelId | None) -> _Checked:
        """Everything that the start would check of the model. Blocks. Raises InvalidRequest for what names none."""
        if isinstance(source, FromBlock):
            spec = self._from_block(source.text, named)
            missing: tuple[str, ...] = ()
        else:
            spec, missing = self._from_catalog(source.spec)
            spec = spec if named is None else replace(spec, id=named)
        if spec.engine in _SHIPPED_WITHOUT_FILES:
            return _Checked(spec, None, missing)
        reasons = missing or tuple(filter(None, map(self._absent, *zip(*configured_paths(spec).items(), strict=True))))
        if reasons:
            return _Checked(spec, None, reasons)
        found = inspect_files(spec, self._roots, tested=self._shelf.tested_architectures)
        return _Checked(spec, found.shape, () if found.problem is None else (found.problem.message,))

    @staticmethod
    def _from_block(text: str, named: ModelId | None) -> ModelSpec:
        try:
            return parse_model(text, "config", named)
        except ConfigurationInvalid as error:
            raise InvalidRequest(error.message) from None

    def _from_catalog(self, wanted: str) -> tuple[ModelSpec, tuple[str, ...]]:
        """The model of a catalog spec, and which of its files are not there. Raises InvalidRequest."""
        try:
            entry, variant = choose(self._shelf.catalog(), wanted)
        except InvalidRequest:
            raise
        except HypnosError as error:  # there is no catalog
            raise InvalidRequest(error.message) from None
        return model_of(entry, variant, self._shelf.platform), tuple(self._missing_of(entry, variant))

    def _missing_of(self, entry: Entry, variant: Variant) -> list[str]:
        name, platform = f"{entry.id}:{variant.quant}", self._shelf.platform
        if not variant.files_for(platform):
            return [f"{name} does not run on this kind of computer ({platform.value})."]
        state = look_at_variant(entry, variant, self._roots, platform, Architectures())
        absent = [one.file.local for one in state.files if not one.present]
        reasons = [
            f"{shown_text(path)} is not in the models folder. `./run.sh models {name}` fetches it." for path in absent
        ]
        return reasons + ([state.problem] if state.problem else [])

    def _absent(self, setting: str, path: str) -> str | None:
        """Why a file that a block names is not one inside a models folder; None when it is."""
        found = locate(path, self._roots)
        if isinstance(found, Missing):
            return f"{setting}: {found.message}"
        if found.root is None and not self._is_inside(found):
            return f"{setting}: {shown_text(path)} is not inside a models folder. Move the file there."
        return None

    def _is_inside(self, found: Located) -> bool:
        return any(found.path.is_relative_to(root.absolute()) for root in self._roots)

    # --- running ----------------------------------------------------------------------------------------------------

    async def _own(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, whoever leaves meanwhile."""
        task = asyncio.get_running_loop().create_task(work, name="change of the pool")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if self._closed:
            task.cancel()
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also when its caller has left

    @staticmethod
    async def _off_loop(work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work, *given)
