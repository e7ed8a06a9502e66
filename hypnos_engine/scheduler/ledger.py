"""The bytes that are booked and those that are left. Asks only: nothing here changes the state.

A file's pages are one line, however many workers map them and whether or not they are held besides.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from hypnos_engine.domain.kinds import Pages, Residency
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler.corrections import Correction
from hypnos_engine.scheduler.placement import Free, Plan, Shortage, context_cells, plan
from hypnos_engine.scheduler.state import ModelState, State


class What(Enum):
    """What can leave memory."""

    WORKER = auto()
    PAGES = auto()
    """Pages that are held for a file set."""
    PARKED = auto()
    """A model's parked conversations."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that can leave memory: a worker or parked conversations by model, pages by file set."""

    what: What
    name: str


@dataclass(frozen=True, slots=True)
class Gone:
    """What a question assumes to have left already."""

    models: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    parked: frozenset[str] = frozenset()

    @classmethod
    def of(cls, items: Iterable[Item]) -> "Gone":
        chosen = tuple(items)
        return cls(*(frozenset(item.name for item in chosen if item.what is what) for what in What))

    def __bool__(self) -> bool:
        return bool(self.models or self.files or self.parked)

    def __or__(self, other: "Gone") -> "Gone":
        return Gone(self.models | other.models, self.files | other.files, self.parked | other.parked)


NOBODY = Gone()


def human(amount_bytes: float) -> str:
    """Bytes for a sentence: 1.4 GiB, 312 MiB."""
    gib = amount_bytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{amount_bytes / 2**20:.0f} MiB"


def file_line(state: State, path: str, gone: Gone = NOBODY) -> int:
    """Bytes booked for a file set's pages."""
    files = state.files.get(path)
    held = files.held_bytes if files is not None and path not in gone.files else 0
    mapped = (user.mapped_bytes for user in state.users(path) if user.spec.id not in gone.models)
    return max(held, max(mapped, default=0))


def host_booked(state: State, gone: Gone = NOBODY) -> int:
    """Host memory booked in all: workers, their files' pages once, held pages, parked conversations."""
    lines: dict[str, int] = {
        path: files.held_bytes for path, files in state.files.items() if files.held_bytes and path not in gone.files
    }
    total = 0
    for name, model in state.models.items():
        if model.parked_bytes and name not in gone.parked:
            total += model.parked_bytes
        if model.plan is None or name in gone.models:
            continue
        total += model.private_bytes
        mapped = model.mapped_bytes
        path = model.spec.weights_path
        if mapped > lines.get(path, 0):
            lines[path] = mapped
    return total + sum(lines.values())


def host_budget(state: State) -> int:
    """Host memory that may be booked: the budget, or what the cap on the program's own memory leaves of it."""
    budgets = state.budgets
    return (
        budgets.host_bytes if budgets.process_cap_bytes is None else min(budgets.host_bytes, budgets.process_cap_bytes)
    )


def is_capped(state: State, model: ModelState, gone: Gone) -> bool:
    """Whether the cap on the program's own memory is all that keeps a model from being loaded."""
    beyond = state.budgets.host_bytes - host_budget(state)
    if not beyond:
        return False
    free = free_without(state, gone, model.files, beyond_cap=beyond)
    cells = context_cells(model.spec, model.shape)
    return isinstance(plan(model.spec, model.shape, cells, free, known_error(state, model, cells)), Plan)


def device_booked(state: State, device: int, gone: Gone = NOBODY) -> int:
    """What is booked of one accelerator's own memory."""
    return sum(
        share_of(model, device)
        for name, model in state.models.items()
        if model.plan is not None and name not in gone.models
    )


def share_of(model: ModelState, device: int) -> int:
    """What a model has booked of one accelerator: as measured, divided as planned."""
    if model.plan is None or device >= len(model.plan.device_shares):
        return 0
    planned = model.plan.device_shares[device]
    if model.measured is None or not planned:
        return planned
    # A worker reports the sum over its devices.
    whole = sum(model.plan.device_shares)
    return planned * model.device_bytes // whole


def held_bytes(state: State) -> int:
    """Pages that are held, being filled or being dropped."""
    return sum(files.held_bytes for files in state.files.values())


def parked_bytes(state: State) -> int:
    return sum(model.parked_bytes for model in state.models.values())


def free_without(state: State, gone: Gone, path: str | None = None, *, beyond_cap: int = 0) -> Free:
    """Bytes that a new worker could take if all that is `gone` had left; `path` is the file set it would map.

    The budget minus what is booked, and never more than the machine really has left. `beyond_cap` asks what there
    would be if the cap on the program's own memory were so much higher.
    """
    budgets = state.budgets
    host = host_budget(state) + beyond_cap - host_booked(state, gone)
    # Mapped pages are part of what the kernel calls available already; private and held memory comes back on leaving.
    returned = sum(state.models[ModelId(name)].private_bytes for name in gone.models)
    returned += sum(state.files[name].held_bytes for name in gone.files)
    returned += sum(state.models[ModelId(name)].parked_bytes for name in gone.parked)
    host = min(host, state.host_available_bytes + returned)
    devices = tuple(_device_free(state, index, gone) for index in range(len(budgets.device_bytes)))
    return Free(
        host_bytes=max(0, host),
        device_bytes=devices,
        device_layers=budgets.device_layers and state.hold is None,
        held_pages_bytes=0 if path is None else file_line(state, path, gone),
    )


def _device_free(state: State, device: int, gone: Gone) -> int:
    if device in state.lost_devices or state.hold is not None:
        return 0
    budgeted = state.budgets.device_bytes[device] - device_booked(state, device, gone)
    returned = sum(share_of(state.models[ModelId(name)], device) for name in gone.models)
    really = state.device_free_bytes[device] if device < len(state.device_free_bytes) else 0
    return max(0, min(budgeted, really + returned) - state.doubted_bytes.get(device, 0))


def cells_of(model: ModelState) -> int:
    """KV cells that the model's next load provides."""
    configured = context_cells(model.spec, model.shape)
    trained = model.shape.context_train if model.shape is not None else 0
    wanted = min(model.wanted_cells, trained) if trained else model.wanted_cells
    return max(configured, wanted)


def plan_without(state: State, model: ModelState, gone: Gone) -> Plan | Shortage:
    """Place the model as if all that is `gone` had left; with the configured context if the wanted one is too much."""
    free = free_without(state, gone, model.spec.weights_path)
    cells = cells_of(model)
    answer = plan(model.spec, model.shape, cells, free, known_error(state, model, cells))
    configured = context_cells(model.spec, model.shape)
    if isinstance(answer, Plan) or cells == configured or model.promoted:
        return answer
    return plan(model.spec, model.shape, configured, free, known_error(state, model, configured))


def shortage_of(state: State, model: ModelState, plan: Plan) -> Shortage:
    """What a plan that gives too little to the accelerator lacks: the bytes of the whole model, and what is free."""
    free = max(free_without(state, NOBODY).device_bytes, default=0)
    whole = sum(plan.device_shares) + (plan.footprint.file_pages or plan.footprint.anonymous)
    return Shortage(max(whole, free + 1), free)


def grown_plan(state: State, model: ModelState, context_len: int) -> Plan | Shortage:
    """Place a loaded model again with a larger context, its own present bytes counted as free."""
    free = free_without(state, Gone(frozenset((model.spec.id,))), model.spec.weights_path)
    return plan(model.spec, model.shape, context_len, free, known_error(state, model, context_len))


def known_error(state: State, model: ModelState, cells: int) -> Correction:
    """What earlier loads of the model's file taught about plans for such a context."""
    return state.corrections.find(model.spec.weights_path, cells)


def room_in_flight(state: State) -> Gone:
    """What is on its way out."""
    return Gone(
        frozenset(name for name, model in state.models.items() if model.residency is Residency.UNLOADING),
        frozenset(path for path, files in state.files.items() if files.pages is Pages.DROPPING),
    )


def held(state: State) -> frozenset[str]:
    """File sets whose pages are held and could be dropped."""
    return frozenset(path for path, files in state.files.items() if files.pages is Pages.HELD)


def idle_beside(state: State, model: ModelState) -> Gone:
    """The model itself and everything that could leave for it at once."""
    all_of_it = all_that_may_leave(state, model)
    idle = {name for name in all_of_it.models if state.models[ModelId(name)].idle}
    return Gone(frozenset(idle | {model.spec.id}), all_of_it.files, all_of_it.parked)


def all_that_may_leave(state: State, model: ModelState) -> Gone:
    """Everything that a model could ever displace, busy or not."""
    return Gone(
        frozenset(
            name
            for name, other in state.models.items()
            if other is not model and other.residency is not Residency.COLD and other.may_leave
        ),
        frozenset(path for path, files in state.files.items() if files.held_bytes and path != model.spec.weights_path),
        frozenset(name for name, other in state.models.items() if other.parked_bytes and other is not model),
    )
