"""How much of the service each API key has had; decides whose turn it is among several keys, not who is served at all.

Start-time fair queueing: a key that was away neither saves up service nor owes any.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

KEPT_KEYS = 1024
QUANTUM_S = 20.0
"""Between models, keys that are this close count as equal: a swap costs more than the injustice."""


@dataclass(slots=True)
class Shares:
    """Service per key in seconds over its weight."""

    _served: "OrderedDict[str, float]" = field(default_factory=OrderedDict)
    _waiting: dict[str, int] = field(default_factory=dict)
    """Requests in the queue, for keys that have any."""
    _least: float = 0.0
    """Where a key begins that was away: at the turn of the waiting key that has had least."""

    @property
    def single(self) -> bool:
        """True when at most one key waits, and there is nothing to be just about."""
        return len(self._waiting) <= 1

    def turn(self, key: str) -> float:
        """The lower, the sooner it is the key's turn."""
        return max(self._served.get(key, 0.0), self._least)

    def rank(self, key: str) -> int:
        """The turn in steps of QUANTUM_S."""
        return int((self.turn(key) - self._least) / QUANTUM_S)

    def arrive(self, key: str) -> None:
        """A request of the key waits."""
        self._waiting[key] = self._waiting.get(key, 0) + 1

    def leave(self, key: str) -> None:
        """A request of the key waits no longer, whatever became of it."""
        left = self._waiting[key] - 1
        if left:
            self._waiting[key] = left
        else:
            del self._waiting[key]

    def charge(self, key: str, seconds: float, weight: float) -> None:
        """Book service that begins; the request has left the queue already."""
        turn = self.turn(key)
        lowest = min([turn, *(self.turn(other) for other in self._waiting)]) if self._waiting else turn
        self._least = max(self._least, lowest)
        self._served[key] = turn + seconds / weight
        self._served.move_to_end(key)
        if len(self._served) > KEPT_KEYS:
            self._served.popitem(last=False)

    def correct(self, key: str, seconds: float, weight: float) -> None:
        """Book what was served more (or, below 0, less) than charged."""
        if key in self._served:
            self._served[key] += seconds / weight
