"""What a person sees while set-up works: a count of files while compiling, and something at least twice a minute."""

import io
import os

import pytest

from installers.progress import Display, Reading, clock


def read(*lines: str) -> Reading:
    reading = Reading()
    for line in lines:
        reading.take(line)
    return reading


def test_the_compile_is_counted_from_ninjas_lines() -> None:
    reading = read(
        "Collecting llama-cpp-python==0.3.36\n",
        "  [1/2] Building CXX object CMakeFiles/try.dir/testCXXCompiler.cxx.o\n",
        "  [1/193] /usr/bin/c++ -DGGML_BUILD -c ggml.cpp\n",
        "  [88/193] /usr/bin/c++ -c llama.cpp\n",
    )
    assert reading.phrase() == "88/193 files"


def test_a_smaller_nested_count_does_not_set_the_line_back() -> None:
    reading = read("[40/230] cc a.c\n", "[3/150] glslc mul.comp\n", "[1/2] cc try.c\n")
    assert reading.phrase() == "40/230 files"


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("Collecting aiohttp<4,>=3.12 (from hypnos==0.1.0)\n", "Collecting aiohttp<4,>=3.12 (from"),
        ("  Downloading PySide6_Essentials-6.11.1-cp310-abi3.whl (94.3 MB)\n", "Downloading PySide6_Essentials-6.11.1"),
        ("Installing collected packages: zlib, yarl\n", "Installing collected packages"),
    ],
)
def test_pips_steps_are_named(line: str, phrase: str) -> None:
    assert read(line).phrase().startswith(phrase)


@pytest.mark.parametrize("line", ["", "\n", "[x/y] z", "[12/193]", "warning: [-Wunused] 3/4", "\x1b[K", "[1/" * 1000])
def test_a_line_that_says_nothing_changes_nothing(line: str) -> None:
    assert read("[5/193] cc\n", line) == read("[5/193] cc\n")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.9, "0:07"), (750, "12:30"), (3723, "1:02:03")])
def test_times_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_whole_lines_and_one_at_least_every_half_minute() -> None:
    stream, now = io.StringIO(), Clock()
    display = Display(stream, now)
    display.start("Compiling")
    for _ in range(120):
        now.time += 1.0
        display.update("9/193 files")
    display.finish()
    assert stream.getvalue().splitlines() == [
        "  Compiling ...",
        *(f"  Compiling: {at} 9/193 files" for at in ("0:30", "1:00", "1:30", "2:00")),
        "  Compiling: done (2:00)",
    ]
    assert "\r" not in stream.getvalue()


def test_a_terminal_gets_one_line_that_moves_and_then_stays() -> None:
    stream, now = Terminal(), Clock()
    display = Display(stream, now)
    display.start("Compiling")
    display.update("")
    assert stream.getvalue() == "", "nothing flickers for a step that ends at once"
    now.time += 2.0
    display.update("9/193 files")
    assert stream.getvalue().startswith("\r  Compiling  0:02  9/193 files")
    display.finish()
    assert stream.getvalue().endswith("\r  Compiling: done (0:02)\n")


def test_a_reader_that_left_does_not_stop_the_work() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w", buffering=1) as stream:  # noqa: PTH123 - a descriptor, not a path
        display = Display(stream)
        display.start("Compiling")
        display.finish()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, write_end)
        os.close(null)
