"""How long requests take while others run: slots share their model, models share what they compute on; decides nothing.

Work is counted in seconds alone on the accelerator. With n requests on a model whose gain is g, and k models at work on
the same device, each of the n gets on at `g / (g + n - 1) / k` of that speed. All requests of a model go at the same
speed, so a model keeps one clock of work done, and only its next end has to be known.
"""

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Station:
    """A loaded model at work."""

    gain: float
    speed: float = 1.0
    """Of one request alone where the model is now; 1 = wholly on the accelerator."""
    places: tuple[str, ...] = ()
    """What it computes on; models with a place in common slow each other down."""
    done: float = 0.0
    """Work that each request since the beginning would have had done."""
    rate: float = 0.0
    at: float = 0.0
    due: float = 0.0
    """When the next request ends if nothing changes."""
    foretold: float | None = None
    """The moment for which it has asked to be looked at; never later than `due`."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """Amount of `done` at which each running request ends, and the request; a heap."""


Foretold = tuple[float, Station]
"""When a station wants to be looked at."""


class Services:
    """All stations. Every change returns who wants to be looked at, and when.

    Who is slowed down keeps the moment that it has asked for, and asks again when it comes: most changes cost nothing.
    """

    def __init__(self) -> None:
        self._busy: dict[str, list[Station]] = {}

    def begin(self, station: Station, request: int, work: float, now: float) -> list[Foretold]:
        """A request starts on a loaded model."""
        _advance(station, now)
        heapq.heappush(station.ends, (station.done + work, request))
        found: list[Foretold] = []
        if len(station.ends) > 1:
            self._foretell(station, now, found)
            return found
        for place in station.places:
            self._busy.setdefault(place, []).append(station)
        self._foretell(station, now, found)
        self._around(station, now, found)
        return found

    def look(self, station: Station, now: float) -> tuple[int | None, list[Foretold]]:
        """A moment that was asked for has come; returns the request that ends now, if one does."""
        found: list[Foretold] = []
        if station.foretold != now:
            return None, found  # an earlier one was asked for since, and has been
        station.foretold = None
        if station.due > now:
            station.foretold = station.due
            found.append((station.due, station))
            return None, found
        done, request = heapq.heappop(station.ends)
        station.done, station.at = done, now
        if station.ends:
            self._foretell(station, now, found)
            return request, found
        for place in station.places:
            self._busy[place].remove(station)
        self._around(station, now, found)
        return request, found

    def _around(self, station: Station, now: float, found: list[Foretold]) -> None:
        """Whoever shares a place with it goes at another speed from now on."""
        for place in station.places:
            for other in self._busy[place]:
                if other is not station:
                    self._foretell(other, now, found)

    def _foretell(self, station: Station, now: float, found: list[Foretold]) -> None:
        _advance(station, now)
        sharing = 1
        for place in station.places:
            sharing = max(sharing, len(self._busy[place]))
        gain = station.gain
        station.rate = rate = station.speed * gain / (gain + len(station.ends) - 1) / sharing
        left = station.ends[0][0] - station.done
        station.due = due = now + left / rate if left > 0.0 else now
        if station.foretold is None or due < station.foretold:
            station.foretold = due
            found.append((due, station))


def _advance(station: Station, now: float) -> None:
    if station.ends:
        station.done += (now - station.at) * station.rate
    station.at = now
