"""Invents what people ask a machine for: coding agents, spoken conversations, a household's day; decides nothing else.

A trace follows from its parameters, the lineup, the load and the dice alone. The dice come from the caller: this room
has no source of chance of its own. Traces of one seed hold the same requests whatever the load; only the sessions begin
closer together, so that policies can be compared over loads with the same work.

Load is offered work over capacity. Capacity is what the machine could do if every model were loaded: one accelerator,
one model's work at a time, each model with its slots full. The time that a trace offers its work in is the time from
its beginning to its last end if nobody ever waited.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from hypnos_engine.scheduler.simulation.trace import Trace, TraceModel, TraceRequest

_HOURS = 24
_STEPS = 60
"""Halvings when the length of a trace is looked for."""


class Dice(Protocol):
    """A source of chance, such as `random.Random(seed)`."""

    def random(self) -> float:
        """Return the next number, from 0 up to but without 1."""
        ...


@dataclass(frozen=True, slots=True)
class Lineup:
    """Who does what on a machine; a model may have several roles."""

    chat: TraceModel
    """Answers people and leads agents."""
    coder: TraceModel
    """Writes code, and thinks about what is hard."""
    small: TraceModel
    """Quick answers: home automation, the smaller parts of an agent's task."""
    vision: TraceModel
    embeddings: TraceModel
    ears: TraceModel
    """Speech to text."""
    voice: TraceModel
    """Text to speech."""
    images: TraceModel
    documents: TraceModel

    @property
    def models(self) -> tuple[TraceModel, ...]:
        """Each model once."""
        roles = (self.chat, self.coder, self.small, self.vision, self.embeddings)
        return tuple(dict.fromkeys((*roles, self.ears, self.voice, self.images, self.documents)))


@dataclass(frozen=True, slots=True)
class Amount:
    """A positive number that varies: log-normal, cut at a tenth and at five times its median."""

    median: float
    spread: float = 0.5
    """Standard deviation of the logarithm."""

    def draw(self, dice: Dice) -> float:
        """Return one amount."""
        angle, radius = 2 * math.pi * dice.random(), math.sqrt(-2 * math.log(1 - dice.random()))
        drawn = self.median * math.exp(self.spread * radius * math.cos(angle))
        return min(max(drawn, self.median / 10), self.median * 5)

    def count(self, dice: Dice) -> int:
        """Return one amount as a whole number of at least 1."""
        return max(1, round(self.draw(dice)))


class Generator(Protocol):
    """Parameters that a trace can be made from."""

    def trace(self, lineup: Lineup, dice: Dice, *, load: float, requests: int) -> Trace:
        """Make a trace of at least `requests` requests, no more than whole sessions above; load 1 is all that the
        machine could do."""
        ...


@dataclass(slots=True)
class _Session:
    """One caller's requests, as they follow from each other."""

    name: str
    key: str
    workflow: str = ""
    begins: float = 0.0
    """Share of the trace's length."""
    requests: list[TraceRequest] = field(default_factory=list)

    def ask(
        self,
        model: TraceModel,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        *,
        service_s: float | None = None,
        after: Iterable[str] = (),
        after_s: float = 0.0,
        next_model: TraceModel | None = None,
    ) -> str:
        """Add a request and return its id."""
        name = f"{self.name}.{len(self.requests)}"
        after = tuple(after)
        self.requests.append(
            TraceRequest(
                id=name,
                model=model.id,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                service_s=service_s,
                key=self.key,
                workflow=self.workflow,
                run=self.name if self.workflow else "",
                after=after,
                after_s=after_s if after else 0.0,
                next_model="" if next_model is None else next_model.id,
            )
        )
        return name

    def duration_s(self, models: dict[str, TraceModel]) -> float:
        """From its beginning to its last end if nobody waits."""
        ends: dict[str, float] = {}
        for request in self.requests:
            begins = max((ends[name] for name in request.after), default=0.0) + request.after_s
            ends[request.id] = begins + alone_s(request, models[request.model])
        return max(ends.values())


# --- the three kinds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """Agents that plan, let two other models do the parts at once, and come back to the first."""

    users: int = 3
    """People, each with a key."""
    rounds: tuple[int, int] = (1, 3)
    """Fewest and most rounds of a plan and its parts in one task."""
    parts: tuple[int, int] = (2, 5)
    """Fewest and most parts that are asked for at once."""
    coder_share: float = 0.6
    """Share of the parts that the coder does; the small model does the others."""
    lookup_share: float = 0.5
    """Share of the parts that begin with an embedding."""
    plan_prompt: Amount = Amount(2000)
    """Tokens, as all prompts and outputs; of a prompt those that are not cached."""
    plan_output: Amount = Amount(160)
    part_prompt: Amount = Amount(1200)
    part_output: Amount = Amount(180, 0.7)
    lookup_prompt: Amount = Amount(500)
    tool_s: Amount = Amount(2.0, 0.8)
    """Seconds that tools run between two requests."""
    announced: float = 0.0
    """Share of the plans that name the coder as the next model, and of the parts that name the planner."""

    def trace(self, lineup: Lineup, dice: Dice, *, load: float, requests: int) -> Trace:
        """See `Generator`."""
        return _trace(lineup, dice, load, requests, lambda number: self._task(lineup, dice, number))

    def _task(self, lineup: Lineup, dice: Dice, number: int) -> _Session:
        session = _Session(f"code{number}", f"agent-{1 + _below(dice, self.users)}", "coding", dice.random())
        before: list[str] = [session.ask(lineup.embeddings, self.lookup_prompt.count(dice))]
        for _ in range(_between(dice, self.rounds)):
            plan = self._plan(session, lineup, dice, before, lineup.coder)
            before = [self._part(session, lineup, dice, plan) for _ in range(_between(dice, self.parts))]
        self._plan(session, lineup, dice, before, None)
        return session

    def _plan(
        self, session: _Session, lineup: Lineup, dice: Dice, after: Sequence[str], next_model: TraceModel | None
    ) -> str:
        return session.ask(
            lineup.chat,
            self.plan_prompt.count(dice),
            self.plan_output.count(dice),
            after=after,
            after_s=self.tool_s.draw(dice),
            next_model=next_model if dice.random() < self.announced else None,
        )

    def _part(self, session: _Session, lineup: Lineup, dice: Dice, plan: str) -> str:
        model = lineup.coder if dice.random() < self.coder_share else lineup.small
        if dice.random() < self.lookup_share:
            plan = session.ask(
                lineup.embeddings, self.lookup_prompt.count(dice), after=[plan], after_s=self.tool_s.draw(dice) / 4
            )
        return session.ask(
            model,
            self.part_prompt.count(dice),
            self.part_output.count(dice),
            after=[plan],
            after_s=self.tool_s.draw(dice) / 4,
            next_model=lineup.chat if dice.random() < self.announced else None,
        )


@dataclass(frozen=True, slots=True)
class VoiceTurns:
    """People who talk with the machine: speech to text, a look into notes, an answer, speech; then they think."""

    speakers: int = 4
    """People, each with a key."""
    turns: tuple[int, int] = (1, 4)
    """Fewest and most turns of one conversation."""
    utterance_s: Amount = Amount(6.0)
    """Seconds of sound."""
    hearing_ratio: float = 0.04
    """Seconds of work for a second of sound heard."""
    speaking_ratio: float = 0.04
    """Seconds of work for a second of sound spoken."""
    prompt: Amount = Amount(900)
    """Tokens of a turn's prompt, notes and earlier turns included."""
    answer: Amount = Amount(70)
    """Tokens."""
    seconds_per_token: float = 0.25
    """Spoken seconds of an answer's token."""
    hard_share: float = 0.12
    """Share of the turns that the coder answers because they are hard."""
    look_share: float = 0.12
    """Share of the turns that are about a picture."""
    lookup_share: float = 0.6
    """Share of the turns that search notes by an embedding first."""
    think_s: Amount = Amount(4.0, 0.7)
    """Seconds from the end of the spoken answer to the end of the next utterance."""

    def trace(self, lineup: Lineup, dice: Dice, *, load: float, requests: int) -> Trace:
        """See `Generator`."""
        return _trace(lineup, dice, load, requests, lambda number: self._talk(lineup, dice, number))

    def _talk(self, lineup: Lineup, dice: Dice, number: int) -> _Session:
        session = _Session(f"talk{number}", f"speaker-{1 + _below(dice, self.speakers)}", "talk", dice.random())
        before: list[str] = []
        pause_s = 0.0
        for _ in range(_between(dice, self.turns)):
            heard_s = self.hearing_ratio * self.utterance_s.draw(dice)
            last = session.ask(lineup.ears, service_s=heard_s, after=before, after_s=pause_s)
            if dice.random() < self.lookup_share:
                last = session.ask(lineup.embeddings, 40, after=[last])
            chance = dice.random()
            model = lineup.chat
            if chance < self.hard_share + self.look_share:
                model = lineup.coder if chance < self.hard_share else lineup.vision
            tokens = self.answer.count(dice)
            last = session.ask(model, self.prompt.count(dice), tokens, after=[last])
            spoken_s = tokens * self.seconds_per_token
            before = [session.ask(lineup.voice, service_s=self.speaking_ratio * spoken_s, after=[last])]
            pause_s = spoken_s + self.think_s.draw(dice)
        return session


@dataclass(frozen=True, slots=True)
class App:
    """One of a household's programs."""

    key: str
    share: float
    """Weight among the apps when a session is drawn."""
    hours: tuple[float, ...]
    """Relative rate of its sessions in each hour of the day, from midnight."""
    session: Callable[["Household", _Session, Lineup, Dice], None]


@dataclass(frozen=True, slots=True)
class Household:
    """A day with several programs: chat, coding, documents by night, pictures, home automation, a camera.

    The day is as long as the load makes it; its shape is that of 24 hours.
    """

    chat_turns: tuple[int, int] = (1, 5)
    chat_prompt: Amount = Amount(900, 0.7)
    """Tokens, as all prompts and outputs; of a prompt those that are not cached."""
    chat_output: Amount = Amount(250, 0.6)
    read_s: Amount = Amount(25.0, 0.7)
    """Seconds from an answer to the next question."""
    edits: tuple[int, int] = (2, 8)
    """Fewest and most requests of a coding session."""
    edit_prompt: Amount = Amount(1000)
    edit_output: Amount = Amount(100, 0.8)
    edit_s: Amount = Amount(6.0, 0.8)
    """Seconds between an edit and the next one."""
    pages: tuple[int, int] = (2, 10)
    """Fewest and most documents of a batch; each is converted and then embedded."""
    page_s: Amount = Amount(3.0, 0.6)
    """Seconds of work to convert a document."""
    chunk_tokens: Amount = Amount(6000)
    pictures: tuple[int, int] = (1, 4)
    """Fewest and most pictures that are asked for at once."""
    picture_s: Amount = Amount(10.0, 0.4)
    """Seconds of work for a picture."""
    ping_prompt: Amount = Amount(350, 0.3)
    ping_output: Amount = Amount(25, 0.3)
    camera_prompt: Amount = Amount(1100, 0.2)
    camera_output: Amount = Amount(60, 0.3)

    def trace(self, lineup: Lineup, dice: Dice, *, load: float, requests: int) -> Trace:
        """See `Generator`."""
        return _trace(lineup, dice, load, requests, lambda number: self._session(lineup, dice, number))

    def _session(self, lineup: Lineup, dice: Dice, number: int) -> _Session:
        app = APPS[_pick(dice, [app.share for app in APPS])]
        hour = _pick(dice, app.hours)
        session = _Session(f"{app.key}{number}", app.key, begins=(hour + dice.random()) / _HOURS)
        app.session(self, session, lineup, dice)
        return session

    def chatting(self, session: _Session, lineup: Lineup, dice: Dice) -> None:
        """Questions and answers with time to read."""
        before: list[str] = []
        for _ in range(_between(dice, self.chat_turns)):
            prompt, output = self.chat_prompt.count(dice), self.chat_output.count(dice)
            before = [session.ask(lineup.chat, prompt, output, after=before, after_s=self.read_s.draw(dice))]

    def coding(self, session: _Session, lineup: Lineup, dice: Dice) -> None:
        """Small edits, one after the other."""
        before: list[str] = []
        for _ in range(_between(dice, self.edits)):
            prompt, output = self.edit_prompt.count(dice), self.edit_output.count(dice)
            before = [session.ask(lineup.coder, prompt, output, after=before, after_s=self.edit_s.draw(dice))]

    def filing(self, session: _Session, lineup: Lineup, dice: Dice) -> None:
        """A batch of documents: each one is converted after the one before, and embedded when it is."""
        before: list[str] = []
        for _ in range(_between(dice, self.pages)):
            before = [session.ask(lineup.documents, service_s=self.page_s.draw(dice), after=before)]
            session.ask(lineup.embeddings, self.chunk_tokens.count(dice), after=before)

    def painting(self, session: _Session, lineup: Lineup, dice: Dice) -> None:
        """Several pictures at once."""
        for _ in range(_between(dice, self.pictures)):
            session.ask(lineup.images, service_s=self.picture_s.draw(dice))

    def automating(self, session: _Session, lineup: Lineup, dice: Dice) -> None:
        """The house asks what a sentence or a sensor means."""
        session.ask(lineup.small, self.ping_prompt.count(dice), self.ping_output.count(dice))

    def watching(self, session: _Session, lineup: Lineup, dice: Dice) -> None:
        """The camera saw something; what it was is told to the house."""
        seen = session.ask(lineup.vision, self.camera_prompt.count(dice), self.camera_output.count(dice))
        session.ask(lineup.small, self.ping_prompt.count(dice), self.ping_output.count(dice), after=[seen])


_EVENING = (1, 0.5, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 2, 2, 2, 3, 4, 5, 6, 7, 7, 5, 3)
_WORKING = (0, 0, 0, 0, 0, 0, 0, 1, 3, 5, 6, 5, 2, 4, 6, 6, 5, 3, 2, 2, 3, 3, 1, 0)
_NIGHT = (6, 6, 6, 5, 3, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 5)
_LEISURE = (1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 5, 6, 6, 4, 2)
_ALWAYS = (2, 2, 2, 2, 2, 2, 4, 5, 4, 3, 3, 3, 3, 3, 3, 3, 4, 5, 5, 5, 5, 4, 3, 2)
APPS = (
    App("chat-anna", 5.0, _EVENING, Household.chatting),
    App("chat-ben", 3.0, _LEISURE, Household.chatting),
    App("coding", 4.0, _WORKING, Household.coding),
    App("documents", 1.5, _NIGHT, Household.filing),
    App("pictures", 1.5, _LEISURE, Household.painting),
    App("house", 14.0, _ALWAYS, Household.automating),
    App("camera", 5.0, _ALWAYS, Household.watching),
)
"""Who shares the household's machine. About 2.5 requests a session, half of them from programs that wait for people."""

GENERATORS: dict[str, Generator] = {"coding": CodingAgent(), "voice": VoiceTurns(), "household": Household()}


# --- load -----------------------------------------------------------------------------------------------------------


def alone_s(request: TraceRequest, model: TraceModel) -> float:
    """Seconds that a request takes alone on its model, wholly on the accelerator."""
    if request.service_s is not None:
        return request.service_s
    return request.prompt_tokens / model.prefill_tokens_per_s + request.output_tokens / model.decode_tokens_per_s


def work_s(requests: Iterable[TraceRequest], models: Iterable[TraceModel]) -> float:
    """Seconds of a machine that has every model loaded, when each one works with its slots full."""
    table = {model.id: model for model in models}
    gains = {model.id: model.batch_gain * model.slots / (model.batch_gain + model.slots - 1) for model in models}
    return sum(alone_s(request, table[request.model]) / gains[request.model] for request in requests)


def _trace(lineup: Lineup, dice: Dice, load: float, requests: int, session: Callable[[int], _Session]) -> Trace:
    """Draw sessions until there are enough requests, and spread them so that they are offered at the load."""
    sessions: list[_Session] = []
    amount = 0
    while amount < requests:
        sessions.append(session(len(sessions)))
        amount += len(sessions[-1].requests)
    sessions.sort(key=lambda one: one.begins)
    table = {model.id: model for model in lineup.models}
    work = work_s((request for one in sessions for request in one.requests), lineup.models)
    length_s = _length_s([(one.begins, one.duration_s(table)) for one in sessions], work / load)
    return Trace(tuple(r for one in sessions for r in _placed(one, one.begins * length_s)), lineup.models)


def _length_s(sessions: Sequence[tuple[float, float]], target_s: float) -> float:
    """How long the sessions' beginnings must be spread so that the last end is at `target_s`; 0 when it cannot be."""
    low, high = 0.0, target_s / max(max(begins for begins, _ in sessions), 1e-9)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        late = max(begins * middle + duration_s for begins, duration_s in sessions) > target_s
        low, high = (low, middle) if late else (middle, high)
    return low


def _placed(session: _Session, begins_s: float) -> Iterable[TraceRequest]:
    last = session.requests[-1]
    for request in session.requests:
        ends = bool(session.workflow) and request is last
        yield msgspec.structs.replace(request, at_s=0.0 if request.after else round(begins_s, 3), ends=ends)


# --- dice -----------------------------------------------------------------------------------------------------------


def _below(dice: Dice, end: int) -> int:
    return int(dice.random() * end)


def _between(dice: Dice, ends: tuple[int, int]) -> int:
    return ends[0] + _below(dice, ends[1] - ends[0] + 1)


def _pick(dice: Dice, weights: Sequence[float]) -> int:
    """Return the number of one of the weights, each as often as it weighs."""
    mark = dice.random() * sum(weights)
    for number, weight in enumerate(weights):
        mark -= weight
        if mark < 0:
            return number
    return max(number for number, weight in enumerate(weights) if weight > 0)
