"""How a setting is declared: one line holds its name, type, default and help; reads nothing."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from hypnos_engine.config.kinds import Kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One name of `hypnos.toml`."""

    name: str = ""
    """Within its table; empty until the table is made when the setting is declared on a dataclass field."""
    kind: Kind[object]
    default: object = None
    help: str
    """One sentence for a person."""
    unit: str = ""
    effective: bool = False
    """Whether this version acts on it. Every setting is read and checked either way."""
    inert: tuple[object, ...] = ()
    """Values of an effective setting that this version does not act on."""
    required: bool = False
    unset: str = ""
    """What holds when it is left out and the default does not say so by itself."""
    environment: str = ""
    flag: str = ""

    def acts_on(self, value: object) -> bool:
        """Whether this version does what the value says."""
        return value == self.default or (self.effective and value not in self.inert)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of `hypnos.toml` with its settings and the tables below it."""

    path: str
    """Dotted names from the top; empty for the document itself."""
    help: str
    settings: tuple[Setting, ...]
    build: Callable[..., object]
    """Makes the result from the values of settings and tables, by keyword."""
    tables: tuple["Table", ...] = ()
    repeated: bool = False
    """True for `[[name]]`."""

    @property
    def name(self) -> str:
        """The last of the dotted names."""
        return self.path.rpartition(".")[2]

    @property
    def heading(self) -> str:
        """The table as it is written: `[server.tls]` or `[[models]]`."""
        return f"[[{self.path}]]" if self.repeated else f"[{self.path}]"

    def dotted(self, name: str) -> str:
        """The full name of something in this table."""
        return f"{self.path}.{name}" if self.path else name

    def setting(self, name: str) -> Setting | None:
        """The setting of that name in this table; None when there is none."""
        return next((setting for setting in self.settings if setting.name == name), None)

    def below(self) -> Iterator["Table"]:
        """Yield this table and every table under it, in the order of declaration."""
        yield self
        for table in self.tables:
            yield from table.below()


def setting(
    kind: Kind[T],
    default: T,
    help: str,  # noqa: A002 - the word of the table
    *,
    unit: str = "",
    effective: bool = False,
    inert: tuple[T, ...] = (),
    unset: str = "",
    environment: str = "",
    flag: str = "",
) -> T:
    """Declare a setting as a field of a frozen dataclass."""
    declared = Setting(
        kind=kind,
        default=default,
        help=help,
        unit=unit,
        effective=effective,
        inert=inert,
        unset=unset,
        environment=environment,
        flag=flag,
    )
    made: T = field(default=default, metadata={"setting": declared})
    return made


def required(kind: Kind[T], help: str, *, unit: str = "", effective: bool = False) -> T:  # noqa: A002
    """Declare a setting that has no default."""
    declared = Setting(kind=kind, help=help, unit=unit, effective=effective, required=True)
    made: T = field(metadata={"setting": declared})
    return made


def settings_of(owner: type[Any]) -> tuple[Setting, ...]:
    """Return the settings declared on the fields of a dataclass, in their order."""
    return tuple(replace(f.metadata["setting"], name=f.name) for f in fields(owner) if "setting" in f.metadata)


def default_of(owner: type[Any], name: str) -> object:
    """Return the default of a dataclass field; None for a field that has none."""
    default = next(f.default for f in fields(owner) if f.name == name)
    return None if default is MISSING else default
