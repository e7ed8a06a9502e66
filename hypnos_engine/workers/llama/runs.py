"""Keeps texts of endless runs from crashing the tokenizer: where to cut them, and how deep a stack reading needs.

llama.cpp splits texts for many models with std::regex, which calls itself once for each character that a pattern runs
through, up to 448 bytes of stack each (measured): 30,000 equal letters overflow an ordinary thread's 8 MiB and end the
process. So threads that read texts have a deeper stack, and runs beyond what that holds are read in parts. Only a text
with such a run gets other tokens than the library would give it, and only where it is cut.
"""

import re
import threading
from collections.abc import Callable, Iterator

LONGEST_RUN = 32_768
"""Characters without a blank between them, or blanks without anything else. A pattern spans three runs at most."""
STACK_BYTES = 64 * 1024 * 1024
"""Address space; only what is used takes memory."""
_LONGEST_CONTROL = 512
_BLANKS = re.compile(r"\s{256,}")
_RUN = re.compile(r"\S+|\s+")


def start_reading_thread(work: Callable[[], None], name: str) -> None:
    """Start a thread that may tokenize any text."""
    usual_bytes = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    finally:
        threading.stack_size(usual_bytes)


def parts(text: str, control: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the text in as few parts as keep every run short enough; no cut goes through a match of `control`."""
    begin = 0
    if len(text) > LONGEST_RUN and _longest_run(text) > LONGEST_RUN:
        for run in _RUN.finditer(text):
            for place in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
                at = _beside(text, place, control)
                if at > begin:
                    yield text[begin:at]
                    begin = at
    yield text[begin:]


def _longest_run(text: str) -> int:
    words = max(map(len, text.split()), default=0)
    return max(words, max(map(len, _BLANKS.findall(text)), default=0))


def _beside(text: str, place: int, control: re.Pattern[str] | None) -> int:
    """The place itself, or the beginning of the control token that it would cut in two."""
    if control is not None:
        for found in control.finditer(text, max(0, place - _LONGEST_CONTROL), place + _LONGEST_CONTROL):
            if found.start() < place < found.end():
                return found.start()
    return place
