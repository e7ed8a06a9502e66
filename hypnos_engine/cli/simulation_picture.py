"""Draws which tier each model was in over time, as one SVG that needs nothing else; decides nothing.

The colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart; states also differ
in height, so that the picture can be read without colour.
"""

from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree as ET

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.scheduler.simulation.machine import SimMachine
from hypnos_engine.scheduler.simulation.result import Moment, SimResult

WIDTH = 1000
LEFT, RIGHT, TOP = 150, 30, 40
LANE, GAP = 22, 8
CHART = 90
INK, FAINT = "#222222", "#bbbbbb"
LOOKS = {
    "ready": ("tier 1: ready", "#0072B2", 1.0),
    "loading": ("loading", "#E69F00", 1.0),
    "unloading": ("leaving tier 1", "#D55E00", 1.0),
    "ram": ("tier 2: file in RAM", "#56B4E9", 0.5),
    "disk": ("tier 3: disk", "#DDDDDD", 0.2),
}
"""What each state is called, its colour, and its height in a lane."""
_SMALLEST = 0.25
"""Pixels; a shorter state is drawn so wide."""


def picture(results: Mapping[str, SimResult], machine: SimMachine) -> str:
    """One panel for each policy, all with the same time axis."""
    end_s = max((result.end_s for result in results.values()), default=0.0) or 1.0
    heights = [_panel_height(result) for result in results.values()]
    height = TOP + sum(heights) + 50
    root = ET.Element("svg", {
        "xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {height}", "width": str(WIDTH),
        "height": str(height), "font-family": "sans-serif", "font-size": "12", "role": "img",
    })  # fmt: skip
    ET.SubElement(root, "title").text = "Models in memory tiers over time: " + ", ".join(results)
    _rect(root, 0, 0, WIDTH, height, "#ffffff")
    _legend(root)
    top = float(TOP)
    for (name, result), tall in zip(results.items(), heights, strict=True):
        _panel(root, name, result, machine, top, end_s)
        top += tall
    _axis(root, top, end_s)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _panel_height(result: SimResult) -> float:
    return 34 + len(result.models) * (LANE + GAP) + CHART + 36


def _legend(root: ET.Element) -> None:
    x = float(LEFT)
    for label, colour, share in LOOKS.values():
        _rect(root, x, 12 + 12 * (1 - share), 18, 12 * share, colour)
        _text(root, x + 24, 23, label)
        x += 44 + 6.6 * len(label)


def _panel(root: ET.Element, name: str, result: SimResult, machine: SimMachine, top: float, end_s: float) -> None:
    wait = result.wait
    group = ET.SubElement(root, "g", {"data-policy": name})
    told = f"mean wait {wait.mean_s:.1f} s, p95 {wait.p95_s:.1f} s, {result.loads} loads"
    _text(group, LEFT, top + 20, f"{name} — {told}", weight="bold")
    y = top + 34
    by_model: dict[str, list[Moment]] = {model.model: [] for model in result.models}
    for moment in result.timeline:
        by_model[moment.model].append(moment)
    for model, moments in by_model.items():
        label = model if len(model) <= 20 else model[:19] + "…"
        _text(group, LEFT - 8, y + 15, label, anchor="end")
        lane = ET.SubElement(group, "g", {"data-model": model})
        for state, begin, end in states(moments, max(result.end_s, 1e-9)):
            label, colour, share = LOOKS[state]
            bar = _rect(
                lane, _x(begin, end_s), y + LANE * (1 - share), max(_x(end, end_s) - _x(begin, end_s), _SMALLEST),
                LANE * share, colour,
            )  # fmt: skip
            ET.SubElement(bar, "title").text = f"{model}: {label}, {begin:.1f} to {end:.1f} s"
        y += LANE + GAP
    _memory(group, result, machine, y + 12, end_s)


def states(moments: Sequence[Moment], end_s: float) -> Iterator[tuple[str, float, float]]:
    """What a model was from when to when; states in a row that look the same are one."""
    state, since = "disk", 0.0
    for moment in moments:
        new = _state(moment)
        if new != state:
            if moment.at_s > since:
                yield state, since, moment.at_s
            state, since = new, moment.at_s
    if end_s > since:
        yield state, since, end_s


def _state(moment: Moment) -> str:
    if moment.residency in (Residency.LOADING, Residency.UNLOADING):
        return "loading" if moment.residency is Residency.LOADING else "unloading"
    return {Tier.GPU: "ready", Tier.RAM: "ram", Tier.DISK: "disk"}[moment.tier]


def _memory(group: ET.Element, result: SimResult, machine: SimMachine, top: float, end_s: float) -> None:
    """Bytes that workers have of the memory that is short, below what they may have."""
    on_devices = bool(machine.devices)
    budget = sum(machine.budgets.device_bytes) if on_devices else machine.budgets.host_bytes
    now: dict[str, int] = {}
    points: list[tuple[float, int]] = [(0.0, 0)]
    for moment in result.timeline:
        now[moment.model] = moment.device_bytes if on_devices else moment.host_bytes
        total = sum(now.values())
        if total != points[-1][1]:
            points += [(moment.at_s, points[-1][1]), (moment.at_s, total)]
    points.append((result.end_s, points[-1][1]))
    most = max(budget, max(total for _, total in points), 1)
    path = " ".join(
        f"{_x(at, end_s):.1f},{top + CHART - CHART * total / most:.1f}" for at, total in _thinned(points, end_s)
    )
    ET.SubElement(group, "polyline", {"points": path, "fill": "none", "stroke": "#0072B2", "stroke-width": "1.2"})
    line = top + CHART - CHART * budget / most
    for y, dashes in ((line, "5 4"), (top + CHART, "")):
        ET.SubElement(group, "line", {
            "x1": str(LEFT), "x2": str(WIDTH - RIGHT), "y1": f"{y:.1f}", "y2": f"{y:.1f}", "stroke": INK,
            "stroke-dasharray": dashes or "none", "stroke-width": "0.8",
        })  # fmt: skip
    _text(group, LEFT - 8, line + 4, f"{budget / 2**30:.1f} GiB", anchor="end")
    _text(group, LEFT - 8, top + CHART / 2 + 4, "devices" if on_devices else "memory", anchor="end")
    _text(group, LEFT - 8, top + CHART + 4, "0", anchor="end")


def _thinned(points: Sequence[tuple[float, int]], end_s: float) -> Iterator[tuple[float, int]]:
    """No more points than can be told apart: of those in one tenth of a pixel the first, the extremes and the last."""
    bucket: list[tuple[float, int]] = []
    for point in points:
        if bucket and _x(point[0], end_s) - _x(bucket[0][0], end_s) > 0.1:
            yield from _outline(bucket)
            bucket = []
        bucket.append(point)
    yield from _outline(bucket)


def _outline(bucket: Sequence[tuple[float, int]]) -> Sequence[tuple[float, int]]:
    if len(bucket) <= 4:
        return bucket
    return bucket[0], min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1]), bucket[-1]


def _axis(root: ET.Element, top: float, end_s: float) -> None:
    step = tick_s(end_s)
    for number in range(int(end_s / step) + 1):
        x = _x(number * step, end_s)
        ET.SubElement(root, "line", {
            "x1": f"{x:.1f}", "x2": f"{x:.1f}", "y1": str(TOP + 28), "y2": f"{top:.1f}", "stroke": FAINT,
            "stroke-width": "0.5", "stroke-dasharray": "1 3",
        })  # fmt: skip
        _text(root, x, top + 16, f"{number * step:g}", anchor="middle")
    _text(root, (LEFT + WIDTH - RIGHT) / 2, top + 36, "seconds", anchor="middle")


def tick_s(end_s: float) -> float:
    """A round distance that gives five to twelve ticks."""
    step = 10.0 ** len(str(int(end_s))) / 1000.0
    while end_s / step > 12:
        step *= 2 if str(f"{step:e}")[0] in "15" else 2.5
    return step


def _x(at_s: float, end_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(at_s / end_s, 1.0)


def _rect(parent: ET.Element, x: float, y: float, width: float, height: float, colour: str) -> ET.Element:
    return ET.SubElement(parent, "rect", {
        "x": f"{x:.2f}", "y": f"{y:.2f}", "width": f"{width:.2f}", "height": f"{height:.2f}", "fill": colour,
    })  # fmt: skip


def _text(parent: ET.Element, x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> None:
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "fill": INK, "text-anchor": anchor, "font-weight": weight}
    ET.SubElement(parent, "text", attributes).text = text
