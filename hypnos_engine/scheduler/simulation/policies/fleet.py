"""What every policy of others needs: its models' workers, the planner's bytes, and each worker's own queue.

Others start a server for each model and pass requests on to it; what exceeds its slots waits inside that server, first
come, first served, where the one who passed it on cannot take it back. Decides nothing about who is loaded or leaves.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypnos_engine.domain.errors import HypnosError, InsufficientMemory, ModelBusy
from hypnos_engine.domain.kinds import MoeOffload, Residency, Tier
from hypnos_engine.domain.model import ModelId, ModelShape, ModelSpec
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.limits import NO_BUDGETS, Budgets
from hypnos_engine.scheduler.placement import Free, Plan, Shortage, context_cells, plan


@dataclass(slots=True)
class Server:
    """One model's server."""

    spec: ModelSpec
    slots: int
    shape: ModelShape | None = None
    residency: Residency = Residency.COLD
    plan: Plan | None = None
    running: set[int] = field(default_factory=set)
    queued: deque[int] = field(default_factory=deque)
    """Passed on, and waiting for a slot."""
    load_began: float = 0.0
    load_s: float = 0.0
    """How long the last load took."""
    used_at: float = 0.0
    """When a request was last passed on to it or ended there."""

    @property
    def id(self) -> ModelId:
        return self.spec.id

    @property
    def in_flight(self) -> int:
        """Requests passed on that have not ended."""
        return len(self.running) + len(self.queued)


class Fleet:
    """All servers of one policy. The effects of what it does gather in `out` until the policy hands them over."""

    def __init__(self, models: Iterable[ModelSpec], slots: int | None = None) -> None:
        self.servers = {spec.id: Server(spec, slots or spec.slots) for spec in models}
        self.budgets: Budgets = NO_BUDGETS
        self._sample = ev.MachineSampled(0, ())
        self._arrived: dict[int, tuple[ModelId, float]] = {}
        self._out: list[fx.Effect] = []

    def take(self, event: ev.Event) -> bool:
        """Note what an event says about the machine and the files; False when it is about something else."""
        match event:
            case ev.BudgetsSet(budgets):
                self.budgets = budgets
            case ev.MachineSampled():
                self._sample = event
            case ev.ModelInspected(model, shape):
                self.servers[model].shape = shape
            case _:
                return False
        return True

    def done(self) -> list[fx.Effect]:
        """Hand over the effects that have gathered."""
        out, self._out = self._out, []
        return out

    # --- requests ---------------------------------------------------------------------------------------------------

    def arrive(self, event: ev.RequestArrived, now: float) -> None:
        """Remember a request until it ends."""
        self._arrived[event.request] = (event.model, now)

    def pass_on(self, request: int, now: float) -> None:
        """Give a request to its model's server, which is ready."""
        server = self.servers[self._arrived[request][0]]
        server.used_at = now
        if len(server.running) < server.slots:
            self._run(server, request, now)
        else:
            server.queued.append(request)

    def ended(self, request: int, now: float) -> Server | None:
        """A request has ended, or its caller has left; returns its server when it had been passed on."""
        model, _ = self._arrived.pop(request)
        server = self.servers[model]
        if request in server.running:
            server.running.remove(request)
            server.used_at = now
            if server.queued:
                self._run(server, server.queued.popleft(), now)
            return server
        if request in server.queued:
            server.queued.remove(request)
            return server
        return None

    def refuse(self, request: int, error: HypnosError) -> None:
        """Answer a request with an error."""
        del self._arrived[request]
        self._out.append(fx.Refuse(request, error))

    def model_of(self, request: int) -> ModelId:
        return self._arrived[request][0]

    def _run(self, server: Server, request: int, now: float) -> None:
        server.running.add(request)
        waited = now - self._arrived[request][1]
        self._out.append(fx.Grant(request, server.id, Tier.GPU, waited, waited > 0, 0.0, (), None))

    # --- servers ----------------------------------------------------------------------------------------------------

    @property
    def present(self) -> list[Server]:
        """Every server that has memory, in the order of the configuration."""
        return [server for server in self.servers.values() if server.residency is not Residency.COLD]

    def free(self) -> Free:
        """Bytes that a new server could take: within the budget, and really there."""
        plans = [server.plan for server in self.present if server.plan]
        host = self.budgets.host_bytes - sum(placed.footprint.total - sum(placed.device_shares) for placed in plans)
        devices: list[int] = []
        for index, budget in enumerate(self.budgets.device_bytes):
            booked = sum(placed.device_shares[index] for placed in plans if placed.device_shares)
            devices.append(max(0, min(budget - booked, self._sample.device_free_bytes[index])))
        return Free(max(0, min(host, self._real_host())), tuple(devices), self.budgets.device_layers)

    def _real_host(self) -> int:
        """What the machine says is available, less the file pages that servers compute from and that it counts in."""
        mapped = sum(server.plan.footprint.file_pages for server in self.present if server.plan)
        return self._sample.host_available_bytes - mapped

    def plan(self, server: Server, free: Free, *, whole: bool = False) -> Plan | Shortage:
        """Where the model would go; `whole` allows nothing but all of it on accelerators."""
        spec = replace(server.spec, slots=server.slots)
        if whole and free.device_layers and not free.unified:
            spec = replace(spec, min_gpu_layer_ratio=1.0, moe_offload=MoeOffload.OFF)
        return plan(spec, server.shape, context_cells(server.spec, server.shape), free)

    def empty(self) -> Free:
        """Bytes that a server could take if no other were there."""
        return Free(self.budgets.host_bytes, self.budgets.device_bytes, self.budgets.device_layers)

    def load(self, server: Server, placed: Plan, now: float) -> None:
        """Start a server."""
        server.residency, server.plan, server.load_began = Residency.LOADING, placed, now
        self._out.append(fx.Load(server.id, placed, max(1, self.budgets.cores), Tier.DISK))

    def loaded(self, model: ModelId, now: float) -> Server:
        """A server is ready."""
        server = self.servers[model]
        server.residency, server.load_s, server.used_at = Residency.READY, now - server.load_began, now
        return server

    def unload(self, server: Server, for_model: ModelId | None) -> None:
        """End a server that nobody uses."""
        server.residency = Residency.UNLOADING
        reason = "idle" if for_model is None else "memory_budget"
        self._out.append(fx.Unload(server.id, for_model, reason, Tier.DISK))

    def gone(self, model: ModelId) -> Server:
        """A server has ended, or never came up."""
        server = self.servers[model]
        server.residency, server.plan = Residency.COLD, None
        return server

    def wake_at(self, moment: float) -> None:
        self._out.append(fx.WakeAt(moment))


def too_large(server: Server, short: Shortage) -> HypnosError:
    """The error of a model that finds no memory."""
    return InsufficientMemory(
        f"The model '{server.id}' needs {short.needed_bytes} bytes, and {short.free_bytes} are free."
    )


def too_busy(model: ModelId, most: int) -> HypnosError:
    """The error of a queue that is full."""
    return ModelBusy(f"The model '{model}' already has {most} requests.")


def whole_bytes(fleet: Fleet, server: Server) -> int:
    """What the model takes of the memory that is short, all of it on the device where there is one."""
    placed = fleet.plan(server, fleet.empty(), whole=True)
    return placed.needed_bytes if isinstance(placed, Shortage) else _short_bytes(fleet.budgets, placed)


def used_bytes(fleet: Fleet) -> int:
    """What servers have of the memory that is short."""
    return sum(_short_bytes(fleet.budgets, server.plan) for server in fleet.present if server.plan)


def room_bytes(budgets: Budgets) -> int:
    """The memory that is short: all devices together, or the one pool."""
    return budgets.host_bytes if budgets.one_pool else sum(budgets.device_bytes)


def _short_bytes(budgets: Budgets, placed: Plan) -> int:
    return placed.footprint.total if budgets.one_pool else sum(placed.device_shares)
