"""The holders, in a process and made up: what every one of them promises."""

import os
import signal
from pathlib import Path
from typing import ClassVar

import pytest

from hypnos_engine.engines.holder import HolderProcess, LostSink, PageHolder
from hypnos_engine.engines.holder_fake import FakeHolder
from hypnos_engine.engines.process import Transport
from hypnos_engine.engines.runtimes import default_runtime
from hypnos_engine.testing.holder_conformance import HolderTests, file, ignore


class TestFakeHolder(HolderTests):
    def make(self, on_lost: LostSink) -> PageHolder:
        return FakeHolder(on_lost)

    def kill(self, holder: PageHolder) -> None:
        assert isinstance(holder, FakeHolder)
        holder.die()

    def make_lost(self, holder: PageHolder, files: str, path: Path) -> None:
        assert isinstance(holder, FakeHolder)
        holder.lose(files)


class TestFakeHolderThatKeepsWarm(TestFakeHolder):
    def make(self, on_lost: LostSink) -> PageHolder:
        return FakeHolder(on_lost, why_not_locked="Ask for more.")

    async def test_the_reason_is_told_while_something_is_held(self, tmp_path: Path) -> None:
        holder = self.make(ignore)
        assert holder.report().why_not_locked is None
        await holder.fill("a", [file(tmp_path, "weights")], ignore)
        assert holder.report().why_not_locked == "Ask for more."
        assert holder.report().held[0].locked_bytes == 0


class HolderProcessTests(HolderTests):
    transport: ClassVar[Transport]

    @pytest.fixture(autouse=True)
    def deaths(self, expected_log: list[str]) -> None:
        expected_log.append("The process that holds files in memory was ended by signal SIGKILL")

    def make(self, on_lost: LostSink) -> PageHolder:
        return HolderProcess(default_runtime(), on_lost, check_every_s=0.05, transport=self.transport)

    def kill(self, holder: PageHolder) -> None:
        assert isinstance(holder, HolderProcess)
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)

    def make_lost(self, holder: PageHolder, files: str, path: Path) -> None:
        os.truncate(path, 1_000_000)


@pytest.mark.usefixtures("loop_factory")
class TestHolderOverASocket(HolderProcessTests):
    transport = Transport.SOCKET


class TestHolderOverPipes(HolderProcessTests):
    transport = Transport.PIPES
