"""Restless users of a running engine: they ask, leave, move, switch, kill; what must never happen is written down.

Runs for as long as it is told, from a fixed seed. Must never forgive an answer that the contract does not know.
"""

import asyncio
import contextlib
import json
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil

from tests.e2e.engine_process import RunningEngine

ANSWER_S = 60.0
"""Longest that any answer may take; all models together load in a second or two."""
KNOWN_REFUSALS = {
    400: {"context_length_exceeded", "invalid_request_error"},
    404: {"model_disabled"},
    429: {"model_busy"},
    500: {"server_error"},
    503: {"deadline_unmeetable", "model_not_available", "model_unavailable"},
    507: {"insufficient_memory", "insufficient_vram"},
}
TIERS = ("tier1_gpu_vram", "tier2_pinned_ram", "tier3_nvme_ssd")


@dataclass
class Soak:
    """All users of one engine for one span of time."""

    engine: RunningEngine
    models: tuple[str, ...]
    seconds: float
    seed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    """What must not have happened, in the order in which it did."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Let everybody loose, then bring the engine to rest."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(self.engine.address, timeout=timeout) as session:
            users: list[Callable[[aiohttp.ClientSession, random.Random], Awaitable[None]]] = [
                *(self._ask for _ in range(4)),
                self._leave,
                self._move,
                self._switch,
                self._kill,
                self._watch,
            ]
            async with asyncio.TaskGroup() as group:
                end_at = asyncio.get_running_loop().time() + self.seconds
                asyncio.get_running_loop().call_at(end_at, self._over.set)
                for number, user in enumerate(users):
                    group.create_task(self._repeat(user, session, random.Random(f"{self.seed} {number}"), end_at))
            await self._rest(session)

    async def _repeat(
        self,
        user: Callable[[aiohttp.ClientSession, random.Random], Awaitable[None]],
        session: aiohttp.ClientSession,
        chance: random.Random,
        end_at: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < end_at:
            await user(session, chance)
            if self.engine.process.poll() is not None:
                raise AssertionError(f"the engine ended with {self.engine.process.returncode}; log:\n{self.engine.log}")

    async def _pause(self, seconds: float) -> None:
        """Do nothing for a while; the end of the span ends it too."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    # --- users ------------------------------------------------------------------------------------------------------

    async def _ask(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        """One request, streamed or not, with some of the headers; its outcome has to be one that is known."""
        headers = {}
        if chance.random() < 0.3:
            headers["x-hypnos-next-model"] = chance.choice(self.models)
        if chance.random() < 0.2:
            headers["x-hypnos-deadline-ms"] = str(chance.choice([50, 1000, 20_000]))
        if chance.random() < 0.3:
            headers["x-hypnos-workflow"] = f"turn/{chance.randrange(3)}"
        body = self._conversation(chance)
        async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
            if body["stream"] and answer.status == 200:
                self._judge_stream(body, await answer.text())
            else:
                self._judge(f"ask {body['model']}", answer.status, await answer.json())

    async def _leave(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        """Ask for a long answer and go away in the middle of it, or before it began."""
        body = {**self._conversation(chance), "stream": True, "max_tokens": 400}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.random()):
                async with session.post("/v1/chat/completions", json=body) as answer:
                    await answer.content.readany()
        self.outcomes["left"] += 1

    async def _move(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        what = chance.random()
        if what < 0.75:
            body = {"model": chance.choice(self.models), "target_tier": chance.choice(TIERS)}
            await self._post(session, "/v1/memory/tier", body)
        elif what < 0.9:
            await self._post(session, "/v1/memory/free", {})
            await self._post(session, "/v1/memory/restore", {})
        else:
            await self._post(session, "/v1/memory/kv-park", {"enabled": chance.random() < 0.8})
        await self._pause(chance.random() / 2)

    async def _switch(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        model = chance.choice(self.models)
        await self._post(session, f"/v1/models/{model}/disable", {})
        await self._post(session, f"/v1/models/{model}/moe-offload", {"mode": chance.choice(["off", "on", "auto"])})
        await self._post(session, f"/v1/models/{model}/enable", {})
        await self._pause(1 + chance.random())

    async def _kill(self, _session: aiohttp.ClientSession, chance: random.Random) -> None:
        """Kill a worker or the process that holds the pages."""
        await self._pause(3 + 3 * chance.random())
        victims = psutil.Process(self.engine.process.pid).children()
        if victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(victims).send_signal(signal.SIGKILL)
                self.outcomes["killed"] += 1

    async def _watch(self, session: aiohttp.ClientSession, _chance: random.Random) -> None:
        """Look at the ledger once a second."""
        async with session.get("/v1/memory/status") as answer:
            self._judge_ledger(await answer.json())
        await self._pause(1)

    # --- judging ----------------------------------------------------------------------------------------------------

    def _conversation(self, chance: random.Random) -> dict[str, Any]:
        words = " ".join(chance.choice(["one", "two", "three", "sea", "land"]) for _ in range(chance.randrange(1, 12)))
        return {
            "model": chance.choice(self.models),
            "messages": [{"role": "user", "content": words}],
            "max_tokens": chance.randrange(1, 60),
            "stream": chance.random() < 0.5,
        }

    async def _post(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
        async with session.post(path, json=body) as answer:
            self._judge(path, answer.status, await answer.json())

    def _judge(self, what: str, status: int, answer: Any) -> None:
        self.outcomes[f"{what.partition(' ')[0]} {status}"] += 1
        if status == 200:
            return
        kind = answer.get("error", {}).get("type") if isinstance(answer, dict) else None
        if kind not in KNOWN_REFUSALS.get(status, ()):
            self.wrongs.append(f"{what}: {status} {json.dumps(answer)[:500]}")

    def _judge_stream(self, body: dict[str, Any], text: str) -> None:
        """A stream ends with [DONE] after a finish reason, whatever became of its worker."""
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]":
            self.wrongs.append(f"the stream of {body} ended with {text[-300:]!r}")
            return
        reasons = [choice.get("finish_reason") for event in events[:-1] for choice in json.loads(event)["choices"]]
        reason = next((reason for reason in reversed(reasons) if reason), None)
        self.outcomes[f"stream {reason}"] += 1
        if reason not in ("stop", "length", "error"):
            self.wrongs.append(f"the stream of {body} ended for the reason {reason}")

    def _judge_ledger(self, status: dict[str, Any]) -> None:
        """Used and free are the budget, and nothing is promised beyond it."""
        capabilities = status["capabilities"]
        for tier, budget in (
            ("tier1_vram", "usable_vram_budget_bytes"),
            ("tier2_pinned_ram", "pinned_ram_budget_bytes"),
        ):
            used, free = status[f"{tier}_used_bytes"], status[f"{tier}_free_bytes"]
            if used < 0 or free < 0 or used + free != capabilities[budget]:
                self.wrongs.append(f"{tier}: {used} used and {free} free of {capabilities[budget]}")
        self.outcomes["looked"] += 1

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _rest(self, session: aiohttp.ClientSession) -> None:
        """Switch everything on, end holds and parking, put every model to the disk, and wait until nothing moves."""
        await self._post(session, "/v1/memory/restore", {})
        await self._post(session, "/v1/memory/kv-park", {"enabled": False})
        for model in self.models:
            await self._post(session, f"/v1/models/{model}/enable", {})
            async with asyncio.timeout(ANSWER_S):
                while not await self._is_on_disk(session, model):
                    pass

    async def _is_on_disk(self, session: aiohttp.ClientSession, model: str) -> bool:
        body = {"model": model, "target_tier": TIERS[2]}
        async with session.post("/v1/memory/tier", json=body) as answer:
            await answer.read()
        async with session.get("/v1/memory/status") as answer:
            status = await answer.json()
        (entry,) = (entry for entry in status["models"] if entry["id"] == model)
        return bool(entry["residency"] == "cold" and entry["current_tier"] == TIERS[2] and not entry["active_leases"])
