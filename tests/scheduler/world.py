"""A made-up machine around the scheduler: keeps its own books and checks every effect against them."""

from hypnos_engine.domain.errors import HypnosError, LoadFailed, WorkerDied
from hypnos_engine.domain.kinds import EngineKind, Modality, Priority, Residency
from hypnos_engine.domain.memory import Footprint
from hypnos_engine.domain.model import LayerShape, ModelId, ModelShape, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler

GIB = 2**30
MAX_QUEUE = 4
MAX_OVERTAKEN_S = 30.0


def spec(name: str, **changes: object) -> ModelSpec:
    """A text model with two slots."""
    settings: dict[str, object] = {
        "id": ModelId(name),
        "modality": Modality.TEXT,
        "engine": EngineKind.LLAMA,
        "weights_path": f"{name}.gguf",
        "slots": 2,
        "context_len": 1024,
        **changes,
    }
    return ModelSpec(**settings)  # type: ignore[arg-type]  # the keys are the field names


def shape(weight_bytes: int) -> ModelShape:
    """A model of four layers and `weight_bytes` in all."""
    quarter = LayerShape(weight_bytes // 4, 0, 64, 64, 0, 0)
    return ModelShape(
        architecture="llama",
        name="made up",
        file_bytes=weight_bytes,
        tensor_bytes=weight_bytes,
        layers=(quarter,) * 4,
        non_layer_bytes=0,
        context_train=8192,
        embedding_length=64,
        vocabulary_size=1000,
        expert_count=0,
        expert_used_count=0,
        has_chat_template=True,
        is_encoder=False,
    )


class World:
    """Drives a scheduler and remembers what it asked for."""

    def __init__(self, sizes: dict[str, int], *, budget_bytes: int, specs: list[ModelSpec] | None = None) -> None:
        models = specs or [spec(name) for name in sizes]
        self.scheduler = Scheduler(models, max_queue_per_model=MAX_QUEUE, max_overtaken_s=MAX_OVERTAKEN_S)
        self.now = 0.0
        self.budget_bytes = budget_bytes
        self.loading: dict[ModelId, fx.Load] = {}
        self.unloading: set[ModelId] = set()
        self.ready: set[ModelId] = set()
        self.resizing: dict[ModelId, int] = {}
        self.waiting: dict[int, ModelId] = {}
        self.leases: dict[int, ModelId] = {}
        self.lost: set[int] = set()
        """Leases whose worker died under them; they still have to be ended by their owners."""
        self.refused: dict[int, HypnosError] = {}
        self.granted: list[fx.Grant] = []
        self.records: list[fx.Record] = []
        self.threads: dict[ModelId, int] = {}
        self.wake_at: float | None = None
        self._next = 0
        self.send(ev.BudgetsSet(ev.Budgets(0, budget_bytes, 4, device_layers=False)))
        self.send(ev.MachineSampled(budget_bytes, 0))
        for name, size in sizes.items():
            self.send(ev.ModelInspected(ModelId(name), shape(size), None))

    # --- what a test does -------------------------------------------------------------------------------------------

    def arrive(self, name: str, *, deadline_s: float | None = None) -> int:
        self._next += 1
        request = self._next
        self.waiting[request] = ModelId(name)
        deadline_at = None if deadline_s is None else self.now + deadline_s
        self.send(ev.RequestArrived(request, ModelId(name), deadline_at=deadline_at))
        return request

    def cancel(self, request: int) -> None:
        self.waiting.pop(request, None)
        self.leases.pop(request, None)
        self.lost.discard(request)
        self.send(ev.RequestCancelled(request))

    def end(self, request: int, *, ok: bool = True) -> None:
        del self.leases[request]
        self.lost.discard(request)
        self.send(ev.LeaseEnded(request, ok=ok))

    def finish_load(self, name: str, *, measured: Footprint | None = None) -> None:
        load = self.loading.pop(ModelId(name))
        self.ready.add(ModelId(name))
        footprint = load.plan.footprint
        measured = measured or Footprint(
            file_pages=footprint.file_pages, anonymous=footprint.total - footprint.file_pages
        )
        self.send(ev.LoadFinished(ModelId(name), measured, load.plan.placement.allocated_context_len, 0))

    def fail_load(self, name: str) -> None:
        del self.loading[ModelId(name)]
        self.send(ev.LoadFailed(ModelId(name), LoadFailed(f"{name} is damaged")))

    def finish_unload(self, name: str) -> None:
        self.unloading.discard(ModelId(name))
        self.send(ev.UnloadFinished(ModelId(name)))

    def die(self, name: str) -> None:
        self.ready.discard(ModelId(name))
        self.resizing.pop(ModelId(name), None)
        self.lost |= {request for request, model in self.leases.items() if model == name}
        self.send(ev.WorkerDied(ModelId(name), WorkerDied(f"{name} was killed")))

    def finish_resize(self, name: str) -> None:
        cells = self.resizing.pop(ModelId(name))
        footprint = self.scheduler.state.models[ModelId(name)].footprint
        self.send(ev.ContextResized(ModelId(name), cells, footprint))

    def pass_time(self, seconds: float) -> None:
        self.pass_until(self.now + seconds)

    def pass_until(self, target: float) -> None:
        while self.wake_at is not None and self.wake_at <= target:
            self.now, self.wake_at = self.wake_at, None
            self.send(ev.Woken())
        self.now = target

    def run_dry(self) -> None:
        """Finish everything that is under way until nothing is."""
        for _ in range(10_000):
            if self.loading:
                self.finish_load(next(iter(self.loading)))
            elif self.unloading:
                self.finish_unload(next(iter(self.unloading)))
            elif self.resizing:
                self.finish_resize(next(iter(self.resizing)))
            elif self.leases:
                self.end(next(iter(self.leases)))
            elif self.wake_at is not None:
                self.pass_until(self.wake_at)
            else:
                return
        raise AssertionError(f"the scheduler never comes to rest: {self.waiting}, {self.records[-3:]}")

    # --- what the scheduler does ------------------------------------------------------------------------------------

    def send(self, event: ev.Event) -> list[fx.Effect]:
        effects = self.scheduler.on(event, self.now)
        for effect in effects:
            self._perform(effect)
        return effects

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Load(model):
                assert model not in self.loading, "loaded twice at once"
                assert model not in self.ready, "loaded although it is ready"
                assert not self.loading, "two loads at a time"
                assert not self.unloading, "a load began before the unloads that make room had ended"
                self.loading[model] = effect
                self.threads[model] = effect.threads
            case fx.Unload(model):
                assert model in self.ready, "unloaded what is not ready"
                users = [r for r, m in self.leases.items() if m == model and r not in self.lost]
                assert not users, "unloaded under a lease"
                assert model not in self.resizing, "unloaded while its context is rebuilt"
                self.ready.discard(model)
                self.unloading.add(model)
            case fx.Grant(request, model):
                assert self.waiting.pop(request) == model, "granted to the wrong model"
                assert model in self.ready, "granted on a model that is not ready"
                self.leases[request] = model
                self.granted.append(effect)
            case fx.Refuse(request, error):
                del self.waiting[request]
                self.refused[request] = error
            case fx.ResizeContext(model, context_len):
                assert model in self.ready
                self.resizing[model] = context_len
            case fx.SetThreads(model, threads):
                assert model in self.ready
                self.threads[model] = threads
            case fx.WakeAt(at):
                assert at > self.now, "asked to be woken in the past"
                self.wake_at = at
            case fx.Record():
                self.records.append(effect)
            case fx.DenyContext():
                pass

    # --- what must always hold --------------------------------------------------------------------------------------

    def check(self) -> None:
        state = self.scheduler.state
        booked = sum(model.footprint.total for model in state.models.values())
        assert booked <= self.budget_bytes, "more booked than the budget"
        inside = {request for model in state.models.values() for request in model.leases}
        assert inside == set(self.leases), "leases inside and outside differ"
        queued = {request for model in state.models.values() for request in model.waiting}
        assert queued == set(self.waiting), "queues inside and outside differ"
        assert not inside & queued, "a request is in two places"
        assert set(state.where) == inside | queued
        for model in state.models.values():
            assert len(model.waiting) + len(model.leases) <= MAX_QUEUE
            alive = sum(1 for request in model.leases if request not in self.lost)
            assert alive <= model.spec.slots, "more leases than slots"
            if model.residency is Residency.COLD:
                assert model.footprint.total == 0, "a cold model holds bytes"

    def check_at_rest(self) -> None:
        """With nothing under way, nobody waits who could be served."""
        assert not self.waiting, f"left waiting: {self.waiting}"
        assert not self.leases


PINNED = Priority.REALTIME_PINNED
