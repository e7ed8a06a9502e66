"""Run as a program: loads a GGUF with llama.cpp, decodes a few tokens, and prints what llama.cpp said about it as JSON.

A program of its own because llama.cpp answers some files by ending the process, and no test may share that fate.
"""

import ctypes
import json
import sys

import llama_cpp.llama_cpp as llama

_LINES: list[str] = []


def _keep_line(_level: int, text: bytes, _user: ctypes.c_void_p) -> None:
    _LINES.append(text.decode("utf-8", "replace"))


_keep = llama.llama_log_callback(_keep_line)


def _finite_after_decode(context: "llama.llama_context_p", model: "llama.llama_model_p") -> bool:
    vocabulary = llama.llama_model_get_vocab(model)
    text = b"the cat and the hat"
    room = 64
    tokens = (llama.llama_token * room)()
    count = llama.llama_tokenize(vocabulary, text, len(text), tokens, room, True, True)
    if count <= 0 or llama.llama_decode(context, llama.llama_batch_get_one(tokens, count)) != 0:
        return False
    if llama.llama_get_memory(context) is None:
        width, values = llama.llama_model_n_embd(model), llama.llama_get_embeddings_seq(context, 0)
        return all(abs(values[i]) < 1e6 for i in range(width))
    size = llama.llama_vocab_n_tokens(vocabulary)
    for _ in range(4):
        logits = llama.llama_get_logits_ith(context, -1)
        row = [logits[i] for i in range(size)]
        if not all(abs(value) < 1e6 for value in row):
            return False
        following = (llama.llama_token * 1)(row.index(max(row)))
        if llama.llama_decode(context, llama.llama_batch_get_one(following, 1)) != 0:
            return False
    return True


def main(path: str, cells: int, sequences: int, ubatch: int, embeddings: int) -> None:
    llama.llama_log_set(_keep, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        print(json.dumps({"loaded": False, "log": "".join(_LINES)}))
        return
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_batch, params.n_ubatch = cells, sequences, ubatch, ubatch
    params.kv_unified, params.swa_full, params.n_threads, params.n_threads_batch = True, False, 1, 1
    params.embeddings = bool(embeddings)
    context = llama.llama_init_from_model(model, params)
    print(
        json.dumps(
            {
                "loaded": True,
                "context": bool(context),
                "finite": bool(context) and _finite_after_decode(context, model),
                "model_bytes": llama.llama_model_size(model),
                "layers": llama.llama_model_n_layer(model),
                "log": "".join(_LINES),
            }
        )
    )


def tensor_types() -> None:
    """Print number, name, block and bytes of every element type that ggml still has."""
    library = llama._lib
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    # 43 is GGML_TYPE_COUNT; beyond it ggml aborts.
    sizes = [(number, library.ggml_blck_size(number), library.ggml_type_size(number)) for number in range(43)]
    print(json.dumps([(n, library.ggml_type_name(n).decode(), block, size) for n, block, size in sizes if block]))


if __name__ == "__main__":
    if sys.argv[1] == "types":
        tensor_types()
    else:
        main(sys.argv[1], *(int(argument) for argument in sys.argv[2:6]))
