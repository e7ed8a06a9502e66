"""Reads one TOML text or file into plain values with their lines; judges no setting.

Whatever the file holds or is, the answer is a document or a problem; a line that may hold a key is never repeated.
"""

import errno
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypnos_engine.config.positions import Where, line_numbers
from hypnos_engine.config.problems import Origin, Problems, printable, shown_path, shown_text
from hypnos_engine.config.settings import every_setting

LARGEST_BYTES = 1024 * 1024
"""More than any configuration; a larger file is something else."""

_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_MOST_PARTS = 64
_ENDLESS_NAME = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"]*+"|'[^']*+')[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}""")
_LONGEST_LINE = 80
_PLAIN_HEADER = re.compile(r"\[+[a-z_. ]{0,40}\]*")
_HARMLESS = frozenset(name.rpartition(".")[2] for name, _ in every_setting() if "key" not in name)
"""Settings whose line may be repeated in a message."""

_BACKSLASHES = "write the path in single quotation marks, or each backslash twice"
_HINTS = (
    ("Invalid value", "a text must stand in quotation marks"),
    ("Expected '='", "a setting is written as: name = value"),
    ("Invalid initial character", "a name holds letters, digits, - and _; another one must stand in quotation marks"),
    ("Unescaped '\\'", _BACKSLASHES),
    ("Invalid hex value", _BACKSLASHES),
    ("Illegal character '\\n'", "the text lacks its closing quotation mark"),
    ("Cannot", "tables of a list, such as [[models]], have double brackets; another name is written once"),
    ("Illegal character '\\r'", "save the file with ordinary line ends"),
)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text."""

    source: str
    """How the text is called in problems."""
    folder: Path
    """What relative paths in it are relative to."""
    values: dict[str, Any]
    lines: dict[Where, int]

    def origin(self, where: Where) -> Origin:
        """Return where a value stands, or the nearest thing around it that has a line."""
        while where not in self.lines:
            where = where[:-1]
        return Origin(self.source, self.lines[where])


def read_document(path: Path, problems: Problems) -> Document | None:
    """Read a file; None when there is none or a problem was added. The caller decides whether it must exist."""
    source = shown_path(path)
    try:
        content = _read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):  # noqa: PTH114 - the method of a path raises where this answers
            problems.add(Origin(source), "", "this is a link to a file that is not there", "correct it, or remove it")
        return None
    except _Unreadable as unreadable:
        problems.add(Origin(source), "", str(unreadable), unreadable.suggestion)
        return None
    except (OSError, ValueError) as error:
        problems.add(Origin(source), "", f"the file cannot be read ({_reason(error)})")
        return None
    text = _decode(content, source, problems)
    return None if text is None else parse_document(text, source, path.parent, problems)


def parse_document(text: str, source: str, folder: Path, problems: Problems) -> Document | None:
    """Parse a text; None when it is no TOML, with the problem added."""
    text = text.replace("\r\n", "\n")
    if line := _line_of_endless_name(text):
        problems.add(Origin(source, line), "", f"a name with more than {_MOST_PARTS} parts is no setting")
        return None
    try:
        return Document(source, folder, tomllib.loads(text), line_numbers(text))
    except tomllib.TOMLDecodeError as error:
        _add_syntax_problem(text, source, str(error), problems)
    except RecursionError:
        problems.add(Origin(source), "", "the lists or tables in it are nested too deeply")
    except ValueError:  # tomllib lets int() speak for itself when a number has thousands of digits
        problems.add(Origin(source), "", "a number in it has too many digits")
    return None


def _line_of_endless_name(text: str) -> int:
    """Return the first line with a dotted name whose length tomllib would pay for quadratically; 0 without one."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") >= _MOST_PARTS and _ENDLESS_NAME.search(line):
            return number
    return 0


class _Unreadable(Exception):
    def __init__(self, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.suggestion = suggestion


def _read_file(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except PermissionError:
        if os.name == "nt" and path.is_dir():
            raise _Unreadable("this is a folder, not a file", "name the hypnos.toml inside it") from None
        raise _Unreadable("this user may not read the file", "change its owner or its mode") from None
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise _Unreadable("this is a folder, not a file", "name the hypnos.toml inside it")
        if not stat.S_ISREG(kind):
            raise _Unreadable("this is not a regular file", "write the configuration into a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(LARGEST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_BYTES:
        raise _Unreadable(f"the file is larger than {LARGEST_BYTES} bytes; this is no configuration")
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, "") + ": " + os.strerror(error.errno)
    return "its name is no file name"


def _decode(content: bytes, source: str, problems: Problems) -> str | None:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        problems.add(Origin(source, 1), "", "the file is UTF-16", "save it as UTF-8")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte {column} of the line (0x{content[error.start]:02x}) is not UTF-8"
        problems.add(Origin(source, line), "", message, "save the file as UTF-8")
        return None


def _add_syntax_problem(text: str, source: str, wording: str, problems: Problems) -> None:
    lines = text.split("\n")
    place = _PLACE.search(wording)
    sentence = wording[: place.start()] if place else wording
    if place and place["line"]:
        line, column = int(place["line"]), int(place["column"])
    else:
        line = max((number for number, content in enumerate(lines, 1) if content.strip()), default=1)
        column = len(lines[line - 1]) + 1
    hint = next((hint for beginning, hint in _HINTS if sentence.startswith(beginning)), "")
    sentence = _reworded(sentence)
    offending = _shown_line(lines[line - 1])
    problems.add(Origin(source, line), "", f"column {column}: this is not TOML: {sentence}, in `{offending}`", hint)


def _reworded(sentence: str) -> str:
    twice = re.match(r"Cannot (?:declare|mutate|redefine).*?\((.*?),?\)", sentence)
    if twice:
        name = ".".join(re.findall(r"[\w-]+", twice[1]))
        return f"the section {shown_text(name)} stands twice"
    if sentence.startswith("Cannot overwrite"):
        return "the same setting stands twice"
    return sentence[:1].lower() + sentence[1:]


def _shown_line(line: str) -> str:
    """Return a line for a message; what could be a key, or a piece of one, is left out."""
    line = line.strip()
    name, equals, value = line.partition("=")
    bare = name.strip().rpartition(".")[2]
    if _PLAIN_HEADER.fullmatch(line) or (bare in _HARMLESS and "=" not in value):
        return printable(line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…")
    return f"{bare} = …" if equals and re.fullmatch(r"[a-z_0-9]{1,30}", bare) else "…"
