"""The table holds every name of the contract and of the design, each once, and fits the typed result."""

from dataclasses import fields
from typing import Any

import pytest

from hypnos_engine.config.hardware_settings import HardwareSettings
from hypnos_engine.config.kinds import Refused
from hypnos_engine.config.limit_settings import LimitSettings
from hypnos_engine.config.model_settings import IMAGE, MODELS
from hypnos_engine.config.server_settings import ApiKey, ServerSettings, TlsSettings
from hypnos_engine.config.setting import Setting, Table
from hypnos_engine.config.settings import ROOT, every_setting
from hypnos_engine.domain.model import ImageDefaults, ModelSpec

NAMES = {
    "": "config_version models_dir models_dirs",
    "server": "host port api_keys allowed_origins allowed_hosts metrics_require_auth profile objective_ms "
    "kv_idle_timeout_secs document_pictures_ttl_secs document_pictures_max_bytes request_log_entries "
    "request_log_level request_log_redact stream_hold_secs drain_secs",
    "server.tls": "cert key",
    "server.keys": "key key_sha256 label admin requests_per_minute max_concurrent tokens_per_day weight models expires",
    "limits": "max_body_bytes max_audio_bytes max_image_bytes max_document_bytes max_prompt_chars max_tokens_cap "
    "max_images_per_request request_timeout_secs max_queue_per_model allow_remote_image_urls allow_private_urls "
    "overload max_overtakes max_overtaken_secs max_connections max_body_bytes_in_flight",
    "hardware": "backend max_process_memory_bytes tier1_bytes tier2_bytes os_reserve_bytes kv_park kv_park_max_bytes "
    "spare_workers threads hold_policy",
    "hardware.simulate": "host_bytes topology accelerator cores tier3_to_tier2_bytes_per_s tier2_to_tier1_bytes_per_s",
    "hardware.simulate.devices": "total_bytes name",
    "hardware.simulate.others": "used_bytes after_secs device",
    "downloads": "hub proxy ca_file",
    "models": "id name modality additional_modalities engine weights_path aux_path text_encoder_path tokenizer_path "
    "voices_path context_len slots kv_type draft initial_tier priority keep_warm_in_ram moe_offload "
    "min_gpu_layer_ratio load_mode share_worker allow_untested enabled",
    "models.arch": "num_layers num_kv_heads head_dim context_train weights_bytes kv_bytes_per_token expert_bytes "
    "vocabulary_size",
    "models.image": "steps cfg_scale edit",
}


def test_every_name_is_there_once() -> None:
    """§1.4-01, §19-01 to §19-27 except the files: what the contract and the design call a setting."""
    tables = list(ROOT.below())
    assert [table.path for table in tables] == list(dict.fromkeys(table.path for table in tables))
    assert {table.path: sorted(setting.name for setting in table.settings) for table in tables} == {
        path: sorted(names.split()) for path, names in NAMES.items()
    }


@pytest.mark.parametrize(
    ("table", "owner", "tables"),
    [(MODELS, ModelSpec, {"arch", "image"}), (IMAGE, ImageDefaults, set())],
)
def test_a_model_setting_fills_the_field_of_its_name(table: Table, owner: type[Any], tables: set[str]) -> None:
    assert {setting.name for setting in table.settings} == {field.name for field in fields(owner)} - tables


@pytest.mark.parametrize("owner", [ServerSettings, LimitSettings, HardwareSettings, ApiKey, TlsSettings])
def test_a_field_is_a_setting_or_a_table(owner: type[Any]) -> None:
    plain = {field.name for field in fields(owner) if "setting" not in field.metadata}
    assert plain <= {"tls", "keys", "simulate", "sha256"}


@pytest.mark.parametrize(("name", "setting"), list(every_setting()), ids=lambda value: str(value)[:40])
def test_a_setting_takes_its_default_and_explains_itself(name: str, setting: Setting) -> None:
    assert name.rpartition(".")[2] == setting.name
    assert setting.help.endswith(".")
    assert setting.kind.expected
    if name.endswith("bytes") and not setting.required:
        assert setting.unit == "bytes" or name == "models.arch.kv_bytes_per_token"
    if name.endswith("_secs"):
        assert setting.unit == "seconds"
    if setting.default is None or setting.name == "label":
        assert setting.required or setting.unset or setting.name in ("key", "key_sha256", "weights_path")
        return
    if setting.default == "":
        with pytest.raises(Refused):
            setting.kind.read("")
        return
    assert setting.kind.read(setting.default) == setting.default


def test_flags_and_variables_are_named_once() -> None:
    """§1.1-03, §1.1-04, §19-05, §19-33."""
    flags = [setting.flag for _, setting in every_setting() if setting.flag]
    variables = [setting.environment for _, setting in every_setting() if setting.environment]
    assert sorted(flags) == ["--host", "--models-dir", "--port"]
    assert sorted(variables) == ["HYPNOS_API_KEYS", "HYPNOS_HOST", "HYPNOS_MODELS_DIR", "HYPNOS_PORT"]
