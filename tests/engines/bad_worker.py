"""A worker program that breaks the rules in the way its first argument names; started by tests only."""

import ctypes
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from hypnos_engine.ipc import messages as m
from hypnos_engine.ipc.framing import encode, to_worker_decoder

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a failing test leaves nothing behind
MODE = sys.argv[1]
MEMORY = m.MemoryReport(0, 0, 0, 0, 0, 0)
PHASES = m.LoadPhases("mmap", 0.0, 0.0, 0.0, 0.0)
TIMING = m.EngineTiming()


def send(*messages: m.Message) -> None:
    write(b"".join(encode(message) for message in messages))


def write(content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(1, rest) :]


def received() -> Iterator[m.Message]:
    decoder = to_worker_decoder()
    while chunk := os.read(0, 65536):
        yield from decoder.feed(chunk)


def say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def hang() -> None:
    """Neither read nor answer, but go when the channel's other end is gone."""
    threading.Event().wait()


def greet() -> None:
    send(m.Hello(m.PROTOCOL_VERSION, "fake", os.getpid()))


def load(reading: Iterator[m.Message]) -> m.Load:
    greet()
    request = next(reading)
    assert isinstance(request, m.Load)
    return request


def loaded(reading: Iterator[m.Message]) -> None:
    request = load(reading)
    send(m.Loaded(request.context_len, 8192, 1, 0, "bad", PHASES, MEMORY, "bad 1", False))


def first(reading: Iterator[m.Message]) -> m.Generate:
    """Load, then wait for a request."""
    loaded(reading)
    return next_request(reading)


def next_request(reading: Iterator[m.Message]) -> m.Generate:
    for message in reading:
        if isinstance(message, m.Generate):
            return message
    raise SystemExit(0)


def delta(number: int, text: str) -> m.Step:
    return m.Step((m.Delta(number, text),))


def started(reading: Iterator[m.Message]) -> int:
    """Load, accept a request, send a little text; returns the request's number."""
    number = first(reading).id
    send(m.Accepted(number, 1, 0), delta(number, "so far "))
    return number


# --- before and while loading ---------------------------------------------------------------------------------------


def silent(reading: Iterator[m.Message]) -> None:
    hang()


def old_protocol(reading: Iterator[m.Message]) -> None:
    send(m.Hello(m.PROTOCOL_VERSION + 1, "fake", os.getpid()))
    hang()


def wrong_kind(reading: Iterator[m.Message]) -> None:
    send(m.Hello(m.PROTOCOL_VERSION, "docling", os.getpid()))
    hang()


def no_hello(reading: Iterator[m.Message]) -> None:
    send(m.Pong(1), m.LoadProgress("weights", 0.5))
    hang()


def missing_library(reading: Iterator[m.Message]) -> None:
    say("Traceback (most recent call last):\nModuleNotFoundError: No module named 'llama_cpp'\n")
    raise SystemExit(3)


def refuses(reading: Iterator[m.Message]) -> None:
    load(reading)
    send(m.LoadFailed("load_failed", "tiny.gguf is damaged"))
    hang()


def hangs_while_loading(reading: Iterator[m.Message]) -> None:
    load(reading)
    send(m.LoadProgress("weights", 0.5))
    hang()


def unknown_code(reading: Iterator[m.Message]) -> None:
    load(reading)
    send(m.LoadFailed("no_such_code", "something new"))
    hang()


def leaves_after_refusal(reading: Iterator[m.Message]) -> None:
    load(reading)
    send(m.LoadFailed("load_failed", "tiny.gguf is damaged"))
    raise SystemExit(1)


def aborts_while_loading(reading: Iterator[m.Message]) -> None:
    load(reading)
    say("llama_model_load: loading\n/src/llama-model.cpp:1328: GGML_ASSERT(n_layer <= 512) failed\n")
    ctypes.CDLL(None).abort()


def loads_for_ever(reading: Iterator[m.Message]) -> None:
    load(reading)
    for step in range(1000):
        send(m.LoadProgress("weights", step / 1000))
    send(m.LoadProgress("context", 1.0))
    hang()


def twice_everything(reading: Iterator[m.Message]) -> None:
    loaded(reading)
    greet()
    send(m.Loaded(1, 1, 1, 0, "again", PHASES, MEMORY, "", False), m.LoadFailed("load_failed", "late"))
    well_behaved(reading)


def behaves(reading: Iterator[m.Message]) -> None:
    loaded(reading)
    well_behaved(reading)


# --- while answering ------------------------------------------------------------------------------------------------


def well_behaved(reading: Iterator[m.Message]) -> None:
    while True:
        number = next_request(reading).id
        send(m.Accepted(number, 1, 0), delta(number, "fine"), m.Finished(number, "stop", 1, 1, 0, TIMING))


def garbage(reading: Iterator[m.Message]) -> None:
    started(reading)
    write(struct.pack("<I", 12) + b"\xc1" * 12)
    hang()


def enormous_frame(reading: Iterator[m.Message]) -> None:
    started(reading)
    write(struct.pack("<I", 0xFFFFFFFF))
    hang()


def prints(reading: Iterator[m.Message]) -> None:
    started(reading)
    write(b"ggml_cuda_init: found 1 CUDA devices\n")
    hang()


def half_frame_then_dies(reading: Iterator[m.Message]) -> None:
    number = started(reading)
    write(encode(delta(number, "never whole"))[:-3])
    os.kill(os.getpid(), signal.SIGKILL)


def half_frame_then_silence(reading: Iterator[m.Message]) -> None:
    number = started(reading)
    write(encode(delta(number, "never whole"))[:-3])
    hang()


def drips(reading: Iterator[m.Message]) -> None:
    """A frame that never ends, a byte at a time."""
    started(reading)
    write(struct.pack("<I", 60 * 1024 * 1024))
    while True:
        write(b"x")
        select.select([0], [], [], 0.02)


def falls_silent(reading: Iterator[m.Message]) -> None:
    started(reading)
    hang()


def stops(reading: Iterator[m.Message]) -> None:
    started(reading)
    say("about to stop: ggml_backend_sched failed\n")
    os.kill(os.getpid(), signal.SIGSTOP)


def stops_at_once(reading: Iterator[m.Message]) -> None:
    """Stop on the first request, before it is accepted; a Ping is still answered."""
    first(reading)
    os.kill(os.getpid(), signal.SIGSTOP)


def spins(reading: Iterator[m.Message]) -> None:
    started(reading)
    while True:
        pass


def pongs(reading: Iterator[m.Message]) -> None:
    """A thread answers while the loop hangs: no proof of anything."""
    started(reading)
    while True:
        send(m.Pong(1))
        select.select([0], [], [], 0.02)


def beats(reading: Iterator[m.Message]) -> None:
    """A prompt that takes long, then an answer."""
    number = first(reading).id
    for _ in range(30):
        send(m.Beat())
        select.select([0], [], [], 0.02)
    send(m.Accepted(number, 1, 0), delta(number, "at last"), m.Finished(number, "stop", 1, 1, 0, TIMING))
    well_behaved(reading)


def aborts(reading: Iterator[m.Message]) -> None:
    started(reading)
    say("ggml.c:42: GGML_ASSERT(ctx->mem_buffer != NULL) failed\n")
    ctypes.CDLL(None).abort()


def out_of_memory(reading: Iterator[m.Message]) -> None:
    started(reading)
    say("CUDA error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:460\n")
    ctypes.CDLL(None).abort()


def survived_pinned_failure(reading: Iterator[m.Message]) -> None:
    started(reading)
    say("ggml_cuda_host_malloc: failed to allocate 100.00 MiB of pinned memory: out of memory\nsegfault follows\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves(reading: Iterator[m.Message]) -> None:
    started(reading)


def closes_channel(reading: Iterator[m.Message]) -> None:
    started(reading)
    os.close(0)
    os.close(1)
    hang()


def endless_text(reading: Iterator[m.Message]) -> None:
    number = started(reading)
    text = "x" * 65536
    try:
        while True:
            send(delta(number, text))
    except OSError:
        return


def floods(reading: Iterator[m.Message]) -> None:
    """Text in tiny pieces as fast as it can be written, then a proper end."""
    number = started(reading)
    for _ in range(200):
        send(*[delta(number, "ab")] * 200)
    send(m.Finished(number, "length", 1, 40000, 0, TIMING))
    well_behaved(reading)


def _without_end(*messages: m.Message) -> None:
    block = b"".join(encode(message) for message in messages)
    while True:
        write(block * (32_768 // len(block)))


def floods_unknown(reading: Iterator[m.Message]) -> None:
    started(reading)
    _without_end(delta(9999, "whose?"), m.Finished(9999, "stop", 1, 1, 0, TIMING))


def floods_empty(reading: Iterator[m.Message]) -> None:
    number = started(reading)
    _without_end(delta(number, ""), m.Step(()))


def floods_beats(reading: Iterator[m.Message]) -> None:
    started(reading)
    _without_end(m.Beat())


def floods_wishes(reading: Iterator[m.Message]) -> None:
    started(reading)
    _without_end(m.ContextWanted(512), m.ContextResized(512, 1.0, MEMORY))


def floods_progress(reading: Iterator[m.Message]) -> None:
    load(reading)
    _without_end(m.LoadProgress("weights", 0.5))


def floods_cancelled(reading: Iterator[m.Message]) -> None:
    """Never hear of the cancellation."""
    number = started(reading)
    _without_end(delta(number, "x"))


def text_before_accepted(reading: Iterator[m.Message]) -> None:
    number = first(reading).id
    send(delta(number, "too early"))
    well_behaved(reading)


def finished_before_accepted(reading: Iterator[m.Message]) -> None:
    number = first(reading).id
    send(m.Finished(number, "stop", 1, 1, 0, TIMING))
    well_behaved(reading)


def accepted_twice(reading: Iterator[m.Message]) -> None:
    number = first(reading).id
    send(m.Accepted(number, 1, 0), m.Accepted(number, 1, 0))
    well_behaved(reading)


def finished_twice(reading: Iterator[m.Message]) -> None:
    number = started(reading)
    send(*[m.Finished(number, "stop", 1, 1, 0, TIMING)] * 2)
    well_behaved(reading)


def unknown_numbers(reading: Iterator[m.Message]) -> None:
    number = started(reading)
    send(m.Accepted(9999, 1, 0), delta(9999, "whose?"))
    send(m.Finished(number, "stop", 1, 1, 0, TIMING))
    well_behaved(reading)


def reads_nothing(reading: Iterator[m.Message]) -> None:
    loaded(reading)
    hang()


def reports_cancels(reading: Iterator[m.Message]) -> None:
    """Accept each request and answer the next one with the cancellations seen so far."""
    loaded(reading)
    cancelled: list[int] = []
    for message in reading:
        if isinstance(message, m.Cancel):
            cancelled.append(message.id)
            late = [delta(message.id, "late"), m.Failed(message.id, "cancelled", "as asked")]
            send(*late)
        elif isinstance(message, m.Generate):
            send(m.Accepted(message.id, 1, 0), delta(message.id, repr(cancelled)))
            if cancelled:
                send(m.Finished(message.id, "stop", 1, 1, 0, TIMING))


def ignores_shutdown(reading: Iterator[m.Message]) -> None:
    loaded(reading)
    say(f"child {spawn_child()}\n")
    hang()


def dies_with_child(reading: Iterator[m.Message]) -> None:
    started(reading)
    say(f"child {spawn_child()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def spawn_child() -> int:
    """A process in the worker's group that ends for nobody."""
    program = "import os, threading; os.write(1, b'x'); threading.Event().wait()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    return child.pid


def stray_keeps_channel(reading: Iterator[m.Message]) -> None:
    """Leave a process outside the group that holds the channel and stderr open until the channel's end."""
    started(reading)
    subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], stdin=0, stdout=1, start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)


def talkative(reading: Iterator[m.Message]) -> None:
    loaded(reading)
    for line in range(5000):
        say(f"line {line} {'.' * 50}\n")
    say("no newline " + "y" * 200_000)
    well_behaved(reading)


def wants_context(reading: Iterator[m.Message]) -> None:
    loaded(reading)
    send(m.ContextWanted(512))
    for message in reading:
        if isinstance(message, m.ResizeContext):
            send(m.ContextResized(message.context_len, 1.0, MEMORY))


def shows_environment(reading: Iterator[m.Message]) -> None:
    loaded(reading)
    number = next_request(reading).id
    lines = "\n".join(f"{name}={value}" for name, value in os.environ.items())
    lines += f"\nSESSION={os.getsid(0) == os.getpid()}\nARGV={' '.join(sys.argv[2:])}"
    send(m.Accepted(number, 1, 0), delta(number, lines), m.Finished(number, "stop", 1, 1, 0, TIMING))
    well_behaved(reading)


# --- while making vectors --------------------------------------------------------------------------------------------


def texts(reading: Iterator[m.Message]) -> int:
    """Load, then wait for a request for two vectors; returns its number."""
    loaded(reading)
    for message in reading:
        if isinstance(message, m.Embed):
            return message.id
    raise SystemExit(0)


def answers_vectors_with_text(reading: Iterator[m.Message]) -> None:
    send(delta(texts(reading), "words"))
    hang()


def accepts_vectors(reading: Iterator[m.Message]) -> None:
    send(m.Accepted(texts(reading), 1, 0))
    hang()


def sends_vectors_twice(reading: Iterator[m.Message]) -> None:
    number = texts(reading)
    send(m.Vectors(number, 0, 1, bytes(4)), m.Vectors(number, 0, 1, bytes(4)))
    hang()


def few_vectors(reading: Iterator[m.Message]) -> None:
    number = texts(reading)
    send(m.Vectors(number, 0, 1, bytes(4)), m.Embedded(number, (1, 1), TIMING))
    hang()


def answers_text_with_vectors(reading: Iterator[m.Message]) -> None:
    send(m.Vectors(first(reading).id, 0, 1, bytes(4)))
    hang()


ways: dict[str, Callable[[Iterator[m.Message]], None]] = {
    name: value for name, value in list(globals().items()) if callable(value) and value.__module__ == __name__
}
try:
    ways[MODE](received())
except (BrokenPipeError, ConnectionResetError, StopIteration):
    os._exit(0)
