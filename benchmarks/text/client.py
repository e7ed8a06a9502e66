"""The client that is timed: a process of its own that sends streamed requests together and notes when text arrives.

One JSON job per line of stdin, one JSON list of results per line of stdout. Uses raw sockets, so that the client costs
next to nothing. Must never share a loop or a process with what it measures.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

ROUTE = "/v1/chat/completions"


@dataclass
class Answer:
    """One streamed answer. Times are seconds from the sending of the request."""

    text: str = ""
    times_s: list[float] = field(default_factory=list)
    """When each piece of text arrived."""
    end_s: float = 0.0
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    error: str = ""
    telemetry: dict[str, Any] = field(default_factory=dict)
    """What Hypnos says that the request cost; empty for others."""

    @property
    def first_s(self) -> float:
        return self.times_s[0]


class Client:
    """Starts the client process on the given cores (empty = all) and hands it jobs."""

    def __init__(self, cores: frozenset[int] = frozenset()) -> None:
        prefix = ["taskset", "-c", ",".join(map(str, sorted(cores)))] if cores else []
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "benchmarks.text.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def ask(self, port: int, bodies: Sequence[object]) -> list[Answer]:
        """Send all requests at the same moment and wait for the last answer. Raises RuntimeError when one failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"port": port, "bodies": list(bodies)}) + "\n")
        self._process.stdin.flush()
        answers = [Answer(**fields) for fields in json.loads(self._process.stdout.readline())]
        for answer in answers:
            if answer.error:
                raise RuntimeError(answer.error)
        return answers


async def _ask(port: int, body: object) -> Answer:
    content = json.dumps(body).encode()
    head = (
        f"POST {ROUTE} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    begun_s = time.perf_counter()
    writer.write(head.encode() + content)
    answer = Answer()
    status = await reader.readline()
    if b" 200 " not in status:
        answer.error = f"{status.decode().strip()}: {(await reader.read()).decode(errors='replace')[-500:]}"
        return answer
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            _take(answer, json.loads(line[6:]), time.perf_counter() - begun_s)
        elif line.startswith(b"data: [DONE]"):
            break
    answer.end_s = time.perf_counter() - begun_s
    writer.close()
    return answer


def _take(answer: Answer, event: dict[str, Any], now_s: float) -> None:
    if event.get("error"):
        answer.error = str(event["error"])
    for choice in event.get("choices", ()):
        if text := choice["delta"].get("content"):
            answer.text += text
            answer.times_s.append(now_s)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    if usage := event.get("usage"):
        answer.completion_tokens = usage["completion_tokens"]
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    answer.telemetry = event.get("hypnos_telemetry") or answer.telemetry


async def _work(job: dict[str, Any]) -> list[Answer]:
    return await asyncio.gather(*(_ask(job["port"], body) for body in job["bodies"]))


def main() -> int:
    """Answer jobs until stdin ends."""
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            answers = runner.run(_work(json.loads(line)))
            print(json.dumps([asdict(answer) for answer in answers]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
