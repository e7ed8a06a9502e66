"""What calls of models have measured, by modality and by model, since the start; decides what is counted of a call.

Models are those of the configuration: what a client wrote never becomes a name here.
"""

from collections import Counter, defaultdict
from enum import StrEnum
from typing import Final

from hypnos_engine.telemetry.calls import Call
from hypnos_engine.telemetry.distribution import FACTORS, RATES, SECONDS, Distribution
from hypnos_engine.telemetry.quantiles import BOUNDS_MS


class Measure(StrEnum):
    """What is measured of answers, with its unit; the values are the families' names."""

    CHAT_TTFT_MS = "chat_ttft_ms"
    CHAT_DECODE = "chat_decode_tokens_per_s"
    CHAT_PREFILL = "chat_prefill_tokens_per_s"
    TTS_RTF = "tts_rtf"
    TTS_TTFA_MS = "tts_ttfa_ms"
    STT_RTF = "stt_rtf"
    IMAGE_JCT_S = "image_jct_s"
    DOCUMENT_MS_PER_PAGE = "document_ms_per_page"


_BOUNDS: Final[dict[Measure, tuple[float, ...]]] = {
    Measure.CHAT_TTFT_MS: BOUNDS_MS,
    Measure.CHAT_DECODE: RATES,
    Measure.CHAT_PREFILL: RATES,
    Measure.TTS_RTF: FACTORS,
    Measure.TTS_TTFA_MS: BOUNDS_MS,
    Measure.STT_RTF: FACTORS,
    Measure.IMAGE_JCT_S: SECONDS,
    Measure.DOCUMENT_MS_PER_PAGE: BOUNDS_MS,
}


class Measures:
    """Distributions and sums. Used on one loop."""

    def __init__(self) -> None:
        self.distributions = {measure: Distribution(_BOUNDS[measure]) for measure in Measure}
        self.document_pages = 0
        self.cache_hits = 0
        self.cache_misses = 0
        self.cache_tokens = 0
        """Tokens of prompts that were still in a cache."""
        self.wait_s: defaultdict[str, float] = defaultdict(float)
        """Seconds of waiting by cause: `load`, `queue`."""
        self.overtakings = 0
        self.restored_tokens = 0
        """Of parked conversations that came back."""
        self.tokens: Counter[tuple[str, str]] = Counter()
        """By model and kind: `prompt`, `cached` (of them), `completion`."""
        self.inference_s: defaultdict[str, float] = defaultdict(float)
        """By model: what its calls took once they held it."""

    def record(self, measure: Measure, value: float) -> None:
        """Count one value."""
        self.distributions[measure].record(value)

    def began(self, call: Call) -> None:
        """Count what a call that held its model had to wait for."""
        load_ms = call.tier_switch_ms or 0.0
        self.wait_s["load"] += load_ms / 1e3
        self.wait_s["queue"] += max(0.0, (call.waited_ms or 0.0) - load_ms) / 1e3
        self.overtakings += call.overtaken
        self.restored_tokens += call.restored_tokens

    def finished(self, call: Call) -> None:
        """Count what a call that came to its end has used."""
        model = call.model or ""
        self.tokens[model, "prompt"] += call.tokens_in or 0
        self.tokens[model, "cached"] += call.cached_tokens or 0
        self.tokens[model, "completion"] += call.tokens_out or 0
        self.inference_s[model] += (call.inference_ms or 0.0) / 1e3

    def chatted(self, call: Call) -> None:
        """Count a chat that came to its end; its first token comes after the wait for the model."""
        timing = call.timing
        if timing is None:
            return
        if timing.ttft_ms is not None:
            self.record(Measure.CHAT_TTFT_MS, (call.waited_ms or 0.0) + timing.ttft_ms)
        if timing.decode_tokens_per_s is not None:
            self.record(Measure.CHAT_DECODE, timing.decode_tokens_per_s)
        if timing.prefill_tokens_per_s is not None:
            self.record(Measure.CHAT_PREFILL, timing.prefill_tokens_per_s)
        if call.cached_tokens:
            self.cache_hits += 1
            self.cache_tokens += call.cached_tokens
        else:
            self.cache_misses += 1
