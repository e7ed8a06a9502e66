"""The whole table of `hypnos.toml` and the typed result of reading it; reads nothing itself."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypnos_engine.config.download_settings import DOWNLOADS, DownloadSettings
from hypnos_engine.config.hardware_settings import HARDWARE, HardwareSettings, SimulatedMachine
from hypnos_engine.config.kinds import Many, Whole, path_of
from hypnos_engine.config.limit_settings import LIMITS, LimitSettings
from hypnos_engine.config.model_settings import MODELS
from hypnos_engine.config.problems import Problem
from hypnos_engine.config.server_settings import SERVER, ApiKey, ServerSettings, TlsSettings
from hypnos_engine.config.setting import Setting, Table
from hypnos_engine.domain.model import ModelSpec

__all__ = [
    "CONFIG_VERSION",
    "ROOT",
    "ApiKey",
    "DownloadSettings",
    "HardwareSettings",
    "LimitSettings",
    "ServerSettings",
    "Settings",
    "SimulatedMachine",
    "TlsSettings",
    "every_setting",
]

CONFIG_VERSION = 1
"""The `config_version` that this program reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that was configured, complete and free of contradictions."""

    server: ServerSettings = field(default_factory=ServerSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    downloads: DownloadSettings = field(default_factory=DownloadSettings)
    models: tuple[ModelSpec, ...] = ()
    """The pool: the file's blocks as the overlay changed them, each id once."""
    models_dirs: tuple[Path, ...] = ()
    """Absolute; the first is written to, the others may be read-only. Never empty after `load`."""
    source: Path | None = None
    """The file that was read; None when there was none."""
    overlay: Path | None = None
    """Where changes of the pool are kept, whether or not the file exists."""
    warnings: tuple[Problem, ...] = ()
    """What is allowed and still worth telling the user at the start."""
    without_effect: tuple[Problem, ...] = ()
    """Settings that the user set and that this version does not act on."""


_FOLDER = path_of("the path of a folder")

ROOT = Table(
    path="",
    help="Above the first section of the file.",
    build=dict[str, Any],
    settings=(
        Setting(
            name="config_version",
            kind=Whole(0, 10**9),
            default=CONFIG_VERSION,
            help="Version of the file's format.",
            effective=True,
        ),
        Setting(
            name="models_dir",
            kind=_FOLDER,
            help="Folder of the models, when there is one.",
            unset="see `models_dirs`",
            effective=True,
            environment="HYPNOS_MODELS_DIR",
            flag="--models-dir",
        ),
        Setting(
            name="models_dirs",
            kind=Many(_FOLDER, at_least=1),
            help="Folders of the models, searched in this order; the first is written to, the others may be read-only.",
            unset="`models` in the user's data folder",
            effective=True,
        ),
    ),
    tables=(SERVER, LIMITS, HARDWARE, DOWNLOADS, MODELS),
)


def every_setting() -> Iterator[tuple[str, Setting]]:
    """Yield each setting once with its dotted name, in the order of the documentation."""
    for table in ROOT.below():
        for setting in table.settings:
            yield table.dotted(setting.name), setting
