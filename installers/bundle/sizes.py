"""How large a packaged program is, and what makes it so; reads sizes and changes nothing."""

from collections import Counter
from pathlib import Path


def size_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; a link counts nothing."""
    return sum(_sizes(folder).values())


def largest_parts(folder: Path, count: int) -> list[tuple[str, int]]:
    """The `count` largest things inside the program and their bytes, by the first two levels of folders."""
    parts: Counter[str] = Counter()
    for file, size in _sizes(folder).items():
        inside = file.relative_to(folder).parts
        parts["/".join(inside[:2])] += size
    return parts.most_common(count)


def _sizes(folder: Path) -> dict[Path, int]:
    return {file: file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink()}
