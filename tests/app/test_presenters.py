"""What people read: words, faces, rows, menus, notices and refusals, as plain values."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.presenters import intents, tables, words
from app.presenters.about import Part, about
from app.presenters.faces import STEPS, Mood, face
from app.presenters.menu import LONGEST_LIST, Desk, Entry, Menu, menu, short
from app.presenters.notices import Notice, Weight, news, over, refused
from app.presenters.trouble import GiveUp, Open, Surroundings, TryAgain, trouble
from app.state import Ended, Lost, Phase, Readiness, Snapshot, Told, View, fold
from hypnos_engine.api.schemas.memory import LoadStep
from hypnos_engine.api.schemas.memory_events import LoadEvent
from hypnos_engine.domain.errors import (
    AlreadyRunning,
    BindRefused,
    ConfigurationInvalid,
    FolderUnusable,
    HypnosError,
    PortInUse,
    StartRefused,
    every_error,
)
from hypnos_engine.domain.kinds import EngineKind, Modality, Residency, Tier
from tests.app.examples import GIB, MIB, STARTING, entry, household, idle_model, ready, status
from tests.app.test_state import decision

PLAIN = Desk(starts_at_login=False)


def entries(lines: Menu) -> list[Entry]:
    return [line for line in lines if isinstance(line, Entry)]


def texts(lines: Menu) -> list[str]:
    return [line.text for line in entries(lines)]


def find(lines: Menu, beginning: str) -> Entry:
    return next(line for line in entries(lines) if line.text.startswith(beginning))


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count_bytes", "said"),
    [(0, "none"), (1, "1 MiB"), (349 * MIB, "349 MiB"), (GIB, "1.0 GiB"), (int(16.25 * GIB), "16.2 GiB")],
)
def test_sizes_are_said_in_the_unit_that_suits_them(count_bytes: int, said: str) -> None:
    assert words.size(count_bytes) == said


@pytest.mark.parametrize(
    ("time_ms", "said"), [(None, "–"), (0.4, "0 ms"), (820.0, "820 ms"), (3400.0, "3.4 s"), (150_000.0, "2 min")]
)
def test_durations_are_said_in_the_unit_that_suits_them(time_ms: float | None, said: str) -> None:
    assert words.duration(time_ms) == said


@pytest.mark.parametrize(("rate", "said"), [(0.0, "0"), (0.04, "0"), (3.44, "3.4"), (120.4, "120")])
def test_rates_have_no_more_figures_than_they_are_worth(rate: float, said: str) -> None:
    assert words.per_minute(rate) == said


def test_every_modality_and_tier_has_its_word() -> None:
    assert set(words.NEEDS) == set(Modality)
    for one_pool in (True, False):
        assert len({words.place(tier, one_pool=one_pool) for tier in Tier}) == 3
        assert len({words.move_to(tier, one_pool=one_pool) for tier in Tier}) == 3


def test_a_model_s_whereabouts_say_what_happens_to_it() -> None:
    said = [words.whereabouts(model, one_pool=False) for model in ready(*household()).models]
    assert said == ["GPU", "loading, 62 %", "GPU", "RAM", "disk", "disk", "switched off"]
    leaving = ready(idle_model(residency=Residency.UNLOADING)).models[0]
    assert words.whereabouts(leaving, one_pool=True) == "unloading"


def test_a_model_takes_what_it_holds_or_would_hold() -> None:
    assert words.bytes_of(ready(idle_model()).models[0]) == "349 MiB"
    assert words.bytes_of(ready(entry("a")).models[0]) == "2.0 GiB on disk"
    assert words.bytes_of(ready(entry("a", total_weight_bytes=0)).models[0]) == "unknown"
    demo = entry("demo", engine=EngineKind.FAKE, total_weight_bytes=0)
    assert words.bytes_of(ready(demo).models[0]) == "no weights"


def test_the_condition_is_one_sentence_for_every_state() -> None:
    view = ready(idle_model())
    assert words.condition(STARTING) == "Starting."
    assert words.condition(view) == "Ready; nothing is running."
    assert words.condition(ready(idle_model(), held=True)) == "The GPU is left to other programs."
    assert words.condition(ready(idle_model(active_leases=1))) == "1 request running."
    assert words.condition(ready(idle_model(active_leases=2, waiting=3))) == "2 requests running, 3 waiting."
    assert words.condition(ready(*household())) == "Loading whisper:large-v3."
    assert words.condition(ready(entry("a", enabled=False))) == "Ready, but no model is in service."
    assert words.condition(fold(view, Lost("x"))) == "The engine does not answer."
    assert words.condition(fold(view, Ended("Ending."))) == "Ending."
    waiting = fold(view, Readiness(ready=False, reason="startup tier initialization in progress"))
    assert words.condition(waiting) == "Starting: the first models are on their way."


# --- the face -------------------------------------------------------------------------------------------------------


def test_the_most_urgent_state_has_the_face() -> None:
    busy = ready(*household())
    assert face(ready(idle_model()), unseen=0).mood is Mood.IDLE
    assert face(ready(idle_model(active_leases=1)), unseen=0).mood is Mood.WORKING
    assert face(ready(idle_model(waiting=1)), unseen=0).mood is Mood.WORKING
    assert face(busy, unseen=0).mood is Mood.LOADING
    assert face(busy, unseen=1).mood is Mood.ATTENTION
    assert face(fold(busy, Lost("x")), unseen=0).mood is Mood.ATTENTION
    assert face(STARTING, unseen=0).mood is Mood.LOADING


def test_progress_is_shown_in_few_steps_and_the_slowest_load_decides() -> None:
    first = entry("a", residency=Residency.LOADING, load=LoadStep("weights", 0.62))
    second = entry("b", residency=Residency.LOADING, load=LoadStep("weights", 0.21))
    assert face(ready(first), unseen=0).step == int(0.62 * STEPS)
    assert face(ready(first, second), unseen=0).step == int(0.21 * STEPS)
    assert face(ready(entry("a", residency=Residency.LOADING)), unseen=0).step is None


def test_the_tool_tip_says_state_address_and_news() -> None:
    tooltip = face(ready(idle_model()), unseen=2).tooltip
    assert tooltip.splitlines() == ["Hypnos: Ready; nothing is running.", "http://127.0.0.1:9999/v1", "2 new notices"]


# --- the menu -------------------------------------------------------------------------------------------------------


def test_the_menu_has_everything_from_address_to_quit() -> None:
    lines = menu(ready(idle_model()), PLAIN)
    assert texts(lines) == [
        "Ready; nothing is running",
        "Copy http://127.0.0.1:9999/v1",
        "Open page",
        "Status…",
        "Requests…",
        "smollm2:135m: GPU, 349 MiB",
        "Free the GPU for other programs",
        "Start at login",
        "About Hypnos…",
        "Quit",
    ]
    assert entries(lines)[-1].intent == intents.Quit()


def test_a_model_s_submenu_moves_it_anywhere_but_where_it_is() -> None:
    (line,) = [line for line in entries(menu(ready(idle_model()), PLAIN)) if line.children]
    gpu, ram, disk, service = entries(line.children)
    assert (gpu.enabled, gpu.checked) == (False, True)
    assert ram.enabled
    assert ram.intent == intents.Move("smollm2:135m", Tier.RAM)
    assert disk.intent == intents.Move("smollm2:135m", Tier.DISK)
    assert service.intent == intents.Switch("smollm2:135m", enabled=False)


@pytest.mark.parametrize(
    ("model", "why"),
    [(idle_model(active_leases=1), "answers a request"), (entry("a", enabled=False), "switched off")],
)
def test_a_model_that_cannot_be_moved_says_why(model: object, why: str) -> None:
    (line,) = [line for line in entries(menu(ready(model), PLAIN)) if line.children]  # type: ignore[arg-type]
    moves = [entry for entry in entries(line.children) if isinstance(entry.intent, intents.Move)]
    assert len(moves) == 3
    assert not any(move.enabled for move in moves)
    assert all(why in move.hint for move in moves)


def test_a_switched_off_model_can_be_switched_on() -> None:
    (line,) = [line for line in entries(menu(ready(entry("a", enabled=False)), PLAIN)) if line.children]
    assert find(line.children, "In service").intent == intents.Switch("a", enabled=True)


def test_a_model_with_a_problem_says_so_in_its_submenu() -> None:
    lines = menu(ready(*household()), PLAIN)
    line = find(lines, "docling")
    assert line.text.endswith("(!)")
    assert "layout_cdla.onnx" in entries(line.children)[0].hint


def test_many_models_stand_in_one_submenu() -> None:
    models = [idle_model(f"model-{number}") for number in range(LONGEST_LIST + 1)]
    lines = menu(ready(*models), PLAIN)
    assert len(find(lines, "Models (13)").children) == 13


def test_one_pool_speaks_of_memory_and_not_of_a_gpu() -> None:
    lines = menu(ready(idle_model(), one_pool=True), PLAIN)
    said = " ".join([*texts(lines), *texts(find(lines, "smollm2").children)])
    assert "GPU" not in said


def test_a_hold_can_be_ended_and_not_begun_again() -> None:
    lines = menu(ready(idle_model(), held=True), PLAIN)
    assert find(lines, "Give the GPU back").intent == intents.RestoreGpu()
    assert not any(text.startswith("Free") for text in texts(lines))


def test_an_unreachable_engine_takes_no_wishes() -> None:
    lines = menu(fold(ready(idle_model()), Lost("x")), PLAIN)
    model = find(lines, "smollm2")
    assert not any(entry.enabled for entry in entries(model.children))
    assert not find(lines, "Free the GPU").enabled


def test_start_at_login_is_offered_only_where_it_can_be() -> None:
    view = ready(idle_model())
    on, off, never = (menu(view, Desk(starts_at_login=state)) for state in (True, False, None))
    assert find(on, "Start at login").intent == intents.StartAtLogin(wanted=False)
    assert find(off, "Start at login").checked is False
    assert "Start at login" not in texts(never)


def test_new_notices_stand_on_top() -> None:
    lines = menu(ready(idle_model()), replace(PLAIN, unseen=1))
    assert find(lines, "1 new notice").intent == intents.ShowStatus()


def test_before_there_are_models_the_menu_says_so() -> None:
    assert "Models are not known yet" in texts(menu(STARTING, PLAIN))
    assert "No model is configured" in texts(menu(ready(), PLAIN))


def test_without_an_engine_there_is_no_address_to_copy() -> None:
    nowhere = View("", own=True, phase=Phase.UNREACHABLE)
    assert words.condition(nowhere) == "The engine does not run."
    assert not any(text.startswith(("Copy", "Open page")) for text in texts(menu(nowhere, PLAIN)))
    assert face(nowhere, unseen=0).tooltip == "Hypnos: The engine does not run."


def test_long_sentences_are_cut_for_menus() -> None:
    assert short("short") == "short"
    assert short("x" * 200, 10) == "xxxxxxxxx…"


# --- tables ---------------------------------------------------------------------------------------------------------


def test_each_row_has_a_cell_for_each_column() -> None:
    view = ready(*household())
    for columns, rows in (
        (tables.MODEL_COLUMNS, tables.model_rows(view)),
        (tables.REQUEST_COLUMNS, tables.request_rows(view)),
    ):
        assert rows
        assert all(len(row.cells) == len(columns) for row in rows)


def test_models_are_sorted_by_how_soon_they_can_answer() -> None:
    where = [column.title for column in tables.MODEL_COLUMNS].index("Where")
    rows = sorted(tables.model_rows(ready(*household())), key=lambda row: row.cells[where].sort)
    assert rows[0].cells[where].text == "GPU"
    assert rows[-1].cells[where].text == "switched off"


def test_a_problem_is_marked_and_read_out() -> None:
    rows = {row.model: row for row in tables.model_rows(ready(*household()))}
    assert any(cell.is_warning for cell in rows["docling:int8"].cells)
    assert "layout_cdla.onnx" in rows["docling:int8"].about
    assert not any(cell.is_warning for cell in rows["bge-m3"].cells)


def test_models_out_of_service_take_no_requests() -> None:
    assert "llama3:70b" not in {row.model for row in tables.request_rows(ready(*household()))}


def test_gauges_show_one_memory_where_there_is_one() -> None:
    assert [gauge.title for gauge in tables.gauges(ready(idle_model()))] == ["GPU memory", "RAM"]
    assert [gauge.title for gauge in tables.gauges(ready(idle_model(), one_pool=True))] == ["Memory for models"]
    assert tables.gauges(STARTING) == ()
    full = tables.gauges(ready(idle_model(device_bytes=23 * GIB)))[0]
    assert (full.part, full.text) == (1.0, "23.0 GiB of 23.0 GiB")


# --- notices --------------------------------------------------------------------------------------------------------


def told(view: View, update: Told | Snapshot | Lost) -> list[Notice]:
    return list(news(view, update, fold(view, update)))


def test_a_worker_that_died_is_told_with_what_happens_next() -> None:
    (notice,) = told(ready(idle_model()), decision(4, "worker_died"))
    assert notice.title == "a had to be restarted"
    assert "next request" in notice.text
    assert notice.action is not None
    assert notice.weight is Weight.PROBLEM


def test_daily_work_is_no_news() -> None:
    view = ready(*household())
    assert told(view, decision(5)) == []
    assert told(view, Told(LoadEvent("whisper:large-v3", "weights", 0.7))) == []
    assert told(view, Snapshot(status(*household()))) == []


def test_a_problem_is_told_when_it_comes_up_and_not_while_it_lasts() -> None:
    sick, well = idle_model("a", problem="The file is gone."), idle_model("a")
    (notice,) = told(ready(well), Snapshot(status(sick)))
    assert (notice.title, notice.text) == ("a cannot be served", "The file is gone.")
    assert told(ready(sick), Snapshot(status(sick))) == []
    assert told(ready(sick), Snapshot(status(well))) == []
    assert told(ready(well), Snapshot(status(idle_model("a", problem="x", enabled=False)))) == []


def test_an_engine_of_another_program_that_ends_can_be_started_here() -> None:
    other = replace(ready(idle_model()), own=False)
    (notice,) = told(other, Lost("No Hypnos answers."))
    assert notice.action == intents.StartHere()
    assert told(fold(other, Lost("No Hypnos answers.")), Lost("No Hypnos answers.")) == []


def test_an_own_engine_that_does_not_answer_is_told_too() -> None:
    (notice,) = told(ready(idle_model()), Lost("The connection broke."))
    assert notice.text == "The connection broke."


def test_what_is_over_is_news_when_it_comes_again() -> None:
    lost, sick = fold(ready(idle_model()), Lost("x")), ready(idle_model("a", problem="The file is gone."))
    assert list(over(lost, fold(lost, Snapshot(status(idle_model()))))) == ["lost"]
    (notice,) = told(ready(idle_model("a")), Snapshot(status(idle_model("a", problem="The file is gone."))))
    assert list(over(sick, ready(idle_model("a")))) == [notice.key]
    assert list(over(sick, ready())) == [notice.key]
    assert list(over(sick, sick)) == []


@pytest.mark.parametrize(
    "intent",
    [
        intents.Move("a", Tier.GPU),
        intents.Switch("a", enabled=False),
        intents.Switch("a", enabled=True),
        intents.FreeGpu(),
        intents.RestoreGpu(),
    ],
)
def test_every_wish_that_is_refused_has_its_own_words(intent: intents.EngineIntent) -> None:
    notice = refused(intent, "It is in use.")
    assert "not" in notice.title
    assert notice.text == "It is in use."


# --- refusals of the start ------------------------------------------------------------------------------------------

AROUND = Surroundings(Path("/home/a/hypnos.toml"), Path("/home/a/log"), 10000)


def test_a_taken_port_offers_the_next_free_one_first() -> None:
    shown = trouble(PortInUse("Port 9999 is in use by nginx."), AROUND)
    assert shown.choices[0].remedy == TryAgain(10000)
    assert "nginx" in shown.text
    assert "10000" in shown.advice


def test_a_taken_port_without_a_free_one_nearby_can_be_tried_again() -> None:
    assert trouble(PortInUse("x"), Surroundings()).choices[0].remedy == TryAgain(None)


def test_a_broken_configuration_can_be_opened() -> None:
    shown = trouble(ConfigurationInvalid("line 3: no such setting"), AROUND)
    assert Open(Path("/home/a/hypnos.toml")) in [choice.remedy for choice in shown.choices]


@pytest.mark.parametrize("error", [kind for kind in every_error() if issubclass(kind, StartRefused)])
def test_every_refusal_has_a_title_its_own_words_and_a_way_out(error: type[HypnosError]) -> None:
    shown = trouble(error("what is wrong"), AROUND)
    assert shown.title
    assert shown.text == "what is wrong"
    assert shown.advice
    remedies = [choice.remedy for choice in shown.choices]
    assert TryAgain(None) in remedies
    assert remedies[-1] == GiveUp()


def test_refusals_differ_in_what_they_advise() -> None:
    kinds = (PortInUse, ConfigurationInvalid, FolderUnusable, AlreadyRunning, BindRefused)
    assert len({trouble(kind("x"), AROUND).title for kind in kinds}) == len(kinds)


# --- about ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bundled", [True, False])
def test_about_says_how_to_exchange_qt(bundled: bool) -> None:
    text = about(version="1.2", qt="6.9", parts=(Part("qasync", "1", "BSD"),), qt_folder="/x/PySide6", bundled=bundled)
    assert text.title == "Hypnos 1.2"
    assert "/x/PySide6" in text.qt_notice
    assert "Lesser General Public License" in text.qt_notice
    assert ("environment" in text.qt_notice) is not bundled
