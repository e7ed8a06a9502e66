"""What a person may name to have it downloaded: an entry of the catalog, or a file of the hub; opens nothing."""

import re
from typing import Final

from hypnos_engine.catalog.choosing import choose
from hypnos_engine.catalog.downloads.places import checked_path
from hypnos_engine.catalog.entries import Catalog, CatalogFile, Platform, Role
from hypnos_engine.config.problems import shown_text
from hypnos_engine.domain.errors import InvalidRequest

LONGEST: Final = 500
_REPO_FILE: Final = re.compile(
    r"(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})/(?P<remote>[^@]+?)(?:@(?P<revision>[\w./-]{1,200}))?", re.ASCII
)


def files_of(spec: str, catalog: Catalog, platform: Platform) -> tuple[CatalogFile, ...]:
    """The files that `<id>[:<quant>]` of the catalog, or `<owner>/<repository>/<file>[@<revision>]`, stands for.

    A file of the hub goes under its own name into the models folder, a folder (`.../`) under its last name. Raises
    InvalidRequest, which says what there is.
    """
    if len(spec) > LONGEST:
        raise InvalidRequest(f"spec: at most {LONGEST} characters are read.")
    found = _REPO_FILE.fullmatch(spec.strip())
    if found is None or catalog.entry(spec.strip()) is not None:
        entry, variant = choose(catalog, spec)
        files = variant.files_for(platform)
        if not files:
            raise InvalidRequest(f"{entry.id}:{variant.quant} does not run on this machine.")
        return files
    remote = found["remote"]
    if "*" in remote:
        raise InvalidRequest(f"{shown_text(spec)} names more than one file. Name each of them.")
    checked_path(remote.rstrip("/"))
    name = remote.rstrip("/").rpartition("/")[2]
    local = f"{name}/" if remote.endswith("/") else name
    return (CatalogFile(Role.WEIGHTS, found["repo"], remote, local, revision=found["revision"]),)
