"""Bodies of `POST /v1/chat/completions` (contract §7.1-§7.5); which combinations make sense is decided by the server.

Fields that the contract ignores (`n`, `response_format`, `logprobs`, `user` and so on) are not declared: unknown fields
are skipped. Counts are declared as numbers because `256.0` is an integer in JSON; the server refuses fractions.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from hypnos_engine.api.schemas.telemetry import Telemetry

ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
TOOL_CHOICES = ("none", "auto", "required")
STOP_MAX = 4

Whole = Annotated[int | float, msgspec.Meta(extra_json_schema={"type": "integer"})]
Positive = Annotated[int | float, msgspec.Meta(extra_json_schema={"type": "integer", "minimum": 1})]
Role = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(ROLES)})]
ReasoningEffort = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(REASONING_EFFORTS)})]


# --- request --------------------------------------------------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageUrl(msgspec.Struct, frozen=True):
    url: str
    """A `data:` URL or an http(s) URL."""
    detail: str | None = None
    """Accepted and ignored."""


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class InputAudio(msgspec.Struct, frozen=True):
    data: str
    """Base64."""
    format: str | None = None
    """wav when left out."""


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: InputAudio


Part = TextPart | ImagePart | AudioPart


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str = "{}"
    """A JSON object as a string."""


class ToolCall(msgspec.Struct, frozen=True):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn. `content` may be null on an assistant turn that only calls tools."""

    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionSpec(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema object."""


class ToolSpec(msgspec.Struct, frozen=True):
    function: FunctionSpec
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class NamedTool(msgspec.Struct, frozen=True):
    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(TOOL_CHOICES)})]


class ChatRequest(msgspec.Struct, frozen=True):
    model: str
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_tokens: Positive | None = None
    """512 when left out; more than the operator's cap is lowered to it."""
    max_completion_tokens: Positive | None = None
    """Another name for `max_tokens`, which wins when both are sent."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Whole | None = None
    seed: Whole | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=STOP_MAX)] | None = None
    """Texts that end the answer and are not part of it."""
    stream: bool | None = None
    num_ctx: Positive | None = None
    """Context window to reserve, prompt and answer together (Hypnos extension)."""
    think: bool | None = None
    """Turns on the thinking of a model that can think (Hypnos extension)."""
    reasoning_effort: ReasoningEffort | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: ToolChoice | NamedTool | None = None


# --- response -------------------------------------------------------------------------------------------------------


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    """Present only when part of the prompt was in the cache."""


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    reasoning_content: str | UnsetType = UNSET
    """The thoughts before the answer; absent when there were none."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: AnswerMessage
    finish_reason: str
    """stop or length."""


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice]
    usage: Usage
    hypnos_telemetry: Telemetry


class ChunkDelta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: ChunkDelta
    finish_reason: str | None
    """null on every chunk but the last; stop, length or error there."""


class StreamError(msgspec.Struct, frozen=True):
    message: str
    type: Literal["server_error"] = "server_error"


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; the order of the fields is the order on the wire."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice]
    usage: Usage | UnsetType = UNSET
    """In the last chunk only."""
    hypnos_telemetry: Telemetry | UnsetType = UNSET
    """In the last chunk only."""
    error: StreamError | UnsetType = UNSET
    """Only in the last chunk of a stream that failed midway."""
