"""Starts real worker processes and speaks the protocol with them over a socket or two pipes; for tests."""

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.blocks import Block, BlockSender
from hypnos_engine.ipc.framing import encode, from_worker_decoder

ROOT = Path(__file__).parents[2]
WITHIN_S = 30.0
"""Longest wait for one message; the machine may be shared."""
WORKER = (sys.executable, "-P", "-m", "hypnos_engine.workers")

M = TypeVar("M", bound=m.Message)


def environment() -> dict[str, str]:
    """What the supervisor gives a worker, as far as a test needs it."""
    return {**os.environ, "GOMP_SPINCOUNT": "300", "GGML_NO_BACKTRACE": "1", "PYTHONPATH": str(ROOT)}


def chat(number: int, *texts: str, max_tokens: int = 32, scope: str = "local", **options: object) -> m.Generate:
    """A request; `texts` alternate between user and assistant, the last one is the user's."""
    roles = ("user", "assistant")
    turns = tuple(m.ChatMessage(roles[index % 2], (m.TextPart(text),)) for index, text in enumerate(texts))
    sampling = options.pop("sampling", m.Sampling(temperature=0.0))
    return m.Generate(number, scope, turns, max_tokens, sampling=sampling, **options)  # type: ignore[arg-type]


@dataclass(slots=True)
class Reply:
    """All that a worker sent about one request."""

    accepted: m.Accepted | None = None
    deltas: list[str] = field(default_factory=list)
    finished: m.Finished | None = None
    failed: m.Failed | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def over(self) -> bool:
        return self.finished is not None or self.failed is not None

    @property
    def end(self) -> m.Finished:
        """The orderly end; fails the test when there is none."""
        assert self.failed is None, self.failed
        assert self.finished is not None
        return self.finished


class Worker:
    """A worker process and its channel. `journal` keeps everything that arrived, in order."""

    def __init__(
        self,
        kind: str = "llama",
        *,
        pipes: bool = False,
        argv: Iterable[str] = WORKER,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        blocks: bool = False,
    ) -> None:
        """With `blocks` the worker can be handed some, by `hand_over`."""
        self.journal: list[m.FromWorker] = []
        self._replies: dict[int, Reply] = {}
        self._decoder = from_worker_decoder()
        self._stderr: list[bytes] = []
        self._reading, self._writing, theirs = _pipes() if pipes else _socket()
        ours, handles = socket.socketpair()
        self._blocks = BlockSender(ours)
        passed = ("--handles-fd", str(handles.fileno())) if blocks else ()
        self.process = subprocess.Popen(
            [*argv, "--kind", kind, "--parent", str(os.getpid()), *passed],
            stdin=theirs[0],
            stdout=theirs[-1],
            stderr=subprocess.PIPE,
            env=dict(env or environment()),
            cwd=cwd,
            pass_fds=(handles.fileno(),) if blocks else (),
        )
        handles.close()
        for descriptor in theirs:
            os.close(descriptor)
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self.exit_status()

    def hang_up(self) -> None:
        """Close the channel, as a supervisor does that is gone."""
        for descriptor in {self._reading, self._writing} - {-1}:
            os.close(descriptor)
        self._reading = self._writing = -1
        self._blocks.close()

    def exit_status(self) -> int:
        """Wait until the process has ended; it is killed, and the test fails, when it does not."""
        try:
            return self.process.wait(WITHIN_S)
        finally:
            self.process.kill()
            self.process.wait()
            self._drain.join()
            if self.process.stderr is not None:
                self.process.stderr.close()

    def hand_over(self, block: Block) -> int:
        """Give the process a handle of a block; returns the block's number."""
        return self._blocks.hand_over(block)

    def limit_memory(self, further_bytes: int) -> None:
        """Let the process map only so many more bytes than it has mapped already."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        mapped = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSize:"))
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (mapped + further_bytes, resource.RLIM_INFINITY))

    @property
    def stderr(self) -> str:
        """What the process has written to its stderr so far."""
        return b"".join(self._stderr).decode(errors="replace")

    # --- messages ---------------------------------------------------------------------------------------------------

    def send(self, *messages: m.Message) -> None:
        self.send_bytes(b"".join(encode(message) for message in messages))

    def send_bytes(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._writing, rest) :]

    def until(self, reached: Callable[[], bool]) -> None:
        """Read messages until `reached` is true; fails when the worker ends or falls silent before."""
        while not reached():
            if not self._read():
                raise AssertionError(f"the worker hung up; its stderr:\n{self.stderr}")

    def until_end(self) -> None:
        """Read until the worker hangs up."""
        while self._read():
            pass

    def all_of(self, kind: type[M]) -> list[M]:
        """Messages of one type that have arrived."""
        return [message for message in self.journal if isinstance(message, kind)]

    def next_of(self, kind: type[M], seen: int = 0) -> M:
        """The first message of a type, after `seen` earlier ones."""
        self.until(lambda: len(self.all_of(kind)) > seen)
        return self.all_of(kind)[seen]

    def reply(self, number: int) -> Reply:
        return self._replies.setdefault(number, Reply())

    def load(self, path: str | Path = "", **options: object) -> m.Loaded:
        """Load a model that must load."""
        settings: dict[str, object] = {"context_len": 4096, "slots": 4, "threads": 2, **options}
        self.send(m.Load("tiny", str(path), **settings))  # type: ignore[arg-type]
        self.until(lambda: bool(self.all_of(m.Loaded) or self.all_of(m.LoadFailed)))
        assert not self.all_of(m.LoadFailed), self.all_of(m.LoadFailed)
        return self.all_of(m.Loaded)[0]

    def ask(self, request: m.Generate) -> Reply:
        """Send one request and read until it is over."""
        return self.ask_all(request)[0]

    def ask_all(self, *requests: m.Generate) -> list[Reply]:
        """Send several requests at once and read until all are over; their numbers may be used again."""
        self.start(*requests)
        self.until_over(*(request.id for request in requests))
        return [self.reply(request.id) for request in requests]

    def start(self, *requests: m.Generate) -> None:
        """Send requests; what earlier ones of the same numbers got is forgotten."""
        for request in requests:
            self._replies[request.id] = Reply()
        self.send(*requests)

    def until_over(self, *numbers: int) -> None:
        """Read until the requests have ended, one way or another."""
        self.until(lambda: all(self.reply(number).over for number in numbers))

    def cancel(self, *numbers: int) -> None:
        """Cancel requests and read until they are over."""
        self.send(*(m.Cancel(number) for number in numbers))
        self.until_over(*numbers)

    def _read(self) -> bool:
        try:
            content = os.read(self._reading, 65536)
        except BlockingIOError:
            raise AssertionError(f"the worker said nothing for {WITHIN_S} s; its stderr:\n{self.stderr}") from None
        except ConnectionResetError:
            return False
        for message in self._decoder.feed(content):
            self.journal.append(message)
            self._sort(message)
        return bool(content)

    def _sort(self, message: m.FromWorker) -> None:
        match message:
            case m.Accepted():
                self.reply(message.id).accepted = message
            case m.Step():
                for delta in message.deltas:
                    assert delta.text, "a delta without text"
                    self.reply(delta.id).deltas.append(delta.text)
            case m.Finished():
                self.reply(message.id).finished = message
            case m.Failed():
                self.reply(message.id).failed = message
            case _:
                pass

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            self._stderr.append(chunk)


def _socket() -> tuple[int, int, tuple[int, ...]]:
    """Our reading and writing descriptors, and the worker's."""
    ours, theirs = socket.socketpair()
    seconds = int(WITHIN_S).to_bytes(8, sys.byteorder) + bytes(8)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    descriptor = ours.detach()
    return descriptor, descriptor, (theirs.detach(),)


def _pipes() -> tuple[int, int, tuple[int, ...]]:
    stdin, writing = os.pipe()
    reading, stdout = os.pipe()
    return reading, writing, (stdin, stdout)
