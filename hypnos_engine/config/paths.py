"""Where the files of a running engine lie, and how folders and new files come to be private; reads no setting."""

import contextlib
import errno
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from hypnos_engine.config.problems import shown_path
from hypnos_engine.domain.errors import FolderUnusable

CONFIG_NAME = "hypnos.toml"

_APP = "hypnos"
_NO_LINKS = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}
)


@dataclass(frozen=True, slots=True)
class Folders:
    """Absolute paths; none of them needs to exist."""

    config: Path
    state: Path
    """What must survive a restart and is no setting."""
    run: Path
    """What holds only while an engine runs: its address and its lock.

    Inside `state`, which all engines of a user share: the runtime folder of a login differs from one to the next.
    """
    logs: Path
    cache: Path
    """What may be thrown away."""
    models: Path
    """The models folder of a configuration that names none."""

    @property
    def config_file(self) -> Path:
        """The configuration that is read when none is named."""
        return self.config / CONFIG_NAME


def standard_folders() -> Folders:
    """Return the user's folders by the rules of the platform, XDG variables included.

    Raises FolderUnusable when the user has no folder of their own.
    """
    dirs = platformdirs.PlatformDirs(_APP, appauthor=False)
    try:
        folders = Folders(
            config=dirs.user_config_path,
            state=dirs.user_state_path,
            run=dirs.user_state_path / "run",
            logs=dirs.user_log_path,
            cache=dirs.user_cache_path,
            models=dirs.user_data_path / "models",
        )
    except RuntimeError:  # newer versions of platformdirs raise it, older ones return a relative path
        raise FolderUnusable(_NO_HOME) from None
    if not all(path.is_absolute() for path in (folders.config, folders.state, folders.cache, folders.models)):
        raise FolderUnusable(_NO_HOME)
    return folders


_NO_HOME = "No home folder is known for this user. Set the variable HOME to an absolute path."


def overlay_path(config: Path) -> Path:
    """Return the file beside a configuration in which changes of the pool are kept (contract §6.4-07)."""
    return config.parent / f"{config.stem}.models.toml"


def prepare(folders: Folders) -> None:
    """Make the folders that a running engine writes to. Raises FolderUnusable."""
    for folder in (folders.state, folders.run, folders.logs):
        private_folder(folder)


def usable_folder(folder: Path) -> None:
    """Make sure of a folder that this user can write to; what is missing is made with mode 0700.

    An existing folder keeps its mode. Raises FolderUnusable, which says what to do.
    """
    try:
        for missing in reversed([folder, *folder.parents]):
            if not missing.exists():
                with contextlib.suppress(FileExistsError):
                    missing.mkdir(mode=0o700)
        is_folder = folder.is_dir()
    except (OSError, ValueError) as error:
        raise FolderUnusable(f"The folder {shown_path(folder)} cannot be made ({_reason(error)}). {_REMEDY}") from error
    if not is_folder:
        raise FolderUnusable(f"{shown_path(folder)} is a file where a folder is needed. Move it away.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FolderUnusable(f"The folder {shown_path(folder)} cannot be written to. {_REMEDY}")


def private_folder(folder: Path) -> None:
    """Make sure of a usable folder that no other user can look into. Raises FolderUnusable."""
    usable_folder(folder)
    if os.name != "posix":
        return  # the user's profile folder is private on Windows
    try:
        state = folder.stat()
        if state.st_uid != os.geteuid():
            raise FolderUnusable(f"The folder {shown_path(folder)} belongs to another user. {_REMEDY}")
        if state.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise FolderUnusable(
            f"The folder {shown_path(folder)} cannot be closed ({_reason(error)}). {_REMEDY}"
        ) from error


def is_absent(path: Path) -> bool:
    """Whether nothing is there, not even a broken link; False when this user may not look."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def readable_by_others(file: Path) -> bool:
    """Whether users beside the owner may read a file; False where modes mean nothing."""
    try:
        return os.name == "posix" and bool(file.stat().st_mode & 0o077)
    except OSError:
        return False


_REMEDY = "Change its owner or mode, or choose another place with HOME or the XDG variables."


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "the name of a folder that it has to hold is not UTF-8"
    strerror = getattr(error, "strerror", None)
    return strerror or "its name is no folder name"


def write_new(path: Path, text: str) -> bool:
    """Write a file of mode 0600 that is either whole or not there; False when one was there already.

    Never changes an existing file, also when two programs try at once. Raises FolderUnusable.
    """
    draft = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}")
    try:
        if path.is_symlink() or path.exists():
            return False
        content = text.encode("utf-8")
        try:
            _write_exclusively(draft, content)
            return _publish(draft, path, content)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise FolderUnusable(f"{shown_path(path)} cannot be written ({_reason(error)}). {_REMEDY}") from error


def _publish(draft: Path, path: Path, content: bytes) -> bool:
    try:
        if os.name == "nt":
            draft.rename(path)  # refuses an existing target there
        else:
            path.hardlink_to(draft)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _write_in_place(path, content)
    return True


def _write_in_place(path: Path, content: bytes) -> bool:
    """The file system knows no links: the name is taken first and given up again when writing fails."""
    try:
        _write_exclusively(path, content)
    except FileExistsError:
        return False
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _write_exclusively(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
