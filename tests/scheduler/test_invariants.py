"""Whatever happens in whatever order, the invariants of the scheduler hold after every step and at the end."""

import random
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hypnos_engine.domain.errors import DeviceOutOfMemory
from hypnos_engine.domain.kinds import EngineKind, MoeOffload, Priority, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, LIMITS, PINNED, World, shape, spec

NAMES = ("small", "middle", "large", "pinned", "huge", "kept", "twin", "voice")
SIZES = {
    "small": GIB,
    "middle": 3 * GIB,
    "large": 5 * GIB,
    "pinned": 2 * GIB,
    "huge": 40 * GIB,
    "kept": 2 * GIB,
    "twin": 3 * GIB,
}
SETTINGS: dict[str, dict[str, object]] = {
    "small": {"priority": Priority.LOW},
    "large": {"priority": Priority.HIGH, "initial_tier": Tier.RAM},
    "pinned": {"priority": PINNED},
    "kept": {"keep_warm_in_ram": True},
    "twin": {"weights_path": "middle.gguf", "context_len": 65_536},
    "voice": {"engine": EngineKind.ONNX, "slots": 1},
}
picks = st.randoms(use_true_random=False)
names = st.sampled_from(NAMES)
busy_names = st.sampled_from(("small", "middle", "large", "twin", "kept"))
"""Those that displace each other."""


class Machine(RuleBasedStateMachine):
    """Random users, owners, loads, failures, other programs and clocks."""

    world: World

    @initialize(
        budget=st.sampled_from([4 * GIB, 7 * GIB, 12 * GIB]),
        devices=st.sampled_from([(), (), (4 * GIB,), (8 * GIB,), (3 * GIB, 6 * GIB)]),
        tier2=st.sampled_from([0, 3 * GIB, 8 * GIB]),
        park=st.sampled_from([0, 200 * 2**20, GIB]),
        cap=st.sampled_from([None, None, 5 * GIB]),
    )
    def start(self, budget: int, devices: tuple[int, ...], tier2: int, park: int, cap: int | None) -> None:
        specs = [spec(name, **SETTINGS.get(name, {})) for name in NAMES]
        limits = replace(LIMITS, hold_uses_cpu=park > 0)
        self.world = World(
            SIZES,
            budget_bytes=budget,
            specs=specs,
            device_bytes=devices,
            tier2_bytes=min(tier2, budget),
            park_bytes=park,
            cap_bytes=cap,
            limits=limits,
        )

    # --- users ------------------------------------------------------------------------------------------------------

    @rule(
        name=names,
        deadline=st.none() | st.none() | st.floats(0.0, 60.0),
        key=st.sampled_from(["", "one", "two"]),
        task=st.none() | st.builds(ev.Workflow, st.sampled_from(["w", "x"]), st.sampled_from("12"), st.booleans()),
        following=st.none() | names,
        cells=st.sampled_from([0, 0, 4096]),
    )
    def arrive(
        self, name: str, deadline: float | None, key: str, task: ev.Workflow | None, following: str | None, cells: int
    ) -> None:
        self.world.arrive(
            name,
            deadline_s=deadline,
            key=key,
            weight=3.0 if key == "one" else 1.0,
            workflow=task,
            next_model=None if following is None else ModelId(following),
            cells=cells,
        )

    @rule(name=busy_names, count=st.integers(1, 6), key=st.sampled_from(["", "one", "two"]))
    def one_request_after_the_other(self, name: str, count: int, key: str) -> None:
        """Somebody who asks again as soon as the answer is there; that is how others are overtaken."""
        for _ in range(count):
            request = self.world.arrive(name, key=key)
            self.world.pass_time(0.5)
            if request in self.world.leases:
                self.world.end(request)

    @rule(wanted=st.lists(busy_names, min_size=2, max_size=4))
    def several_want_something(self, wanted: list[str]) -> None:
        for name in wanted:
            self.world.arrive(name)

    @rule(steps=st.integers(1, 6))
    def what_is_under_way_ends(self, steps: int) -> None:
        for _ in range(steps):
            self.world.go_on()

    @precondition(lambda self: self.world.waiting or self.world.leases)
    @rule(pick=picks)
    def cancel(self, pick: random.Random) -> None:
        self.world.cancel(pick.choice(sorted((*self.world.waiting, *self.world.leases))))

    @precondition(lambda self: self.world.leases)
    @rule(pick=picks, ok=st.booleans())
    def end(self, pick: random.Random, ok: bool) -> None:
        self.world.end(pick.choice(sorted(self.world.leases)), ok=ok)

    @rule(name=busy_names, mode=st.sampled_from(MoeOffload))
    def set_offload(self, name: str, mode: MoeOffload) -> None:
        self.world.send(ev.OffloadSet(ModelId(name), mode))

    @precondition(lambda self: self.world.ready)
    @rule(pick=picks, more=st.sampled_from([2**20, 400 * 2**20, 2 * GIB]))
    def a_worker_grows(self, pick: random.Random, more: int) -> None:
        self.world.grow(pick.choice(sorted(self.world.ready)), more)

    # --- workers ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.loading)
    @rule(how=st.sampled_from(["well", "well", "well", "badly", "without memory"]), pick=picks)
    def load_ends(self, how: str, pick: random.Random) -> None:
        name = pick.choice(sorted(self.world.loading))
        if how == "well":
            self.world.finish_load(name)
        else:
            self.world.fail_load(name, DeviceOutOfMemory("no memory") if how == "without memory" else None)

    @precondition(lambda self: self.world.unloading)
    @rule()
    def unload_ends(self) -> None:
        self.world.finish_unload(min(self.world.unloading))

    @precondition(lambda self: self.world.ready)
    @rule(pick=picks, back=st.booleans(), memory=st.booleans())
    def worker_dies(self, pick: random.Random, back: bool, memory: bool) -> None:
        name = pick.choice(sorted(self.world.ready))
        self.world.die(name, DeviceOutOfMemory("no memory") if memory else None)
        if back:
            for request in sorted(self.world.lost):
                if self.world.leases[request] == name:
                    self.world.bring_back(request)

    @precondition(lambda self: bool(set(self.world.ready) - set(self.world.resizing)))
    @rule(pick=picks, cells=st.sampled_from([2048, 65536, 16_777_216]))
    def more_context(self, pick: random.Random, cells: int) -> None:
        name = pick.choice(sorted(set(self.world.ready) - set(self.world.resizing)))
        self.world.send(ev.ContextWanted(name, cells))

    @precondition(lambda self: self.world.resizing)
    @rule()
    def resize_ends(self) -> None:
        self.world.finish_resize(next(iter(self.world.resizing)))

    @precondition(lambda self: self.world.loading)
    @rule(fraction=st.floats(-1.0, 2.0))
    def load_goes_on(self, fraction: float) -> None:
        self.world.send(ev.LoadProgressed(next(iter(self.world.loading)), fraction))

    # --- memory -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.filling)
    @rule(share=st.sampled_from([1.0, 1.0, 0.5, 0.0]))
    def fill_ends(self, share: float) -> None:
        self.world.finish_fill(next(iter(self.world.filling)), share=share)

    @precondition(lambda self: self.world.dropping)
    @rule()
    def drop_ends(self) -> None:
        self.world.finish_drop(min(self.world.dropping))

    @precondition(lambda self: bool(set(self.world.held) - self.world.dropping))
    @rule()
    def pages_are_lost(self) -> None:
        self.world.send(ev.PagesLost(min(set(self.world.held) - self.world.dropping)))

    @rule(share=st.floats(0.0, 1.0))
    def others_use_memory(self, share: float) -> None:
        self.world.others_bytes = int(self.world.budgets.host_bytes * share)
        self.world.sample()

    @rule(share=st.floats(0.0, 1.0))
    def others_use_accelerators(self, share: float) -> None:
        self.world.others_device_bytes = int(max(self.world.budgets.device_bytes, default=0) * share)
        self.world.sample()

    @rule(host=st.sampled_from([2 * GIB, 7 * GIB, 12 * GIB]))
    def budget_changes(self, host: int) -> None:
        self.world.set_budget(host)

    @rule(overtakes=st.integers(0, 3), shed=st.none() | st.floats(1.0, 100.0))
    def limits_change(self, overtakes: int, shed: float | None) -> None:
        now = self.world.scheduler.state.limits
        self.world.send(ev.LimitsSet(replace(now, max_overtakes=overtakes, shed_s=shed)))

    @rule(name=names)
    def conversations_are_restored(self, name: str) -> None:
        self.world.send(ev.KvParked(ModelId(name), 0))

    @precondition(lambda self: self.world.budgets.device_bytes)
    @rule(device=st.integers(0, 1), lost=st.booleans())
    def device_comes_and_goes(self, device: int, lost: bool) -> None:
        if device < len(self.world.budgets.device_bytes):
            self.world.send(ev.DeviceLost(device) if lost else ev.DeviceReturned(device))

    # --- owners -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.none() | st.floats(0.1, 50.0), begin=st.booleans())
    def hold(self, seconds: float | None, begin: bool) -> None:
        until = None if seconds is None else self.world.now + seconds
        self.world.send(ev.HoldStarted(until) if begin else ev.HoldEnded())

    @rule(name=names, tier=st.sampled_from(Tier), cells=st.sampled_from([None, 4096]))
    def move(self, name: str, tier: Tier, cells: int | None) -> None:
        self.world.move(name, tier, context_len=cells)

    @rule(name=names)
    def stage(self, name: str) -> None:
        self.world.send(ev.StageRequested(ModelId(name)))

    @rule(name=names, enabled=st.sampled_from([True, True, False]))
    def switch(self, name: str, enabled: bool) -> None:
        self.world.send(ev.ModelSwitched(ModelId(name), enabled))

    @rule(name=names, how=st.sampled_from(["replace", "remove", "abandon"]))
    def change_the_pool(self, name: str, how: str) -> None:
        if how == "abandon":
            self.world.send(ev.ChangeAbandoned(ModelId(name)))
        elif how == "remove":
            self.world.change(ev.ModelRemoved(ModelId(name)))
        else:
            again = spec(name, **SETTINGS.get(name, {}))
            known = shape(SIZES[name]) if name in SIZES else None
            self.world.change(ev.ModelReplaced(again, known, None))

    @rule(seconds=st.floats(0.0, 50.0))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            self.world.check_not_forgotten()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.send(ev.HoldEnded())
            for device in range(len(self.world.budgets.device_bytes)):
                self.world.send(ev.DeviceReturned(device))
            self.world.others_bytes = self.world.others_device_bytes = 0
            self.world.sample()
            self.world.run_dry()
            self.world.check()
            self.world.check_at_rest()
            self.world.check_replay()


TestInvariants = Machine.TestCase
TestInvariants.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
