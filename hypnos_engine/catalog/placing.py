"""Brings a file that is somewhere on this computer into a models folder: as a second name for it, else as a copy.

Never leaves a symbolic link, half a file, or anything outside the folder; never changes the file itself.
"""

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path

from hypnos_engine.config.names import has_parent_step
from hypnos_engine.config.paths import usable_folder
from hypnos_engine.config.problems import shown_path, shown_text
from hypnos_engine.domain.errors import FolderUnusable, InvalidRequest


def bring_in(source: Path, root: Path, local: str) -> Path:
    """Put `source` at `root / local` and return that path; what stood there is replaced in one step.

    A link is followed first, so that the folder holds the file itself. The new name is a hard link where both are on
    one disk that has them, otherwise a copy. Blocks as long as the copy takes. Raises InvalidRequest for a source that
    is no file and for a `local` that is no path inside the folder, FolderUnusable when it cannot be written.
    """
    target = _target(root, local)
    try:
        real = source.resolve(strict=True)
        if not real.is_file():
            raise InvalidRequest(f"{shown_path(source)} is no regular file.")
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"{shown_path(source)} is not there, or cannot be looked at.") from error
    draft = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if target.is_dir() and not target.is_symlink():
            raise InvalidRequest(f"{shown_path(target)} is a folder. Move it away.")
        if target.exists() and target.samefile(real) and not target.is_symlink():
            return target
        _link_or_copy(real, draft)
        draft.replace(target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FolderUnusable(
            f"{shown_path(target)} cannot be written ({reason}). Free space, or choose another models folder."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def _target(root: Path, local: str) -> Path:
    """Where the file goes, with the folders above it made. No link in the models folder may lead it elsewhere."""
    path = Path(local)
    if not local.strip("/ .") or "\0" in local or has_parent_step(local) or path.is_absolute() or path.drive:
        raise InvalidRequest(f"{shown_text(local)} is no path inside a models folder.")
    usable_folder(root)
    target = root / path
    usable_folder(target.parent)
    if not target.parent.resolve().is_relative_to(root.resolve()):
        raise InvalidRequest(f"A link in {shown_path(root)} leads {shown_text(local)} out of it. Remove the link.")
    return target


_NO_LINKS = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
)


def _link_or_copy(source: Path, draft: Path) -> None:
    try:
        os.link(source, draft)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, draft)
        with draft.open("rb+") as copied:
            os.fsync(copied.fileno())
