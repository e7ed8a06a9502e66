"""Every table, key and element of any valid TOML text is found in the line where it was written."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.config.positions import DEEPEST, Where, line_numbers

KEYS = st.one_of(
    st.text("abcXYZ_-09", min_size=1, max_size=6),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6),
    st.sampled_from(["a.b", "#", "=", '"', "'", "[[", "\\", "é", "🙂"]),
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["# no comment", "a = 1", "[x]", '"""', "''", "\\", "line\nline", '"', "]}"]),
)
CONTENT = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


class Writer:
    """Writes data as TOML in a drawn layout and notes the line of everything while it does."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.text = ""
        self.lines: dict[Where, int] = {(): 1}

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def note(self, where: Where) -> None:
        self.lines.setdefault(where, self.line)

    def gap(self) -> None:
        self.text += self.draw(st.sampled_from(["", "\n", "# a [comment] = {\n", "  \n\t# é\n", " "]))

    def key(self, name: str) -> str:
        if (
            name
            and name.isascii()
            and all(char.isalnum() or char in "-_" for char in name)
            and self.draw(st.booleans())
        ):
            return name
        if "'" not in name and "\t" not in name and self.draw(st.booleans()):
            return f"'{name}'"
        return self.basic(name)

    def basic(self, text: str) -> str:
        escaped = "".join(
            f"\\{char}" if char in '"\\' else f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else char
            for char in text
        )
        return f'"{escaped}"'

    def string(self, text: str) -> str:
        plain = not any((char < " " and char != "\n") or char == "\x7f" for char in text)
        if plain and "'" not in text and self.draw(st.booleans()):
            return f"'''\n{text}'''" if "\n" in text or self.draw(st.booleans()) else f"'{text}'"
        if plain and '"""' not in text and self.draw(st.booleans()):
            return '"""\n' + text.replace("\\", "\\\\").removesuffix('"') + ('"' if text.endswith('"') else "") + '"""'
        return self.basic(text)

    def value(self, where: Where, value: Any) -> None:
        match value:
            case bool():
                self.text += "true" if value else "false"
            case int():
                self.text += str(value)
            case str():
                self.text += self.string(value)
            case list():
                self.text += "["
                for index, element in enumerate(value):
                    self.gap()
                    self.note((*where, index))
                    self.value((*where, index), element)
                    self.gap()
                    self.text += "," if index < len(value) - 1 or self.draw(st.booleans()) else ""
                self.gap()
                self.text += "]"
            case dict():
                self.text += "{ "
                for index, (name, inner) in enumerate(value.items()):
                    self.text += ", " if index else ""
                    self.note((*where, name))
                    self.text += f"{self.key(name)} = "
                    self.value((*where, name), inner)
                self.text += " }"

    def pair(self, where: Where, written: str, value: Any) -> None:
        self.note(where)
        self.text += f"{written} = "
        self.value(where, value)
        self.text += self.draw(st.sampled_from(["\n", " # [end]\n", "\n\n"]))

    def table(self, where: Where, header: list[str], content: dict[str, Any]) -> None:
        later: list[tuple[str, Any]] = []
        for name, value in content.items():
            tables = isinstance(value, list) and value and all(isinstance(element, dict) for element in value)
            if (isinstance(value, dict) or tables) and self.draw(st.booleans()):
                later.append((name, value))
                continue
            self.gap()
            if isinstance(value, dict) and value and self.draw(st.booleans()):
                self.text = self.text.rstrip(" ")
                for inner, element in value.items():
                    self.note((*where, name))
                    self.pair((*where, name, inner), f"{self.key(name)} . {self.key(inner)}", element)
            else:
                self.pair((*where, name), self.key(name), value)
        for name, value in later:
            path = [*header, name]
            for index, element in enumerate(value if isinstance(value, list) else [value]):
                self.gap()
                brackets = ("[[", "]]") if isinstance(value, list) else ("[", "]")
                self.note((*where, name))
                below: Where = (*where, name, index) if isinstance(value, list) else (*where, name)
                self.note(below)
                self.text += f"{brackets[0]} {'.'.join(self.key(part) for part in path)} {brackets[1]}\n"
                self.table(below, path, element)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[Where, int]]:
    content = draw(CONTENT)
    writer = Writer(draw)
    writer.table((), [], content)
    return writer.text, content, writer.lines


@given(documents())
def test_every_place_is_found_in_the_line_where_it_was_written(
    document: tuple[str, dict[str, Any], dict[Where, int]],
) -> None:
    text, content, lines = document
    assert tomllib.loads(text) == content, text
    assert line_numbers(text) == {where: line for where, line in lines.items() if len(where) <= DEEPEST}


def test_a_table_that_is_first_mentioned_by_one_below_it_has_the_line_of_its_own_header() -> None:
    assert line_numbers("[a.b]\nx=1\n[a]\ny=1\n")[("a",)] == 3


def test_tables_below_an_element_belong_to_the_last_element() -> None:
    text = "[[m]]\nid=1\n[m.arch]\nn=1\n\n[[m]]\n[m.arch]\nn=2\n[[m.k]]\n[[m.k]]\nz=1"
    lines = line_numbers(text)
    assert lines[("m", 0, "arch", "n")] == 4
    assert lines[("m", 1, "arch", "n")] == 8
    assert lines[("m", 1, "k", 1, "z")] == 11


def test_deep_places_cost_no_memory() -> None:
    text = ".".join(["a"] * 2000) + " = 1"
    assert max(len(where) for where in line_numbers(text)) == DEEPEST


def test_nesting_beyond_the_interpreter_is_reported_and_not_endured() -> None:
    with pytest.raises(RecursionError):
        line_numbers("a = " + "[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(
    "value",
    ['""""a"""""', "''''a'''''", '"""a\\""""', '"\\\\"', "'\\'", '"""\n\n"""', "'''\n[x]\ny = 1'''", '["]", "#", []]'],
)
def test_what_follows_a_difficult_value_is_found(value: str) -> None:
    text = f"a = {value}\nb = 2"
    assert tomllib.loads(text)["b"] == 2
    assert line_numbers(text)[("b",)] == text.count("\n") + 1
