"""One job from its order to its last word: ask, check for room, fetch, verify, publish.

Runs in the child's main thread; others touch `stop`, `grant`, `note`, `tell_if_quiet` and `heartbeats` only.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import filelock
from huggingface_hub.errors import HfHubHTTPError
from msgspec.structs import replace

from hypnos_engine.catalog.downloads import network
from hypnos_engine.catalog.downloads.credentials import find_token, keep_token
from hypnos_engine.catalog.downloads.explaining import NoSpace, Stopped, ending
from hypnos_engine.catalog.downloads.fetching import Damaged, Fetcher, verify
from hypnos_engine.catalog.downloads.hub import Hub
from hypnos_engine.catalog.downloads.network import SourceChanged
from hypnos_engine.catalog.downloads.orders import (
    End,
    Ended,
    Order,
    Piece,
    PieceDone,
    Progress,
    Replaced,
    Replacing,
    Resolved,
    Said,
    Verifying,
)
from hypnos_engine.catalog.downloads.parts import Part
from hypnos_engine.catalog.downloads.places import Staging, free_bytes, is_there

SAY_S: Final = 0.2
QUIET_S: Final = 1.0
ROOM_EVERY_BYTES: Final = 16 * 1024 * 1024
_CHANGES: Final = 2
"""How often a file may change under its name while it is fetched, before the job waits."""


class Work:
    """One run of one job."""

    def __init__(self, order: Order, say: Callable[[Said], None]) -> None:
        self.order = order
        self.heartbeats = 0
        """Grows with everything that comes or is read."""
        self._say = say
        self._stopped = False
        self._root = Path(order.root)
        self._staging = Staging(self._root, order.id)
        self._pieces = list(order.pieces)
        self._there: dict[int, int] = {}
        """Bytes of each piece on the disk."""
        self._fetched = 0
        self._said_at = -SAY_S
        self._room_at = 0
        self._token = order.token
        self._part: Part | None = None
        self._granted = threading.Event()

    def stop(self) -> None:
        """Ask for the end; what has come is kept."""
        self._stopped = True

    def grant(self) -> None:
        """Let the files be replaced that were said to be about to be."""
        self._granted.set()

    def note(self) -> None:
        """Note what has come of the running piece: the process is about to end."""
        if self._part is not None:
            self._part.note()

    def tell_if_quiet(self) -> None:
        """Say how far it is although nothing comes, so that the rate falls."""
        if self._fetched and time.monotonic() - self._said_at >= QUIET_S:
            self._tell()

    def run(self) -> Ended:
        """Do everything that is left of the job. Never raises."""
        try:
            self._staging.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with filelock.FileLock(self._staging.lock, blocking=False):
                self._work()
            self._staging.remove()
        except filelock.Timeout:
            return Ended(End.RETRY, "Another process works on this download.")
        except Exception as error:
            return ending(error, had_token=self._token is not None)
        return Ended(End.DONE)

    def _work(self) -> None:
        self._watch = network.prepare(self.order.network)
        if self._token is None and self._is_gated():
            self._token = find_token()
        if not self._pieces:
            self._pieces = self._ask()
            self._keep_token()
        self._hub = Hub(self.order.network.hub, self._token)
        self._count_what_is_there()
        self._say(Resolved(tuple(self._pieces)))
        self._check_room()
        for index, piece in enumerate(self._pieces):
            if not piece.done:
                self._bring(index)
        for folder in dict.fromkeys(piece.folder for piece in self._pieces if piece.folder is not None):
            self._replace(folder, partial(self._publish_folder, folder))
        self._keep_token()

    def _publish_folder(self, folder: str) -> None:
        self._staging.publish_folder(folder, [piece for piece in self._pieces if piece.folder == folder])

    def _is_gated(self) -> bool:
        return any(file.gated for file in self.order.wanted) or any(piece.gated for piece in self._pieces)

    def _keep_token(self) -> None:
        """A token that the person gave has worked."""
        if self.order.token is not None:
            keep_token(self.order.token)

    # --- asking -----------------------------------------------------------------------------------------------------

    def _ask(self) -> list[Piece]:
        """The pieces of everything wanted; without a token first, then with the one that is kept here."""
        try:
            return self._ask_once()
        except HfHubHTTPError as error:
            if self._token is not None or error.response.status_code not in (401, 403):
                raise
            self._token = find_token()
            if self._token is None:
                raise
            return [replace(piece, gated=True) for piece in self._ask_once()]

    def _ask_once(self) -> list[Piece]:
        hub = Hub(self.order.network.hub, self._token)
        pieces: list[Piece] = []
        for file in self.order.wanted:
            self._go_on()
            pieces += hub.resolve(file)
        return pieces

    def _ask_again(self, piece: Piece) -> Piece:
        """What is there now under the name of a piece that has changed."""
        for file in self.order.wanted:
            if file.repo == piece.repo and (file.remote == piece.remote or file.is_folder or file.is_pattern):
                for found in self._hub.resolve(file):
                    if found.local == piece.local:
                        return found
        raise SourceChanged

    # --- room -------------------------------------------------------------------------------------------------------

    def _count_what_is_there(self) -> None:
        roots = [Path(root) for root in self.order.roots]
        for index, piece in enumerate(self._pieces):
            if piece.done or (not self.order.replace and is_there(piece, roots)):
                self._pieces[index] = replace(piece, done=True)
                self._there[index] = piece.size_bytes or 0
            else:
                waiting = piece.folder is not None and self._staging.verified(piece).exists()
                part = self._staging.verified(piece) if waiting else self._staging.part(index)
                self._there[index] = part.stat().st_size if part.exists() else 0

    def _check_room(self) -> None:
        missing = sum(
            max(0, (piece.size_bytes or 0) - self._there[index])
            for index, piece in enumerate(self._pieces)
            if not piece.done
        )
        free = free_bytes(self._root)
        if missing and free < missing + self.order.floor_bytes + self.order.promised_bytes:
            raise NoSpace(
                f"The download needs {_gb(missing)}, others that run {_gb(self.order.promised_bytes)}, and "
                f"{_gb(self.order.floor_bytes)} are to stay free; the disk of {self._root} has {_gb(free)}. "
                "Make room and resume."
            )

    def _keep_room(self) -> None:
        if self._fetched - self._room_at >= ROOM_EVERY_BYTES or not self._room_at:
            self._room_at = max(1, self._fetched)
            free = free_bytes(self._root)
            if free < self.order.floor_bytes:
                raise NoSpace(
                    f"Only {_gb(free)} are left on the disk of {self._root}. Make room and resume; what has come is "
                    "kept."
                )

    # --- bringing ---------------------------------------------------------------------------------------------------

    def _bring(self, index: int) -> None:
        for _ in range(_CHANGES):
            try:
                self._bring_as_it_is(index)
            except SourceChanged:
                self._pieces[index] = self._ask_again(self._pieces[index])
                self._say(Resolved(tuple(self._pieces)))
            else:
                return
        raise SourceChanged

    def _bring_as_it_is(self, index: int) -> None:
        piece, part_path = self._pieces[index], self._staging.part(index)
        if piece.folder is not None and self._staging.verified(piece).exists():
            self._finish(index, None)
            return
        part = Part.open(
            part_path,
            self._staging.journal(index),
            _source_of(piece),
            piece.size_bytes,
            block_bytes=self.order.block_bytes,
        )
        self._part = part
        try:
            fetcher = Fetcher(self._hub, self._watch, lambda count: self._came(index, part, count))
            self._there[index] = part.offset
            try:
                fetcher.fetch(piece, part)
                self._say(Verifying(index))
                sha256 = verify(piece, part, part_path, fetcher, self._read)
            except Damaged:
                part.reset()
                raise
            finally:
                part.note()
        finally:
            self._part = None
            part.close()
        target = piece.local if piece.folder is None else ""
        self._replace(target, partial(self._staging.publish, index, piece))
        self._finish(index, sha256)

    def _replace(self, target: str, publish: Callable[[], None]) -> None:
        """Give files their names; where others stand in their place, only once nobody has those open."""
        if not target or not (self._root / target).exists():
            publish()
            return
        self._granted.clear()
        self._say(Replacing((target,)))
        while not self._granted.wait(SAY_S):
            self._go_on()
        publish()
        self._say(Replaced())

    def _finish(self, index: int, sha256: str | None) -> None:
        piece = self._pieces[index] = replace(self._pieces[index], done=True)
        self._there[index] = piece.size_bytes or self._there[index]
        self._say(PieceDone(index, sha256))
        self._tell()

    def _came(self, index: int, part: Part, count: int) -> None:
        self._go_on()
        self._fetched += count
        self._there[index] = part.offset
        self._keep_room()
        if time.monotonic() - self._said_at >= SAY_S:
            self._tell()

    def _read(self, _: int) -> None:
        self._go_on()

    def _go_on(self) -> None:
        self.heartbeats += 1
        if self._stopped:
            raise Stopped

    def _tell(self) -> None:
        self._said_at = time.monotonic()
        self._say(Progress(sum(self._there.values()), self._fetched))


def _source_of(piece: Piece) -> str:
    """What exactly the bytes are of: a part of anything else is not continued."""
    digest = piece.sha256 or piece.git_sha1 or piece.etag or ""
    return "\n".join((piece.repo, piece.remote, piece.revision or "", digest))


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
