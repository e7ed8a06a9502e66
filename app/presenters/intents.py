"""Everything that a person can ask for, as values: windows emit them and somebody else carries them out."""

from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.domain.kinds import Tier


@dataclass(frozen=True, slots=True)
class Move:
    """Bring a model to a tier."""

    model: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class Switch:
    """Take a model out of service or put it back."""

    model: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class FreeGpu:
    """Take every model off the GPU and load none onto it."""

    for_s: float | None = None
    """None: until it is given back by hand."""


@dataclass(frozen=True, slots=True)
class RestoreGpu:
    """End the above."""


@dataclass(frozen=True, slots=True)
class CopyAddress:
    """Put the address for OpenAI clients onto the clipboard."""


@dataclass(frozen=True, slots=True)
class OpenPage:
    """Open the engine's page in the browser."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Open a file or folder with what the desktop has for it."""

    path: Path


@dataclass(frozen=True, slots=True)
class ShowStatus:
    pass


@dataclass(frozen=True, slots=True)
class ShowRequests:
    pass


@dataclass(frozen=True, slots=True)
class ShowAbout:
    pass


@dataclass(frozen=True, slots=True)
class StartAtLogin:
    wanted: bool


@dataclass(frozen=True, slots=True)
class StartHere:
    """Run the engine in this program, now that the one it was a window of has gone."""


@dataclass(frozen=True, slots=True)
class Quit:
    """End the program; asked a second time, without waiting for running answers."""


EngineIntent = Move | Switch | FreeGpu | RestoreGpu
DesktopIntent = (
    CopyAddress | OpenPage | OpenFile | ShowStatus | ShowRequests | ShowAbout | StartAtLogin | StartHere | Quit
)
Intent = EngineIntent | DesktopIntent
