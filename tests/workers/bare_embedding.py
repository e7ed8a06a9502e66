"""Run as a program: vectors of texts from llama.cpp itself, one text a call, for comparison; prints them as JSON.

Arguments: the file, and how to pool (-1 = as the file says). On stdin a JSON array of texts.
"""

import json
import sys

import llama_cpp.llama_cpp as llama


def main(path: str, pooling: int) -> None:
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    vocabulary = llama.llama_model_get_vocab(model)
    dimensions = llama.llama_model_n_embd_out(model)
    vectors = []
    for text in json.load(sys.stdin):
        raw = text.encode()
        tokens = (llama.llama_token * (len(raw) + 16))()
        count = llama.llama_tokenize(vocabulary, raw, len(raw), tokens, len(tokens), True, False)
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 2048
        params.embeddings, params.pooling_type, params.n_seq_max = True, pooling, 1
        params.n_threads = params.n_threads_batch = 1
        context = llama.llama_init_from_model(model, params)
        batch = llama.llama_batch_init(count, 0, 1)
        for row in range(count):
            batch.token[row], batch.pos[row], batch.logits[row] = tokens[row], row, 1
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        batch.n_tokens = count
        if llama.llama_decode(context, batch):
            raise SystemExit("not computed")
        vectors.append((count, llama.llama_get_embeddings_seq(context, 0)[:dimensions]))
        llama.llama_batch_free(batch)
        llama.llama_free(context)
    print(json.dumps(vectors))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
