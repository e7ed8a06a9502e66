"""What is counted of routes, keys, values and decisions, and how the text reads."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hypnos_engine.telemetry.decided import Decided
from hypnos_engine.telemetry.distribution import FACTORS, RATES, SECONDS, Distribution
from hypnos_engine.telemetry.exposition import Buckets, Family, render, single
from hypnos_engine.telemetry.latency import Latencies
from hypnos_engine.telemetry.tape import MARGIN_BYTES, MOST_BYTES, Room, Tape, shortened
from hypnos_engine.telemetry.traffic import DAY_S, KeyCounts, Traffic


def test_tokens_of_today_begin_anew_at_midnight_utc_and_a_clock_set_back_changes_nothing() -> None:
    """[§2-21]."""
    now = 20_000 * DAY_S + 5.0
    keys = KeyCounts(clock=lambda: now)
    keys.came("a", rejected=False)
    keys.used("a", 10)
    now -= DAY_S
    keys.used("a", 5)
    assert keys.today() == {"a": 15}
    now += 2 * DAY_S
    assert keys.today() == {"a": 0}
    keys.used("a", 1)
    assert (keys.today(), keys.tokens["a"]) == ({"a": 1}, 16)


def test_how_long_a_stream_without_end_was_read_is_no_time_of_its_route() -> None:
    traffic = Traffic()
    traffic.answered("/v1/memory/events", 200, 3600.0, endless=True)
    traffic.answered("/health", 503, -0.5, endless=False)
    assert traffic.answers == {("/v1/memory/events", "2xx"): 1, ("/health", "5xx"): 1}
    assert list(traffic.times) == ["/health"]
    assert traffic.times["/health"].sum_ms == 0


@pytest.mark.parametrize("bounds", [FACTORS, RATES, SECONDS])
def test_the_buckets_of_each_scale_ascend_and_take_every_number(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    counted = Distribution(bounds)
    for value in (-1.0, 0.0, *bounds, bounds[-1] * 2, math.inf, math.nan):
        counted.record(value)
    assert sum(counted.counts) == len(bounds) + 3
    assert counted.counts[-1] == 1
    assert math.isfinite(counted.sum)


def test_a_worker_that_grew_or_died_counts_as_restarted_once() -> None:
    decided = Decided()
    for kind in ("loaded", "grown", "worker_died", "loaded", "loaded"):
        decided.record(kind, "m", ())
    assert (decided.loads["m"], decided.deaths["m"], decided.restarts["m"]) == (3, 1, 1)


def test_a_copy_of_a_histogram_does_not_change() -> None:
    latencies = Latencies()
    latencies.request_ended("/health", 0.004)
    copy = Buckets.of(latencies.routes["/health"])
    latencies.request_ended("/health", 0.004)
    assert sum(copy.counts) == 1


def test_names_with_odd_characters_come_through_the_text() -> None:
    odd = 'a "quoted"\\ model\nof two lines é'
    gauge = Family("gauge", "x", "Help \\ with\nlines.", [((odd,), 2.0)], ("model",))
    text = render([gauge, single("counter", "y", "Y.", 1)])
    by_name = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert by_name["hypnos_x"].samples[0].labels == {"model": odd}
    assert by_name["hypnos_y"].samples[0].name == "hypnos_y_total"


def test_a_tape_keeps_the_beginning_and_gives_everything_back() -> None:
    room = Room(10**6)
    tape = Tape(room)
    for _ in range(3):
        tape.add(b"x" * MOST_BYTES)
    assert tape.cut
    assert room.used_bytes == MOST_BYTES + MARGIN_BYTES == len(tape.text())
    assert shortened(tape.text()) == ("x" * MOST_BYTES, True)
    tape.close()
    tape.close()
    assert room.used_bytes == 0


def test_a_tape_without_room_keeps_nothing_more_and_says_so() -> None:
    tape = Tape(Room(10))
    tape.add(b"12345678")
    tape.add(b"abc")
    tape.add(b"d")
    assert (tape.text(), tape.cut) == ("12345678", True)


def test_bytes_that_are_no_text_are_replaced() -> None:
    tape = Tape(Room(10))
    tape.add(b"a\xff\xc3")
    assert tape.text() == "a\ufffd\ufffd"
