"""Reads a document's tables by their declaration; every value that is wrong becomes a problem with its line.

Decides about single values only. What two settings say together is judged in `contradictions`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypnos_engine.config.documents import Document
from hypnos_engine.config.kinds import ElementRefused, Refused, found
from hypnos_engine.config.positions import Where
from hypnos_engine.config.problems import Origin, Problems, closest, listed, shown_name
from hypnos_engine.config.setting import Setting, Table
from hypnos_engine.config.settings import ROOT


@dataclass(slots=True)
class Reading:
    """One table as far as it could be read."""

    table: Table
    origin: Origin
    """Where its header stands."""
    values: dict[str, Any] = field(default_factory=dict)
    """Typed values of the settings that were written."""
    origins: dict[str, Origin] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Names that were written and are wrong: nothing can be said about what they mean together with others."""
    tables: dict[str, list["Reading"]] = field(default_factory=dict)
    """Readings of the tables below that were written; a table that is not repeated has one."""

    def value(self, name: str) -> Any:
        """Return what holds: the written value, or the default."""
        if name in self.values:
            return self.values[name]
        setting = self.table.setting(name)
        return setting.default if setting else None

    def where(self, name: str) -> Origin:
        """Return the origin of a setting, or of the table when the setting was not written."""
        return self.origins.get(name, self.origin)

    def child(self, name: str) -> "Reading":
        """Return the reading of a table below that is not repeated; an empty one when it was not written."""
        return self.tables[name][0] if self.tables.get(name) else Reading(self._declared(name), self.origin)

    def children(self, name: str) -> list["Reading"]:
        """Return the readings of a repeated table."""
        return self.tables.get(name, [])

    def put(self, name: str, value: Any, origin: Origin) -> None:
        """Set a value from outside the file."""
        self.values[name] = value
        self.origins[name] = origin

    def everything(self) -> Iterator["Reading"]:
        """Yield this reading and all below it."""
        yield self
        for readings in self.tables.values():
            for reading in readings:
                yield from reading.everything()

    def build(self) -> Any:
        """Return the result; only for a reading without problems."""
        made: dict[str, Any] = {setting.name: self.value(setting.name) for setting in self.table.settings}
        for table in self.table.tables:
            readings = self.tables.get(table.name, [])
            if table.repeated:
                made[table.name] = tuple(reading.build() for reading in readings)
            elif readings:
                made[table.name] = readings[0].build()
            elif "." in table.path:
                made[table.name] = None
            else:
                made[table.name] = self.child(table.name).build()
        return self.table.build(**made)

    def _declared(self, name: str) -> Table:
        return next(table for table in self.table.tables if table.name == name)


def read_table(table: Table, document: Document, problems: Problems, where: Where = ()) -> Reading:
    """Read the table that stands at `where` in the document."""
    content: Any = document.values
    for step in where:
        content = content[step]
    reading = Reading(table, document.origin(where))
    for name, value in content.items():
        at: Where = (*where, name)
        setting = table.setting(name)
        below = next((child for child in table.tables if child.name == name), None)
        if setting is not None:
            _read_setting(reading, setting, value, document, at, problems)
        elif below is not None:
            _read_below(reading, below, value, document, at, problems)
        else:
            _add_unknown(table, name, document.origin(at), problems)
    for setting in table.settings:
        if setting.required and setting.name not in content:
            problems.add(reading.origin, table.dotted(setting.name), f"is missing; {table.heading} needs it")
    return reading


def _read_setting(
    reading: Reading, setting: Setting, value: object, document: Document, at: Where, problems: Problems
) -> None:
    origin = document.origin(at)
    try:
        typed = setting.kind.read(value)
    except Refused as refused:
        if isinstance(refused, ElementRefused):
            origin = document.origin((*at, refused.index))
        reading.refused.add(setting.name)
        problems.add(origin, reading.table.dotted(setting.name), refused.message, refused.suggestion)
    else:
        reading.put(setting.name, anchored(typed, document.folder), origin)


def _read_below(
    reading: Reading, table: Table, value: object, document: Document, at: Where, problems: Problems
) -> None:
    if not table.repeated and isinstance(value, dict):
        reading.tables[table.name] = [read_table(table, document, problems, at)]
    elif not table.repeated or not isinstance(value, list):
        expected = "a list of tables" if table.repeated else "a table"
        reading.refused.add(table.name)
        message = f"expected {expected}, found {_kind_of(value)}"
        problems.add(document.origin(at), table.path, message, f"write {table.heading}")
    else:
        reading.tables[table.name] = list(_read_elements(reading, table, value, document, at, problems))


def _read_elements(
    reading: Reading, table: Table, values: list[object], document: Document, at: Where, problems: Problems
) -> Iterator[Reading]:
    for index, element in enumerate(values):
        if isinstance(element, dict):
            yield read_table(table, document, problems, (*at, index))
        else:
            reading.refused.add(table.name)
            message = f"expected a table, found {_kind_of(element)}"
            problems.add(document.origin((*at, index)), table.path, message, f"write {table.heading}")


def _kind_of(value: object) -> str:
    return "a text" if isinstance(value, str) else found(value)


def anchored(value: Any, folder: Path) -> Any:
    """Return paths made absolute, relative ones from `folder`; anything else unchanged."""
    if isinstance(value, Path):
        return folder.absolute() / value
    if isinstance(value, tuple) and value and isinstance(value[0], Path):
        return tuple(dict.fromkeys(folder.absolute() / path for path in value))
    return value


def _add_unknown(table: Table, name: str, origin: Origin, problems: Problems) -> None:
    message = "there is no such setting"
    problems.add(origin, table.dotted(shown_name(name)), message, "" if problems.full else _meant(table, name))


def _meant(table: Table, name: str) -> str:
    """Word the most likely intention behind an unknown name."""
    elsewhere = [other for other in ROOT.below() if other.path != table.path and other.setting(name)]
    if elsewhere:
        simulated = [other for other in elsewhere if other.path.startswith("hardware.simulate")]
        places = [place for place in elsewhere if place not in simulated] or simulated
        headings = [place.heading if place.path else "the part above the first section" for place in places]
        return f"it belongs in {listed(headings)}"
    near = closest(name, [setting.name for setting in table.settings] + [below.name for below in table.tables])
    if near:
        return f"did you mean `{near}`?"
    anywhere = {table.dotted(setting.name) for table in ROOT.below() for setting in table.settings}
    near = closest(name, {dotted.rpartition(".")[2] for dotted in anywhere})
    if near:
        return f"did you mean `{next(dotted for dotted in sorted(anywhere) if dotted.rpartition('.')[2] == near)}`?"
    return ""
