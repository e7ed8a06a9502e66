"""Renders a chat template in a small process of its own, bounded in time and memory; never lets it hold the worker up.

A stranger's template is a program. It runs apart because nothing inside a process stops it: Python's interrupts do not
reach a comparison or a `repr` of nested lists, which can run for ever and allocate without end in a single operation.
The process starts beside the load, costs about 11 MB and a quarter of a millisecond a request, is killed when it takes
too long, may map only so much memory (on Linux; elsewhere it is watched and killed), and is started anew when needed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from hypnos_engine.domain.errors import EngineFailed, InvalidRequest
from hypnos_engine.ipc import programs
from hypnos_engine.ipc.programs import Program
from hypnos_engine.workers.llama.template_program import (
    Answer,
    longest_text_bytes,
    memory_allowance_bytes,
    read_frame,
    write_frame,
)
from hypnos_engine.workers.memory import anonymous_bytes

RENDER_LIMIT_S = 5.0
START_LIMIT_S = 30.0
"""From the start of the process to its first word; only a machine that thrashes takes longer than a blink."""
LONGEST_SOURCE_BYTES = 1024 * 1024
"""The longest templates in use have a twentieth of that."""
_LOOK_EVERY_S = 0.05

_Popen: TypeAlias = "subprocess.Popen[bytes]"


class TemplateProcess:
    """One model's chat template; used by one thread at a time. `start` may be called before, to have it ready."""

    def __init__(
        self, source: str, *, bos: str, eos: str, limit_s: float = RENDER_LIMIT_S, renderer: "Renderer | None" = None
    ) -> None:
        """`renderer` was started ahead and has rendered nothing."""
        self._setup = msgspec.json.encode({"source": source, "bos": bos, "eos": eos})
        self._limit_s = limit_s
        self._child = renderer

    def start(self) -> None:
        """Start the process unless it runs; does not wait for it. Raises EngineFailed when there is no way to."""
        if len(self._setup) > LONGEST_SOURCE_BYTES:
            raise InvalidRequest(
                f"The model's chat template has {len(self._setup)} bytes, which no template in earnest has: use "
                "another model."
            )
        if self._child is not None and self._child.runs:
            return
        self.close()
        try:
            self._child = Renderer()
        except OSError as error:
            raise EngineFailed(
                f"The process that renders chat templates could not be started ({error.strerror}); try again."
            ) from error

    def render(self, messages: Sequence[Mapping[str, object]], *, thinking: bool) -> str:
        """Return the prompt, ready for the answer to follow.

        Raises InvalidRequest with the template's own words or with the limit that it broke, and EngineFailed.
        """
        conversation = msgspec.json.encode({"messages": messages, "thinking": thinking})
        self.start()
        child = self._child
        assert child is not None
        try:
            if not child.ready:
                child.wait_until_ready(self._setup)
            return self._rendered(child, conversation)
        except BaseException:
            if not child.in_order:
                self.close()
            raise

    def close(self) -> None:
        """End the process. Idempotent; a later `render` starts another one."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _rendered(self, child: "Renderer", conversation: bytes) -> str:
        limit_bytes = memory_allowance_bytes(len(conversation) + len(self._setup))
        with child.bounded(self._limit_s, limit_bytes) as broken:
            answer = child.ask(conversation, longest_text_bytes(len(conversation)) + 1)
        match answer:
            case (Answer.TEXT, text):
                return text
            case (Answer.REFUSED, reason):
                raise InvalidRequest(reason)
        if broken.took_too_long:
            raise InvalidRequest(
                f"The model's chat template needs more than {self._limit_s:g} s for this conversation: shorten it, or "
                "use another model."
            )
        if answer is not None or broken.took_too_much:
            raise InvalidRequest(
                f"The model's chat template needs more than {limit_bytes // 2**20} MiB of memory for this "
                "conversation: shorten it, or use another model."
            )
        raise InvalidRequest(
            f"The model's chat template ended the process that renders it ({child.ending()}): use another model."
        )


class _Broken:
    """Which limit a rendering broke, if any."""

    def __init__(self) -> None:
        self.took_too_long = False
        self.took_too_much = False


class Renderer:
    """The process, and whether it can be asked again."""

    def __init__(self) -> None:
        """Raises OSError when it cannot be started."""
        self._popen: _Popen = subprocess.Popen(
            programs.command(Program.RENDERER, str(os.getpid())), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._writing, self._reading = self._popen.stdin, self._popen.stdout
        self._finalizer = weakref.finalize(self, _end, self._popen)
        self.ready = False
        self.in_order = True
        """False once an answer is missing."""

    @property
    def runs(self) -> bool:
        return self._popen.poll() is None

    def wait_until_ready(self, setup: bytes) -> None:
        """Wait for the first word and pass the template on. Raises EngineFailed."""
        with self.bounded(START_LIMIT_S, sys.maxsize):
            first = self._answer(1)
            self.in_order = first is not None and self._write(setup)
        if not self.in_order:
            raise EngineFailed(
                f"The process that renders chat templates did not start ({self.ending()}); see the log, and try again."
            )
        self.ready = True

    def ask(self, content: bytes, most_bytes: int) -> tuple[Answer, str] | None:
        """One answer; None when the process ended instead, or was ended."""
        answer = self._answer(most_bytes) if self._write(content) else None
        self.in_order = answer is not None and answer[0] is not Answer.OUT_OF_MEMORY
        return answer

    @contextlib.contextmanager
    def bounded(self, limit_s: float, limit_bytes: int) -> Iterator[_Broken]:
        """Kill the process should the block take longer, or the process more."""
        broken, over = _Broken(), threading.Event()
        watch = threading.Thread(target=self._watch, args=(limit_s, limit_bytes, broken, over), daemon=True)
        try:
            watch.start()
        except RuntimeError as error:
            raise EngineFailed(
                f"There is no memory or no thread left to render the chat template ({error}): free memory, try again."
            ) from error
        try:
            yield broken
        finally:
            over.set()
            watch.join()  # afterwards it cannot kill what is asked next

    def ending(self) -> str:
        """How the process ended, for a person; ends it if it has not."""
        self.end()
        status = self._popen.returncode
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"

    def end(self) -> None:
        self._finalizer()

    def _watch(self, limit_s: float, limit_bytes: int, broken: _Broken, over: threading.Event) -> None:
        deadline_s = time.monotonic() + limit_s
        limited = sys.platform == "linux"  # there the process limits itself, and exactly
        idle_bytes = 0 if limited else anonymous_bytes(self._popen.pid)
        while not over.wait(max(0.0, deadline_s - time.monotonic()) if limited else _LOOK_EVERY_S):
            broken.took_too_long = time.monotonic() >= deadline_s
            broken.took_too_much = not limited and anonymous_bytes(self._popen.pid) - idle_bytes > limit_bytes
            if broken.took_too_long or broken.took_too_much:
                self._popen.kill()
                return

    def _write(self, content: bytes) -> bool:
        try:
            write_frame(self._writing, content)
        except OSError:
            return False
        return True

    def _answer(self, most_bytes: int) -> tuple[Answer, str] | None:
        frame = read_frame(self._reading, most_bytes)
        if not frame:
            return None
        with contextlib.suppress(ValueError):  # no such answer, no text: as good as none
            return Answer(frame[0]), frame[1:].decode()
        return None


def renderer_ahead() -> Renderer | None:
    """A renderer that is ready before its template is known; None when there is no way to. Ends with this thread."""
    with contextlib.suppress(OSError):  # the first prompt tries again, and has somebody to tell
        return Renderer()
    return None


def _end(popen: _Popen) -> None:
    popen.kill()
    popen.wait()
    for stream in (popen.stdin, popen.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what nobody read
                stream.close()
