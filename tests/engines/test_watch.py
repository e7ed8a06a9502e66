"""When a silent worker counts as hung: real processes that sleep, stop and spin, on a clock that a test can move."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hypnos_engine.engines.watch import Patience, Watch

SLEEPS = "import threading; print(flush=True); threading.Event().wait()"
SPINS = "print(flush=True)\nwhile True: pass"
PATIENCE = Patience(least_s=0.2, slowest_steps=5.0, busy_times=4.0)


class MovableLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps, as some systems' clocks do while the machine sleeps."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.fixture
def loop_factory() -> type[MovableLoop]:
    return MovableLoop


@dataclass
class Child:
    """A process to look at, and what was said about it."""

    process: subprocess.Popen[bytes]
    works: bool = True
    verdicts: list[tuple[float, str]] = field(default_factory=list)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(self, patience: Patience = PATIENCE) -> Watch:
        watch = Watch(self.process.pid, patience, lambda: self.works, self._give_up)
        watch.start()
        return watch

    def _give_up(self, silent_s: float, state: str) -> None:
        self.verdicts.append((silent_s, state))
        self.given_up.set()


def run(program: str) -> Iterator[Child]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield Child(process)
        process.kill()


@pytest.fixture
def sleeper() -> Iterator[Child]:
    yield from run(SLEEPS)


@pytest.fixture
def spinner() -> Iterator[Child]:
    yield from run(SPINS)


async def after(seconds: float) -> None:
    """Return once the loop's clock has moved on by so much."""
    moment = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, moment.set_result, None)
    await moment


async def test_a_sleeping_process_is_given_up_once(sleeper: Child) -> None:
    watch = sleeper.watch()
    await sleeper.given_up.wait()
    await after(0.5)
    ((silent_s, state),) = sleeper.verdicts
    assert 0.2 <= silent_s < 0.4
    assert state == "sleeping"
    watch.start()
    await after(0.3)
    assert len(sleeper.verdicts) == 1


async def test_a_stopped_process_is_given_up(spinner: Child) -> None:
    spinner.process.send_signal(signal.SIGSTOP)
    spinner.watch()
    await spinner.given_up.wait()
    assert spinner.verdicts[0][1] == "stopped"


async def test_a_process_that_computes_gets_longer_but_not_for_ever(spinner: Child) -> None:
    spinner.watch()
    await spinner.given_up.wait()
    ((silent_s, state),) = spinner.verdicts
    assert 0.8 <= silent_s < 1.2
    assert state == "running"


async def test_whoever_is_heard_is_left_alone(sleeper: Child) -> None:
    watch = sleeper.watch()
    for _ in range(20):
        await after(0.05)
        watch.heard()
    assert not sleeper.verdicts


async def test_slow_steps_earn_a_longer_silence(sleeper: Child) -> None:
    watch = sleeper.watch()
    await after(0.15)
    watch.heard()
    await after(0.5)
    assert not sleeper.verdicts
    await sleeper.given_up.wait()
    assert sleeper.verdicts[0][0] >= 0.7


async def test_without_work_nobody_looks(sleeper: Child) -> None:
    sleeper.works = False
    watch = sleeper.watch()
    await after(0.5)
    assert not sleeper.verdicts
    sleeper.works = True
    await after(0.5)
    assert not sleeper.verdicts  # nobody said so
    watch.start()
    await sleeper.given_up.wait()


async def test_a_closed_watch_looks_no_more(sleeper: Child) -> None:
    sleeper.watch().close()
    await after(0.5)
    assert not sleeper.verdicts


async def test_time_that_this_process_did_not_live_through_is_no_silence(
    sleeper: Child, loop_factory: type[MovableLoop]
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, loop_factory)
    watch = sleeper.watch()
    for _ in range(3):
        await after(0.01)
        loop.ahead_s += 3600.0
    await after(0.01)
    watch.heard()
    assert not sleeper.verdicts
    await after(0.1)
    assert not sleeper.verdicts  # nor did it pass for a slow step


async def test_a_process_that_is_gone_is_given_up(sleeper: Child) -> None:
    sleeper.process.kill()
    sleeper.process.wait()
    sleeper.watch()
    await sleeper.given_up.wait()
    assert sleeper.verdicts[0][1] == "not to be seen"


def test_patience_follows_the_slowest_step() -> None:
    patience = Patience()
    assert patience.bound_s(0.0) == 20.0
    assert patience.bound_s(0.3) == 20.0
    assert patience.bound_s(30.0) == 600.0
