"""Finds the line of every table, key and list element of a TOML text; must never decide what a text means.

The text has been accepted by `tomllib` before, so the scanner only has to know where things begin and end.
"""

import tomllib
from bisect import bisect_right

Where = tuple[str | int, ...]
"""A place in a document: names of tables and keys, 0-based numbers of list elements."""

DEEPEST = 8
"""Places below this depth are not recorded: no setting lies so deep, and a path costs memory by its length."""

_BLANK = " \t\r\n"
_ENDS_SCALAR = ",]}#\n"


def line_numbers(text: str) -> dict[Where, int]:
    """Return the 1-based line of every place in a valid TOML text. Raises RecursionError when it nests too deeply."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Where, int] = {(): 1}
        self._newlines = [index for index, char in enumerate(text) if char == "\n"]
        self._counts: dict[Where, int] = {}

    def document(self) -> None:
        table: Where = ()
        while self._skip_blank():
            start = self.at
            if self.text.startswith("[[", start):
                table = self._header(start, repeated=True)
            elif self.text[start] == "[":
                table = self._header(start, repeated=False)
            else:
                self._pair(table)

    def _mark(self, where: Where, offset: int, *, again: bool = False) -> None:
        if len(where) <= DEEPEST and (again or where not in self.lines):
            self.lines[where] = bisect_right(self._newlines, offset - 1) + 1

    def _skip_blank(self) -> bool:
        """Move to the next character that is neither blank nor in a comment; False at the end."""
        text, end = self.text, len(self.text)
        while self.at < end:
            if text[self.at] in _BLANK:
                self.at += 1
            elif text[self.at] == "#":
                newline = text.find("\n", self.at)
                self.at = end if newline < 0 else newline
            else:
                return True
        return False

    def _header(self, start: int, *, repeated: bool) -> Where:
        brackets = 2 if repeated else 1
        self.at += brackets
        parts = self._key()
        self._skip_blank()
        self.at += brackets
        where: Where = ()
        for part in parts[:-1]:
            where = _below(where, part)
            self._mark(where, start)
            if where in self._counts:
                where = (*where, self._counts[where] - 1)
        where = _below(where, parts[-1])
        if not repeated:
            self._mark(where, start, again=True)
            return where
        self._mark(where, start)
        self._counts[where] = self._counts.get(where, 0) + 1
        element = (*where, self._counts[where] - 1)
        self._mark(element, start)
        return element

    def _pair(self, table: Where) -> None:
        start = self.at
        where = table
        for part in self._key():
            where = _below(where, part)
            self._mark(where, start)
        self._skip_blank()
        self.at += 1  # the equals sign
        self._value(where)

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip_blank()
            parts.append(self._key_part())
            self._skip_blank()
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _key_part(self) -> str:
        start = self.at
        quote = self.text[start]
        if quote in "\"'":
            self._string(quote)
            raw = self.text[start : self.at]
            return str(tomllib.loads(f"k = {raw}")["k"]) if "\\" in raw else raw[1:-1]
        while self.text[self.at].isalnum() or self.text[self.at] in "-_":
            self.at += 1
        return self.text[start : self.at]

    def _value(self, where: Where) -> None:
        self._skip_blank()
        first = self.text[self.at]
        if first in "\"'":
            self._string(first)
        elif first == "[":
            self._array(where)
        elif first == "{":
            self._inline_table(where)
        else:
            self.at += 1
            while self.at < len(self.text) and self.text[self.at] not in _ENDS_SCALAR:
                self.at += 1

    def _array(self, where: Where) -> None:
        self.at += 1
        index = 0
        while self._skip_blank() and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            element = _below(where, index)
            self._mark(element, self.at)
            self._value(element)
            index += 1
        self.at += 1

    def _inline_table(self, where: Where) -> None:
        self.at += 1
        while self._skip_blank() and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
            else:
                self._pair(where)
        self.at += 1

    def _string(self, quote: str) -> None:
        """Move past a string; `quote` is its first character."""
        text = self.text
        fence = quote * 3 if text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while self.at < len(text) and not text.startswith(fence, self.at):
            self.at += 2 if quote == '"' and text[self.at] == "\\" else 1
        self.at += len(fence)
        if len(fence) == 3:  # up to two quotation marks may stand directly before the closing ones
            for _ in range(2):
                if text.startswith(quote, self.at):
                    self.at += 1


def _below(where: Where, part: str | int) -> Where:
    return (*where, part) if len(where) <= DEEPEST else where
