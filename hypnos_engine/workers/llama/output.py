"""Turns drawn tokens into text: whole characters only, nothing that may still become a stop string."""

import codecs

from hypnos_engine.workers.llama.vocabulary import Vocabulary
from hypnos_engine.workers.stops import StopFinder


class Output:
    """The text side of one answer."""

    def __init__(self, vocabulary: Vocabulary, stops: tuple[str, ...]) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopFinder(stops)

    @property
    def stopped(self) -> bool:
        """True once a stop string was complete."""
        return self._stops.found

    def feed(self, token: int) -> str:
        """Return the text that the token made certain; often empty."""
        return self._stops.feed(self._decoder.decode(self._vocabulary.piece(token)))

    def finish(self) -> str:
        """Return what is still held back; a character that was never completed becomes U+FFFD."""
        if self.stopped:
            return ""
        return self._stops.feed(self._decoder.decode(b"", final=True)) + self._stops.finish()
