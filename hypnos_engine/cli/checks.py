"""What `hypnos doctor` looks at. Every check answers, whatever is broken, and none changes anything."""

import asyncio
import importlib.metadata
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hypnos_engine import __version__, journal, presence
from hypnos_engine.cli import addresses
from hypnos_engine.cli.findings import Check, broken, fine, note
from hypnos_engine.domain.errors import ConfigurationInvalid, EngineFailed, HypnosError
from hypnos_engine.ipc import programs

if TYPE_CHECKING:
    from hypnos_engine.config.settings import Settings

GIB = 2**30
_LITTLE_SPACE_BYTES = 2 * GIB
_SET_UP = "in a clone of Hypnos: ./run.sh setup" if programs.is_packaged() else "./run.sh setup"
_BUILD_RECORD = "hypnos-build.json"
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:==(?P<exact>[^;,\s]+))?[^;]*(?:;(?P<marker>.*))?$")


def examine(config: Path | None, environment: Mapping[str, str]) -> tuple[Check, ...]:
    """Run every check. Takes as long as the probe of llama.cpp (seconds at most)."""
    return (
        check_python(),
        *check_packages(),
        *check_llama(Path(sys.prefix) / _BUILD_RECORD),
        *_check_configured(config, environment),
        check_memory_lock(),
    )


def check_python() -> Check:
    """Whether this Python is one the project runs on."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return fine("python", f"{found} at {sys.executable}")
    return broken("python", f"{found}, but Hypnos needs 3.11, 3.12 or 3.13", "PYTHON=python3.13 ./run.sh setup")


def check_packages() -> list[Check]:
    """Whether what this distribution requires is installed; the binding also in exactly the pinned version."""
    try:
        required = importlib.metadata.requires("hypnos") or []
    except importlib.metadata.PackageNotFoundError:
        return [broken("packages", "Hypnos itself is not installed in this Python", _SET_UP)]
    found, missing = [], []
    for requirement in required:
        name, exact = _needed_here(requirement)
        if not name:
            continue
        version = installed_version(name)
        if version is None or (exact and version != exact):
            missing.append(f"{name}{f' {exact}' if exact else ''} ({version or 'not installed'})")
        else:
            found.append(f"{name} {version}")
    if missing:
        return [broken("packages", f"missing or in a wrong version: {', '.join(missing)}", _SET_UP)]
    return [fine("packages", f"hypnos {__version__}, {', '.join(found)}")]


def installed_version(name: str) -> str | None:
    """Version of an installed distribution; None when there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _needed_here(requirement: str) -> tuple[str, str | None]:
    """Name and exact version of a requirement of a text server on this system; an empty name when it is not one."""
    match = _REQUIREMENT.match(requirement.strip())
    if match is None:
        return "", None
    marker = match["marker"] or ""
    extra = re.search(r"extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]", marker)
    if extra is not None and extra["extra"] != "text":
        return "", None
    if "win32" in marker and sys.platform == "win32":
        return "", None
    return match["name"], match["exact"]


def check_llama(record: Path) -> list[Check]:
    """How llama.cpp was built, whether it loads, and which devices it sees. Asks a child that ends at once."""
    built, backend = _build(record)
    from hypnos_engine.hardware.discovery import look_for_unusable
    from hypnos_engine.hardware.ggml import probe

    try:
        report = asyncio.run(probe())
    except EngineFailed as error:
        return [built, broken("llama.cpp", error.message, _SET_UP)]
    checks = [built, fine("llama.cpp", f"{report.library} {report.version} loads; {report.system_info.strip()}")]
    accelerators = [device for device in report.devices if device.kind in ("gpu", "igpu")]
    checks += [
        fine("device", f"{device.description}: {gib(device.free_bytes)} of {gib(device.total_bytes)} free")
        for device in accelerators
    ]
    if not accelerators and backend in (None, "cpu"):
        checks.append(note("device", "no accelerator in this build: models compute on the CPU"))
    elif not accelerators:
        mend = f"check the driver, or {_SET_UP} --backend cpu"
        checks.append(broken("device", f"llama.cpp was built for {backend} but sees no device", mend))
    unusable = asyncio.run(look_for_unusable(report))
    return checks + [note("device", f"{device.name} is not used: {device.why}", device.mend) for device in unusable]


def _build(record: Path) -> tuple[Check, str | None]:
    try:
        fields = json.loads(record.read_text(encoding="utf-8"))
        code = "for this processor" if fields["native"] else "portable"
        backend, built = str(fields["backend"]), str(fields["built"])
    except (OSError, ValueError, KeyError, TypeError):
        says = "not recorded: llama.cpp was not installed by ./run.sh"
        return note("llama.cpp build", says, f"{_SET_UP}, if that was not on purpose"), None
    return fine("llama.cpp build", f"{backend}, {code} code, compiled {built}"), backend


def _check_configured(config: Path | None, environment: Mapping[str, str]) -> list[Check]:
    """What hangs on the configuration; with a broken one the defaults are looked at instead."""
    from hypnos_engine.config.load import load
    from hypnos_engine.config.paths import standard_folders
    from hypnos_engine.config.settings import Settings

    try:
        folders = standard_folders()
    except HypnosError as error:
        return [broken("folders", error.message, "set HOME and try again")]
    checks: list[Check] = []
    settings = Settings(models_dirs=(folders.models,))
    try:
        settings = load(config, environment)
    except ConfigurationInvalid as error:
        checks.append(broken("configuration", error.message, "correct what is named above"))
    else:
        checks += _describe_settings(settings, folders.config_file)
        checks += check_models(settings)
    checks.append(check_folder("configuration folder", folders.config))
    private = {"state": folders.state, "run": folders.run, "logs": folders.logs}
    checks += [check_folder(f"{name} folder", path, private=True) for name, path in private.items()]
    checks += [
        check_file("lock file", folders.run / presence.LOCK_NAME, os.R_OK | os.W_OK),
        check_file("address file", folders.run / presence.FILE_NAME, os.F_OK),  # is replaced, not written to
        check_file("log file", folders.logs / journal.FILE_NAME, os.W_OK),
    ]
    checks += [check_folder("models folder", settings.models_dirs[0]), check_space(settings.models_dirs[0])]
    checks += [check_readable(path) for path in settings.models_dirs[1:]]
    checks += addresses.check_engine(presence.read(folders.run))
    checks.append(addresses.check_address(settings.server.host, settings.server.port, tls=bool(settings.server.tls)))
    return checks


def _describe_settings(settings: "Settings", standard: Path) -> list[Check]:
    if settings.source is None:
        checks = [note("configuration", f"none yet: the first start writes {standard}")]
    else:
        checks = [fine("configuration", f"{settings.source}, models: {len(settings.models)}")]
    for problem in settings.warnings:
        checks.append(note("configuration", str(problem)))
    for problem in settings.without_effect:
        checks.append(note("configuration", str(problem)))
    return checks


def check_models(settings: "Settings") -> list[Check]:
    """Whether the weights of every enabled model are where the configuration says."""
    from hypnos_engine.catalog.roots import Missing, locate
    from hypnos_engine.config.starter import model_roots

    checks: list[Check] = []
    roots = model_roots(settings.models_dirs)
    for model in settings.models:
        found = locate(model.weights_path, roots)
        if isinstance(found, Missing) and model.enabled:
            checks.append(
                broken(f"model {model.id}", found.message, "correct its weights_path, or set enabled = false")
            )
    enabled = sum(model.enabled for model in settings.models)
    if enabled and not checks:
        checks.append(fine("models", f"the weights of all {enabled} enabled models are there"))
    return checks


def check_folder(name: str, path: Path, *, private: bool = False) -> Check:
    """Whether a folder can be written to, or made where it is missing; a private one has to be this user's own."""
    there, mode = _nearest(path)
    if mode is None:
        return _closed(name, path, there)
    if not stat.S_ISDIR(mode.st_mode):
        return broken(name, f"{there} is a file where a folder is needed", f"move {there} away")
    if not _writable(there):
        return broken(name, f"{path} cannot be written to", _CHOWN.format(there))
    if private and there == path and os.name == "posix" and mode.st_uid != os.geteuid():
        return broken(name, f"{path} belongs to another user", _CHOWN.format(there))
    return fine(name, str(path) if there == path else f"{path} (will be made)")


_CHOWN = "sudo chown -R $(id -un) '{}'"


def _nearest(path: Path) -> tuple[Path, os.stat_result | None]:
    """The path, or the folder nearest to it that is there, and what it is; None when this user may not look into it."""
    refused = False
    for there in (path, *path.parents):
        try:
            found = there.stat()
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(there):  # noqa: PTH114 - the method of a path raises where this answers
                return there, there.lstat()
        except OSError:
            refused = True
        else:
            return there, None if refused else found
    return path, None


def _closed(name: str, path: Path, folder: Path) -> Check:
    says = f"{path} cannot be reached: this user may not look into {folder}"
    return broken(name, says, "change its mode, or choose another place with HOME or the XDG variables")


def check_file(name: str, path: Path, access: int) -> Check:
    """Whether a file that the engine writes can be written to, or is not there yet."""
    there, mode = _nearest(path)
    if mode is None:
        return _closed(name, path, there)
    if there != path:
        return fine(name, f"{path} (will be made)")
    if not stat.S_ISREG(mode.st_mode):
        return broken(name, f"{path} is no regular file", f"move {path} away")
    if not os.access(path, access):
        return broken(name, f"{path} cannot be written to", f"remove {path}, or {_CHOWN.format(path)}")
    return fine(name, str(path))


def check_readable(path: Path) -> Check:
    """Whether a models folder beyond the first, which may be read-only, is there."""
    there, mode = _nearest(path)
    if mode is None:
        return _closed("models folder", path, there)
    if there == path and stat.S_ISDIR(mode.st_mode):
        return fine("models folder", f"{path} (read)")
    return broken("models folder", f"{path} is not there", "connect its disk, or take it out of models_dirs")


def check_space(path: Path) -> Check:
    """How much room the disk of the models folder has."""
    there, _ = _nearest(path)
    try:
        free_bytes = shutil.disk_usage(there).free
    except OSError as error:
        return broken("disk", f"{there} does not answer: {error.strerror}", "check the disk")
    says = f"{gib(free_bytes)} free for models in {path}"
    if free_bytes < _LITTLE_SPACE_BYTES:
        return note("disk", says, "make room before downloading a model")
    return fine("disk", says)


def check_memory_lock() -> Check:
    """How much memory this user may lock: what is beyond it can be swapped out."""
    if sys.platform == "win32":
        return fine("memory lock", "up to the working set of the process")
    import resource

    import psutil

    limit, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or limit >= psutil.virtual_memory().total:
        return fine("memory lock", "no limit")
    says = f"{gib(limit)} may be locked; warm models beyond that can be swapped out"
    if most == resource.RLIM_INFINITY or most > limit:
        return note("memory lock", says, "ulimit -l unlimited, before starting Hypnos")
    mend = "add `@users - memlock unlimited` to /etc/security/limits.conf and log in again"
    return note("memory lock", says, mend if sys.platform == "linux" else None)


def gib(size_bytes: int) -> str:
    """`1.5 GiB`, `64 MiB`."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:.0f} MiB"


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
