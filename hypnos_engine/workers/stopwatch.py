"""Measures one request and turns the times into an EngineTiming; a time that was not reached stays None."""

import time

from hypnos_engine.ipc import messages as m


class Stopwatch:
    """Times of one request, from its arrival. The marks are made in the order of the methods, each at most once."""

    def __init__(self) -> None:
        self._arrived_s = time.monotonic()
        self._granted_s: float | None = None
        self._first_s: float | None = None
        self.context_s = 0.0
        """Time spent waiting for a larger context."""
        self.concurrent = 1

    def grant(self) -> None:
        """The request has its slot."""
        self._granted_s = time.monotonic()

    def first_token(self) -> None:
        """A token was drawn; only the first call counts."""
        if self._first_s is None:
            self._first_s = time.monotonic()

    def share(self, slots: int) -> None:
        """`slots` requests, this one among them, took part in a step."""
        self.concurrent = max(self.concurrent, slots)

    def timing(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> m.EngineTiming:
        """What was measured, up to now."""
        now_s = time.monotonic()
        granted_s = self._granted_s if self._granted_s is not None else now_s
        timing_queue_s = max(0.0, granted_s - self._arrived_s - self.context_s)
        if self._first_s is None:
            return m.EngineTiming(
                queue_ms=timing_queue_s * 1e3,
                context_ms=self.context_s * 1e3,
                cached_tokens=cached_tokens,
                concurrent_slots=self.concurrent,
            )
        prefill_s, decode_s = self._first_s - granted_s, now_s - self._first_s
        return m.EngineTiming(
            queue_ms=timing_queue_s * 1e3,
            context_ms=self.context_s * 1e3,
            prefill_ms=prefill_s * 1e3,
            decode_ms=decode_s * 1e3,
            ttft_ms=(self._first_s - self._arrived_s) * 1e3,
            prefill_tokens_per_s=_rate(prompt_tokens - cached_tokens, prefill_s),
            decode_tokens_per_s=_rate(completion_tokens - 1, decode_s),
            cached_tokens=cached_tokens,
            concurrent_slots=self.concurrent,
        )


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None
