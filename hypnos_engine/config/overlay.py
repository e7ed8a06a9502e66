"""Keeps changes of the pool in `<config name>.models.toml`, beside the configuration (contract §6.4); judges no model.

At any moment, whatever ends the program, the file is whole: the old one or the new one. Never writes the configuration,
and never takes the place of an overlay that it cannot read.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import filelock

from hypnos_engine.config.documents import LARGEST_BYTES, read_document
from hypnos_engine.config.load import pool_changes
from hypnos_engine.config.paths import usable_folder
from hypnos_engine.config.problems import Problems, shown_path
from hypnos_engine.config.render import render_model, toml_value
from hypnos_engine.config.settings import CONFIG_VERSION
from hypnos_engine.domain.errors import FolderUnusable
from hypnos_engine.domain.model import ModelId, ModelSpec

LOCK_WITHIN_S: Final = 10.0
"""Another program that writes the overlay is done long before."""

_HEAD: Final = """\
# Changes of the pool that were made while Hypnos ran. It writes this file anew with each further change, and applies it
# over the [[models]] blocks of {config} at its next start. Delete it to go back to those.
config_version = {version}
"""


@dataclass(frozen=True, slots=True)
class PoolChanges:
    """What an overlay says: what it takes out of the configuration's pool, and what it puts in."""

    removed: tuple[ModelId, ...] = ()
    models: tuple[ModelSpec, ...] = ()

    def with_model(self, spec: ModelSpec) -> "PoolChanges":
        """As it is after `spec` was put into the pool, in the place of a block of its id."""
        known = [model.id for model in self.models]
        if spec.id in known:
            models = tuple(spec if model.id == spec.id else model for model in self.models)
        else:
            models = (*self.models, spec)
        return PoolChanges(tuple(name for name in self.removed if name != spec.id), models)

    def without_model(self, name: ModelId, *, configured: bool) -> "PoolChanges":
        """As it is after a model was taken out; `configured` says whether the configuration has a block of it."""
        models = tuple(model for model in self.models if model.id != name)
        removed = tuple(one for one in self.removed if one != name)
        return PoolChanges((*removed, name) if configured else removed, models)


class Overlay:
    """The overlay of one configuration. Its methods block; any thread may call them, and other programs may, too."""

    def __init__(self, path: Path, config: Path | None) -> None:
        """`config` is the configuration that it lies over; None when there is none."""
        self.path = path
        self._config = config
        self._lock = threading.Lock()

    def read(self) -> PoolChanges:
        """What it says; no changes when there is no file. Raises FolderUnusable for one that cannot be read."""
        problems = Problems()
        document = read_document(self.path, problems)
        changes = None if document is None else pool_changes(document, problems)
        if problems:
            raise FolderUnusable(problems.error("The overlay", "it is left as it is").message)
        return PoolChanges() if changes is None else PoolChanges(*changes)

    def put(self, spec: ModelSpec) -> None:
        """Keep a model that was added or replaced. Raises FolderUnusable; then the file is as before."""
        with self._alone():
            self._write(self.read().with_model(spec))

    def remove(self, name: ModelId) -> None:
        """Keep that a model was taken out; errors as `put`."""
        with self._alone():
            self._write(self.read().without_model(name, configured=self._is_configured(name)))

    def _is_configured(self, name: ModelId) -> bool:
        """Whether the configuration, as it is now, has a block of the model; yes where that cannot be told."""
        if self._config is None:
            return False
        problems = Problems()
        document = read_document(self._config, problems)
        if document is None:
            return bool(problems)
        blocks = document.values.get("models")
        if not isinstance(blocks, list):
            return False
        return any(isinstance(block, dict) and block.get("id") == name for block in blocks)

    # --- writing ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer at a time, in this program and among all."""
        usable_folder(self.path.parent)
        lock = filelock.FileLock(self._beside("lock"), mode=0o600, timeout=LOCK_WITHIN_S)
        with self._lock:
            try:
                lock.acquire()
            except filelock.Timeout:
                raise FolderUnusable(f"Another program has held {shown_path(self.path)} for too long.") from None
            except (OSError, ValueError, NotImplementedError) as error:
                raise self._unusable(error) from error
            try:
                yield
            finally:
                lock.release()

    def _write(self, changes: PoolChanges) -> None:
        draft = self._beside("draft")  # of this name there is one at most, also after a power cut
        try:
            content = self._text(changes).encode("utf-8")
            if len(content) > LARGEST_BYTES:
                raise FolderUnusable(f"{shown_path(self.path)} would be larger than a configuration may be.")
            target = self.path.resolve() if self.path.is_symlink() else self.path
            try:
                _write_durably(draft, content, _mode_of(target))
                self._prove(draft, changes)
                _switch(draft, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)
                raise
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error

    def _text(self, changes: PoolChanges) -> str:
        config = self._config.name if self._config is not None else "the configuration"
        head = _HEAD.format(config=config.encode("ascii", "backslashreplace").decode(), version=CONFIG_VERSION)
        removed = f"removed_models = {toml_value(changes.removed)}\n" if changes.removed else ""
        return "\n".join([head + removed, *map(render_model, changes.models)])

    def _prove(self, draft: Path, changes: PoolChanges) -> None:
        """A file that would not read back as what it is to say must not come under its name."""
        if Overlay(draft, None).read() != changes:
            raise FolderUnusable(f"The change cannot be written to {shown_path(self.path)} as it is.")

    def _beside(self, what: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{what}")

    def _unusable(self, error: Exception) -> FolderUnusable:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return FolderUnusable(f"{shown_path(self.path)} cannot be written ({reason}). Let this user write its folder.")


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return 0o600


def _write_durably(path: Path, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(mode)


def _switch(draft: Path, target: Path) -> None:
    """Give the draft its name in one step, and make that last."""
    if draft.parent.resolve() != target.parent.resolve():  # the overlay is a link to another folder
        beside = target.with_name(draft.name)
        _write_durably(beside, draft.read_bytes(), _mode_of(draft))
        draft.unlink(missing_ok=True)
        draft = beside
    draft.replace(target)
    if os.name == "posix":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
