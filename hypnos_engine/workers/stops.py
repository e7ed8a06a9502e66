"""Finds stop strings in text that arrives piece by piece; never lets through text that may still become one."""

from collections.abc import Sequence


class StopFinder:
    """Feed text, take what is certain. The first stop string to be complete ends it; its text is not given out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [(stop, _borders(stop)) for stop in stops if stop]
        self._matched = [0] * len(self._patterns)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """Return the text that can be shown now; after `found` nothing more comes."""
        if not self._patterns or self.found:
            return "" if self.found else text
        buffer = self._held + text
        for end in range(len(self._held), len(buffer)):
            complete = self._advance(buffer[end])
            if complete:
                self.found = True
                self._held = ""
                return buffer[: end + 1 - complete]
        kept = max(self._matched)
        shown = len(buffer) - kept
        self._held = buffer[shown:]
        return buffer[:shown]

    def finish(self) -> str:
        """Return what was held back, once it is certain that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Move every pattern on by one character; return the length of the longest one that is now complete."""
        complete = 0
        for index, (stop, borders) in enumerate(self._patterns):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                complete = max(complete, matched)
                matched = borders[matched - 1]
            self._matched[index] = matched
        return complete


def _borders(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix (Knuth, Morris, Pratt)."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        borders[index] = length
    return borders
