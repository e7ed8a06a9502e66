"""The requests of a trace on their way: who has arrived, who is served, who may come next; decides nothing."""

from collections.abc import Iterator, Mapping, Sequence

from hypnos_engine.domain.errors import HypnosError
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.placement import context_cells
from hypnos_engine.scheduler.simulation.machine import SimModel
from hypnos_engine.scheduler.simulation.result import Outcome, RequestResult, RunResult
from hypnos_engine.scheduler.simulation.trace import TraceRequest


class Requests:
    """All requests of one run, numbered from 1 in the order of the trace."""

    def __init__(self, trace: Sequence[TraceRequest], models: Mapping[ModelId, SimModel]) -> None:
        numbers = {request.id: number for number, request in enumerate(trace, start=1)}
        self._trace = (None, *trace)
        self._missing = [0, *(len(set(request.after)) for request in trace)]
        self._followers: dict[int, list[int]] = {}
        for number, request in enumerate(trace, start=1):
            for name in dict.fromkeys(request.after):
                self._followers.setdefault(numbers[name], []).append(number)
        cells = {name: context_cells(model.spec, model.shape) for name, model in models.items()}
        self._cells = [0, *(min(request.tokens, cells[ModelId(request.model)]) for request in trace)]
        self._work = [0.0, *(_alone_s(request, models[ModelId(request.model)]) for request in trace)]
        count = len(trace) + 1
        self._arrived: list[float | None] = [None] * count
        self._granted: list[float | None] = [None] * count
        self._finished: list[float | None] = [None] * count
        self._outcome: list[Outcome | None] = [None] * count
        self._errors: dict[int, str] = {}
        self.open = len(trace)
        """Requests that have not ended."""
        self.arrivals: list[tuple[float, int]] = sorted(
            (request.at_s, number) for number, request in enumerate(trace, start=1) if not request.after
        )
        """Those that come whatever becomes of others, by time."""

    def _of(self, number: int) -> TraceRequest:
        request = self._trace[number]
        assert request is not None
        return request

    def model_of(self, number: int) -> ModelId:
        return ModelId(self._of(number).model)

    def waits(self, number: int) -> bool:
        """Whether it has arrived and was neither granted nor closed."""
        return self._outcome[number] is None and self._granted[number] is None and self._arrived[number] is not None

    def arrive(self, number: int, now: float) -> ev.RequestArrived:
        """It arrives; the event says so."""
        request = self._of(number)
        self._arrived[number] = now
        return ev.RequestArrived(
            number,
            ModelId(request.model),
            None if request.deadline_ms is None else now + request.deadline_ms / 1e3,
            request.key,
            request.weight,
            self._cells[number],
            ev.Workflow(request.workflow, request.run, request.ends) if request.workflow else None,
            ModelId(request.next_model) if request.next_model else None,
        )

    def grant(self, number: int, model: ModelId, now: float) -> float:
        """It may use its model; returns the seconds of work that it is."""
        assert self.waits(number), "granted what does not wait"
        assert self.model_of(number) == model, "granted on another model than the one asked for"
        self._granted[number] = now
        return self._work[number]

    def close(
        self, number: int, outcome: Outcome, now: float, error: HypnosError | None = None
    ) -> Iterator[tuple[int, float]]:
        """It has ended; yields whoever was waiting for that, with the moment at which each arrives."""
        ended = [(number, outcome)]
        opened: list[tuple[int, float]] = []
        if error is not None:
            self._errors[number] = error.code
        while ended:
            current, how = ended.pop()
            if self._outcome[current] is not None:
                continue
            self._outcome[current] = how
            self.open -= 1
            if how is not Outcome.SKIPPED:
                self._finished[current] = now
            for follower in self._followers.get(current, ()):
                self._missing[follower] -= 1
                if how is not Outcome.SERVED:
                    ended.append((follower, Outcome.SKIPPED))
                elif not self._missing[follower] and self._outcome[follower] is None:
                    request = self._of(follower)
                    opened.append((follower, max(request.at_s, now + request.after_s)))
        return iter(opened)

    def results(self) -> tuple[RequestResult, ...]:
        """How each one ended, in the order of the trace."""
        return tuple(self._result(number) for number in range(1, len(self._trace)))

    def _result(self, number: int) -> RequestResult:
        request, outcome = self._of(number), self._outcome[number]
        if outcome is None:
            outcome = Outcome.SKIPPED if self._arrived[number] is None else Outcome.STRANDED
        arrived, granted = self._arrived[number], self._granted[number]
        late = False
        if request.deadline_ms is not None:
            late = granted is None or arrived is None or granted > arrived + request.deadline_ms / 1e3
        return RequestResult(
            id=request.id,
            model=ModelId(request.model),
            outcome=outcome,
            arrived_s=arrived,
            granted_s=granted,
            finished_s=self._finished[number],
            alone_s=self._work[number],
            key=request.key,
            workflow=request.workflow,
            run=request.run,
            late=late,
            error=self._errors.get(number, ""),
        )

    def runs(self) -> tuple[RunResult, ...]:
        """Every run of a workflow that began, by its beginning."""
        members: dict[tuple[str, str], list[int]] = {}
        for number in range(1, len(self._trace)):
            request = self._of(number)
            if request.workflow:
                members.setdefault((request.workflow, request.run), []).append(number)
        found: list[tuple[float, RunResult]] = []
        for (workflow, run), numbers in members.items():
            begins = [moment for number in numbers if (moment := self._arrived[number]) is not None]
            ends = [moment for number in numbers if (moment := self._finished[number]) is not None]
            if begins:
                complete = all(self._outcome[number] is Outcome.SERVED for number in numbers)
                duration = max(ends, default=min(begins)) - min(begins)
                found.append((min(begins), RunResult(workflow, run, len(numbers), complete, duration)))
        return tuple(result for _, result in sorted(found, key=lambda entry: entry[0]))


def _alone_s(request: TraceRequest, model: SimModel) -> float:
    if request.service_s is not None:
        return request.service_s
    return model.service_s(request.prompt_tokens, request.output_tokens)
