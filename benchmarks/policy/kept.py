"""Keeps what was measured, under a hash of everything that it follows from, so that a run can be taken up again.

Must never give back a figure of another policy, simulator, trace or parameter than the one that is asked for.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import msgspec

from benchmarks.policy.grid import Cell, Measured
from hypnos_engine.scheduler.simulation.policies.catalog import OWN

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "policy"
_SCHEDULER = ROOT / "hypnos_engine" / "scheduler"
_SIMULATION = _SCHEDULER / "simulation"
_MODULES = {"llama-swap": "llama_swap", "llama-cpp-router": "llama_router", "ollama": "ollama", "lemonade": "lemonade"}
"""Where the rules of a policy stand, by how its name begins."""
_SHARED = ("placement.py", "footprint.py", "compute_buffers.py", "events.py", "effects.py", "limits.py")
"""What every policy stands on."""


def fingerprint(policy: str, requests: int) -> str:
    """Hash of the sources and parameters that a policy's figures follow from."""
    policies = _SIMULATION / "policies"
    files = [path for path in _SIMULATION.glob("*.py") if not path.name.startswith("bound")]
    files += [_SCHEDULER / name for name in _SHARED]
    if policy == OWN:
        files += _SCHEDULER.glob("*.py")
    else:
        module = next(name for begin, name in _MODULES.items() if policy.startswith(begin))
        files += [policies / "policy.py", policies / "fleet.py", policies / f"{module}.py"]
    files += [Path(__file__).with_name("grid.py")]
    digest = hashlib.sha256(f"{policy} {requests}".encode())
    for path in sorted(set(files)):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Kept:
    """One policy's figures."""

    def __init__(self, policy: str, requests: int) -> None:
        self._path = FOLDER / f"{policy}-{fingerprint(policy, requests)}.jsonl"
        self._known: dict[tuple[Cell, int], Measured] = {}
        if self._path.is_file():
            decode = msgspec.json.Decoder(Measured).decode
            # A line that was being written when the run was ended is measured again.
            whole = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            for measured in map(decode, whole):
                self._known[measured.cell, measured.seed] = measured

    def find(self, cell: Cell, seed: int) -> Measured | None:
        return self._known.get((cell, seed))

    def add(self, figures: Iterable[Measured]) -> None:
        """Keep figures, on disk too."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            for measured in figures:
                self._known[measured.cell, measured.seed] = measured
                file.write(msgspec.json.encode(asdict(measured)) + b"\n")
