"""Copies conversations between the cache and a block that outlives the worker; takes back only what is its own.

Must never give the model a state that another model, build or setting computed, nor one key's conversation to another.
"""

import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block, BlockError, BlockReceiver
from hypnos_engine.workers.llama.checkpoints import Checkpoint
from hypnos_engine.workers.llama.context import Context, State
from hypnos_engine.workers.llama.parking_block import (
    LISTED_BYTES,
    LISTED_CHECKPOINT_BYTES,
    TOKEN_BYTES,
    Contents,
    Conversation,
    NotUsable,
    ParkedCheckpoint,
    Stretch,
    Writer,
    intact,
    read_contents,
)
from hypnos_engine.workers.llama.parking_identity import Files, Identity, identify
from hypnos_engine.workers.llama.slots import Slot, SlotTable


class Parking:
    """Parks and restores for one worker; on the thread that owns the context."""

    def __init__(self, files: Files, handles_fd: int | None) -> None:
        """`files` were looked at before the load; `handles_fd` is the descriptor of the block socket (POSIX)."""
        self._files = files
        self._identity: Identity | None = None
        """Found out when it is first asked for, at the cost of a millisecond or so."""
        self._blocks = _receiver(handles_fd)

    def park(self, request: m.ParkKv, table: SlotTable) -> m.Parked:
        """Copy the conversations of idle slots; never raises, and changes nothing here."""
        started_s = time.monotonic()
        contents, used_bytes, problem = None, 0, ""
        try:
            with self._block(request) as block:
                contents, used_bytes, problem = self._copy_out(block, table)
        except (NotUsable, BlockError) as error:
            problem = str(error)
        except Exception as error:
            problem = _unforeseen(error)
        kept = contents.conversations if contents is not None else ()
        tokens = sum(len(one.tokens) // TOKEN_BYTES for one in kept)
        ms = (time.monotonic() - started_s) * 1e3
        return m.Parked(request.block, len(kept), tokens, used_bytes, table.context.cells, ms, problem)

    def restore(self, request: m.RestoreKv, table: SlotTable) -> m.Restored:
        """Take the conversations of a block back into empty slots; never raises."""
        started_s = time.monotonic()
        slots = tokens = 0
        problem = ""
        try:
            with self._block(request) as block:
                slots, tokens, problem = self._copy_in(block, table)
        except (NotUsable, BlockError) as error:
            problem = str(error)
        except Exception as error:
            problem = _unforeseen(error)
        return m.Restored(request.block, slots, tokens, (time.monotonic() - started_s) * 1e3, problem)

    # --- out --------------------------------------------------------------------------------------------------------

    def _copy_out(self, block: Block, table: SlotTable) -> tuple[Contents | None, int, str]:
        """Returns what was copied, the bytes of the block that this takes, and what was left out for which reason."""
        identity = self._identity_now(table.context)
        used = table.used()
        with block.view as view:
            writer = Writer(view, LISTED_BYTES + len(msgspec.msgpack.encode(identity)))
            parked = _fit(writer, used, table)
            if not parked:
                return None, 0, "there is no room for any of its conversations" if used else ""
            alone = len(used) == 1 and table.home is used[0]
            contents = Contents(identity, used[0].number if alone else None, tuple(parked))
            used_bytes = writer.finish(contents)
        left_out = len(used) - len(parked)
        return contents, used_bytes, f"there is no room for {left_out} of its conversations" if left_out else ""

    def _identity_now(self, context: Context) -> Identity:
        """What the states of this context depend on. Raises NotUsable when the files changed under the model."""
        if self._identity is None:
            self._identity = identify(self._files, context)
        if self._identity is None or not self._files.unchanged:
            raise NotUsable("the model's file has changed since it was loaded")
        return msgspec.structs.replace(self._identity, cells=context.cells)

    # --- in ---------------------------------------------------------------------------------------------------------

    def _copy_in(self, block: Block, table: SlotTable) -> tuple[int, int, str]:
        """Returns slots, tokens, and what was dropped for which reason."""
        identity = self._identity_now(table.context)
        slots = tokens = 0
        problem = ""
        with block.view as view:
            contents = read_contents(view)
            difference = contents.identity.difference(identity)
            if difference:
                raise NotUsable(difference)
            for conversation in contents.conversations:
                try:
                    tokens += _settle(view, conversation, table)
                    slots += 1
                except NotUsable as error:
                    problem = str(error)
        _return_home(contents, table)
        return slots, tokens, problem

    def _block(self, request: m.ParkKv | m.RestoreKv) -> Block:
        if self._blocks is None:
            raise NotUsable("the worker was started without a way to take blocks")
        return self._blocks.take(request.block, request.size_bytes)


def _unforeseen(error: Exception) -> str:
    traceback.print_exc()
    return f"something went wrong ({type(error).__name__})"


def _receiver(handles_fd: int | None) -> BlockReceiver | None:
    if sys.platform == "win32":
        return BlockReceiver()
    return None if handles_fd is None else BlockReceiver(socket.socket(fileno=handles_fd))


# --- writing --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """A conversation whose state is in the block, while its checkpoints are still being added."""

    slot: Slot
    state: Stretch
    checkpoints: list[ParkedCheckpoint]


def _fit(writer: Writer, used: list[Slot], table: SlotTable) -> list[Conversation]:
    """Write as many conversations as there is room for, most valuable first.

    Each with its longest checkpoint, from which the next turn goes on; the others take the room that is left.
    """
    drafts: list[_Draft] = []
    for slot in used:
        listed = LISTED_BYTES + len(slot.scope.encode()) + TOKEN_BYTES * len(slot.cached)
        state = writer.put(_state_bytes(slot, table.context), listed, _saver(slot, table.context))
        if state is not None:
            drafts.append(_Draft(slot, state, []))
            _add(writer, drafts[-1], table.shelf.of(slot.number)[-1:])
    for draft in drafts:
        _add(writer, draft, table.shelf.of(draft.slot.number)[-2::-1])
    return [
        Conversation(
            slot=draft.slot.number,
            scope=draft.slot.scope,
            tokens=np.array(draft.slot.cached, "<i4").tobytes(),
            canonical=draft.slot.canonical,
            warmth=table.warmth(draft.slot),
            state=draft.state,
            checkpoints=tuple(draft.checkpoints),
        )
        for draft in drafts
    ]


def _add(writer: Writer, draft: _Draft, checkpoints: Sequence[Checkpoint]) -> None:
    for checkpoint in checkpoints:
        state = writer.put(checkpoint.state.nbytes, LISTED_CHECKPOINT_BYTES, _copier(checkpoint.state))
        if state is not None:
            draft.checkpoints.append(ParkedCheckpoint(checkpoint.length, state))


def _state_bytes(slot: Slot, context: Context) -> int:
    return context.state_bytes(slot.number) if slot.parked is None else slot.parked.nbytes


def _saver(slot: Slot, context: Context) -> Callable[[State], bool]:
    """Writes a slot's state straight from the cache, or from where it was set aside."""
    if slot.parked is not None:
        return _copier(slot.parked)
    return lambda room: context.save_into(slot.number, room)


def _copier(state: State) -> Callable[[State], bool]:
    def copy(room: State) -> bool:
        room[:] = state
        return True

    return copy


# --- reading --------------------------------------------------------------------------------------------------------


def _settle(view: memoryview, conversation: Conversation, table: SlotTable) -> int:
    """Take one conversation back; returns its tokens. Raises NotUsable when it is damaged or has no place."""
    if not 0 <= conversation.slot < len(table.slots):
        raise NotUsable("the block is damaged")
    slot, cached = table.slots[conversation.slot], conversation.cached
    state = intact(view, conversation.state)
    checkpoints = [Checkpoint(one.length, intact(view, one.state).copy()) for one in conversation.checkpoints]
    if slot.job is None and not slot.cached:
        slot.scope, slot.warmth = conversation.scope, conversation.warmth
    if not table.settle(slot, cached, state, checkpoints):
        raise NotUsable("the cache does not take a conversation back")
    slot.canonical = conversation.canonical
    return len(cached)


def _return_home(contents: Contents, table: SlotTable) -> None:
    """A conversation that had the cache for itself has it again; what is left of a window has closed up."""
    held = [slot for slot in table.slots if slot.cells]
    if len(held) == 1 and held[0].number == contents.home and not table.context.model.window:
        table.home = held[0]
