"""`hypnos simulate` as a real process, and what it prints and draws."""

import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import msgspec
import pytest

from hypnos_engine.cli import simulate
from hypnos_engine.cli.simulation_picture import LOOKS, picture, states, tick_s
from hypnos_engine.cli.simulation_setting import guessed_speed, machine_of, models_for
from hypnos_engine.cli.simulation_text import as_text, bars
from hypnos_engine.config import load as config
from hypnos_engine.config.settings import Settings
from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.kinds import Residency, Tier
from hypnos_engine.domain.model import ModelId
from hypnos_engine.runtime.scheduling import limits_of
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.simulation.machine import OtherUse
from hypnos_engine.scheduler.simulation.policies.catalog import POLICIES
from hypnos_engine.scheduler.simulation.result import Moment, SimResult
from hypnos_engine.scheduler.simulation.run import simulate as simulated
from hypnos_engine.scheduler.simulation.trace import Trace, TraceModel, TraceRequest, read_trace, write_trace
from hypnos_engine.testing.tiny_gguf import write_llama

if TYPE_CHECKING:
    from tests.cli.conftest import Hypnos

GIB = 2**30
MACHINE = """
config_version = 1

[hardware.simulate]
host_bytes = "32GiB"
cores = 4

[[hardware.simulate.devices]]
total_bytes = "8GiB"
"""
MODEL = """
[[models]]
id = "{id}"
modality = "text_generation"
engine = "ggml_llama"
weights_path = "{id}.gguf"
"""
TABLE = (
    TraceModel(id="chat", weight_bytes=4 * GIB, min_gpu_layer_ratio=1.0),
    TraceModel(id="code", weight_bytes=5 * GIB, min_gpu_layer_ratio=1.0),
)
DAY = Trace(
    (
        TraceRequest(id="r1", model="chat", prompt_tokens=500, output_tokens=100),
        TraceRequest(id="r2", model="code", at_s=1, prompt_tokens=500, output_tokens=100, deadline_ms=100),
        TraceRequest(id="r3", model="chat", after=("r2",), after_s=5, service_s=3, workflow="tidy", ends=True),
    ),
    TABLE,
)


def written(folder: Path, trace: Trace = DAY, settings: str = MACHINE) -> tuple[Path, Path]:
    day, configured = folder / "day.jsonl", folder / "hypnos.toml"
    day.write_text("".join(write_trace(trace)), encoding="utf-8")
    configured.write_text(settings, encoding="utf-8")
    return day, configured


def loaded(folder: Path, settings: str) -> Settings:
    path = folder / "hypnos.toml"
    path.write_text(settings, encoding="utf-8")
    return config.load(path)


def played(folder: Path, name: str = "llama-swap") -> tuple[SimResult, Settings]:
    settings = loaded(folder, MACHINE)
    machine = machine_of(settings)
    models = models_for(DAY, settings, machine)
    return simulated(
        DAY.requests, models, machine, POLICIES[name]([model.spec for model in models], Limits())
    ), settings


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_names_of_the_command_line_are_the_policies_that_there_are() -> None:
    assert list(POLICIES) == list(simulate.POLICIES)


def test_bars_tables_and_a_picture_come_out_of_a_trace(hypnos: "Hypnos") -> None:
    day, settings = written(hypnos.home)
    answer = hypnos.run("simulate", str(day), "--config", str(settings), "--picture", "tiers.svg")
    assert answer.stderr == ""
    assert answer.returncode == 0
    assert "chat |L" in answer.stdout
    assert "requests: 3 served" in answer.stdout or "refused" in answer.stdout
    assert "wait: mean " in answer.stdout
    assert ET.parse(hypnos.home / "tiers.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_policies_are_compared_and_the_same_input_gives_the_same_bytes(hypnos: "Hypnos") -> None:
    day, settings = written(hypnos.home)
    every = [part for name in simulate.POLICIES for part in ("--policy", name)]
    first = hypnos.run("simulate", str(day), "--config", str(settings), *every)
    assert first.returncode == 0
    compared = first.stdout.split("== compared ==")[1]
    assert [line.split()[0] for line in compared.splitlines() if "GiB" in line] == list(simulate.POLICIES)
    again = hypnos.run("simulate", str(day), "--config", str(settings), *every, PYTHONHASHSEED="7")
    assert again.stdout == first.stdout


def test_programs_get_everything_as_json(hypnos: "Hypnos") -> None:
    day, settings = written(hypnos.home)
    answer = hypnos.run("simulate", str(day), "--config", str(settings), "--json", "--policy", "llama-swap")
    told = json.loads(answer.stdout)
    assert told["machine"]["devices"] == [8 * GIB]
    (result,) = told["results"]
    assert result["policy"] == "llama-swap"
    assert [request["outcome"] for request in result["requests"]] == ["served"] * 3
    assert result["requests"][1]["late"] is True
    assert result["loads"] == sum(model["loads"] for model in result["models"]) == 3
    assert result["runs"][0]["workflow"] == "tidy"
    assert {moment["residency"] for moment in result["timeline"]} == {"cold", "loading", "ready", "unloading"}


def test_the_models_files_say_how_large_they_are(hypnos: "Hypnos") -> None:
    models = hypnos.home / "models"
    models.mkdir()
    write_llama(models / "tiny.gguf")
    trace = Trace((TraceRequest(id="r1", model="tiny", prompt_tokens=5, output_tokens=5),))
    day, settings = written(hypnos.home, trace, f'models_dirs = ["{models}"]\n' + MACHINE + MODEL.format(id="tiny"))
    answer = hypnos.run("simulate", str(day), "--config", str(settings), "--json")
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["models"][0]["file_bytes"] == (models / "tiny.gguf").stat().st_size
    assert told["results"][0]["requests"][0]["outcome"] == "served"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "r4", "model": "chat"}', "day.jsonl:5: it takes no time"),
        (
            '{"id": "r4", "model": "other", "service_s": 1}',
            "Neither the configuration nor the trace has a model 'other'",
        ),
    ],
)
def test_a_wrong_trace_is_told_in_a_sentence(hypnos: "Hypnos", line: str, said: str) -> None:
    day, settings = written(hypnos.home)
    with day.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    answer = hypnos.run("simulate", str(day), "--config", str(settings))
    assert (answer.returncode, answer.stdout) == (41, "")
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.jsonl"], 41, "missing.jsonl cannot be read"),
        (["."], 41, "cannot be read"),
        (["day.jsonl", "--policy", "magic"], 2, "invalid choice: 'magic'"),
        (["day.jsonl", "--picture", "nowhere/tiers.svg"], 45, "nowhere/tiers.svg cannot be written"),
        ([], 2, "required: TRACE"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    hypnos: "Hypnos", arguments: list[str], code: int, said: str
) -> None:
    _, settings = written(hypnos.home)
    answer = hypnos.run("simulate", *arguments, "--config", str(settings))
    assert answer.returncode == code
    assert said in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_every_field_of_a_trace_and_every_policy_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    for struct in (TraceRequest, TraceModel):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.name}`" in page, f"docs/simulation.md does not tell of {field.name}"
    for name in POLICIES:
        assert f"`{name}`" in page


def test_the_documented_trace_is_one() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    example = page.split("```")[3].strip().splitlines()
    assert [request.id for request in read_trace(example).requests] == ["r1", "r2"]


# --- what is simulated ----------------------------------------------------------------------------------------------


def test_the_made_up_machine_and_the_budgets_are_those_of_the_settings(tmp_path: Path) -> None:
    text = MACHINE + '[[hardware.simulate.others]]\nused_bytes = "1GiB"\nafter_secs = 5\n'
    machine = machine_of(loaded(tmp_path, text))
    assert (machine.devices, machine.host_bytes, machine.cores) == ((8 * GIB,), 32 * GIB, 4)
    assert machine.others == (OtherUse(5.0, GIB, 0),)
    assert machine.budgets.device_bytes == (8 * GIB - 512 * 2**20,)
    capped = machine_of(
        loaded(tmp_path, text.replace("[hardware.sim", '[hardware]\ntier1_bytes = "6GiB"\n[hardware.sim', 1))
    )
    assert capped.budgets.device_bytes == (6 * GIB,)


@pytest.mark.parametrize(("topology", "unified"), [("UnifiedMemory", True), ("HostMemory", False)])
def test_where_nothing_has_memory_of_its_own_others_hold_host_memory(
    tmp_path: Path, topology: str, unified: bool
) -> None:
    text = f"""
config_version = 1
[hardware.simulate]
host_bytes = "16GiB"
topology = "{topology}"
[[hardware.simulate.others]]
used_bytes = "1GiB"
"""
    machine = machine_of(loaded(tmp_path, text))
    assert (machine.devices, machine.unified) == ((), unified)
    assert machine.others == (OtherUse(0.0, GIB, None),)
    assert machine.budgets.device_layers is unified


def test_without_a_made_up_machine_it_is_this_computer(tmp_path: Path) -> None:
    machine = machine_of(loaded(tmp_path, 'config_version = 1\n[hardware]\nbackend = "cpu"\n'))
    assert machine.devices == ()
    assert machine.host_bytes > GIB // 4
    assert machine.cores >= 1


def test_the_limits_are_those_of_the_settings(tmp_path: Path) -> None:
    text = MACHINE + "[limits]\nmax_queue_per_model = 3\nmax_overtakes = 4\nmax_overtaken_secs = 5\n"
    assert limits_of(loaded(tmp_path, text)) == Limits(3, 4, 5.0, None)


def test_a_model_without_file_and_table_is_a_problem_only_when_it_is_asked_for(tmp_path: Path) -> None:
    settings = loaded(tmp_path, MACHINE + MODEL.format(id="lost") + MODEL.format(id="chat"))
    models = models_for(DAY, settings, machine_of(settings))
    assert [model.id for model in models] == ["chat", "code"]
    assert models[0].spec.weights_path == "chat.gguf"  # the configuration's settings, the table's bytes
    assert models[0].file_bytes == 4 * GIB
    asked = Trace((TraceRequest(id="r", model="lost", service_s=1),))
    with pytest.raises(ConfigurationInvalid, match=r"'lost' cannot be served: .* Give the trace's first line a table"):
        models_for(asked, settings, machine_of(settings))


def test_a_guessed_speed_counts_the_experts_that_a_token_uses(tmp_path: Path) -> None:
    settings = loaded(tmp_path, MACHINE)
    dense, sparse = (
        models_for(
            Trace((), (TraceModel(id="m", weight_bytes=10 * GIB, expert_bytes=size),)), settings, machine_of(settings)
        )
        for size in (0, 8 * GIB)
    )
    slow = guessed_speed(dense[0].shape, on_accelerator=True)
    assert guessed_speed(sparse[0].shape, on_accelerator=True) == pytest.approx(slow * 10 / 4)
    assert guessed_speed(dense[0].shape, on_accelerator=False) < slow
    assert guessed_speed(None, on_accelerator=True) > slow


# --- what is shown --------------------------------------------------------------------------------------------------


def test_every_load_and_eviction_has_a_mark_in_its_models_row(tmp_path: Path) -> None:
    result, settings = played(tmp_path)
    chat, code, *_ = bars(result).splitlines()
    assert chat.split("|")[1].count("L") == code.split("|")[1].count("L") + 1 == 2
    assert (chat.split("|")[1].count("E"), code.split("|")[1].count("E")) == (1, 1)
    assert chat.split("|")[1].startswith("L")
    assert code.split("|")[1].startswith(".")
    assert "=" in chat
    assert all(len(line.split("|")[1]) == 72 for line in (chat, code))
    assert "deadlines: 1 missed" in as_text({"llama-swap": result}, machine_of(settings))


def test_a_result_without_requests_can_be_shown(tmp_path: Path) -> None:
    empty = SimResult((), (), (), (), 0.0, 0)
    machine = machine_of(loaded(tmp_path, MACHINE))
    assert "requests: none" in as_text({"hypnos": empty}, machine)
    ET.fromstring(picture({"hypnos": empty}, machine))


def test_the_picture_tells_of_every_state_and_needs_nothing_else(tmp_path: Path) -> None:
    result, settings = played(tmp_path)
    text = picture({"a <b> & c": result}, machine_of(settings))
    root = ET.fromstring(text)
    colours = {element.get("fill") for element in root.iter("{http://www.w3.org/2000/svg}rect")}
    assert colours >= {colour for _, colour, _ in LOOKS.values()}
    assert len({colour for _, colour, _ in LOOKS.values()}) == len(LOOKS)
    words = " ".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text"))
    assert all(label in words for label, _, _ in LOOKS.values())
    assert "a <b> & c" in words
    assert "seconds" in words
    assert "href" not in text
    assert "<script" not in text


def test_states_that_look_the_same_are_one() -> None:
    def moment(at_s: float, residency: Residency, tier: Tier, cached: int = 0) -> Moment:
        return Moment(at_s, ModelId("a"), residency, tier, 0, 0, cached)

    moments = [
        moment(0, Residency.COLD, Tier.DISK),
        moment(2, Residency.LOADING, Tier.DISK),
        moment(3, Residency.LOADING, Tier.RAM, 5),
        moment(4, Residency.READY, Tier.GPU),
        moment(4, Residency.UNLOADING, Tier.GPU),
        moment(6, Residency.COLD, Tier.RAM),
    ]
    assert list(states(moments, 9)) == [
        ("disk", 0.0, 2), ("loading", 2, 4), ("unloading", 4, 6), ("ram", 6, 9),
    ]  # fmt: skip


@pytest.mark.parametrize("end_s", [0.02, 0.9, 1, 7, 59, 60, 100, 119, 299, 3600, 86_400, 1e6, 1e9])
def test_the_time_axis_has_few_ticks_at_round_numbers(end_s: float) -> None:
    step = tick_s(end_s)
    assert end_s / step <= 12
    assert f"{step:e}"[0] in "125"
    assert end_s < 1 or end_s / step >= 4
