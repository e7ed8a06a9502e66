"""Defaults, file, overlay, environment and flags make one complete result, in this order."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypnos_engine.config.choices import AUTO, Backend, LogLevel, Overload, Profile
from hypnos_engine.config.load import load
from hypnos_engine.config.paths import Folders
from hypnos_engine.config.settings import ApiKey, Settings
from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.kinds import EngineKind, KvType, Modality, Priority, Tier
from hypnos_engine.domain.model import ImageDefaults

MODEL = """
[[models]]
id = "{id}"
modality = "text_generation"
engine = "ggml_llama"
weights_path = "{path}"
"""


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    names = ("config", "state", "run", "logs", "cache", "models")
    return Folders(**{name: tmp_path / "user" / name for name in names})


def write(tmp_path: Path, text: str, name: str = "hypnos.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return path


def test_without_a_file_the_defaults_hold(folders: Folders) -> None:
    """§1.1-01, §1.4, §14.3-09, §15-01, §19-09: what holds when nobody configured anything."""
    settings = load(folders=folders)
    assert settings == Settings(models_dirs=(folders.models,), overlay=folders.config / "hypnos.models.toml")
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 9999)
    assert settings.server.document_pictures_ttl_secs == 3600
    assert (settings.server.stream_hold_secs, settings.server.drain_secs) == (10, 30)
    assert settings.server.request_log_entries == 200
    limits = settings.limits
    assert (limits.max_body_bytes, limits.max_audio_bytes) == (256 << 20, 64 << 20)
    assert (limits.max_image_bytes, limits.max_document_bytes) == (32 << 20, 100 << 20)
    assert (limits.max_prompt_chars, limits.max_tokens_cap) == (1_000_000, 8192)
    assert (limits.max_images_per_request, limits.request_timeout_secs, limits.max_queue_per_model) == (4, 900, 8)
    assert (limits.allow_remote_image_urls, limits.allow_private_urls) == (True, False)
    assert (limits.overload, limits.max_overtakes, limits.max_overtaken_secs) == (Overload.QUEUE, 32, 60)
    assert (limits.max_connections, limits.max_body_bytes_in_flight) == (512, 1 << 30)
    assert (settings.hardware.backend, settings.hardware.kv_park) == (Backend.AUTO, False)
    assert (settings.hardware.threads, settings.hardware.spare_workers) == (AUTO, AUTO)


def test_a_whole_file_is_read(tmp_path: Path, folders: Folders) -> None:
    path = write(
        tmp_path,
        """
config_version = 1
models_dirs = ["models", "/srv/models"]
[server]
port = 8080
profile = "voice_assistant"
objective_ms = 800
request_log_level = "debug"
request_log_redact = ["[0-9]{16}"]
allowed_origins = ["http://NAS.local:*"]
allowed_hosts = ["nas.local"]
[server.tls]
cert = "cert.pem"
key = "/etc/key.pem"
[limits]
overload = "shed"
max_body_bytes = "512MiB"
[hardware]
threads = 4
tier1_bytes = "24G"
[hardware.simulate]
host_bytes = "64G"
[[hardware.simulate.devices]]
total_bytes = "24G"
[[hardware.simulate.others]]
after_secs = 60
used_bytes = "2G"
[[models]]
id = "m:1"
name = "M"
modality = "image_generation"
additional_modalities = ["vision", "vision"]
engine = "mlx"
weights_path = "m/ü 🙂.gguf"
kv_type = "q8_0"
initial_tier = "tier2_pinned_ram"
priority = "high"
min_gpu_layer_ratio = 1
[models.arch]
weights_bytes = "1.5G"
num_layers = 30
[models.image]
steps = 8
""",
    )
    settings = load(path, folders=folders)
    assert settings.source == path
    assert settings.models_dirs == (tmp_path / "models", Path("/srv/models"))
    assert settings.server.profile is Profile.VOICE_ASSISTANT
    assert settings.server.request_log_level is LogLevel.DEBUG
    assert settings.server.request_log_redact.patterns == ("[0-9]{16}",)
    assert settings.server.allowed_origins == ("http://nas.local:*",)
    assert settings.server.tls is not None
    assert (settings.server.tls.cert, settings.server.tls.key) == (tmp_path / "cert.pem", Path("/etc/key.pem"))
    assert (settings.hardware.threads, settings.hardware.tier1_bytes) == (4, 25769803776)
    machine = settings.hardware.simulate
    assert machine is not None
    assert [device.total_bytes for device in machine.devices] == [24 << 30]
    assert [(other.after_secs, other.device) for other in machine.others] == [(60, 0)]
    (model,) = settings.models
    assert (model.id, model.engine, model.weights_path) == ("m:1", EngineKind.MLX, "m/ü 🙂.gguf")
    assert model.modalities == (Modality.IMAGES, Modality.VISION)
    assert (model.kv_type, model.initial_tier, model.priority) == (KvType.Q8_0, Tier.RAM, Priority.HIGH)
    assert model.arch == (("num_layers", 30), ("weights_bytes", 3 << 29))
    assert model.image == ImageDefaults(steps=8)


def test_later_sources_win(tmp_path: Path, folders: Folders) -> None:
    """§1.1-02 to §1.1-04: the file's port gives way to HYPNOS_PORT, that to --port."""
    path = write(tmp_path, '[server]\nport = 1001\nhost = "10.0.0.1"\n')
    environ = {"HYPNOS_PORT": " 1002 ", "HYPNOS_HOST": "", "HYPNOS_OTHER": "x"}
    assert load(path, folders=folders).server.port == 1001
    assert load(path, environ, folders=folders).server.port == 1002
    flags = {"server.port": 1003, "limits.max_body_bytes": "24M", "hardware.kv_park": "on", "server.host": None}
    settings = load(path, environ, flags, folders=folders)
    assert (settings.server.port, settings.server.host) == (1003, "10.0.0.1")
    assert (settings.limits.max_body_bytes, settings.hardware.kv_park) == (24 << 20, True)


def test_the_file_is_the_named_one_or_that_of_the_environment_or_the_standard_one(
    tmp_path: Path, folders: Folders
) -> None:
    named = write(tmp_path, "[server]\nport = 1001")
    by_variable = write(tmp_path, "[server]\nport = 1002", "other.toml")
    folders.config.mkdir(parents=True)
    folders.config_file.write_text("[server]\nport = 1003")
    environ = {"HYPNOS_CONFIG": str(by_variable)}
    assert load(named, environ, folders=folders).server.port == 1001
    assert load(None, environ, folders=folders).server.port == 1002
    assert load(None, {"HYPNOS_CONFIG": " "}, folders=folders).server.port == 1003


def test_a_file_that_was_named_must_exist(tmp_path: Path, folders: Folders) -> None:
    path = tmp_path / "no.toml"
    with pytest.raises(ConfigurationInvalid, match=r"no\.toml: there is no such file"):
        load(path, folders=folders)
    with pytest.raises(ConfigurationInvalid, match=r"no\.toml: there is no such file"):
        load(None, {"HYPNOS_CONFIG": str(path)}, folders=folders)


def test_the_overlay_replaces_adds_and_removes_models(tmp_path: Path, folders: Folders) -> None:
    """§6.4-07, §6.4-08, §19-32: changes of the pool lie beside the configuration and hold at the next start."""
    blocks = "".join(MODEL.format(id=name, path=f"{name}.gguf") for name in ("a", "b", "c"))
    path = write(tmp_path, blocks)
    overlay = (
        'removed_models = ["b", "gone"]\n' + MODEL.format(id="a", path="new.gguf") + MODEL.format(id="d", path="d")
    )
    settings = load(path, folders=folders)
    assert settings.overlay == tmp_path / "hypnos.models.toml"
    write(tmp_path, overlay, "hypnos.models.toml")
    models = load(path, folders=folders).models
    assert [(model.id, model.weights_path) for model in models] == [("a", "new.gguf"), ("c", "c.gguf"), ("d", "d")]


def test_a_problem_in_the_overlay_names_the_overlay(tmp_path: Path, folders: Folders) -> None:
    path = write(tmp_path, "")
    write(tmp_path, "[server]\nport = 1\n", "hypnos.models.toml")
    with pytest.raises(ConfigurationInvalid, match=r"hypnos\.models\.toml:1: server: there is no such setting"):
        load(path, folders=folders)


def test_models_folders(tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the environment or a flag is written to; read-only ones of the file stay."""
    monkeypatch.chdir(tmp_path)
    one = write(tmp_path, 'models_dir = "/one"', "one.toml")
    two = write(tmp_path, 'models_dirs = ["/first", "/second", "/first/"]', "two.toml")
    assert load(one, folders=folders).models_dirs == (Path("/one"),)
    assert load(two, folders=folders).models_dirs == (Path("/first"), Path("/second"))
    environ = {"HYPNOS_MODELS_DIR": "here"}
    assert load(None, environ, folders=folders).models_dirs == (tmp_path / "here",)
    assert load(one, environ, folders=folders).models_dirs == (tmp_path / "here",)
    assert load(two, environ, folders=folders).models_dirs == (tmp_path / "here", Path("/second"))
    assert load(two, environ, {"models_dir": "/flag"}, folders=folders).models_dirs == (Path("/flag"), Path("/second"))
    assert load(one, {}, {"models_dirs": "/x,/y"}, folders=folders).models_dirs == (Path("/x"), Path("/y"))
    home = load(None, {"HYPNOS_MODELS_DIR": "~/m"}, folders=folders).models_dirs
    assert home == (Path.home() / "m",)


def test_keys_come_together_from_all_sources(tmp_path: Path, folders: Folders) -> None:
    """§2-01, §2-02, §2-03, §2-12, §2-13, §2-30."""
    digest = sha256("third")
    path = write(
        tmp_path,
        f"""
[server]
api_keys = ["first", " first ", "second"]
[[server.keys]]
key_sha256 = "{digest.upper()}"
label = "guest"
requests_per_minute = 10
max_concurrent = 2
tokens_per_day = 1000
weight = 0.5
models = ["a"]
expires = 2999-01-01T00:00:00+01:00
[[server.keys]]
key = "fourth"
admin = true
{MODEL.format(id="a", path="a.gguf")}
""",
    )
    keys = load(path, {"HYPNOS_API_KEYS": "fifth, second ,,"}, folders=folders).server.keys
    assert [(key.sha256, key.admin) for key in keys] == [
        (sha256("first"), True),
        (sha256("second"), True),
        (sha256("fifth"), True),
        (digest, False),
        (sha256("fourth"), True),
    ]
    assert [key.label for key in keys[:3]] == [f"key-{sha256(name)[:8]}" for name in ("first", "second", "fifth")]
    guest = keys[3]
    assert (guest.label, guest.requests_per_minute, guest.max_concurrent, guest.tokens_per_day) == (
        "guest",
        10,
        2,
        1000,
    )
    assert (guest.weight, guest.models) == (0.5, ("a",))
    assert guest.expires == datetime(2998, 12, 31, 23, tzinfo=UTC)
    assert keys[4] == ApiKey(sha256=sha256("fourth"), label=f"key-{sha256('fourth')[:8]}", admin=True)


def test_what_is_allowed_and_worth_saying_is_a_warning(tmp_path: Path, folders: Folders) -> None:
    path = write(
        tmp_path,
        '[server]\nmetrics_require_auth = true\n[[server.keys]]\nkey = "k"\nmodels = ["no"]\nexpires = 2001-01-01\n',
    )
    settings = load(path, folders=folders)
    assert [(warning.name, warning.origin.line) for warning in settings.warnings] == [
        ("server.keys.expires", 6),
        ("server.keys.models", 5),
    ]
    path.chmod(0o644)
    assert "other users" in str(load(path, folders=folders).warnings[-1])
    path = write(tmp_path, "[server]\nmetrics_require_auth = true")
    assert [warning.name for warning in load(path, folders=folders).warnings] == ["server.metrics_require_auth"]


def test_a_setting_that_has_no_effect_yet_is_named_when_the_user_changed_it(tmp_path: Path, folders: Folders) -> None:
    path = write(
        tmp_path,
        "[server]\nport = 1\ndocument_pictures_ttl_secs = 60\n[limits]\nmax_image_bytes = 33554432\nmax_overtakes = 9\n"
        + MODEL.format(id="a", path="a.gguf")
        + 'initial_tier = "tier2_pinned_ram"\nshare_worker = true\n',
    )
    settings = load(path, folders=folders)
    assert [(notice.name, notice.origin.line) for notice in settings.without_effect] == [
        ("server.document_pictures_ttl_secs", 3),
        ("models.share_worker", 14),
    ]
    assert str(settings.without_effect[0]).endswith(
        ":3: server.document_pictures_ttl_secs: is read and checked, but this version does not act on it"
    )


def test_a_flag_that_names_no_setting_is_refused(folders: Folders) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"server\.prot.*did you mean `server\.port`"):
        load(None, {}, {"server.prot": 1}, folders=folders)
