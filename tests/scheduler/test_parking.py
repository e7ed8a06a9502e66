"""Parked conversations: booked before they are saved, within the cap, and given up for loads."""

from dataclasses import replace

from hypnos_engine.domain.kinds import EngineKind, LoadMode, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler import ledger
from tests.scheduler.world import GIB, World, spec

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
MIB = 2**20
CELLS = 65_536
CACHE_BYTES = CELLS * 1024
"""The made-up shape keeps 1 KiB a cell. What is booked for parking is more, for the workspace counts too."""
MOST_BYTES = 3 * CACHE_BYTES


def accelerated(**changes: object) -> World:
    """Room for one of three on the accelerator."""
    settings: dict[str, object] = {
        "budget_bytes": 32 * GIB,
        "device_bytes": (4 * GIB,),
        "tier2_bytes": 12 * GIB,
        "park_bytes": GIB,
        "specs": [spec(name, context_len=CELLS) for name in "abc"],
        **changes,
    }
    return World(dict.fromkeys("abc", 3 * GIB), **settings)  # type: ignore[arg-type]


def parked(world: World) -> dict[str, int]:
    return {name: model.parked_bytes for name, model in world.scheduler.state.models.items() if model.parked_bytes}


def forgotten(world: World) -> list[str]:
    return [effect.model for effect in world.effects if isinstance(effect, fx.DropParked)]


def test_what_the_cache_can_fill_is_booked_before_it_is_saved() -> None:
    world = accelerated()
    world.serve("a")
    before = ledger.host_booked(world.scheduler.state)
    world.arrive("b")
    booked = world.unloading[A].park_bytes
    assert CACHE_BYTES <= booked <= MOST_BYTES
    assert parked(world) == {"a": booked}
    assert ledger.host_booked(world.scheduler.state) >= before + booked


def test_what_was_really_saved_takes_its_place() -> None:
    world = accelerated()
    world.serve("a")
    world.arrive("b")
    world.send(ev.KvParked(A, 5 * MIB))
    assert parked(world) == {"a": 5 * MIB}
    world.send(ev.KvParked(A, 0))
    assert parked(world) == {}


def test_the_oldest_are_forgotten_when_the_cap_is_reached() -> None:
    world = accelerated(park_bytes=MOST_BYTES + 30 * MIB)
    for name in "abc":
        world.serve(name)
        world.pass_time(1.0)
    assert forgotten(world) == []
    world.arrive("a")
    assert forgotten(world) == ["a"]
    assert set(parked(world)) == {"b", "c"}
    assert ledger.parked_bytes(world.scheduler.state) <= MOST_BYTES + 30 * MIB


def test_one_model_never_books_more_than_the_cap() -> None:
    world = accelerated(park_bytes=10 * MIB)
    world.serve("a")
    world.arrive("b")
    assert world.unloading[A].park_bytes == 10 * MIB


def test_without_a_cap_nothing_is_parked() -> None:
    world = accelerated(park_bytes=0)
    world.serve("a")
    world.arrive("b")
    assert world.unloading[A].park_bytes == 0


def test_only_text_models_have_conversations() -> None:
    specs = [spec("a", engine=EngineKind.WHISPER), spec("b"), spec("c")]
    world = accelerated(specs=specs)
    world.serve("a")
    world.arrive("b")
    assert world.unloading[A].park_bytes == 0


def test_nothing_is_kept_of_a_model_that_goes_to_disk() -> None:
    world = accelerated()
    world.serve("a")
    world.move("a", Tier.DISK)
    assert world.unloading[A].park_bytes == 0


def test_no_more_is_booked_than_host_memory_has_left() -> None:
    world = accelerated(tier2_bytes=3 * GIB, specs=[spec("a", context_len=CELLS), spec("b"), spec("c")])
    world.move("a", Tier.RAM)
    world.finish_fill("a.gguf")
    world.serve("a")
    world.others_bytes = 32 * GIB - 3 * GIB - world.scheduler.state.models[A].private_bytes - 10 * MIB
    world.sample()
    world.move("a", Tier.RAM)
    assert 0 <= world.unloading[A].park_bytes <= 10 * MIB


def test_on_one_pool_the_worker_makes_room_for_its_own_conversations() -> None:
    world = World(
        {"a": 3 * GIB},
        budget_bytes=4 * GIB,
        tier2_bytes=4 * GIB,
        park_bytes=GIB,
        specs=[spec("a", load_mode=LoadMode.READ, context_len=CELLS)],
    )
    world.serve("a")
    world.move("a", Tier.RAM)
    assert world.unloading[A].park_bytes >= CACHE_BYTES
    world.check()


def test_parked_conversations_are_forgotten_for_a_load_that_needs_the_memory() -> None:
    """Nothing has to be waited for: the load begins at once."""
    specs = [spec("a", context_len=CELLS), spec("b", load_mode=LoadMode.READ)]
    world = World({"a": GIB, "b": 3 * GIB}, budget_bytes=5 * GIB, tier2_bytes=GIB, park_bytes=GIB, specs=specs)
    world.serve("a")
    world.move("a", Tier.RAM)
    world.finish_unload("a")
    world.finish_fill("a.gguf")
    world.send(ev.KvParked(A, GIB))
    world.move("a", Tier.DISK)
    world.finish_drop("a.gguf")
    assert parked(world) == {"a": GIB}
    world.others_bytes = GIB
    world.sample()
    world.arrive("b")
    assert forgotten(world) == ["a"]
    assert set(world.loading) == {B}


def test_a_change_of_the_pool_forgets_them() -> None:
    world = accelerated()
    world.serve("a")
    world.serve("b")
    assert set(parked(world)) == {"a"}
    world.change(ev.ModelReplaced(spec("a"), world.scheduler.state.models[A].shape, None))
    assert forgotten(world) == ["a"]
    assert parked(world) == {}


def test_switching_a_model_off_forgets_them() -> None:
    world = accelerated()
    world.serve("a")
    world.serve("b")
    world.send(ev.ModelSwitched(A, enabled=False))
    assert forgotten(world) == ["a"]


def test_a_smaller_cap_forgets_the_oldest_at_once() -> None:
    world = accelerated()
    for name in "abc":
        world.serve(name)
        world.pass_time(1.0)
    world.budgets = replace(world.budgets, park_bytes=parked(world)["b"])
    world.send(ev.BudgetsSet(world.budgets))
    assert forgotten(world) == ["a"]
    assert set(parked(world)) == {"b"}


def test_what_is_just_being_saved_is_not_forgotten_for_others() -> None:
    """Two models leave at once; only one of them finds room under the cap."""
    specs = [spec(name, context_len=CELLS) for name in ("a", "b")] + [spec("c")]
    world = World(
        {"a": GIB, "b": GIB, "c": 4 * GIB},
        budget_bytes=32 * GIB,
        device_bytes=(5 * GIB,),
        tier2_bytes=12 * GIB,
        park_bytes=MOST_BYTES // 2,
        specs=specs,
    )
    world.serve("a")
    world.serve("b")
    world.arrive("c")
    assert set(world.unloading) == {A, B}
    assert sum(unload.park_bytes for unload in world.unloading.values()) <= MOST_BYTES // 2
    assert forgotten(world) == []
    world.check()


def test_a_cap_that_was_lowered_while_conversations_were_saved_is_kept_afterwards() -> None:
    world = accelerated()
    world.serve("a")
    world.arrive("b")
    world.budgets = replace(world.budgets, park_bytes=MIB)
    world.send(ev.BudgetsSet(world.budgets))
    assert forgotten(world) == []
    world.finish_unload("a")
    world.send(ev.KvParked(A, 2 * MIB))
    assert forgotten(world) == ["a"]
    world.check()
