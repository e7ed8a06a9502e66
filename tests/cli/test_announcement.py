"""What `hypnos serve` prints: the address, one line that works as pasted, and where the files are."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hypnos_engine.cli.serve import announcement_text, curl_line, loop_factory, ready_text
from hypnos_engine.daemon import Announcement

HERE = Announcement(
    address="http://127.0.0.1:9999",
    models=("smollm2:135m",),
    config_path=Path("/home/me/.config/hypnos/hypnos.toml"),
    models_dirs=(Path("/home/me/models"), Path("/mnt/more models")),
    log_dir=Path("/home/me/.local/state/hypnos/log"),
    notices=("A first configuration was written.",),
    first_model="smollm2:135m",
)


def test_address_files_and_notices_are_named() -> None:
    text = announcement_text(HERE)
    assert text.startswith("Hypnos serves 1 model at http://127.0.0.1:9999/v1\n")
    for part in (HERE.config_path, *HERE.models_dirs, HERE.log_dir, HERE.notices[0]):
        assert str(part) in text


@pytest.mark.parametrize("address", ["http://127.0.0.1:9999", "http://127.0.0.1:9999/", "http://127.0.0.1:9999/v1"])
def test_the_address_is_the_one_that_clients_take(address: str) -> None:
    announcement = Announcement(address, (), None, (), Path("/log"), (), None)
    assert "Hypnos serves 0 models at http://127.0.0.1:9999/v1\n" in announcement_text(announcement)
    assert "curl http://127.0.0.1:9999/v1/models" in ready_text(announcement)


def test_the_line_to_try_comes_when_it_can_be_answered() -> None:
    assert "curl" not in announcement_text(HERE)
    assert "Ctrl-C" in ready_text(HERE)
    assert curl_line("http://127.0.0.1:9999", HERE.first_model) in ready_text(HERE)


def test_with_keys_the_line_carries_one() -> None:
    line = curl_line("http://127.0.0.1:1", "a", needs_key=True, windows=False)
    assert '-H "authorization: Bearer $HYPNOS_KEY"' in line
    assert "HYPNOS_KEY" in ready_text(replace(HERE, needs_key=True))


@pytest.mark.parametrize("model", ["smollm2:135m", 'it\'s "mine"', "$(reboot)", "`a` \\ ü"])
def test_a_shell_gives_curl_exactly_the_model_s_name(model: str) -> None:
    line = curl_line("http://127.0.0.1:1", model, windows=False)
    seen = subprocess.run(
        ["/bin/sh", "-c", f"curl() {{ printf '%s\\0' \"$@\"; }}; {line}"], check=True, capture_output=True, text=True
    ).stdout.split("\0")[:-1]
    assert seen[0] == "http://127.0.0.1:1/v1/chat/completions"
    assert json.loads(seen[seen.index("-d") + 1])["model"] == model
    assert shlex.split(line)[0] == "curl"


def test_windows_gets_its_own_quotes() -> None:
    assert '-d "{\\"model\\": \\"a\\"' in curl_line("http://127.0.0.1:1", "a", windows=True)


def test_the_loop_is_uvloops_where_it_is_installed() -> None:
    factory = loop_factory()
    assert factory is not None
    loop = factory()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()
