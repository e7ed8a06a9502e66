"""Decides what a weights file says about its model: layers, bytes and caches; never opens a tensor.

A model may be split into files. Then the first one is named, and all of them count.
"""

import re
from pathlib import Path

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.domain.model import GraphShape, LayerShape, ModelShape
from hypnos_engine.gguf.cursor import DOWNLOAD_AGAIN
from hypnos_engine.gguf.header import MAX_TENSORS, Array, Header, LongText, Tensor, read_header
from hypnos_engine.gguf.keys import ArchitectureKeys
from hypnos_engine.gguf.memory_rules import ENCODERS, Blocks, LayerMemory, layer_memory

MAX_LAYERS = 512
MAX_EXPERTS = 1024
MAX_FILES = 4096
LONGEST_ARCHITECTURE = 64
LONGEST_NAME = 200
"""Characters of a model's own name that are kept."""

_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.([0-9]{1,4})\.")
_EXPERTS = re.compile(r"\.ffn_(?:up|down|gate|gate_up)_(?:ch)?exps")
_PART = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf\Z")
_INPUTS = re.compile(r"(?:token_embd|per_layer_token_embd|position_embd|token_types|token_embd_norm)\.")
_REPACKED = frozenset({"q4_0", "q4_K", "iq4_nl", "mxfp4"})
"""Types of which the processor's kernels want another layout, with AVX2 as with NEON."""
_REPACKED_ROWS = 8
_POOLS_LAST = 3
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


def read_shape(path: Path, projector: Path | None = None) -> ModelShape:
    """Read the headers of the model whose (first) file is `path` and return what the planner needs.

    `projector` is the file that turns pictures or sound into embeddings, if one is loaded beside the model.

    Blocks for file input as `read_header` does, once per file. A file without layers (a projector, the parts of an
    image model) gives a shape without layers. Raises LoadFailed for a damaged or missing file, and for what is known to
    end llama.cpp's process instead of being refused by it.
    """
    first = read_header(path)
    tally = _Tally(first)
    for number, file in enumerate(_files(first)[1:], start=1):
        tally.add(_part(first, file, number))
    tally.check_count()
    return _shape(first, tally, read_header(projector).tensor_bytes if projector else 0)


def model_files(path: Path) -> tuple[Path, ...]:
    """Return every file of the model whose first one is `path`, in order. Raises LoadFailed, naming a missing one."""
    return _files(read_header(path))


def _shape(first: Header, tally: "_Tally", projector_bytes: int) -> ModelShape:
    architecture = first.metadata.get("general.architecture", "")
    if not isinstance(architecture, str):
        raise _damaged(first, "general.architecture is not a text.")
    if len(architecture) > LONGEST_ARCHITECTURE:
        raise _damaged(first, f"its architecture's name has {len(architecture):,} characters.")
    keys = ArchitectureKeys(first, architecture)
    layers: tuple[LayerShape, ...] = ()
    context_train = 0
    if tally.has_blocks or keys.has("block_count"):
        if not architecture:
            raise _damaged(first, "the file does not say which architecture its model has.")
        blocks = _blocks(keys)
        _refuse_impossible(keys, blocks)
        layers = tally.layers(layer_memory(keys, blocks))
        context_train = keys.integer("context_length")
    template = first.metadata.get("tokenizer.chat_template")
    name = first.metadata.get("general.name")
    experts = keys.integer("expert_count", 0, high=MAX_EXPERTS) if layers else 0
    experts_used = max(_experts_used(keys, len(layers)), default=0)
    vocabulary = _vocabulary(first, keys)
    return ModelShape(
        architecture=architecture,
        name=name[:LONGEST_NAME] if isinstance(name, str) and name else first.path.stem,
        file_bytes=tally.file_bytes,
        tensor_bytes=tally.tensor_bytes,
        layers=layers,
        non_layer_bytes=tally.tensor_bytes - sum(layer.weight_bytes + layer.expert_bytes for layer in layers),
        context_train=context_train,
        embedding_length=keys.integer("embedding_length", None if layers else 0),
        vocabulary_size=vocabulary,
        expert_count=experts,
        expert_used_count=experts_used,
        has_chat_template=isinstance(template, str | LongText) and template != "",
        is_encoder=architecture in ENCODERS,
        embeds_in_parts=_embeds_in_parts(first, architecture),
        input_bytes=tally.input_bytes,
        tied_head_bytes=tally.tied_head_bytes,
        repackable_head_bytes=tally.repackable_head_bytes,
        projector_bytes=projector_bytes,
        graph=_graph(keys, tally, layers, vocabulary, (experts, experts_used)) if layers else None,
    )


def _embeds_in_parts(first: Header, architecture: str) -> bool:
    causal = first.metadata.get(f"{architecture}.attention.causal", True)
    pools_last = first.metadata.get(f"{architecture}.pooling_type") == _POOLS_LAST
    return architecture not in ENCODERS and pools_last and causal is not False


def _vocabulary(first: Header, keys: ArchitectureKeys) -> int:
    tokens = first.metadata.get("tokenizer.ggml.tokens")
    return tokens.length if isinstance(tokens, Array) else keys.integer("vocab_size", 0)


def _graph(
    keys: ArchitectureKeys, tally: "_Tally", layers: tuple[LayerShape, ...], vocabulary: int, experts: tuple[int, int]
) -> GraphShape:
    embedding = keys.integer("embedding_length")
    encodes = keys.architecture in ENCODERS
    return GraphShape(
        architecture=keys.architecture,
        layers=tuple(tally.dimensions.get(layer, {}) for layer in range(len(layers))),
        caching=tuple(encodes or layer.k_elements_per_cell > 0 for layer in layers),
        state_bytes=tuple(layer.recurrent_state_bytes for layer in layers),
        embedding=embedding,
        input_width=embedding * (1 + keys.integer("n_deepstack_layers", 0, high=MAX_LAYERS)),
        per_layer_width=tally.per_layer_width,
        vocabulary=vocabulary,
        experts=experts[0],
        experts_used=experts[1],
    )


def _blocks(keys: ArchitectureKeys) -> Blocks:
    count = keys.integer("block_count", low=1, high=MAX_LAYERS)
    appended = keys.integer("nextn_predict_layers", 0, high=count)
    return Blocks(count, count - appended, keys.integer("embedding_length", low=1, high=1 << 24))


def _experts_used(keys: ArchitectureKeys, layers: int) -> tuple[int, ...]:
    return keys.per_layer("expert_used_count", 0, layers, high=MAX_EXPERTS) if layers else ()


def _refuse_impossible(keys: ArchitectureKeys, blocks: Blocks) -> None:
    """Refuse numbers on which llama.cpp ends its process with an assertion instead of an error."""
    scaling = keys.text("rope.scaling.type", "linear")
    if scaling not in _ROPE_SCALINGS:
        raise keys.refuse(f"the rope scaling {scaling[:40]!r} is unknown.")
    count = keys.integer("expert_count", 0, high=MAX_EXPERTS)
    used = max(_experts_used(keys, blocks.count))
    if keys.architecture in ("hunyuan_vl", "hunyuan-dense") and count <= 1:
        return
    groups = keys.integer("expert_group_count", 0)
    if used > count:
        raise keys.refuse(f"{used} experts are used per token, but the model has {count}.")
    if count and not used:
        raise keys.refuse(f"the model has {count} experts, but uses none.")
    if groups and groups >= count:
        raise keys.refuse(f"{count} experts cannot form {groups} groups.")
    if groups > 1:
        chosen = keys.integer("expert_group_used_count", 0)
        if count % groups or not 0 < chosen < groups:
            raise keys.refuse(f"{chosen} of {groups} groups of {count} experts cannot be chosen.")


class _Tally:
    """Sums over the files of one model."""

    def __init__(self, first: Header) -> None:
        self._first = first
        self._names: set[str] = set()
        self._weights: dict[int, int] = {}
        self._experts: dict[int, int] = {}
        self._repackable: dict[int, int] = {}
        self._repackable_experts: dict[int, int] = {}
        self._embeddings: Tensor | None = None
        self._head: Tensor | None = None
        self.dimensions: dict[int, dict[str, tuple[int, ...]]] = {}
        self.per_layer_width = 0
        self.input_bytes = 0
        self.file_bytes = 0
        self.tensor_bytes = 0
        self.add(first)

    @property
    def has_blocks(self) -> bool:
        return bool(self._weights or self._experts)

    @property
    def tied_head_bytes(self) -> int:
        return self._embeddings.size_bytes if self._embeddings and not self._head else 0

    @property
    def repackable_head_bytes(self) -> int:
        head = self._head or self._embeddings
        return head.size_bytes if head and _repacked(head) else 0

    def add(self, header: Header) -> None:
        self.file_bytes += header.file_bytes
        if len(self._names) + len(header.tensors) > MAX_TENSORS:
            raise _damaged(self._first, "its files together hold more tensors than any model has.")
        for tensor in header.tensors:
            if tensor.name in self._names:
                raise _damaged(header, f"the tensor {tensor.name!r} is in another file of the model too.")
            self._names.add(tensor.name)
            self._book(tensor)

    def check_count(self) -> None:
        """Compare with what the first file of a split model announces."""
        announced = self._first.metadata.get("split.tensors.count")
        if _split_count(self._first) > 1 and announced is not None and announced != len(self._names):
            raise _damaged(self._first, f"its files hold {len(self._names)} tensors instead of {announced}.")

    def layers(self, memory: tuple[LayerMemory, ...]) -> tuple[LayerShape, ...]:
        return tuple(
            LayerShape(
                weight_bytes=self._weights.get(layer, 0),
                expert_bytes=self._experts.get(layer, 0),
                k_elements_per_cell=kept.k_elements,
                v_elements_per_cell=kept.v_elements,
                sliding_window=kept.window,
                recurrent_state_bytes=kept.recurrent_bytes,
                repackable_bytes=self._repackable.get(layer, 0),
                repackable_expert_bytes=self._repackable_experts.get(layer, 0),
            )
            for layer, kept in enumerate(memory)
        )

    def _book(self, tensor: Tensor) -> None:
        self.tensor_bytes += tensor.size_bytes
        block = _BLOCK.match(tensor.name)
        if block is None:
            self._book_outside(tensor)
            return
        is_expert = _EXPERTS.search(tensor.name) is not None
        layer = int(block.group(1))
        _add(self._experts if is_expert else self._weights, layer, tensor.size_bytes)
        if _repacked(tensor):
            _add(self._repackable_experts if is_expert else self._repackable, layer, tensor.size_bytes)
        name = tensor.name[block.end() :].removesuffix(".weight")
        self.dimensions.setdefault(layer, {})[name] = tensor.dimensions

    def _book_outside(self, tensor: Tensor) -> None:
        if _INPUTS.match(tensor.name):
            self.input_bytes += tensor.size_bytes
        if tensor.name == "token_embd.weight":
            self._embeddings = tensor
        elif tensor.name == "output.weight":
            self._head = tensor
        elif tensor.name == "per_layer_token_embd.weight" and tensor.dimensions:
            self.per_layer_width = tensor.dimensions[0]


def _add(sums: dict[int, int], layer: int, size_bytes: int) -> None:
    sums[layer] = sums.get(layer, 0) + size_bytes


def _repacked(tensor: Tensor) -> bool:
    """Say whether a processor that multiplies by this tensor makes a copy of it in another layout."""
    matrix = len(tensor.dimensions) == 2 or (len(tensor.dimensions) == 3 and _EXPERTS.search(tensor.name) is not None)
    return matrix and tensor.type.name in _REPACKED and tensor.dimensions[1] % _REPACKED_ROWS == 0


def _split_count(first: Header) -> int:
    count = first.metadata.get("split.count", 0)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_FILES:
        raise _damaged(first, f"split.count is {count!r:.40}, but has to lie between 0 and {MAX_FILES}.")
    return count


def _files(first: Header) -> tuple[Path, ...]:
    count = _split_count(first)
    if count <= 1:
        return (first.path,)
    part = _PART.search(first.path.name)
    expected = f"-00001-of-{count:05d}.gguf"
    if part is None or int(part.group(2)) != count:
        raise _damaged(first, "it is one of several files.", f"Rename it so that its name ends in {expected}.")
    stem = first.path.name[: part.start()]
    if first.metadata.get("split.no") != 0 or int(part.group(1)) != 1:
        raise _damaged(first, "it is not the first file of its model.", f"Give the path of {stem}{expected} instead.")
    files = tuple(first.path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1))
    missing = next((file for file in files if not file.exists()), None)
    if missing is not None:
        raise _damaged(first, f"the model has {count} files, and {missing.name} is missing.", "Download that one too.")
    return files


def _part(first: Header, file: Path, number: int) -> Header:
    header = read_header(file)
    # llama.cpp aborts on another type than u16.
    if header.metadata.get("split.no") != number or header.kinds["split.no"] != "u16":
        raise _damaged(header, f"it is not file {number + 1} of the model that {first.name} begins.")
    return header


def _damaged(header: Header, problem: str, remedy: str = DOWNLOAD_AGAIN) -> LoadFailed:
    return LoadFailed(f"{header.name}: {problem} {remedy}")
