"""What a model computes inside: outputs of its modules, the residual stream between its blocks, and what reaches the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tinytensor as tt
from tinyformer.models.blocks import Block
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinytensor import Tensor
from tinytensor.nn import Module, recording_outputs
from tinytensor.nn.hooks import Hook, hooked
from tinytensor.nn.recurrent import Recurrent

__all__ = ["below_output", "recording_outputs", "residual_streams"]


def below_output(model: Module) -> Callable[..., Any]:
    """What computes all of a model but its predictions from ids (batch, length), for those who look inside: over a large
    vocabulary these take as long as several blocks. The model itself, where the rest cannot be had alone."""
    return model.vectors if isinstance(model, GPT) else getattr(model, "bert", model)


def residual_streams(model: Module, *inputs: Any) -> dict[str, list[Tensor]]:
    """What flows through a model from block to block, as it computes ``model(*inputs)`` in evaluation mode. (Of ids alone, a
    GPT or a Bert computes no predictions.)

    For each stack of blocks, the residual stream (batch, length, d_model) before the first block and after each one. A GPT has
    the stack "blocks", a ``Transformer`` has "encoder" and "decoder", and each kind of Bert has "encoder".

    For a recurrent model, the states of each layer after each token, (batch, length, width): "hidden" of a language model, and
    "cell" if it has LSTMs. An encoder-decoder has "encoder.hidden", "decoder.hidden" and so on; the directions of an encoder
    that reads in both are side by side, and one that reads from the end (``reverse_source``) has its states in that order.

    Raises TypeError for a model with neither blocks nor recurrent layers.

    >>> from tinyformer import GPT, GPTConfig, residual_streams
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=2, d_model=32))
    >>> [x.shape for x in residual_streams(model, tt.zeros((1, 5), dtype=int))["blocks"]]
    [(1, 5, 32), (1, 5, 32), (1, 5, 32)]
    """
    streams: dict[str, list[Tensor]] = {}
    calls: dict[str, list[Any]] = {}  # of recurrent layers: the states that each call of each layer computed
    watched: list[tuple[Module, str, Hook]] = []
    recurrent: dict[str, Recurrent[Any]] = {}
    for name, module in model.named_modules():
        if isinstance(module, Block):
            stream = streams.setdefault(_stack_of(name), [])
            watched.append((module, "forward", _extend(stream)))
        elif isinstance(module, Recurrent):
            recurrent[name], calls[name] = module, []
            watched.append((module, "layer_states", _keep_output(calls[name])))
    if not watched:
        raise TypeError(f"{type(model).__name__} has neither blocks nor recurrent layers")
    with hooked(watched), tt.no_grad(), evaluating(model):
        (below_output(model) if len(inputs) == 1 else model)(*inputs)
    for name, layers in recurrent.items():
        prefix = "" if name == "layers" else f"{name}."
        for kind, label in zip(range(layers.num_states), ("hidden", "cell")):
            streams[prefix + label] = _states(calls[name], layers, kind)
    return streams


def _stack_of(name: str) -> str:
    """The stack to which the block of this name belongs: "encoder" for "bert.encoder.blocks.3"."""
    *above, _, _ = ["blocks", *name.split(".")]
    return above[-1]


def _extend(stream: list[Tensor]) -> Hook:
    def extend(module: Module, inputs: tuple[Any, ...], output: Any) -> None:
        stream.extend([output] if stream else [inputs[0], output])

    return extend


def _keep_output(outputs: list[Any]) -> Hook:
    return lambda module, inputs, output: outputs.append(output)


def _states(calls: list[Any], layers: Recurrent[Any], kind: int) -> list[Tensor]:
    """The states of each layer over time, (batch, length, directions * width), from what each call returned."""
    each_time = layers.num_layers * layers.directions
    ways = [tt.concatenate([states[kind] for states in calls[i::each_time]]).swapaxes(0, 1) for i in range(each_time)]
    return [tt.concatenate(ways[i : i + layers.directions], -1) for i in range(0, each_time, layers.directions)]


# -------------------------------------------------------------------------------------------------------- what reaches the end


def attention_rollout(weights: Sequence[Tensor]) -> list[Tensor]:
    """For each layer of a stack, how much of each input token is in each position after it: (batch, length, length), rows of
    queries that sum to 1 (Abnar and Zuidema 2020, equation 1).

    ``weights`` are those of the self-attention of each layer, the first one first, (batch, heads, length, length), as
    ``recording_attention`` gives them. Their mean over the heads counts for one half, and the residual connection for the
    other. Norms and feed-forward networks are left out, so this is an estimate. Raises ValueError for other shapes.

    >>> from tinyformer import attention_rollout
    >>> uniform = tt.full((1, 1, 2, 2), 0.5)
    >>> [x.tolist() for x in attention_rollout([uniform, uniform])]
    [[[[0.75, 0.25], [0.25, 0.75]]], [[[0.625, 0.375], [0.375, 0.625]]]]
    """
    found: list[Tensor] = []
    for layer in weights:
        if layer.ndim != 4 or layer.shape[-1] != layer.shape[-2] or layer.shape[0::2] != weights[0].shape[0::2]:
            raise ValueError(f"the weights must be (batch, heads, length, length), as of self-attention, not {layer.shape}")
        mixed = 0.5 * (layer.mean(axis=1) + tt.eye(layer.shape[-1], dtype=layer.dtype))
        mixed = mixed / mixed.sum(axis=-1, keepdims=True)
        found.append(mixed @ found[-1] if found else mixed)
    return found


def input_gradients(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Any:
    """The norm of the gradient of the outputs with respect to the input of each step: a NumPy array (batch, length).

    ``function`` turns inputs (batch, length, width) into outputs (batch, n), each row by itself. The norm is that of the
    whole matrix of n * width derivatives (Frobenius), so it does not matter which of the outputs is the right one.
    """
    inputs = tt.tensor(inputs.detach(), requires_grad=True)
    outputs = function(inputs)
    squares: Any = 0.0
    for i in range(outputs.shape[1]):
        gradient = tt.grad(outputs[:, i].sum(), inputs, retain_graph=True)
        squares = squares + (gradient * gradient).sum(axis=-1)
    return tt.sqrt(squares).numpy()
