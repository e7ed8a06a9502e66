"""What one inference call has shown of itself by the time it ends, for the request log and the metrics.

Holds facts; decides nothing. Handlers tell it what happens, and it keeps text only where the log gave it a tape.
"""

from dataclasses import dataclass

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.ipc import messages as m
from hypnos_engine.telemetry.tape import Tape


@dataclass(slots=True, eq=False)
class Call:
    """One call of a model. What was not reached stays None."""

    model: str | None = None
    """As the client wrote it: it may name no model."""
    stream: bool | None = None
    granted: bool = False
    """True once it held a model: from then on `model` is one of the configuration."""
    previous_tier: Tier | None = None
    tier_switch_ms: float | None = None
    """Of the wait, the part in which its model was being loaded."""
    waited_ms: float | None = None
    """From arrival to grant, the load included."""
    overtaken: int = 0
    """Later requests that were served first."""
    restored_tokens: int = 0
    """Of parked conversations that came back with its load."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached_tokens: int | None = None
    inference_ms: float | None = None
    timing: m.EngineTiming | None = None
    failure: HypnosError | None = None
    """What travelled inside an answer whose status was out."""
    level: str | None = None
    """What the log kept of it; None = nothing."""
    input: Tape | None = None
    output: Tape | None = None
    request_payload: Tape | None = None
    response_payload: Tape | None = None

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """Those that are there."""
        every = (self.input, self.output, self.request_payload, self.response_payload)
        return tuple(tape for tape in every if tape is not None)

    def asked(self, model: str, *, stream: bool) -> None:
        """The body was read."""
        self.model = model
        self.stream = stream

    def began(
        self, *, previous_tier: Tier, switch_ms: float, waited_ms: float, overtaken: int, restored_tokens: int
    ) -> None:
        """The call holds its model."""
        self.granted = True
        self.previous_tier = previous_tier
        self.tier_switch_ms = switch_ms
        self.waited_ms = waited_ms
        self.overtaken = overtaken
        self.restored_tokens = restored_tokens

    def finished(
        self, tokens_in: int, tokens_out: int, cached_tokens: int | None, timing: m.EngineTiming, inference_s: float
    ) -> None:
        """The model has done its part. `inference_s` is the engine's call as the server saw it."""
        self.tokens_in = tokens_in
        self.tokens_out = tokens_out
        self.cached_tokens = cached_tokens
        self.timing = timing
        self.inference_ms = inference_s * 1e3
