"""The command line: what it reads without starting anything, and that its page in docs/ is not stale."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hypnos_engine import __version__
from hypnos_engine.cli import command_line, reference, serve

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([], ["serve"]),
        (["--port", "1234"], ["serve", "--port", "1234"]),
        (["-v"], ["serve", "-v"]),
        (["serve", "--demo"], ["serve", "--demo"]),
        (["doctor"], ["doctor"]),
        (["--version"], ["--version"]),
        (["--help"], ["--help"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_a_line_without_a_command_serves_19_33(given: list[str], read: list[str]) -> None:
    assert command_line.with_command(given) == read


def test_the_port_flag_alone_is_serve_19_33() -> None:
    options = command_line.build_parser().parse_args(command_line.with_command(["--port", "1234"]))
    assert options.run is serve.run
    assert options.port == 1234


@pytest.mark.parametrize("port", ["0", "65536", "-1", "", "abc", "1e3", "١٢", "9" * 5000])
def test_what_is_no_port_is_one_sentence_and_exit_code_2(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(["serve", f"--port={port}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "a port is a number from 1 to 65535" in said.err


@pytest.mark.parametrize("arguments", [["frobnicate"], ["--frobnicate"], ["doctor", "extra"], ["serve", "--config"]])
def test_a_wrong_line_is_one_sentence_that_points_to_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.run(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("hypnos: ")
    assert said.endswith("--help`.\n")
    assert said.count("\n") == 1


def test_the_version_is_said_without_importing_the_engine() -> None:
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hypnos_engine", "--version"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout == f"hypnos {__version__}\n"
    imported = set(re.findall(r"\|\s+(\S+)$", answer.stderr, re.MULTILINE))
    assert "hypnos_engine.cli.command_line" in imported
    for heavy in ("asyncio", "aiohttp", "msgspec", "hypnos_engine.daemon", "hypnos_engine.config.load"):
        assert heavy not in imported


def test_the_page_of_the_command_line_is_not_stale() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == reference.page(), "run: python -m hypnos_engine.cli.reference > docs/cli.md"


def test_every_exit_code_of_a_refused_start_is_documented() -> None:
    from hypnos_engine.api.error_table import ERROR_TABLE
    from hypnos_engine.domain.errors import StartRefused

    page = reference.page()
    codes = {row.exit_code for error, row in ERROR_TABLE.items() if issubclass(error, StartRefused)}
    assert codes
    for code in codes:
        assert f"| {code} |" in page


def test_the_links_of_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_names_the_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for word in ("./run.sh  ", "./run.sh test", "./run.sh doctor", "/v1/chat/completions", "OpenAI("):
        assert word in readme
