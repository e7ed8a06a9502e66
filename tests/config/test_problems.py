"""Everything that is wrong is reported together, with its file, its line and what to write instead."""

from pathlib import Path

import pytest

from hypnos_engine.config.load import load
from hypnos_engine.config.paths import Folders
from hypnos_engine.domain.errors import ConfigurationInvalid

MODEL = '[[models]]\nid = "m"\nmodality = "text_generation"\nengine = "ggml_llama"\nweights_path = "m.gguf"\n'


def problems_of(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """Return the worded problems of a file, its path taken off."""
    path = tmp_path / "hypnos.toml"
    path.write_text(text, "utf-8")
    folders = Folders(**{name: tmp_path / name for name in ("config", "state", "run", "logs", "cache", "models")})
    with pytest.raises(ConfigurationInvalid) as caught:
        load(path, environ or {}, folders=folders)
    heading, *lines = str(caught.value).split("\n")
    assert heading.startswith("The configuration has ")
    assert heading.endswith("nothing was started.")
    return [line.strip().removeprefix(f"{path}:") for line in lines]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # unknown names
        ("\n[server]\nprot = 1", "3: server.prot: there is no such setting; did you mean `port`?"),
        ("[sever]\nport = 1", "1: sever: there is no such setting; did you mean `server`?"),
        ("[server]\nmax_tokens_cap = 1", "2: server.max_tokens_cap: there is no such setting; it belongs in [limits]"),
        (
            "[server]\nmodels_dir = 'x'",
            "2: server.models_dir: there is no such setting; it belongs in the part above the first section",
        ),
        ("port = 1", "1: port: there is no such setting; it belongs in [server]"),
        ("[server.tsl]\ncert = 'x'", "1: server.tsl: there is no such setting; did you mean `tls`?"),
        (MODEL + "slot = 2", "6: models.slot: there is no such setting; did you mean `slots`?"),
        (
            MODEL + "[models.arch]\nlayers = 2",
            "7: models.arch.layers: there is no such setting; did you mean `num_layers`?",
        ),
        ('"a\\nb" = 1', '1: "a\\nb": there is no such setting'),
        # wrong types
        ("[server]\nport = '80'", '2: server.port: expected a whole number from 1 to 65535, found the text "80"'),
        ("[server]\nport = true", "2: server.port: expected a whole number from 1 to 65535, found true"),
        ("[server]\nport = 80.0", "2: server.port: expected a whole number from 1 to 65535, found the number 80.0"),
        ("[hardware]\nkv_park = 'true'", '2: hardware.kv_park: expected true or false, found the text "true"; '),
        ("server = 5", "1: server: expected a table, found the number 5; write [server]"),
        ("[models]\nid = 'x'", "1: models: expected a list of tables, found a table; write [[models]]"),
        ("models = [1]", "1: models: expected a table, found the number 1; write [[models]]"),
        ("[server]\nkeys = 'sk-1'", "2: server.keys: expected a list of tables, found a text; write [[server.keys]]"),
        ("[server]\nallowed_hosts = [\n'a',\n5]", "4: server.allowed_hosts: expected a host name"),
        ("[server]\nallowed_hosts = 'a'", "2: server.allowed_hosts: expected a list, each element a host name"),
        # out of range
        ("[server]\nport = 0", "2: server.port: expected a whole number from 1 to 65535, found the number 0"),
        ("[server]\nport = 65536", "2: server.port: expected a whole number from 1 to 65535, found the number 65536"),
        ("[limits]\nmax_body_bytes = -1", "2: limits.max_body_bytes: a size cannot be negative, found the number -1"),
        ("[hardware]\ntier1_bytes = '-1G'", '2: hardware.tier1_bytes: a size cannot be negative, found the text "-1G"'),
        ("[hardware]\nthreads = 0", '2: hardware.threads: expected "auto" or a whole number from 1 to 1024'),
        ("[hardware]\nthreads = 'many'", '2: hardware.threads: expected "auto" or a whole number from 1 to 1024'),
        ("[limits]\nrequest_timeout_secs = nan", "2: limits.request_timeout_secs: expected a number from 1 to 604800"),
        ("[limits]\nrequest_timeout_secs = inf", "2: limits.request_timeout_secs: expected a number from 1 to 604800"),
        (MODEL + "slots = 0", "6: models.slots: expected a whole number from 1 to 256, found the number 0"),
        ("models_dirs = []", "1: models_dirs: expected a list, each element the path of a folder, found an empty list"),
        # closed sets
        (
            MODEL + "kv_type = 'q8'",
            '6: models.kv_type: expected one of "f16", "q8_0" or "q4_0", found the text "q8"; did you mean "q8_0"?',
        ),
        ("[server]\nprofile = 'x'", '2: server.profile: expected one of "voice_assistant", "chat" or "batch", found'),
        # names and addresses
        (
            "[server]\nhost = 'a:80'",
            '2: server.host: expected an IP address or a host name, found the text "a:80"; the port',
        ),
        ("[server]\nhost = '1.2.3'", "2: server.host: expected an IP address or a host name"),
        ("[server]\nallowed_origins = ['*']", "2: server.allowed_origins: expected a web origin"),
        ("[server]\nallowed_origins = ['http://a/']", '2: server.allowed_origins: expected a web origin like "http'),
        ("[server]\nrequest_log_redact = ['(']", "2: server.request_log_redact: expected a regular expression"),
        (MODEL.replace('"m"', '"a b"'), "2: models.id: expected a model id of at most 128 characters without blanks"),
        (MODEL.replace("m.gguf", "a/../../b"), "5: models.weights_path: a path in a models folder cannot have a `..`"),
        (MODEL.replace("m.gguf", ""), "5: models.weights_path: expected a path"),
        (
            "models_dir = '~nobody-has-this-name/x'",
            "1: models_dir: expected the path of a folder, found the folder of a user",
        ),
        (
            "[[server.keys]]\nkey = 'x'\nlabel = 'Local'",
            '3: server.keys.label: the label "local" stands for the programs',
        ),
        # contradictions
        (
            "models_dir = 'a'\nmodels_dirs = ['b']",
            "1: models_dir: `models_dir` and `models_dirs` cannot both be written",
        ),
        (MODEL + MODEL, '7: models.id: the id "m" stands in line 2 already'),
        ("[server.tls]\ncert = 'a'", "1: server.tls.key: is missing; [server.tls] needs it"),
        ("[limits]\noverload = 'shed'", '2: limits.overload: "shed" needs an objective to shed by; set server.profile'),
        ("server.profile = 'batch'\nlimits.overload = 'shed'", '2: limits.overload: "shed" needs an objective in time'),
        ("[server]\nobjective_ms = 5", "2: server.objective_ms: an objective needs a `profile`"),
        ("[limits]\nmax_body_bytes = '2G'", "2: limits.max_body_bytes: one body may have 2 GiB, but all bodies"),
        ("[limits]\nmax_body_bytes_in_flight = '2M'", "2: limits.max_body_bytes_in_flight: one body may have 256 MiB"),
        ("[[server.keys]]\nlabel = 'x'", "1: server.keys: a key is missing; write `key` or `key_sha256`"),
        (
            f"[[server.keys]]\nkey = 'x'\nkey_sha256 = '{'0' * 64}'",
            "3: server.keys: `key` and `key_sha256` cannot both",
        ),
        ("[[server.keys]]\nkey = 'x'\n[[server.keys]]\nkey = 'x'", "4: server.keys: the same key stands in line 1"),
        (
            "[server]\napi_keys = ['x']\n[[server.keys]]\nkey = 'x'",
            "4: server.keys: the same key stands in `server.api_",
        ),
        (
            "[[server.keys]]\nkey = 'x'\nlabel = 'l'\n[[server.keys]]\nkey = 'y'\nlabel = 'l'",
            '6: server.keys.label: the label "l" stands in line 3 already',
        ),
        (
            MODEL.replace("ggml_llama", "ggml_whisper"),
            "4: models.engine: the engine `ggml_whisper` cannot serve `text_gen",
        ),
        (
            MODEL + "additional_modalities = ['entity_extraction']",
            "4: models.engine: the engine `ggml_llama` cannot serve",
        ),
        (MODEL + "context_len = 16\nslots = 32", "6: models.context_len: 16 tokens cannot be shared by 32 slots"),
        (MODEL + "[models.image]\nsteps = 4", "6: models.image: the model makes no pictures"),
        ("[hardware.simulate]\nhost_bytes = '8G'", '1: hardware.simulate: the topology "DiscretePcie" needs a device'),
        (
            "[hardware.simulate]\nhost_bytes = '8G'\ntopology = 'HostMemory'\n"
            "[[hardware.simulate.others]]\nused_bytes = 1\ndevice = 1",
            "6: hardware.simulate.others.device: there is no device 1",
        ),
        ("[[models]]\nid = 'x'\nmodality = 'vision'\nengine = 'mlx'", "1: models.weights_path: is missing; [[models]]"),
    ],
)
def test_one_problem(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems_of(tmp_path, text)
    assert found.startswith(problem)


def test_all_problems_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "[limits]\nmax_queue_per_model = 0\nx = 1\n[server]\nport = 'a'\n[[models]]\nid = 5\n"
    found = problems_of(tmp_path, text, {"HYPNOS_PORT": "http", "HYPNOS_HOST": "a b"})
    assert [line.split(": ")[0] for line in found] == [
        *("2", "3", "5", "6", "6", "6", "7"),
        *("environment variable HYPNOS_HOST", "environment variable HYPNOS_PORT"),
    ]


def test_a_wrong_value_does_not_cause_a_second_problem(tmp_path: Path) -> None:
    text = "[server]\nprofile = 'chta'\nobjective_ms = 5\n[limits]\noverload = 'shed'\n"
    assert [line[:2] for line in problems_of(tmp_path, text)] == ["2:"]
    assert [line[:2] for line in problems_of(tmp_path, "[[server.keys]]\nkey = 5")] == ["2:"]


def test_a_file_of_another_version_is_not_judged_further(tmp_path: Path) -> None:
    """§19-17."""
    (found,) = problems_of(tmp_path, "config_version = 2\n[brand_new]\nx = 1\n")
    assert found.startswith(
        "1: config_version: the file is written for version 2; this program reads version 1; update"
    )
    (found,) = problems_of(tmp_path, "config_version = '1'")
    assert found.startswith("1: config_version: expected a whole number")


def test_very_many_problems_are_counted_and_not_all_worded(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "".join(f"unknown_{number} = 1\n" for number in range(20_000)))
    assert found[-1] == "and 19950 more"
    assert len(found) == 51
