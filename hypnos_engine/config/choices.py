"""Closed sets of names that only the configuration uses; decides nothing."""

from enum import StrEnum
from typing import Final, Literal

Auto = Literal["auto"]
"""The type of a setting whose value Hypnos may choose."""

AUTO: Final = "auto"


class Backend(StrEnum):
    """Which ggml backend computes tier 1."""

    AUTO = "auto"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    CPU = "cpu"


class Overload(StrEnum):
    """What happens to a request that would miss the profile's objective."""

    QUEUE = "queue"
    SHED = "shed"


class HoldPolicy(StrEnum):
    """What happens to a request while the user holds the GPU."""

    REFUSE = "refuse"
    CPU = "cpu"


class Profile(StrEnum):
    """What the machine is mostly used for."""

    VOICE_ASSISTANT = "voice_assistant"
    CHAT = "chat"
    BATCH = "batch"

    @property
    def objective_ms(self) -> float | None:
        """Time to the first token or sound that it aims at (contract §14.1); None where only throughput counts."""
        return {"voice_assistant": 1500.0, "chat": 3000.0}.get(self.value)

    @property
    def metric(self) -> Literal["first_token", "first_audio", "throughput"]:
        """What the profile is measured by (contract §14.1-35)."""
        match self:
            case Profile.VOICE_ASSISTANT:
                return "first_audio"
            case Profile.CHAT:
                return "first_token"
            case Profile.BATCH:
                return "throughput"


class LogLevel(StrEnum):
    """How much of each request the request log keeps (contract §15-10)."""

    OFF = "off"
    ERROR = "error"
    WARN = "warn"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"
