"""A real `hypnos serve` that tells how long its loop was held (`probed_engine`), and the bodies that are sent to it."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.engine_process import END_S, free_port, private_environment

MIB = 1024 * 1024


@dataclass(frozen=True)
class Figures:
    """What the probe saw since it was asked last; see `probed_engine.Probe`."""

    ticks: int
    stall_ms: float
    worst_ms: tuple[float, ...]
    lag_ms: float
    lag_p99_ms: float
    files: tuple[str, ...]
    peak_bytes: int

    @property
    def spooled(self) -> int:
        """Bodies that lie in files."""
        return sum("/hypnos/run/" in name and name.endswith("(deleted)") for name in self.files)


@dataclass
class ProbedEngine:
    process: subprocess.Popen[str]
    address: str

    def figures(self) -> Figures:
        """The figures since the last call; blocks for as long as the loop is held."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("figures\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        found.update(files=tuple(found["files"]), worst_ms=tuple(found["worst_ms"]))
        return Figures(**found)


@contextlib.contextmanager
def probed(home: Path, *, demo: bool, config: str = "") -> Iterator[ProbedEngine]:
    """Serve for the length of the block; no process is left behind."""
    home.mkdir(parents=True, exist_ok=True)
    arguments = ["--demo"] if demo else []
    if config:
        path = home / "probed.toml"
        path.write_text(f"config_version = 1\n{config}", "utf-8")
        arguments += ["--config", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.probed_engine", "--port", str(free_port()), *arguments],
        env=private_environment(home),
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield ProbedEngine(process, process.stdout.readline().strip())
    finally:
        process.terminate()
        process.communicate(timeout=END_S)


def json_chat(model: str, text: bytes, more: bytes = b"") -> bytes:
    """One chat request; `text` is the JSON of the message's content, `more` further fields."""
    head = b'{"model":"%b","max_tokens":3,"messages":[{"role":"user","content":' % model.encode()
    return head + text + b"}]" + more + b"}"


def large_bodies(model: str, size_bytes: int) -> dict[str, bytes]:
    """Bodies of about that size, kind ones and hostile ones."""

    def filled(piece: bytes, between: bytes = b"") -> bytes:
        return between.join([piece] * (size_bytes // len(piece + between)))

    tools = b',"tools":[{"function":{"name":"f","parameters":{"a":[%b]}}}]'
    picture = b'[{"type":"text","text":"Hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}]'
    return {
        "text": json_chat(model, b'"%b"' % filled(b"word ")),
        "wide text": json_chat(model, b'"' + filled("汉".encode()) + b'"'),
        "picture": json_chat(model, picture % filled(b"QUJD")),
        "small values": json_chat(model, b'"Hi"', tools % filled(b"{}", b",")),
        "keyed values": json_chat(model, b'"Hi"', tools % filled(b'{"a":1}', b",")),
        "messages": b'{"model":"%b","messages":[%b]}' % (model.encode(), filled(b'{"role":"user","content":""}', b",")),
        "unknown field": json_chat(model, b'"Hi"', b',"x":[%b]' % filled(b'{"a":1}', b",")),
        "deep": filled(b"["),
        "broken at its end": json_chat(model, b'"%b"' % filled(b"word "))[:-1] + b"]",
        "no text": json_chat(model, b'"%b\xff"' % filled(b"word ")),
    }
