"""Checks the starter model against its lock; a file that differs by one byte is refused, never used."""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from installers.refusal import SetupRefused


@dataclass(frozen=True)
class Starter:
    """One locked weights file inside a package; `file` is relative to the installed packages' folder."""

    package: str
    version: str
    file: str
    size_bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The package as pip is asked for it."""
        return f"{self.package}=={self.version}"


def read_lock(text: str) -> tuple[Starter, ...]:
    """Parse `starter.lock.toml`."""
    return tuple(
        Starter(
            package=entry["package"],
            version=entry["version"],
            file=entry["file"],
            size_bytes=entry["size_bytes"],
            sha256=entry["sha256"],
        )
        for entry in tomllib.loads(text)["starter"]
    )


def verify(starter: Starter, packages: Path) -> None:
    """Compare the installed file with its lock. Raises SetupRefused naming what differs."""
    path = packages / starter.file
    if not path.is_file():
        raise SetupRefused(f"{starter.requirement} does not contain {starter.file}; run ./run.sh setup again.")
    size = path.stat().st_size
    if size != starter.size_bytes:
        raise SetupRefused(f"{path} has {size} bytes instead of {starter.size_bytes}: it is damaged or was replaced.")
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != starter.sha256:
        raise SetupRefused(f"{path} is not the file that was locked (sha256 {digest}): it was replaced.")
