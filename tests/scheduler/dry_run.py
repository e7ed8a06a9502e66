"""Run as a program: llama.cpp goes through loading without allocating anything, and its numbers are printed as JSON.

Arguments: the file, 1 if it makes embeddings, then one `cells,slots,kv type` per context, with `,tokens` behind it
where another number than usual is computed at once, and `,logits` behind that where more than one of each slot has
them. Or `repacked` and a file that is really loaded: printed is how much
of it the processor copied into another layout.
"""

import ctypes
import json
import re
import sys

import llama_cpp.llama_cpp as llama

MICRO_BATCH = 512
READ, FLASH_ATTENTION_AUTO = 0, -1
KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
PATTERNS = {
    "compute_mib": r"compute buffer size = +([\d.]+) MiB",
    "output_mib": r"output buffer size = +([\d.]+) MiB",
    "state_mib": r"llama_memory_recurrent: size = +([\d.]+) MiB",
    "caches": r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells",
}
_LINES: list[str] = []


def _keep_line(_level: int, text: bytes, _user: ctypes.c_void_p) -> None:
    _LINES.append(text.decode("utf-8", "replace"))


_keep = llama.llama_log_callback(_keep_line)


def _context(model: "llama.llama_model_p", wish: str, *, embeds: bool) -> dict[str, object]:
    cells, slots, kv_type, *tokens = wish.split(",")
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_seq_max = int(cells), int(slots)
    params.n_outputs_max = 0 if embeds else int(tokens[1] if len(tokens) > 1 else slots)
    params.n_batch = params.n_ubatch = int(tokens[0]) if tokens else MICRO_BATCH
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = KV_TYPES[kv_type]
    params.flash_attn_type = FLASH_ATTENTION_AUTO
    params.kv_unified, params.swa_full, params.embeddings = True, False, embeds
    _LINES.clear()
    context = llama.llama_init_from_model(model, params)
    log = "".join(_LINES)
    if not context:
        raise SystemExit(log)
    llama.llama_free(context)
    return {"wish": wish, **{name: re.findall(pattern, log) for name, pattern in PATTERNS.items()}}


def main(path: str, embeds: str, *wishes: str) -> None:
    llama.llama_log_set(_keep, None)
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.load_mode, params.no_alloc, params.n_gpu_layers = READ, True, 0
    model = llama.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit("".join(_LINES))
    contexts = [_context(model, wish, embeds=embeds == "1") for wish in wishes]
    print(json.dumps({"model_bytes": llama.llama_model_size(model), "contexts": contexts}))


def repacked(path: str, load_mode: str) -> None:
    llama.llama_log_set(_keep, None)
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.load_mode, params.n_gpu_layers = int(load_mode), 0
    if not llama.llama_model_load_from_file(path.encode(), params):
        raise SystemExit("".join(_LINES))
    sizes = re.findall(r"(CPU\w*) model buffer size = +([\d.]+) MiB", "".join(_LINES))
    print(json.dumps({name: float(size) for name, size in sizes}))


if __name__ == "__main__":
    if sys.argv[1] == "repacked":
        repacked(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
