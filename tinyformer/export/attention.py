"""Attention as nodes of a graph, its masks, and its cache.

It is written with plain operators: the operator Attention is young, and programs that run it differ in what a causal mask means
where there are fewer queries than keys.
"""

from __future__ import annotations

from tinyformer.export.graph import BOOL, FLOAT, Graph, Value
from tinyformer.export.layers import linear, norm
from tinyformer.export.positions import Rotation
from tinyformer.models.attention import MultiHeadAttention
from tinytensor.device.backend import host

KeysValues = tuple[Value, Value]  # each (batch, heads, number of keys, d_head)

_LOWEST = float(host.finfo(host.float32).min)


# ------------------------------------------------------------------------------------------------------------- masks


def padding_mask(attention_mask: Value) -> Value:
    """Where a key may be seen, (batch, 1, 1, keys), of numbers (batch, keys) that are 1 for tokens and 0 for padding."""
    return attention_mask.astype(BOOL).unsqueeze(1, 2)


def causal_mask(length: Value, num_keys: Value) -> Value:
    """Where the last ``length`` of all tokens may see each of the ``num_keys`` tokens: not after themselves; (length, keys)."""
    keys = length.graph.range(num_keys)
    queries = keys.rest(0, num_keys - length)
    return keys.unsqueeze(0) <= queries.unsqueeze(1)


# ------------------------------------------------------------------------------------------------------------- cache


class LayerCache:
    """The keys and values of the tokens before, which are inputs of the graph, and those of all tokens, which are outputs.

    The graph has no memory of its own: what a run puts out goes into the next one. At first there are 0 tokens.
    """

    def __init__(self, graph: Graph, name: str, num_heads: int, d_head: int):
        """``name`` stands between ``past_key_values.`` or ``present.`` and ``.key`` or ``.value``."""
        self._name = name
        self._sizes = num_heads, d_head
        self._past = keys_values_input(graph, f"past_key_values.{name}", num_heads, "past_length", d_head)
        self._present = self._past

    @property
    def num_tokens(self) -> Value:
        """How many tokens came before."""
        return self._past[0].length(2)

    def append(self, key: Value, value: Value) -> KeysValues:
        """The keys and values of all tokens, those of the new ones included."""
        past_key, past_value = self._past
        join = key.graph.concatenate
        self._present = join([past_key, key], axis=2), join([past_value, value], axis=2)
        return self._present

    def put_out(self) -> None:
        """Make the keys and values of all tokens outputs of the graph."""
        num_heads, d_head = self._sizes
        keys_values_output(self._present, f"present.{self._name}", num_heads, "total_length", d_head)


def keys_values_input(graph: Graph, name: str, num_heads: int, length: str, d_head: int) -> KeysValues:
    """Two new inputs: keys and values (batch, heads, length, d_head)."""
    sizes = "batch_size", num_heads, length, d_head
    return graph.input(f"{name}.key", FLOAT, *sizes), graph.input(f"{name}.value", FLOAT, *sizes)


def keys_values_output(keys_values: KeysValues, name: str, num_heads: int, length: str, d_head: int) -> None:
    """Make keys and values (batch, heads, length, d_head) two outputs."""
    for part, value in zip(("key", "value"), keys_values):
        value.graph.output(f"{name}.{part}", value, FLOAT, "batch_size", num_heads, length, d_head)


# --------------------------------------------------------------------------------------------------------- attention


def self_attention(
    layer: MultiHeadAttention, x: Value, mask: Value, cache: LayerCache | None = None, rotation: Rotation | None = None
) -> Value:
    """x (batch, length, d_model) -> the same shape. ``mask`` broadcasts to (batch, heads, length, keys)."""
    heads = layer.num_heads, layer.num_key_value_heads, layer.num_key_value_heads
    parts = linear(layer.query_key_value, x).split(*[count * layer.d_head for count in heads])
    query, key, value = [_heads(part, count, layer.d_head) for part, count in zip(parts, heads)]
    if layer.query_norm is not None and layer.key_norm is not None:
        query, key = norm(layer.query_norm, query), norm(layer.key_norm, key)
    if rotation is not None:
        query, key = rotation(query), rotation(key)
    if cache is not None:
        key, value = cache.append(key, value)
    return _attend(layer, query, (_for_each_query(layer, key), _for_each_query(layer, value)), mask)


def cross_attention(layer: MultiHeadAttention, x: Value, memory: KeysValues, mask: Value) -> Value:
    """Attention of x (batch, length, d_model) to the ``memory_keys_values`` of the layer."""
    return _attend(layer, _heads(linear(layer.query, x), layer.num_heads, layer.d_head), memory, mask)


def memory_keys_values(layer: MultiHeadAttention, memory: Value) -> KeysValues:
    """The keys and values of a memory (batch, length, d_model) for a cross-attention."""
    width = layer.num_heads * layer.d_head
    key, value = linear(layer.key_value, memory).split(width, width)
    return _heads(key, layer.num_heads, layer.d_head), _heads(value, layer.num_heads, layer.d_head)


def _heads(x: Value, num_heads: int, d_head: int) -> Value:
    """(batch, length, num_heads * d_head) -> (batch, num_heads, length, d_head)."""
    return x.reshape(0, 0, num_heads, d_head).transpose(0, 2, 1, 3)


def _for_each_query(layer: MultiHeadAttention, x: Value) -> Value:
    """Keys or values (batch, num_key_value_heads, keys, d_head), repeated for each head of queries."""
    if layer.num_key_value_heads == layer.num_heads:
        return x
    group = layer.num_heads // layer.num_key_value_heads
    return x.unsqueeze(2).expand(1, 1, group, 1, 1).reshape(0, layer.num_heads, -1, layer.d_head)


def _attend(layer: MultiHeadAttention, query: Value, keys_values: KeysValues, mask: Value) -> Value:
    """Queries (batch, heads, length, d_head) and what they attend to -> (batch, length, d_model). Where a query may see no key,
    its values count as 0."""
    graph, (keys, values) = query.graph, keys_values
    scores = (query * layer.d_head**-0.5) @ keys.transpose(0, 1, 3, 2)
    weights = graph.where(mask, scores, _LOWEST).function("Softmax", axis=-1)
    mixed = graph.where(mask, weights, 0.0) @ values
    return linear(layer.output, mixed.transpose(0, 2, 1, 3).reshape(0, 0, layer.num_heads * layer.d_head))
