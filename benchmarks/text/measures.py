"""The single measurements of one server: what is asked, what is timed. Each returns one figure of one short round.

Both servers get the same question of the same round; a question that was asked before is never timed as a new one.
"""

from collections.abc import Sequence

from benchmarks.text import prompts
from benchmarks.text.client import Answer, Client
from benchmarks.text.servers import MODEL_NAME, Running

ALONE_TOKENS = 96
TOGETHER_TOKENS = 64
STREAMS = 4
SHORT_WORDS = 30
LONG_WORDS = 345
"""About 500 tokens of the starter model."""
FEWEST_PIECES = 24
"""An answer that ended earlier says nothing about a rate."""


def body(conversation: Sequence[prompts.Message], max_tokens: int, **more: object) -> dict[str, object]:
    """A streamed request for the likeliest text."""
    return {
        "model": MODEL_NAME,
        "messages": list(conversation),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


class Round:
    """One round of measurements on one server; `number` chooses the questions."""

    def __init__(self, client: Client, server: Running, number: int) -> None:
        self._client = client
        self._server = server
        self._number = number

    def decode_alone(self) -> float | None:
        """Tokens per second of one stream after its first one; None when the answer was too short."""
        question = prompts.long_question(self._number, SHORT_WORDS)
        answer = self._ask(question, ALONE_TOKENS)
        return _rate(answer)

    def decode_together(self) -> float | None:
        """Tokens per second of four streams in the time in which all of them run."""
        questions = [prompts.long_question(self._number * STREAMS + i + 100_000, SHORT_WORDS) for i in range(STREAMS)]
        bodies = [body(question, TOGETHER_TOKENS) for question in questions]
        answers = self._client.ask(self._server.port, bodies)
        if min(len(answer.times_s) for answer in answers) < FEWEST_PIECES:
            return None
        begin_s, end_s = max(a.times_s[0] for a in answers), min(a.times_s[-1] for a in answers)
        if end_s <= begin_s:
            return None
        inside = sum(begin_s < time_s <= end_s for answer in answers for time_s in answer.times_s)
        return inside / (end_s - begin_s)

    def together_whole(self) -> float:
        """Tokens per second of four new requests from their sending to the last one's end, prompts included."""
        questions = [prompts.long_question(self._number * STREAMS + i + 200_000, SHORT_WORDS) for i in range(STREAMS)]
        answers = self._client.ask(self._server.port, [body(question, TOGETHER_TOKENS) for question in questions])
        return sum(a.completion_tokens for a in answers) / max(a.end_s for a in answers)

    def first_token(self) -> tuple[float, float]:
        """Milliseconds to the first text of a new prompt of about 500 tokens, and of the turn that follows it."""
        question = prompts.long_question(self._number + 300_000, LONG_WORDS)
        first = self._ask(question, 8)
        second = self._ask(prompts.follow_up(question, first.text, self._number), 8)
        if second.cached_tokens < first.prompt_tokens // 2:
            raise RuntimeError(f"{self._server.name} did not reuse the prefix of a conversation")
        return first.first_s * 1e3, second.first_s * 1e3

    def _ask(self, conversation: Sequence[prompts.Message], max_tokens: int) -> Answer:
        return self._client.ask(self._server.port, [body(conversation, max_tokens)])[0]


def _rate(answer: Answer) -> float | None:
    times_s = answer.times_s
    if len(times_s) < FEWEST_PIECES:
        return None
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])
