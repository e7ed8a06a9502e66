"""What a simulation showed, for a person at a terminal: bars of tiers over time and tables; plain ASCII."""

from collections.abc import Mapping, Sequence

from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.scheduler.simulation.machine import SimMachine
from hypnos_engine.scheduler.simulation.result import Moment, Outcome, SimResult, spread

COLUMNS = 72
_LEGEND = "# tier 1 (ready)   = tier 2 (file in RAM)   . tier 3 (disk)   L load   E eviction   * both"
_BOTH = {frozenset("L"): "L", frozenset("E"): "E", frozenset("LE"): "*"}


def as_text(results: Mapping[str, SimResult], machine: SimMachine) -> str:
    """Everything, one policy after the other; with several of them a table that compares them at the end."""
    parts = [_machine_line(machine)]
    for name, result in results.items():
        parts += [f"\n== {name} ==\n", bars(result), "", _model_table(result), "", _request_lines(result)]
    if len(results) > 1:
        parts += ["\n== compared ==\n", _comparison(results)]
    return "\n".join(parts) + "\n"


def bars(result: SimResult, columns: int = COLUMNS) -> str:
    """One row for each model: its tier at the end of each column's time, and whether it was loaded or left then."""
    names = [model.model for model in result.models]
    width = max((len(name) for name in names), default=0)
    step = result.end_s / columns or 1.0
    by_model: dict[str, list[Moment]] = {name: [] for name in names}
    for moment in result.timeline:
        by_model[moment.model].append(moment)
    lines = [f"{name:<{width}} |{_row(by_model[name], step, columns)}|" for name in names]
    left, right = "0 s", f"{result.end_s:.0f} s"
    return "\n".join([*lines, f"{'':<{width}}  {left}{right:>{columns - len(left)}}", f"{'':<{width}}  {_LEGEND}"])


def _row(moments: Sequence[Moment], step: float, columns: int) -> str:
    signs: list[str] = []
    position, tier = 0, Tier.DISK
    for column in range(columns):
        end, marks = (column + 1) * step, set()
        while position < len(moments) and (moments[position].at_s < end or column == columns - 1):
            moment = moments[position]
            before = moments[position - 1].residency if position else Residency.COLD
            if moment.residency is Residency.LOADING and before is not Residency.LOADING:
                marks.add("L")
            if moment.residency is Residency.UNLOADING and before is not Residency.UNLOADING:
                marks.add("E")
            tier = moment.tier
            position += 1
        signs.append(_BOTH[frozenset(marks)] if marks else {Tier.GPU: "#", Tier.RAM: "=", Tier.DISK: "."}[tier])
    return "".join(signs)


def _model_table(result: SimResult) -> str:
    rows = [["model", "served", "mean wait", "p95 wait", "loads", "evictions", "loading", "from disk"]]
    waits: dict[str, list[float]] = {model.model: [] for model in result.models}
    for request in result.requests:
        if request.outcome is Outcome.SERVED and request.wait_s is not None:
            waits[request.model].append(request.wait_s)
    for model in result.models:
        wait = spread(waits[model.model])
        failed = f" (+{model.failed_loads} failed)" if model.failed_loads else ""
        rows.append([
            model.model, str(model.served), _seconds(wait.mean_s), _seconds(wait.p95_s), f"{model.loads}{failed}",
            str(model.evictions), _seconds(model.loading_s), _gib(model.disk_bytes),
        ])  # fmt: skip
    return _table(rows)


def _request_lines(result: SimResult) -> str:
    wait = result.wait
    ends = ", ".join(
        f"{result.count(outcome)} {outcome.replace('_', ' ')}" for outcome in Outcome if result.count(outcome)
    )
    lines = [
        f"requests: {ends or 'none'}",
        f"wait: mean {_seconds(wait.mean_s)}, p50 {_seconds(wait.p50_s)}, p95 {_seconds(wait.p95_s)}, "
        f"p99 {_seconds(wait.p99_s)}, longest {_seconds(wait.worst_s)}",
        f"memory: {result.loads} loads in {_seconds(result.loading_s)}, {_gib(result.disk_bytes)} read from disk, "
        f"{_gib(result.device_bytes)} copied to devices",
    ]
    if result.late:
        lines.append(f"deadlines: {result.late} missed")
    workflows: dict[str, list[float]] = {}
    broken: dict[str, int] = {}
    for ran in result.runs:
        workflows.setdefault(ran.workflow, [])
        if ran.complete:
            workflows[ran.workflow].append(ran.duration_s)
        else:
            broken[ran.workflow] = broken.get(ran.workflow, 0) + 1
    for name, durations in workflows.items():
        took = spread(durations)
        lines.append(
            f"workflow {name}: {len(durations)} runs, mean {_seconds(took.mean_s)}, p95 {_seconds(took.p95_s)}"
            + (f", {broken[name]} not finished" if name in broken else "")
        )
    return "\n".join(lines)


def _comparison(results: Mapping[str, SimResult]) -> str:
    rows = [["policy", "served", "mean wait", "p50", "p95", "p99", "longest", "loads", "loading", "from disk"]]
    for name, result in results.items():
        wait = result.wait
        rows.append([
            name, f"{result.count(Outcome.SERVED)}/{len(result.requests)}", _seconds(wait.mean_s), _seconds(wait.p50_s),
            _seconds(wait.p95_s), _seconds(wait.p99_s), _seconds(wait.worst_s), str(result.loads),
            _seconds(result.loading_s), _gib(result.disk_bytes),
        ])  # fmt: skip
    return _table(rows)


def _machine_line(machine: SimMachine) -> str:
    budgets = machine.budgets
    devices = ", ".join(_gib(size) for size in machine.devices)
    where = f"devices of {devices}" if devices else "one pool with its accelerator" if machine.unified else "no device"
    may = _gib(sum(budgets.device_bytes)) if devices else _gib(budgets.host_bytes)
    return (
        f"machine: {where}, {_gib(machine.host_bytes)} of host memory, {machine.cores} cores; models may have {may} of "
        f"{'the devices' if devices else 'it'}; disk {machine.disk_bytes_per_s / 1e9:.1f} GB/s"
        + (f", to a device {machine.device_bytes_per_s / 1e9:.1f} GB/s" if devices else "")
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
