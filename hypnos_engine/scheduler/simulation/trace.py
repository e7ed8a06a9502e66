"""What arrives when: the requests of a trace, and the text they are written in and read from; opens no file.

A trace is JSONL in UTF-8. Its first line says what it is, and may say which models it is about; every other line is
one request:

    {"trace_version": 1, "models": [{"id": "chat", "weight_bytes": 4900000000, "layers": 32}]}
    {"id": "r1", "at_s": 0.0, "model": "chat", "prompt_tokens": 900, "output_tokens": 250}
    {"id": "r2", "model": "chat", "prompt_tokens": 1300, "output_tokens": 80, "after": ["r1"], "after_s": 2.5}

Lines may come in any order of time; blank lines are passed over. What a field means stands at `TraceRequest` and
`TraceModel`; a field that is not there has its default, an unknown one is refused, and so is a request whose `after`
names none that stands above it. Every problem is reported with its line.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.kinds import EngineKind, Modality, Priority

TRACE_VERSION = 1
MOST_SHOWN = 20
"""Problems that are worded; the rest are only counted."""
LONGEST_S = 1e9
_MOST = 10**15
_MOST_TOKENS = 10**9


class TraceModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One model, for a trace that must be read without its files."""

    id: str
    weight_bytes: int
    """Bytes of all tensors."""
    layers: int = 32
    kv_bytes_per_cell: int = 131_072
    """Bytes of f16 K and V of one token, all layers together."""
    expert_bytes: int = 0
    """The part of `weight_bytes` that is experts."""
    embedding_length: int = 4096
    vocabulary_size: int = 32_000
    modality: Modality = Modality.TEXT
    engine: EngineKind = EngineKind.LLAMA
    priority: Priority = Priority.NORMAL
    slots: int = 4
    context_len: int = 8192
    """KV cells of all slots together."""
    min_gpu_layer_ratio: float = 0.0
    prefill_tokens_per_s: float = 2000.0
    decode_tokens_per_s: float = 60.0
    batch_gain: float = 4.0
    start_s: float = 1.0


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One request."""

    id: str
    model: str
    at_s: float = 0.0
    """Seconds from the trace's beginning before which it does not arrive."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    service_s: float | None = None
    """How long it takes alone on its model, wholly on the accelerator; stands in for the two numbers of tokens."""
    key: str = ""
    """Label of the API key."""
    weight: float = 1.0
    """Share of the key."""
    workflow: str = ""
    """Name of the multi-step task that it belongs to; empty = none."""
    run: str = ""
    """Tells one run of the task from another."""
    ends: bool = False
    """True for the last request of its run."""
    next_model: str = ""
    """Whom the caller says it will ask next; empty = it does not say."""
    deadline_ms: float | None = None
    """Longest wait that is of any use, from its arrival."""
    after: tuple[str, ...] = ()
    """Ids of requests that must have been served before; it is skipped when one of them was not."""
    after_s: float = 0.0
    """Seconds from the end of the last of those to its arrival: the caller thinks, or runs a tool."""

    @property
    def tokens(self) -> int:
        """KV cells that it needs."""
        return self.prompt_tokens + self.output_tokens


class Trace(msgspec.Struct, frozen=True):
    """A whole trace, in the order of the file."""

    requests: tuple[TraceRequest, ...]
    models: tuple[TraceModel, ...] = ()


class _Head(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    trace_version: int
    models: tuple[TraceModel, ...] = ()


def read_trace(lines: Iterable[str | bytes], source: str = "trace") -> Trace:
    """Decode a trace; `source` is what its problems are told under. Raises ConfigurationInvalid with all of them."""
    problems = _Problems(source)
    head: _Head | None = None
    requests: dict[str, TraceRequest] = {}
    decode_head, decode = msgspec.json.Decoder(_Head).decode, msgspec.json.Decoder(TraceRequest).decode
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            if head is None:
                head = decode_head(line)
                problems.add(number, _wrong_head(head))
                continue
            request = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.add(number, (_first(head is None, str(error)),))
            if head is None:
                break
            continue
        problems.add(number, _wrong_request(request, requests))
        requests[request.id] = request
    if head is None and not problems:
        problems.add(1, ('it is empty; its first line is {"trace_version": 1}',))
    problems.raise_any()
    return Trace(tuple(requests.values()), head.models if head else ())


def write_trace(trace: Trace) -> Iterator[str]:
    """Yield the lines of a trace, each with its line end; `read_trace` gives the same trace back."""
    encode = msgspec.json.Encoder().encode
    for line in (_Head(TRACE_VERSION, trace.models), *trace.requests):
        yield encode(line).decode() + "\n"


def check_requests(requests: Sequence[TraceRequest], models: Iterable[str], source: str = "trace") -> None:
    """Refuse requests that no file could hold, or for models that are not there. Raises ConfigurationInvalid."""
    problems, known = _Problems(source), frozenset(models)
    above: dict[str, TraceRequest] = {}
    for number, request in enumerate(requests, start=1):
        problems.add(number, _wrong_request(request, above))
        if request.model not in known:
            problems.add(number, (f"request '{request.id}' asks for '{request.model}', which is no model here",))
        above[request.id] = request
    problems.raise_any("request")


def _first(is_head: bool, message: str) -> str:
    return f'{message}; the first line is {{"trace_version": {TRACE_VERSION}}}' if is_head else message


def _wrong_head(head: _Head) -> Iterator[str]:
    if head.trace_version != TRACE_VERSION:
        yield f"trace_version {head.trace_version} is not one that this Hypnos reads; it reads {TRACE_VERSION}"
    seen: set[str] = set()
    for model in head.models:
        if model.id in seen or not model.id:
            yield f"there are two models '{model.id}'" if model.id else "a model has no id"
        seen.add(model.id)
        yield from _wrong_model(model)


def _wrong_model(model: TraceModel) -> Iterator[str]:
    least: dict[str, tuple[float, float]] = {
        "weight_bytes": (0, _MOST), "layers": (1, 10_000), "kv_bytes_per_cell": (0, _MOST),
        "expert_bytes": (0, model.weight_bytes), "embedding_length": (1, 10**9), "vocabulary_size": (0, 10**9),
        "slots": (1, 10_000), "context_len": (1, 10**9), "min_gpu_layer_ratio": (0, 1), "batch_gain": (1, 10_000),
        "start_s": (0, LONGEST_S), "prefill_tokens_per_s": (1e-3, LONGEST_S), "decode_tokens_per_s": (1e-3, LONGEST_S),
    }  # fmt: skip
    for name, (low, high) in least.items():
        yield from _outside(f"{name} of model '{model.id}'", getattr(model, name), low, high)


def _wrong_request(request: TraceRequest, above: dict[str, TraceRequest]) -> Iterable[str]:
    fine = (
        request.id
        and request.id not in above
        and request.model
        and 0 <= request.at_s <= LONGEST_S
        and 0 <= request.prompt_tokens <= _MOST_TOKENS
        and 0 <= request.output_tokens <= _MOST_TOKENS
        and request.tokens
        and request.service_s is request.deadline_ms is None
        and request.weight == 1.0
        and not (request.after or request.after_s or request.run or request.ends)
    )
    return () if fine else _mistakes(request, above)  # most are fine, and there can be millions


def _mistakes(request: TraceRequest, above: dict[str, TraceRequest]) -> Iterator[str]:
    if not request.id or request.id in above:
        yield f"there is a request '{request.id}' already" if request.id else "it has no id"
    if not request.model:
        yield "it names no model"
    ranges: dict[str, tuple[float, float]] = {
        "at_s": (0, LONGEST_S), "after_s": (0, LONGEST_S), "prompt_tokens": (0, _MOST_TOKENS),
        "output_tokens": (0, _MOST_TOKENS),
        "weight": (1e-6, 1e6),
    }  # fmt: skip
    for name, (low, high) in ranges.items():
        yield from _outside(name, getattr(request, name), low, high)
    for name in ("service_s", "deadline_ms"):
        if (value := getattr(request, name)) is not None:
            yield from _outside(name, value, 0, LONGEST_S)
    if request.service_s is None and not request.tokens:
        yield "it takes no time: it has neither tokens nor service_s"
    if (request.run or request.ends) and not request.workflow:
        yield "it has a run or an end of a workflow, but no workflow"
    for name in request.after:
        if name not in above:
            yield f"it comes after '{name}', which does not stand above it"
    if request.after_s and not request.after:
        yield "it has after_s, but comes after nothing"


def _outside(name: str, value: float, low: float, high: float) -> Iterator[str]:
    if not (math.isfinite(value) and low <= value <= high):
        yield f"{name} is {value:g}, not between {low:g} and {high:g}"


class _Problems:
    """Everything that is wrong, with the number of its line."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._found: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, number: int, messages: Iterable[str]) -> None:
        self._found += [(number, message) for message in messages]

    def raise_any(self, what: str = "") -> None:
        if not self._found:
            return
        mark = f" {what} " if what else ""
        lines = [f"{self._source}:{mark}{number}: {message}" for number, message in self._found[:MOST_SHOWN]]
        more = len(self._found) - len(lines)
        raise ConfigurationInvalid("\n".join(lines + ([f"... and {more} more"] if more else [])))
