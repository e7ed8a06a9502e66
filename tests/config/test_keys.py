"""A key is nowhere kept and nowhere shown."""

import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypnos_engine.config.load import load
from hypnos_engine.config.paths import Folders
from hypnos_engine.domain.errors import ConfigurationInvalid

SECRET = "sk-Verysecret-0123456789"
FOLDERS = Folders(**{name: Path("/nowhere") / name for name in ("config", "state", "run", "logs", "cache", "models")})


def test_the_settings_hold_only_digests(tmp_path: Path) -> None:
    """§2-33: neither the representation nor the object itself gives a key away."""
    path = tmp_path / "hypnos.toml"
    path.write_text(f'[server]\napi_keys = ["{SECRET}1"]\n[[server.keys]]\nkey = "{SECRET}2"\n')
    loaded = load(path, {"HYPNOS_API_KEYS": f"{SECRET}3"}, folders=FOLDERS)
    assert len(loaded.server.keys) == 3
    assert SECRET.encode() not in pickle.dumps(loaded)
    assert all(key.sha256 not in repr(loaded) for key in loaded.server.keys)
    assert all(SECRET not in str(warning) for warning in loaded.warnings)


@settings(max_examples=60, deadline=None)
@given(
    line=st.sampled_from(
        [
            'api_keys = "{}"',
            'api_keys = ["{}", 5]',
            'api_keys = [["{}"]]',
            'api_keys = {{ "x" = "{}" }}',
            'keys = "{}"',
            'keys = ["{}"]',
            'keys = [{{ key = ["{}"] }}]',
            'keys = [{{ key = "{} x" }}]',
            'keys = [{{ key_sha256 = "{}" }}]',
            'keys = [{{ key = "{}" }}, {{ key = "{}" }}]',
            'apikeys = ["{}"]',
            'tls = "{}"',
        ]
    ),
    suffix=st.sampled_from(["", " ", "ü", "\\u0007", "\\n"]),
    variable=st.sampled_from(["", f"{SECRET} x", f"{SECRET}\n", f"ü{SECRET}"]),
)
def test_no_refusal_repeats_a_key(line: str, suffix: str, variable: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hypnos.toml"
        path.write_text("[server]\n" + line.format(SECRET + suffix, SECRET + suffix), "utf-8")
        with pytest.raises(ConfigurationInvalid) as caught:
            load(path, {"HYPNOS_API_KEYS": variable}, {"server.api_keys": [SECRET, 5]}, folders=FOLDERS)
    assert "Verysecret" not in str(caught.value)
    assert "Verysecret" not in repr(caught.value)
