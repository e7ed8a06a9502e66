"""Every message between the supervisor and a worker, and nothing else.

Encoded as msgpack by msgspec, one tagged struct a frame (`framing.py`). Durations are milliseconds where a name ends in
`_ms` (they go to the wire as they are), bytes where it ends in `_bytes`. A worker answers each `Generate` with
`Accepted`, any number of `Step` entries, then exactly one of `Finished` and `Failed`; or with `Failed` alone. Each
`Embed` is answered with any number of `Vectors`, in the order of the texts, then one of `Embedded` and `Failed`.
"""

from collections.abc import Iterable
from typing import cast

import msgspec

PROTOCOL_VERSION = 1


class Message(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """Base of all messages; the class name is the tag."""


# --- content of a request -------------------------------------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn. `role` is system, user, assistant or tool; `content` is in the order of the request."""

    role: str
    content: tuple[TextPart, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None

    def text(self) -> str:
        """All text of the turn, in order."""
        return "".join(part.text for part in self.content)


class PackedMessages:
    """The msgpack of a conversation, in pieces: a long one goes from a body to a worker without becoming text here."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = tuple(pieces)

    @property
    def size_bytes(self) -> int:
        """Of the msgpack."""
        return sum(map(len, self.pieces))


def packed(pieces: Iterable[bytes]) -> tuple[ChatMessage, ...]:
    """A conversation that only `framing` and `unpacked` look into; it stands where the messages of a `Generate` do."""
    return cast("tuple[ChatMessage, ...]", PackedMessages(pieces))


def unpacked(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """The messages themselves, `packed` or not. Takes as long as the text is: for engines without a process."""
    if isinstance(messages, PackedMessages):
        return msgspec.msgpack.decode(b"".join(messages.pieces), type=tuple[ChatMessage, ...])
    return messages


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are drawn; None = the engine's default. `temperature` 0 draws the likeliest token."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


# --- supervisor -> worker -------------------------------------------------------------------------------------------


class Load(Message, frozen=True):
    """Load a model; answered by `LoadProgress` and then `Loaded` or `LoadFailed`. Once per worker."""

    model: str
    weights_path: str
    aux_path: str | None = None
    context_len: int = 4096
    """KV cells across all slots."""
    slots: int = 4
    kv_type: str = "f16"
    draft: str = "off"
    """off, or ngram: guess tokens from the text so far and check them several at once."""
    gpu_layers: int = 0
    """Layers for the accelerator, counted from the last; -1 = all of them and the output head."""
    devices: tuple[str, ...] | None = None
    """Accelerators by the library's names, in the order in which they take layers; none = the processor alone, and no
    accelerator is opened. None = as the library likes."""
    device_layers: tuple[int, ...] = ()
    """Layers for each of several devices; the output head goes to the last of them."""
    load_mode: str = "auto"
    threads: int = 1
    cpu_expert_layers: int = 0
    """Layers, counted from the last, whose experts stay in host memory and are computed there."""
    embeddings: bool = False
    """Make vectors of texts instead of answering conversations: the worker then takes `Embed` and no `Generate`."""
    step_delay_ms: float = 0.0
    """Fake engine only: pause before each token, so that a demonstration can be watched."""
    kv_idle_timeout_s: float | None = None
    """A conversation that is idle for so long gives its cells back and is forgotten; None = never."""


class Generate(Message, frozen=True):
    """Answer a conversation. `id` is unique among the worker's unfinished requests."""

    id: int
    scope: str
    """Cached prefixes are shared only between requests of one scope (the API key's label)."""
    messages: tuple[ChatMessage, ...]
    max_tokens: int
    num_ctx: int | None = None
    """Cells to reserve, prompt plus generation; None = estimated."""
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    thinking: bool = False


class Embed(Message, frozen=True):
    """Make one vector of each text. `id` is unique among the worker's unfinished requests of both kinds.

    At most `domain.embedding.MOST_TEXTS` texts, at least one. The request is computed in several batches, which it
    shares with other requests; nothing of it is kept afterwards, so it has no scope.
    """

    id: int
    texts: tuple[str, ...]
    truncate: bool = False
    """Cut a text that is longer than the window, at its end; otherwise it is refused."""
    normalise: bool = True
    """Scale each vector to the length 1."""


class Cancel(Message, frozen=True):
    """Stop a request at its next token or batch: `Failed` with code `cancelled` answers; unknown ids are ignored."""

    id: int


class ResizeContext(Message, frozen=True):
    """Grow the KV cache to `context_len` cells between two steps; running requests do not notice."""

    context_len: int


class DenyContext(Message, frozen=True):
    """The answer to `ContextWanted` when the memory is not there: serve with the cells at hand."""


class SetThreads(Message, frozen=True):
    threads: int


class ParkKv(Message, frozen=True):
    """Copy the conversations of idle slots into a block, the most valuable first, as far as it holds them.

    Answered by `Parked`. The block was handed over before this message was sent (`ipc.blocks`).
    """

    block: int
    size_bytes: int


class RestoreKv(Message, frozen=True):
    """Take back the conversations that `ParkKv` copied into a block, if they fit this worker; answered by `Restored`.

    What follows it on the channel finds them in their slots.
    """

    block: int
    size_bytes: int


class Ping(Message, frozen=True):
    """Answered by `Pong` between two steps: proof that the worker's loop still turns."""

    nonce: int


class Shutdown(Message, frozen=True):
    """End: running requests get `Failed` with code `cancelled`, then the process exits with status 0."""


ToWorker = (
    Load | Generate | Embed | Cancel | ResizeContext | DenyContext | SetThreads | ParkKv | RestoreKv | Ping | Shutdown
)


# --- worker -> supervisor -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of every worker."""

    protocol: int
    kind: str
    pid: int


class LoadProgress(Message, frozen=True):
    phase: str
    """weights, projector, context or warmup."""
    fraction: float


class LoadPhases(msgspec.Struct, frozen=True):
    """How long each part of a load took (contract §5, tier_switch_phases)."""

    load_mode: str
    weights_ms: float
    projector_ms: float
    context_ms: float
    total_ms: float


class MemoryReport(msgspec.Struct, frozen=True):
    """What the worker holds, as measured after the load."""

    weights_bytes: int
    """Tensor bytes of the model."""
    device_bytes: int
    """Device memory taken, weights, cache and buffers together; 0 without a device."""
    kv_bytes: int
    workspace_bytes: int
    repacked_bytes: int
    anonymous_bytes: int
    """Private and shared anonymous memory of the process (not its file pages)."""
    host_expert_tensors: int = 0
    """Expert tensors that the library kept in host memory because `Load.cpu_expert_layers` asked for it."""
    host_expert_bytes: int = 0
    """Bytes of these tensors; contained in `weights_bytes`."""


class Loaded(Message, frozen=True):
    context_len: int
    context_train: int
    layers: int
    gpu_layers: int
    architecture: str
    phases: LoadPhases
    memory: MemoryReport
    library: str
    """Name and version of the inference library."""
    has_chat_template: bool
    dimensions: int = 0
    """Elements of a vector; 0 for a model that was not loaded to make any."""


class LoadFailed(Message, frozen=True):
    code: str
    """A code of `domain.errors`."""
    message: str


class Accepted(Message, frozen=True):
    """The prompt is tokenised, fits, and its cells are reserved: nothing of the request can be refused any more."""

    id: int
    prompt_tokens: int
    cached_tokens: int


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """Text that one step added to one request; whole Unicode characters only."""

    id: int
    text: str
    reasoning: bool = False


class Step(Message, frozen=True):
    """What one decode step produced, for all requests that took part and have text to show."""

    deltas: tuple[Delta, ...]


class Beat(Message, frozen=True):
    """The loop turns: sent between two steps, when work is in hand and nothing else was sent for about a second."""


class EngineTiming(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measured times of one request (contract §5, engine); a field that was not measured stays None."""

    queue_ms: float | None = None
    context_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    ttft_ms: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    cached_tokens: int | None = None
    concurrent_slots: int | None = None
    """Most requests that shared a decode step with this one, itself included."""
    drafted_tokens: int | None = None
    """Guesses of next tokens that were checked; None when none are made for the request."""
    accepted_tokens: int | None = None
    """Guesses that came true and became part of the answer."""


class Finished(Message, frozen=True):
    id: int
    finish_reason: str
    """stop or length."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    timing: EngineTiming


class Vectors(Message, frozen=True):
    """Vectors of consecutive texts of an `Embed`, as one computation made them."""

    id: int
    first: int
    """Which text of the request the first vector is of, counted from 0."""
    dimensions: int
    packed: bytes
    """float32, little-endian, vector after vector."""


class Embedded(Message, frozen=True):
    """All vectors of an `Embed` were sent."""

    id: int
    prompt_tokens: tuple[int, ...]
    """Tokens of each text, the model's own marks included."""
    timing: EngineTiming
    truncated: tuple[int, ...] = ()
    """Which texts were cut, counted from 0."""


class Failed(Message, frozen=True):
    id: int
    code: str
    message: str


class ContextWanted(Message, frozen=True):
    """A request needs more cells than the cache has and other requests will not free them."""

    context_len: int


class ContextResized(Message, frozen=True):
    """The cache was rebuilt: new size in cells, and the memory that the worker holds now."""

    context_len: int
    rebuild_ms: float
    memory: MemoryReport


class Parked(Message, frozen=True):
    """What a block holds now. Nothing (0 slots, 0 bytes) where there was nothing to copy or it could not be copied."""

    block: int
    slots: int
    tokens: int
    size_bytes: int
    """Bytes used, from the beginning of the block."""
    context_len: int
    """Cells of the context that the conversations come from."""
    ms: float
    problem: str = ""
    """Why a conversation that should have been copied was not, as the end of a sentence."""


class Restored(Message, frozen=True):
    """What came back out of a block."""

    block: int
    slots: int
    tokens: int
    ms: float
    problem: str = ""
    """Why a conversation in the block was dropped, as the end of a sentence."""


class Pong(Message, frozen=True):
    nonce: int


class Device(msgspec.Struct, frozen=True):
    """A compute device as the inference library lists it."""

    name: str
    description: str
    kind: str
    """cpu, gpu, igpu or accel."""
    free_bytes: int
    total_bytes: int
    bus_id: str = ""
    """PCI address in small letters; empty where the library does not know it."""


class ProbeReport(Message, frozen=True):
    """Answer of `--probe`: what the library can use on this machine."""

    library: str
    version: str
    system_info: str
    gpu_offload: bool
    devices: tuple[Device, ...]


FromWorker = (
    Hello
    | LoadProgress
    | Loaded
    | LoadFailed
    | Accepted
    | Step
    | Beat
    | Finished
    | Vectors
    | Embedded
    | Failed
    | ContextWanted
    | ContextResized
    | Parked
    | Restored
    | Pong
    | ProbeReport
)
