"""`models.manifest`: the files of the default lineup, one a line, for programs that cannot read the catalog.

Made from the catalog; decides nothing of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hypnos_engine.catalog.entries import Catalog
from hypnos_engine.domain.errors import ConfigurationInvalid

HEAD = """\
# The default lineup: every file that hypnos.example.toml needs. Made from models.catalog.toml by
# `python -m hypnos_engine.catalog.manifest`. Columns are parted by tabs, `-` = not known:
# model:quant, role, path in the models folder, repository or address, path there, revision, bytes, sha256
"""
_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class ManifestLine:
    """One file of the lineup."""

    spec: str
    """`<id>:<quant>`."""
    role: str
    local: str
    repo: str
    remote: str
    revision: str | None
    size_bytes: int | None
    sha256: str | None


def lines_of(catalog: Catalog) -> Iterator[ManifestLine]:
    """The files of each member's default variant."""
    for entry in catalog.lineup():
        variant = entry.default_variant
        for file in variant.files:
            yield ManifestLine(
                f"{entry.id}:{variant.quant}",
                file.role.value,
                file.local,
                file.repo,
                file.remote,
                file.revision,
                file.size_bytes,
                file.sha256,
            )


def render(catalog: Catalog) -> str:
    """The whole file."""
    rows = ("\t".join(_shown(cell) for cell in _cells(line)) for line in lines_of(catalog))
    return HEAD + "".join(f"{row}\n" for row in rows)


def parse(text: str) -> tuple[ManifestLine, ...]:
    """Read the file back. Raises ConfigurationInvalid with the number of a line that is none."""
    return tuple(
        _line(row, number) for number, row in enumerate(text.splitlines(), 1) if row.strip() and not row.startswith("#")
    )


def _line(row: str, number: int) -> ManifestLine:
    cells = [None if cell == "-" else cell for cell in row.split("\t")]
    required = cells[:5]
    if len(cells) != _COLUMNS or None in required or not (cells[6] is None or cells[6].isdecimal()):
        raise ConfigurationInvalid(f"models.manifest:{number}: this line does not have the {_COLUMNS} columns.")
    spec, role, local, repo, remote = (cell or "" for cell in required)
    return ManifestLine(
        spec, role, local, repo, remote, cells[5], None if cells[6] is None else int(cells[6]), cells[7]
    )


def _cells(line: ManifestLine) -> tuple[str | int | None, ...]:
    return (
        *(line.spec, line.role, line.local, line.repo, line.remote),
        *(line.revision, line.size_bytes, line.sha256),
    )


def _shown(cell: str | int | None) -> str:
    return "-" if cell is None else str(cell)


def main() -> None:
    """Print the file."""
    import sys

    from hypnos_engine.catalog.finding import CATALOG_NAME, resource
    from hypnos_engine.catalog.reading import read_catalog

    path = resource(CATALOG_NAME)
    catalog = read_catalog(path)
    if catalog is None:
        raise SystemExit(f"{path} is missing.")
    sys.stdout.write(render(catalog))


if __name__ == "__main__":
    main()
