"""The program of the process that renders one model's chat template; `template_process` starts it.

Must never hold more memory than it was given (the operating system refuses the rest, where it can), nor outlive its
input.

Both ways a frame is a little-endian unsigned 32-bit length and that many bytes. In come JSON objects, the template
first, then conversations. Out go one Answer each, as a byte and a text in UTF-8; before the first conversation a READY.
"""

import enum
import json
import os
import struct
import sys
from pathlib import Path
from typing import IO

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.workers import process

FRAME_LENGTH = struct.Struct("<I")


class Answer(enum.IntEnum):
    """First byte of a frame that goes out."""

    READY = 0
    TEXT = 1
    REFUSED = 2
    """The text says why, in words for the client."""
    OUT_OF_MEMORY = 3
    """The process ends after it: what a failed allocation leaves behind is not to be trusted."""


def read_frame(stream: IO[bytes], most_bytes: int = 2**32 - 1) -> bytes | None:
    """The next frame; None at the end of the stream, also in the middle of a frame, and for one above `most_bytes`."""
    head = stream.read(FRAME_LENGTH.size)
    if len(head) < FRAME_LENGTH.size:
        return None
    (size,) = FRAME_LENGTH.unpack(head)
    if size > most_bytes:
        return None
    content = stream.read(size)
    return content if len(content) == size else None


def write_frame(stream: IO[bytes], *parts: bytes) -> None:
    """Write one frame made of `parts`. Raises OSError when nobody reads any more."""
    stream.write(FRAME_LENGTH.pack(sum(map(len, parts))))
    stream.writelines(parts)
    stream.flush()


def memory_allowance_bytes(conversation_bytes: int) -> int:
    """Bytes that rendering may take on top of the idle process; what a conversation itself needs grows with it."""
    return 64 * 1024 * 1024 + 16 * conversation_bytes


def longest_text_bytes(conversation_bytes: int) -> int:
    """The longest prompt that is believed; what a template adds of its own is a few pages."""
    return 1024 * 1024 + 4 * conversation_bytes


def main(arguments: list[str]) -> int:
    """Render until the input ends; return the exit status. The argument is the process that must not be outlived."""
    process.leave_no_core()
    process.leave_interrupts_to_parent()
    process.end_with_parent(int(arguments[0]))
    # Here and not above: the worker shares this module's frames, and a load is not to wait for Jinja's import.
    from hypnos_engine.workers.llama.template import ChatTemplate

    reading, writing = sys.stdin.buffer, sys.stdout.buffer
    idle_bytes = _mapped_bytes()
    _answer(writing, Answer.READY)
    setup = read_frame(reading)
    if setup is None:
        return 0
    template = ChatTemplate(**json.loads(setup))
    while (conversation := read_frame(reading)) is not None:
        _limit_memory(idle_bytes + memory_allowance_bytes(len(conversation) + len(setup)))
        try:
            text = template.render(**json.loads(conversation)).encode()
            if len(text) > longest_text_bytes(len(conversation)):
                raise InvalidRequest(
                    f"The model's chat template made a prompt of {len(text)} bytes of this conversation, out of all "
                    "proportion: use another model."
                )
        except InvalidRequest as error:
            _answer(writing, Answer.REFUSED, error.message.encode(errors="replace"))
        except UnicodeError as error:
            _answer(writing, Answer.REFUSED, f"The model's chat template makes what is no text ({error}).".encode())
        except MemoryError:
            _answer(writing, Answer.OUT_OF_MEMORY)
            return 0
        else:
            _answer(writing, Answer.TEXT, text)
    return 0


def _answer(stream: IO[bytes], answer: Answer, text: bytes = b"") -> None:
    write_frame(stream, bytes((answer,)), text)


def _mapped_bytes() -> int:
    """Address space in use; 0 where it is not limited."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _limit_memory(mapped_bytes: int) -> None:
    """Let the process map no more. Linux alone keeps this limit; elsewhere the other side looks on."""
    if sys.platform != "linux":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped_bytes if most == resource.RLIM_INFINITY else min(mapped_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
