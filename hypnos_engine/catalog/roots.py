"""Finds a model's files in several folders; an absent disk is an answer, never an exception, and nothing is opened."""

import errno
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hypnos_engine.config.names import has_parent_step
from hypnos_engine.config.problems import shown_path, shown_text


@dataclass(frozen=True, slots=True)
class Located:
    """A file or folder that is there."""

    path: Path
    root: Path | None
    """The models folder that holds it; None for an absolute path."""
    is_folder: bool


class Absence(StrEnum):
    """Why nothing was located."""

    REFUSED = "refused"
    """The path is no path inside a models folder."""
    NOT_FOUND = "not_found"
    """Every models folder is there and none holds it."""
    DISK_ABSENT = "disk_absent"
    """None of the models folders that are there holds it, and at least one is not there."""
    UNREADABLE = "unreadable"
    """It cannot be told: this user may not look, or the disk does not answer."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no path, and where was looked."""

    wanted: str
    because: Absence
    message: str
    """One sentence that says what is wrong and what to do."""
    searched: tuple[Path, ...] = ()
    absent_roots: tuple[Path, ...] = ()


def locate(relative: str, roots: Sequence[Path]) -> Located | Missing:
    """Return where `relative` is: the first of `roots` that holds it wins.

    1. An absolute path (or one that begins with `~/`) is taken as it is, wherever it leads: the owner of the
       configuration wrote it. Whoever passes a path of someone else's refuses `Located.root is None`.
    2. A path with a `..` step, and one that names nothing, is refused. Links inside a root may lead out of it.
    3. Otherwise the roots are searched in their order.
    """
    if refusal := _refusal(relative):
        return Missing(relative, Absence.REFUSED, refusal)
    absolute = _absolute(relative)
    if absolute is not None:
        return _locate_absolute(relative, absolute)
    absent: list[Path] = []
    unreadable: list[Path] = []
    for root in roots:
        match _look(root / relative):
            case bool() as is_folder:
                return Located(root / relative, root, is_folder)
            case _Look.UNKNOWN:
                unreadable.append(root)
            case _Look.ABSENT:
                if _look(root) is _Look.ABSENT:
                    absent.append(root)
    return _missing(relative, tuple(roots), tuple(absent), unreadable)


class _Look(StrEnum):
    ABSENT = "absent"
    UNKNOWN = "unknown"


def _look(path: Path) -> bool | _Look:
    """Return whether a path is a folder, or why that cannot be said. Never raises."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        # a name that is too long for the disk, a loop of links and a file in place of a folder are all "not there"
        nowhere = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
        return _Look.ABSENT if error.errno in nowhere else _Look.UNKNOWN
    except ValueError:  # a character that no file name has
        return _Look.ABSENT
    return stat.S_ISDIR(mode)


def _refusal(relative: str) -> str:
    if not relative.strip() or relative.strip("./ ") == "":
        return "The path of a model's file is empty. Write the file's name."
    if "\0" in relative:
        return "The path of a model's file has a null character. Write the file's name."
    if has_parent_step(relative):
        return f"The path {shown_text(relative)} leaves its models folder with a `..` step. Write an absolute path."
    return ""


def _absolute(relative: str) -> Path | None:
    if relative.startswith("~/"):
        try:
            return Path(relative).expanduser()
        except RuntimeError:
            return Path(relative).absolute()
    path = Path(relative)
    if path.is_absolute() or path.drive or path.root:  # Windows: C:name and \name belong to no models folder either
        return path.absolute()
    return None


def _locate_absolute(wanted: str, path: Path) -> Located | Missing:
    match _look(path):
        case bool() as is_folder:
            return Located(path, None, is_folder)
        case _Look.UNKNOWN:
            message = f"{shown_path(path)} cannot be looked at. Let this user read it, or check the disk."
            return Missing(wanted, Absence.UNREADABLE, message)
    message = f"There is no file {shown_path(path)}. Connect its disk, or correct the path."
    return Missing(wanted, Absence.NOT_FOUND, message)


def _missing(wanted: str, roots: tuple[Path, ...], absent: tuple[Path, ...], unreadable: list[Path]) -> Missing:
    """Word the absence; the state that the user can mend most directly comes first."""
    name = shown_text(wanted)
    if unreadable:
        because = Absence.UNREADABLE
        message = (
            f"{name} cannot be looked for in {_names(unreadable)}. Let this user read the folder, or check the disk."
        )
    elif absent:
        because = Absence.DISK_ABSENT
        message = f"{name} is not there, and the models folder {_names(absent)} is missing. Connect its disk."
    elif roots:
        because, message = Absence.NOT_FOUND, f"{name} is in none of the models folders: {_names(roots)}. Download it."
    else:
        because, message = Absence.NOT_FOUND, f"{name} cannot be found: no models folder is configured. Set models_dir."
    return Missing(wanted, because, message, roots, absent)


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(shown_path(path) for path in paths)
