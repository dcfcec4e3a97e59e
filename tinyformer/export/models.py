"""Record the function of each type of model. Inputs and outputs are named as in Hugging Face optimum.

With a cache, the same graph reads the prompt (with past length 0) and each later token.

An encoder-decoder becomes two graphs. The encoder runs once, and the decoder once per token. The encoder also computes the keys
and values for cross-attention. (In optimum files, the decoder does so from ``last_hidden_state``. It therefore needs a third
file, or a branch, after the first token.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.vectors import Vectors
from tinyformer.export.caches import CACHED, CachedWriter
from tinyformer.export.graph import FLOAT, INT, Graph
from tinyformer.export.operators import OPERATORS
from tinyformer.export.program import Writer
from tinyformer.models.attention import KeyValueCache, MultiHeadAttention
from tinyformer.models.bert import Bert, BertForMaskedLM
from tinyformer.models.blocks import Block, Cache
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.positions import SinusoidalPositions
from tinyformer.models.sentences import SentenceModel
from tinyformer.models.transformer import Stack, Transformer
from tinytensor import Tensor
from tinytensor.kernels.attention import split_heads
from tinytensor.nn import Module
from tinytensor.replay.recording import Recording, record

Axes = tuple[str | int, ...]  # an input's dtype, then for each axis, its length or (if variable) name
_DTYPES = "float32", "float64", "float16", "int64", "int32", "bool"  # input dtypes
LONGEST = 2048  # minimum number of sinusoidal or rotary positions in a table


class Arguments(NamedTuple):
    """Arguments for ``record`` to call a module's ``forward`` on tensors of given sizes."""

    outputs: Callable[..., Mapping[str, Tensor]]
    made: Callable[..., dict[str, Tensor]]
    sizes: dict[str, int]


def arguments_of(model: Module, inputs: Mapping[str, Axes]) -> Arguments:
    """Return how to call any module. ``inputs`` are the arguments of ``forward``: a dtype, then axes as numbers or names.

    The outputs are the results of ``forward``. A single tensor is named ``output``; several are ``output_0`` and so on; a dict
    has its own names. Raises UserError for invalid ``inputs``.
    """

    turn = itertools.count()  # inputs are all 0, then all 1, to detect values computed without ops

    def made(**sizes: int) -> dict[str, Tensor]:
        lengths = {name: [sizes[n] if isinstance(n, str) else n for n in axes] for name, (_, *axes) in inputs.items()}
        value = next(turn) % 2
        return {name: tt.full(lengths[name], value, dtype=dtype) for name, (dtype, *_) in inputs.items()}

    def outputs(**tensors: Tensor) -> Mapping[str, Tensor]:
        results = model(**tensors)
        named = {f"output_{i}": x for i, x in enumerate(results)} if isinstance(results, (tuple, list)) else results
        named = named if isinstance(named, dict) else {"output": named}
        if not named or not all(isinstance(name, str) and isinstance(x, Tensor) for name, x in named.items()):
            raise UserError("forward must return a tensor, a list of tensors or a dict of tensors by name")
        return named

    for name, axes in inputs.items():
        if not isinstance(axes, (tuple, list)) or not axes or axes[0] not in _DTYPES:
            raise UserError(f"inputs[{name!r}] must be like ('int64', 'batch', 5), with a dtype of {_DTYPES}, got {axes!r}")
        if not all(isinstance(n, str) or (isinstance(n, int) and n > 0) for n in axes[1:]):
            raise UserError(f"axes in inputs[{name!r}] must be names or positive integers, got {axes!r}")
    return Arguments(outputs, made, dict.fromkeys((n for _, *axes in inputs.values() for n in axes if isinstance(n, str)), 3))


def module_graph(model: Module, inputs: Mapping[str, Axes]) -> Graph:
    """Return the graph of any module. See ``arguments_of``."""
    return Writer(_recorded(model, *arguments_of(model, inputs)), OPERATORS).declare_inputs().write()


def gpt_graph(model: GPT, cache: bool = True) -> Graph:
    """Map ``input_ids`` and ``position_ids`` (batch, length), and ``attention_mask`` (batch, past length + length; 0 for left
    padding), to ``logits`` (batch, length, vocab_size).

    If ``cache``, also map each block's ``past_key_values.I.key`` and ``.value`` to ``present.I.key`` and ``.value``.
    """

    def made(batch_size: int, length: int, past_length: int = 0) -> dict[str, Any]:
        filled = model.new_cache(past_length + length)
        for block, caches in zip(_blocks(model), filled.blocks):
            _fill(caches.self_attention, block.attention, batch_size, past_length)
        return {"input_ids": tt.zeros((batch_size, length), dtype=int), "cache": filled}

    def outputs(input_ids: Tensor, cache: Cache) -> dict[str, Tensor]:
        return {"logits": model(input_ids, cache)}

    sizes = {"batch_size": 3, "length": 3, **({"past_length": 1} if cache else {})}  # small enough for most models
    write = CachedWriter(_recorded(model, outputs, made, sizes), model, model.config.block_size, past=cache)
    write.declare_inputs()
    write.declare_mask_and_positions()
    write.declare_past()
    return write.write()


def bert_graph(model: BertForMaskedLM) -> Graph:
    """Map ``input_ids``, ``attention_mask`` (0 for padding) and, if the model has segments, ``token_type_ids`` (batch, length)
    to ``logits`` (batch, length, vocab_size)."""

    def outputs(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": model(input_ids, token_type_ids, mask=attention_mask != 0)}

    return _graph_of_texts(model, model.bert, outputs)


def sentence_graph(model: SentenceModel) -> Graph:
    """Map the inputs of ``bert_graph`` to ``sentence_embedding`` (batch, width)."""

    def outputs(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> dict[str, Tensor]:
        return {"sentence_embedding": model(input_ids, attention_mask != 0, segments=token_type_ids)}

    return _graph_of_texts(model, model.encoder, outputs)


def _graph_of_texts(model: Module, encoder: Module, outputs: Callable[..., Mapping[str, Tensor]]) -> Graph:
    segments = ["token_type_ids"] if isinstance(encoder, Bert) and encoder.segment_embedding is not None else []
    names = ["input_ids", "attention_mask", *segments]

    def made(batch_size: int, length: int) -> dict[str, Tensor]:
        return {name: tt.zeros((batch_size, length), dtype=int) for name in names}

    return Writer(_recorded(model, outputs, made, {"batch_size": 4, "length": 3}), OPERATORS).declare_inputs().write()


def encoder_graph(model: Transformer) -> Graph:
    """Map ``input_ids`` and ``attention_mask`` (0 for padding), (batch, source length), to ``last_hidden_state`` (batch, source
    length, d_model), and ``present.I.encoder.key`` and ``.value`` for each decoder block I.

    A model of vectors takes ``input_features`` (batch, frames, source_features) instead of ids, and ``attention_mask`` (batch,
    frames). Its source length is frames / source_stride. It therefore also returns the decoder's ``encoder_attention_mask``.
    """
    features, stride = model.config.source_features, model.config.source_stride

    def made(batch_size: int, source_length: int) -> dict[str, Tensor]:
        shape = batch_size, source_length * stride
        source = {"input_features": tt.zeros((*shape, features))} if features else {"input_ids": tt.zeros(shape, dtype=int)}
        return {**source, "attention_mask": tt.zeros(shape, dtype=int)}

    def outputs_of_ids(input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return _memory(model, model.encode(input_ids, attention_mask != 0)[0])

    def outputs_of_vectors(input_features: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        memory, mask = model.encode(Vectors(input_features, attention_mask.sum(1)))
        return {**_memory(model, memory), "encoder_attention_mask": mask.astype(INT).reshape(memory.shape[:2])}

    sizes = {"batch_size": 4, "source_length": 3}
    write = Writer(_recorded(model, outputs_of_vectors if features else outputs_of_ids, made, sizes), OPERATORS)
    if features:
        _declare_vectors(write, features, stride)
    else:
        write.declare_inputs()
    return write.write()


def _memory(model: Transformer, memory: Tensor) -> dict[str, Tensor]:
    """Return the memory, and each decoder block's keys and values of it, for the cache of ``decode``."""
    outputs = {"last_hidden_state": memory}
    for i, block in enumerate(_blocks(model.decoder)):
        attention = block.cross_attention
        assert attention is not None
        keys_values = split_heads(attention.key_value(memory), 2, attention.num_heads)
        outputs |= {f"present.{i}.encoder.key": keys_values[0], f"present.{i}.encoder.value": keys_values[1]}
    return outputs


def _declare_vectors(write: Writer, features: int, stride: int) -> None:
    """Add the inputs of a model of vectors. As in the recording, padding makes the number of frames a multiple of the
    stride."""
    graph = write.graph
    values = graph.input("input_features", FLOAT, "batch_size", "frames", features)
    mask = graph.input("attention_mask", INT, "batch_size", "frames")
    if stride > 1:
        frames = values.length(1)
        missing = graph.node("Mod", graph.node("Neg", frames), [stride])
        write.sizes["source_length"] = (frames + missing) / [stride]
        values = graph.node("Pad", values, graph.concatenate([graph.constant([0] * 4), missing, graph.constant([0])], axis=0))
        mask = graph.node("Pad", mask, graph.concatenate([graph.constant([0] * 3), missing], axis=0))
    write.use_as_input("input_features", values)
    write.use_as_input("attention_mask", mask)


def decoder_graph(model: Transformer) -> Graph:
    """Map ``input_ids`` (batch, length), ``encoder_attention_mask`` (batch, source length), and each block's
    ``past_key_values.I.decoder`` and ``.encoder`` (``.key`` and ``.value``) to ``logits`` (batch, length, target_vocab_size),
    and ``present.I.decoder.key`` and ``.value``.

    A model that otherwise uses the memory also takes ``encoder_hidden_states`` (batch, source length, d_model).
    """

    def made(batch_size: int, length: int, past_length: int, source_length: int) -> dict[str, Any]:
        cache = model.new_cache(past_length + length, source_length)
        for block, caches in zip(_blocks(model.decoder), cache.blocks):
            _fill(caches.self_attention, block.attention, batch_size, past_length)
            _fill(caches.cross_attention, block.cross_attention, batch_size, source_length)
        return {
            "input_ids": tt.zeros((batch_size, length), dtype=int),
            "encoder_attention_mask": tt.zeros((batch_size, source_length), dtype=int),
            "encoder_hidden_states": tt.zeros((batch_size, source_length, model.config.d_model)),
            "cache": cache,
        }

    def outputs(
        input_ids: Tensor, encoder_attention_mask: Tensor, encoder_hidden_states: Tensor, cache: Cache
    ) -> dict[str, Tensor]:
        mask = (encoder_attention_mask != 0)[:, None, None]
        return {"logits": model.decode(input_ids, encoder_hidden_states, mask, cache)}

    sizes = {"batch_size": 5, "length": 3, "past_length": 1, "source_length": 4}
    limit = model.config.max_length if model.config.positions == "learned" else max(LONGEST, model.config.max_length)
    write = CachedWriter(_recorded(model, outputs, made, sizes), model, limit, (".decoder", ".encoder"))
    write.declare_inputs(optional="encoder_hidden_states")
    write.declare_past()
    write.count_positions()
    return write.write()


# ---------------------------------------------------------------------------------------------------------- recording


def _recorded(
    model: Module,
    outputs: Callable[..., Mapping[str, Tensor]],
    made: Callable[..., Mapping[str, Any]],
    sizes: Sequence[str] | Mapping[str, int],
) -> Recording:
    """Record a model in evaluation mode. Raises UserError for a sliding window, which would be lost. Raises ValueError or
    RecordingError as the model and ``record`` do."""
    longest = max(LONGEST, *[getattr(getattr(module, "config", None), "max_length", 0) for module in model.modules()])
    for module in model.modules():  # tables are constants of the program
        if isinstance(module, GPT) and 0 < module.config.sliding_window < module.config.block_size:
            raise UserError("sliding_window, as in Mistral, is not supported in ONNX: export a model without one")
        if isinstance(module, SinusoidalPositions):
            module.table_for(longest)
        if isinstance(module, MultiHeadAttention) and module.rotary is not None:
            module.rotary.table_for(longest, module.output.weight.dtype)
    with evaluating(model):
        return record(outputs, made, sizes, model, CACHED)


def _blocks(layer: GPT | Stack) -> list[Block]:
    return cast("list[Block]", [*layer.blocks])


def _fill(cache: KeyValueCache, attention: MultiHeadAttention | None, batch_size: int, length: int) -> None:
    """Reserve keys and values of some tokens in a cache."""
    if attention is not None and length:
        shape = batch_size, attention.num_key_value_heads, length, attention.d_head
        cache.reserve(shape, attention.output.weight.dtype)
