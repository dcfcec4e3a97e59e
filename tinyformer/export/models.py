"""Models as graphs. Their inputs and outputs have the names that Hugging Face's optimum gives them.

With a cache, the same graph reads a prompt (the length of the past is 0) and each token after it.

An encoder-decoder becomes two graphs, because the encoder runs once, and the decoder once for each token. The keys and values
that the decoder's cross-attention needs of the source do not change meanwhile, so the encoder computes them. (In optimum's own
files the decoder does, from ``last_hidden_state``: it then needs a third file, or a branch, for all tokens but the first.)
"""

from __future__ import annotations

import math

from tinyformer.common.errors import UserError
from tinyformer.export.attention import (
    LayerCache,
    causal_mask,
    keys_values_input,
    keys_values_output,
    memory_keys_values,
    padding_mask,
)
from tinyformer.export.blocks import block, blocks_of, decoder, encoder
from tinyformer.export.graph import FLOAT, INT, Graph, Value
from tinyformer.export.layers import embedding, linear, norm, tied_linear
from tinyformer.export.positions import add_positions, count_from_zero, rotation_of
from tinyformer.export.sentences import of_sentence, pooled
from tinyformer.export.vectors import read_vectors
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.bert import Bert, BertForMaskedLM
from tinyformer.models.gpt import GPT
from tinyformer.models.sentences import Projection, SentenceModel
from tinyformer.models.transformer import TokenAndPosition, Transformer
from tinyformer.models.vectors import VectorAndPosition
from tinytensor.common.wording import a_or_an
from tinytensor.nn import Embedding, Linear


def gpt_graph(model: GPT, cache: bool = True) -> Graph:
    """``input_ids`` and ``position_ids`` (batch, length), and ``attention_mask`` (batch, past length + length), which is 0 for
    padding, to the left of a text -> ``logits`` (batch, length, vocab_size).

    With a ``cache`` also ``past_key_values.I.key`` and ``.value`` -> ``present.I.key`` and ``.value`` of each block I.
    """
    config, graph = model.config, Graph(model)
    if config.sliding_window:
        raise UserError("a sliding_window, as Mistral has one, cannot be exported to ONNX: take a model without")
    ids = graph.input("input_ids", INT, "batch_size", "length")
    num_keys = "total_length" if cache else "length"
    is_token = graph.input("attention_mask", INT, "batch_size", num_keys)
    places = graph.input("position_ids", INT, "batch_size", "length")
    blocks = blocks_of(model)
    attention = blocks[0].attention
    heads = attention.num_key_value_heads, attention.d_head
    caches = [LayerCache(graph, str(i), *heads) for i in range(config.num_layers)] if cache else []

    mask = causal_mask(ids.length(1), is_token.length(1)) & padding_mask(is_token)
    rotation = rotation_of(attention.rotary, places)
    x = embedding(model.token_embedding, ids)
    x = x if config.embedding_scale == 1.0 else x * config.embedding_scale
    x = add_positions(model.position_embedding, x, places)
    for i, layer in enumerate(blocks):
        x = block(layer, x, mask, caches[i] if cache else None, rotation)
    logits = _output(model.output, model.token_embedding, norm(model.norm, x))
    graph.output("logits", logits, FLOAT, "batch_size", "length", config.vocab_size)
    for layer_cache in caches:
        layer_cache.put_out()
    return graph


def bert_graph(model: BertForMaskedLM) -> Graph:
    """``input_ids``, ``attention_mask`` (0 for padding) and, if the model has segments, ``token_type_ids`` (batch, length) ->
    ``logits`` (batch, length, vocab_size)."""
    bert, config, graph = model.bert, model.config, Graph(model)
    x, _ = _vectors_of_tokens(graph, bert)
    x = norm(model.norm, ACTIVATIONS[config.activation].exported(linear(model.transform, x)))
    logits = _output(model.output, bert.token_embedding, x) + graph.weight(model.bias)
    graph.output("logits", logits, FLOAT, "batch_size", "length", config.vocab_size)
    return graph


def sentence_graph(model: SentenceModel) -> Graph:
    """The inputs of ``bert_graph`` -> ``sentence_embedding`` (batch, width). Raises UserError for a model on a GPT."""
    if not isinstance(model.encoder, Bert):
        raise UserError(
            f"sentences of {a_or_an(type(model.encoder).__name__)} cannot be exported to ONNX: only those of a Bert can"
        )
    graph = Graph(model)
    x, is_token = _vectors_of_tokens(graph, model.encoder)
    x, width = pooled(model.pooling, x, is_token), model.encoder.config.d_model * len(model.pooling.kinds)
    for layer in model.layers:
        x = of_sentence(layer, x)
        width = layer.linear.weight.shape[0] if isinstance(layer, Projection) else width
    graph.output("sentence_embedding", x, FLOAT, "batch_size", width)
    return graph


def _vectors_of_tokens(graph: Graph, bert: Bert) -> tuple[Value, Value]:
    """The vectors of a Bert's tokens, (batch, length, d_model), and the input that is 1 for tokens and 0 for padding."""
    config = bert.config
    if bert.relative_positions is not None:
        raise UserError("relative positions, as MPNet has them, cannot be exported to ONNX: take a BERT, DistilBERT or RoBERTa")
    ids, is_token = [graph.input(name, INT, "batch_size", "length") for name in ("input_ids", "attention_mask")]
    x, places = embedding(bert.token_embedding, ids), count_from_zero(ids)
    if bert.segment_embedding is not None:
        x = x + embedding(bert.segment_embedding, graph.input("token_type_ids", INT, "batch_size", "length"))
    if config.positions.startswith("sinusoidal"):
        x = x * math.sqrt(config.d_model)
    if config.skip_padding:
        places = graph.node("CumSum", is_token, 1) * is_token + config.pad
    x = norm(bert.norm, add_positions(bert.position_embedding, x, places))
    return encoder(bert.encoder, x, padding_mask(is_token)), is_token


def encoder_graph(model: Transformer) -> Graph:
    """``input_ids`` and ``attention_mask`` (0 for padding), (batch, source length) -> ``last_hidden_state`` (batch, source
    length, d_model), and ``present.I.encoder.key`` and ``.value`` for each block I of the decoder.

    A model of vectors takes ``input_features`` (batch, frames, source_features) in place of ids, and ``attention_mask`` (batch,
    frames). Its source length is frames / source_stride, so it puts out the ``encoder_attention_mask`` for the decoder, too.
    """
    config, graph = model.config, Graph(model)
    if isinstance(model.source_embedding, VectorAndPosition):
        x, is_token = read_vectors(graph, model.source_embedding)
    else:
        assert isinstance(model.source_embedding, TokenAndPosition)
        ids = graph.input("input_ids", INT, "batch_size", "source_length")
        is_token = graph.input("attention_mask", INT, "batch_size", "source_length")
        x = _tokens_and_positions(model.source_embedding, ids, count_from_zero(ids))
    memory = encoder(model.encoder, x, padding_mask(is_token))
    attentions = [layer.cross_attention for layer in blocks_of(model.decoder) if layer.cross_attention is not None]

    graph.output("last_hidden_state", memory, FLOAT, "batch_size", "source_length", config.d_model)
    for i, attention in enumerate(attentions):
        pair, name = memory_keys_values(attention, memory), f"present.{i}.encoder"
        keys_values_output(pair, name, attention.num_heads, "source_length", attention.d_head)
    if config.source_features:
        graph.output("encoder_attention_mask", is_token, INT, "batch_size", "source_length")
    return graph


def decoder_graph(model: Transformer) -> Graph:
    """``input_ids`` (batch, length), the ``encoder_attention_mask`` (batch, source length), and for each block I
    ``past_key_values.I.decoder.key`` and ``.value`` and, as the encoder computes them, ``past_key_values.I.encoder.key`` and
    ``.value`` -> ``logits`` (batch, length, target_vocab_size), and ``present.I.decoder.key`` and ``.value``."""
    config, graph = model.config, Graph(model)
    ids = graph.input("input_ids", INT, "batch_size", "length")
    is_token = graph.input("encoder_attention_mask", INT, "batch_size", "source_length")
    caches, memories = [], []
    for i, layer in enumerate(blocks_of(model.decoder)):
        heads, d_head = layer.attention.num_heads, layer.attention.d_head
        caches.append(LayerCache(graph, f"{i}.decoder", heads, d_head))
        memories.append(keys_values_input(graph, f"past_key_values.{i}.encoder", heads, "source_length", d_head))

    past, length = caches[0].num_tokens, ids.length(1)
    places = count_from_zero(ids, past)
    x = _tokens_and_positions(model.target_embedding, ids, places)
    mask, rotation = causal_mask(length, past + length), rotation_of(blocks_of(model.decoder)[0].attention.rotary, places)
    x = decoder(model.decoder, x, mask, caches, memories, padding_mask(is_token), rotation)
    logits = _output(model.output, model.target_embedding.tokens, x)
    if model.output_bias is not None:
        logits = logits + graph.weight(model.output_bias)
    graph.output("logits", logits, FLOAT, "batch_size", "length", config.target_vocab_size)
    for cache in caches:
        cache.put_out()
    return graph


def _tokens_and_positions(layer: TokenAndPosition, ids: Value, places: Value) -> Value:
    x = embedding(layer.tokens, ids)
    return add_positions(layer.positions, x if layer.scale == 1 else x * layer.scale, places)


def _output(layer: Linear | None, tokens: Embedding, x: Value) -> Value:
    """The logits, by a layer of their own or by the embedding of the tokens."""
    return tied_linear(tokens, x) if layer is None else linear(layer, x)
