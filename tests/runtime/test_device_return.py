"""After an unload: the devices' own figures are waited for, for a moment at most."""

import asyncio
from dataclasses import dataclass, field

from hypnos_engine.domain.memory import Footprint, Placement
from hypnos_engine.hardware.monitor import DeviceSample
from hypnos_engine.runtime.device_return import NOTHING, RETURN_WITHIN_S, DeviceReturn
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.placement import Plan
from hypnos_engine.scheduler.state import ModelState
from tests.runtime.unreliable import UNIT, MadeUpDevices, Watched
from tests.runtime.virtual_time import run
from tests.scheduler.made_up import spec


def loaded(*shares: int) -> ModelState:
    model = ModelState(spec("a"))
    model.plan = Plan(Placement(gpu_layers=4), Footprint(device=sum(shares)), shares, tuple(2 for _ in shares))
    return model


@dataclass
class Card(MadeUpDevices):
    """Devices whose figures follow a script, one sample for each look; the last one stays."""

    script: list[DeviceSample] = field(default_factory=list)
    looks: int = 0

    def __init__(self, *samples: DeviceSample) -> None:
        super().__init__((8 * UNIT, 8 * UNIT), Watched([], Limits()))
        self.script = list(samples)
        self.looks = 0

    def sample(self) -> DeviceSample:
        return self.script[0]

    async def fresh(self) -> DeviceSample:
        await asyncio.sleep(0)
        self.looks += 1
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


def free(*free_gib: float, lost: tuple[int, ...] = (), others: tuple[int | None, ...] = ()) -> DeviceSample:
    return DeviceSample(tuple(int(one * UNIT) for one in free_gib), lost, (None,) * len(free_gib), others)


async def waited_s(card: MadeUpDevices, model: ModelState) -> float:
    """Seconds from before an unload until it is over."""
    waiting = DeviceReturn(lambda: card, lambda: (8 * UNIT, 8 * UNIT))
    awaited = await waiting.before(model)
    began = asyncio.get_running_loop().time()
    await waiting.wait(awaited)
    return asyncio.get_running_loop().time() - began


def test_the_bytes_are_waited_for_until_the_device_reports_them() -> None:
    card = Card(free(5), free(5), free(5.2), free(8))
    assert 0 < run(waited_s(card, loaded(3 * UNIT))) < RETURN_WITHIN_S
    assert card.looks == 4


def test_bytes_that_do_not_come_back_are_waited_for_no_longer_than_a_moment() -> None:
    card = Card(free(5))
    assert RETURN_WITHIN_S <= run(waited_s(card, loaded(3 * UNIT))) < RETURN_WITHIN_S + 0.2


def test_every_device_of_a_split_model_has_to_report() -> None:
    card = Card(free(5, 6), free(8, 6), free(8, 8))
    assert run(waited_s(card, loaded(3 * UNIT, 2 * UNIT))) > 0
    assert card.looks == 3


def test_a_lost_device_is_not_waited_for() -> None:
    assert run(waited_s(Card(free(5), free(0, lost=(0,))), loaded(3 * UNIT))) == 0
    assert run(waited_s(Card(free(0, lost=(0,))), loaded(3 * UNIT))) == 0


def test_a_device_that_does_not_count_what_workers_hold_is_not_waited_for() -> None:
    assert run(waited_s(Card(free(7)), loaded(3 * UNIT))) == 0
    assert run(waited_s(Card(free(4, others=(4 * UNIT,))), loaded(3 * UNIT))) == 0


def test_a_model_in_host_memory_is_not_waited_for() -> None:
    async def nothing() -> None:
        card = Card(free(5))
        waiting = DeviceReturn(lambda: card, lambda: ())
        assert await waiting.before(loaded()) == NOTHING
        assert await waiting.before(ModelState(spec("a"))) == NOTHING
        assert card.looks == 0

    run(nothing())


def test_a_driver_that_hangs_holds_nobody_up() -> None:
    class Hung(Card):
        async def fresh(self) -> DeviceSample:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    assert run(waited_s(Hung(free(5)), loaded(3 * UNIT))) <= 2 * RETURN_WITHIN_S
