"""Whatever happens in whatever order, the invariants of the scheduler hold after every step."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import events as ev
from tests.scheduler.world import GIB, PINNED, World, spec

NAMES = ("small", "middle", "large", "pinned", "huge")
SIZES = {"small": GIB, "middle": 3 * GIB, "large": 5 * GIB, "pinned": 2 * GIB, "huge": 40 * GIB}


class Machine(RuleBasedStateMachine):
    """Random users, loads, failures and clocks."""

    world: World

    @initialize(budget=st.sampled_from([4 * GIB, 7 * GIB, 12 * GIB]))
    def start(self, budget: int) -> None:
        specs = [spec(name, **({"priority": PINNED} if name == "pinned" else {})) for name in NAMES]
        self.world = World(SIZES, budget_bytes=budget, specs=specs)

    @rule(name=st.sampled_from(NAMES), deadline=st.none() | st.floats(0.0, 60.0))
    def arrive(self, name: str, deadline: float | None) -> None:
        self.world.arrive(name, deadline_s=deadline)

    @precondition(lambda self: self.world.waiting or self.world.leases)
    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick: object) -> None:
        everyone = sorted((*self.world.waiting, *self.world.leases))
        self.world.cancel(pick.choice(everyone))  # type: ignore[attr-defined]

    @precondition(lambda self: self.world.leases)
    @rule(pick=st.randoms(use_true_random=False), ok=st.booleans())
    def end(self, pick: object, ok: bool) -> None:
        self.world.end(pick.choice(sorted(self.world.leases)), ok=ok)  # type: ignore[attr-defined]

    @precondition(lambda self: self.world.loading)
    @rule(ok=st.sampled_from([True, True, True, False]))
    def load_ends(self, ok: bool) -> None:
        name = next(iter(self.world.loading))
        if ok:
            self.world.finish_load(name)
        else:
            self.world.fail_load(name)

    @precondition(lambda self: self.world.unloading)
    @rule()
    def unload_ends(self) -> None:
        self.world.finish_unload(min(self.world.unloading))

    @precondition(lambda self: self.world.ready)
    @rule(pick=st.randoms(use_true_random=False))
    def worker_dies(self, pick: object) -> None:
        self.world.die(pick.choice(sorted(self.world.ready)))  # type: ignore[attr-defined]

    @precondition(lambda self: self.world.ready - set(self.world.resizing))
    @rule(pick=st.randoms(use_true_random=False), cells=st.sampled_from([2048, 65536, 16_777_216]))
    def more_context(self, pick: object, cells: int) -> None:
        name = pick.choice(sorted(self.world.ready - set(self.world.resizing)))  # type: ignore[attr-defined]
        self.world.send(ev.ContextWanted(name, cells))

    @precondition(lambda self: self.world.resizing)
    @rule()
    def resize_ends(self) -> None:
        self.world.finish_resize(next(iter(self.world.resizing)))

    @rule(seconds=st.floats(0.0, 50.0))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(share=st.floats(0.0, 1.0))
    def others_use_memory(self, share: float) -> None:
        self.world.send(ev.MachineSampled(int(self.world.budget_bytes * share), 0))

    @rule(name=st.sampled_from(NAMES))
    def stage(self, name: str) -> None:
        self.world.send(ev.StageRequested(ModelId(name)))

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.send(ev.MachineSampled(self.world.budget_bytes, 0))
            self.world.run_dry()
            self.world.check()
            self.world.check_at_rest()


TestInvariants = Machine.TestCase
TestInvariants.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
