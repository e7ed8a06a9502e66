"""The page about the configuration is complete, fresh, and its examples are valid."""

import re
from pathlib import Path

from hypnos_engine.config.docs import MARK, page_path, render_page
from hypnos_engine.config.load import load
from hypnos_engine.config.settings import ROOT, every_setting


def test_the_page_is_fresh() -> None:
    """Renew it with: python -m hypnos_engine.config.docs."""
    page = page_path().read_text("utf-8")
    assert MARK in page
    assert page == render_page(page)


def test_every_setting_stands_in_the_table_of_its_section() -> None:
    page = page_path().read_text("utf-8").partition(MARK)[2]
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    for table in ROOT.below():
        section = sections[f"`{table.heading}`" if table.path else "Top level"]
        for setting in table.settings:
            (row,) = re.findall(rf"^\| `{setting.name}` \|.*$", section, re.MULTILINE)
            assert setting.help in row
            assert setting.environment in row
            assert setting.flag in row
            assert ("Without effect" in row) == (not setting.effective)
            assert row.count("|") == 5


def test_every_variable_is_explained_by_hand_too() -> None:
    page = page_path().read_text("utf-8").partition(MARK)[0]
    for name in ("HYPNOS_CONFIG", *(setting.environment for _, setting in every_setting())):
        assert name in page


def test_the_example_loads(tmp_path: Path) -> None:
    page = page_path().read_text("utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "hypnos.toml"
    path.write_text(example)
    settings = load(path)
    assert settings.models[0].id == "my-model"
    assert settings.without_effect == ()
