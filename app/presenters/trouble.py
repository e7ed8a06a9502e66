"""What a person is shown when the engine cannot start: what is wrong, and what they can do about it. No traceback."""

from dataclasses import dataclass
from pathlib import Path

from hypnos_engine.domain.errors import (
    AlreadyRunning,
    ConfigurationInvalid,
    FolderUnusable,
    HypnosError,
    PortInUse,
)


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Start once more, on another port when one is named."""

    port: int | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Open a file or a folder; the question stays."""

    path: Path


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the program."""


Remedy = TryAgain | Open | GiveUp


@dataclass(frozen=True, slots=True)
class Choice:
    text: str
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class Trouble:
    """One refusal of the start. The first choice is the one that Enter takes."""

    title: str
    text: str
    advice: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What remedies can be offered here; None = not known."""

    config_file: Path | None = None
    log_folder: Path | None = None
    free_port: int | None = None


def trouble(error: HypnosError, around: Surroundings) -> Trouble:
    """The refusal in words. The error's own sentence is shown as it is."""
    title, advice, first = _what_helps(error, around)
    choices = [Choice("Try again", TryAgain())]
    if first is not None:
        choices.insert(0, first)
    if isinstance(error, ConfigurationInvalid | PortInUse) and around.config_file is not None:
        choices.append(Choice("Open configuration", Open(around.config_file)))
    if not isinstance(error, ConfigurationInvalid | PortInUse) and around.log_folder is not None:
        choices.append(Choice("Open log folder", Open(around.log_folder)))
    choices.append(Choice("Quit", GiveUp()))
    return Trouble(title, error.message, advice, tuple(choices))


def _what_helps(error: HypnosError, around: Surroundings) -> tuple[str, str, Choice | None]:
    match error:
        case PortInUse() if around.free_port is not None:
            return (
                "Another program uses Hypnos's port",
                f"Port {around.free_port} is free. Clients have to be given the new address.",
                Choice(f"Use port {around.free_port} this time", TryAgain(around.free_port)),
            )
        case PortInUse():
            return "Another program uses Hypnos's port", "End that program, then try again.", None
        case ConfigurationInvalid():
            return "The configuration has a mistake", "Correct the file and save it, then try again.", None
        case FolderUnusable():
            return "A folder cannot be used", "Mend the folder as said above, then try again.", None
        case AlreadyRunning():
            return "Another Hypnos is in the way", "Stop it, then try again.", None
        case _:
            return "Hypnos cannot start", "Change what is said above, then try again.", None
