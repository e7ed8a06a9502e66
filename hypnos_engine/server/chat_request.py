"""What a chat request asks for, as plain values; decides which bodies are valid and what a model must be able to do.

Pure: knows no socket and no running model. Never repeats more of a request than a message may.
"""

from dataclasses import dataclass

from hypnos_engine.api.decoding import INT32_MAX, quoted, whole
from hypnos_engine.api.schemas import chat as wire
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.domain.kinds import Modality
from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.ipc import messages as m
from hypnos_engine.server.options import ServerOptions

DEFAULT_MAX_TOKENS = 512
ENTRIES_MAX = 10_000
"""Most messages of a request, most parts and earlier calls in all of them, and most tools. Each costs the model's
process far more than the bytes that ask for it."""
MODEL_MAX_CHARS = 4096
"""No model's name is longer; the rest of one that claims to be is not kept."""
_SEED_MIN, _SEED_MAX = -(2**63), 2**64 - 1
_CHOICES = ", ".join(wire.TOOL_CHOICES)


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A part that is not text: where it stands in the body and what a model must serve to take it."""

    path: str
    kind: str
    needs: Modality


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A valid chat request."""

    model: str
    messages: tuple[m.ChatMessage, ...]
    max_tokens: int
    num_ctx: int | None
    sampling: m.Sampling
    stop: tuple[str, ...]
    thinking: bool
    stream: bool
    media: tuple[MediaPart, ...]
    wants_tools: bool


def read_chat(body: wire.ChatRequest, options: ServerOptions) -> ChatCall:
    """Check what the schema cannot (contract §7.1). Raises InvalidRequest naming the field."""
    _check_entries(body)
    messages: list[m.ChatMessage] = []
    media: list[MediaPart] = []
    for index, message in enumerate(body.messages):
        messages.append(_read_message(message, f"messages[{index}]", media))
    stop = _read_stop(body.stop)
    _check_length(body.messages, messages, stop, options.max_prompt_chars)
    return ChatCall(
        model=body.model[:MODEL_MAX_CHARS],
        messages=tuple(messages),
        max_tokens=_read_max_tokens(body, options.max_tokens_cap),
        num_ctx=_clamped(whole(body.num_ctx, "num_ctx", least=1)),
        sampling=m.Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=_clamped(whole(body.top_k, "top_k", least=-1)),
            seed=whole(body.seed, "seed", least=_SEED_MIN, most=_SEED_MAX),
        ),
        stop=stop,
        thinking=_read_thinking(body),
        stream=bool(body.stream),
        media=tuple(media),
        wants_tools=_read_tools(body),
    )


def check_abilities(call: ChatCall, spec: ModelSpec) -> None:
    """Refuse what the model cannot take (contract §4: modality mismatch). Raises InvalidRequest."""
    for part in call.media:
        if part.needs not in spec.modalities:
            raise InvalidRequest(f"{part.path}: the model '{spec.id}' does not serve {part.needs}; it got {part.kind}.")
        raise InvalidRequest(f"{part.path}: this version of Hypnos does not take {part.kind} in a chat.")
    if Modality.TEXT not in spec.modalities:
        served = ", ".join(spec.modalities)
        raise InvalidRequest(f"model: '{spec.id}' does not serve {Modality.TEXT}; it serves {served}.")
    if call.wants_tools:
        raise InvalidRequest(
            f"tools: the model '{spec.id}' has no tool format. Leave tools out, or set tool_choice to none."
        )


def _read_message(message: wire.Message, path: str, media: list[MediaPart]) -> m.ChatMessage:
    if message.role not in wire.ROLES:
        raise InvalidRequest(f"{path}.role: unknown role {quoted(message.role)}; use one of {', '.join(wire.ROLES)}.")
    role = "system" if message.role == "developer" else message.role
    content = _read_content(message, path, media)
    return m.ChatMessage(role=role, content=content, name=message.name, tool_call_id=message.tool_call_id)


def _read_content(message: wire.Message, path: str, media: list[MediaPart]) -> tuple[m.TextPart, ...]:
    calls = message.tool_calls if message.role == "assistant" else None
    parts: list[m.TextPart] = []
    if isinstance(message.content, str):
        parts.append(m.TextPart(message.content))
    elif message.content is None and not calls:
        raise InvalidRequest(f"{path}.content: must be a string or an array of parts; null needs tool_calls.")
    for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
        match part:
            case wire.TextPart():
                parts.append(m.TextPart(part.text))
            case wire.ImagePart():
                media.append(MediaPart(f"{path}.content[{index}]", "an image", Modality.VISION))
            case wire.AudioPart():
                media.append(MediaPart(f"{path}.content[{index}]", "audio", Modality.SPEECH_TO_TEXT))
    # No model of this version has a tool format of its own: earlier calls are shown to it as plain text.
    parts += [m.TextPart(f"{call.function.name}({call.function.arguments})") for call in calls or ()]
    return tuple(parts)


def _check_entries(body: wire.ChatRequest) -> None:
    parts = calls = 0
    for message in body.messages:
        if isinstance(message.content, list):
            parts += len(message.content)
        if message.tool_calls:
            calls += len(message.tool_calls)
    if max(len(body.messages), parts, calls, len(body.tools or ())) <= ENTRIES_MAX:
        return
    counts = (
        ("messages", "messages", len(body.messages)),
        ("messages", "parts in all", parts),
        ("messages", "tool_calls in all", calls),
        ("tools", "tools", len(body.tools or ())),
    )
    for field, what, count in counts:
        if count > ENTRIES_MAX:
            raise InvalidRequest(f"{field}: {count} {what}; a request may have {ENTRIES_MAX}.")


def _check_length(asked: list[wire.Message], messages: list[m.ChatMessage], stop: tuple[str, ...], limit: int) -> None:
    total = sum(map(_length_of, asked, messages))
    if total > limit:
        raise InvalidRequest(
            f"messages: {total} characters, one for each message and part included; the limit is {limit} "
            "(limits.max_prompt_chars)."
        )
    if (longest := max(map(len, stop), default=0)) > limit:
        raise InvalidRequest(f"stop: {longest} characters; the limit is {limit} (limits.max_prompt_chars).")


def _length_of(asked: wire.Message, message: m.ChatMessage) -> int:
    """Characters that the model's process is sent for a message; without text it still costs work, so it counts one."""
    parts = len(asked.content) if isinstance(asked.content, list) else 0
    calls = len(asked.tool_calls or ())
    names = len(message.name or "") + len(message.tool_call_id or "")
    return 1 + parts + calls + names + sum(len(part.text) for part in message.content)


def _read_max_tokens(body: wire.ChatRequest, cap: int) -> int:
    asked = whole(body.max_tokens, "max_tokens", least=1)
    other = whole(body.max_completion_tokens, "max_completion_tokens", least=1)
    return min(asked or other or DEFAULT_MAX_TOKENS, cap)


def _read_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    entries = [stop] if isinstance(stop, str) else stop or []
    return tuple(entry for entry in entries if entry)


def _read_thinking(body: wire.ChatRequest) -> bool:
    effort = body.reasoning_effort
    if effort is None:
        return bool(body.think)
    if effort not in wire.REASONING_EFFORTS:
        known = ", ".join(wire.REASONING_EFFORTS)
        raise InvalidRequest(f"reasoning_effort: unknown value {quoted(effort)}; use one of {known}.")
    return effort != "none"


def _read_tools(body: wire.ChatRequest) -> bool:
    """True when the model is to see tools. Raises InvalidRequest for a choice that names none of them."""
    choice, tools = body.tool_choice, body.tools or []
    if isinstance(choice, wire.NamedTool):
        if choice.function.name not in {tool.function.name for tool in tools}:
            raise InvalidRequest(f"tool_choice: {quoted(choice.function.name)} is not among tools.")
    elif choice is not None and choice not in wire.TOOL_CHOICES:
        raise InvalidRequest(f"tool_choice: unknown value {quoted(choice)}; use {_CHOICES} or a named function.")
    elif choice == "required" and not tools:
        raise InvalidRequest("tool_choice: 'required' needs tools to choose from.")
    return bool(tools) and choice != "none"


def _clamped(count: int | None) -> int | None:
    return None if count is None else min(count, INT32_MAX)
