"""Internal values of a model: module outputs, residual streams, and information flow to the output."""

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
    """Return the function that maps ids (batch, length) to the values below the output layer, which is slow with a large
    vocabulary. If there is none, return the model itself."""
    return model.vectors if isinstance(model, GPT) else getattr(model, "bert", model)


def residual_streams(model: Module, *inputs: Any) -> dict[str, list[Tensor]]:
    """Record the hidden states that flow through ``model(*inputs)``, in evaluation mode. If a GPT or Bert gets only ids, the
    output layer is skipped.

    For each stack of blocks, returns the residual stream (batch, length, d_model) before the first block and after each block.
    A GPT has the stack "blocks", a ``Transformer`` "encoder" and "decoder", and a Bert "encoder".

    For a recurrent model, returns each layer's states after each token, (batch, length, width), as "hidden" and, for LSTMs,
    "cell". An encoder-decoder uses "encoder.hidden" and so on. Directions are concatenated. The states of a ``reverse_source``
    encoder are in reading order.

    Raises TypeError if the model has neither blocks nor recurrent layers.

    >>> from tinyformer import GPT, GPTConfig, residual_streams
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=2, d_model=32))
    >>> [x.shape for x in residual_streams(model, tt.zeros((1, 5), dtype=int))["blocks"]]
    [(1, 5, 32), (1, 5, 32), (1, 5, 32)]
    """
    streams: dict[str, list[Tensor]] = {}
    calls: dict[str, list[Any]] = {}  # states per call of each recurrent layer
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
        for index, label in zip(range(layers.num_states), ("hidden", "cell")):
            streams[prefix + label] = _states(calls[name], layers, index)
    return streams


def _stack_of(name: str) -> str:
    """Return the stack of a block name, for example "encoder" for "bert.encoder.blocks.3"."""
    *above, _, _ = ["blocks", *name.split(".")]
    return above[-1]


def _extend(stream: list[Tensor]) -> Hook:
    def extend(module: Module, inputs: tuple[Any, ...], output: Any) -> None:
        stream.extend([output] if stream else [inputs[0], output])

    return extend


def _keep_output(outputs: list[Any]) -> Hook:
    return lambda module, inputs, output: outputs.append(output)


def _states(calls: list[Any], layers: Recurrent[Any], index: int) -> list[Tensor]:
    """Return each layer's states over time, (batch, length, directions * width), given the results of its calls."""
    each_time = layers.num_layers * layers.directions
    by_direction = [tt.concatenate([states[index] for states in calls[i::each_time]]).swapaxes(0, 1) for i in range(each_time)]
    return [tt.concatenate(by_direction[i : i + layers.directions], -1) for i in range(0, each_time, layers.directions)]


# ----------------------------------------------------------------------------------------------------------- flow to the output


def attention_rollout(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return each input token's share of each position after every layer: one matrix (batch, length, length) per layer. Query
    rows sum to 1 (Abnar and Zuidema 2020, equation 1).

    ``weights`` are self-attention weights (batch, heads, length, length), first layer to last, such as from
    ``recording_attention``. The mean over heads and the residual connection count one half each. Norms and feed-forward
    networks are ignored. Raises ValueError for other shapes.

    >>> from tinyformer import attention_rollout
    >>> uniform = tt.full((1, 1, 2, 2), 0.5)
    >>> [x.tolist() for x in attention_rollout([uniform, uniform])]
    [[[[0.75, 0.25], [0.25, 0.75]]], [[[0.625, 0.375], [0.375, 0.625]]]]
    """
    rollouts: list[Tensor] = []
    for layer in weights:
        if layer.ndim != 4 or layer.shape[-1] != layer.shape[-2] or layer.shape[0::2] != weights[0].shape[0::2]:
            raise ValueError(f"weights must be (batch, heads, length, length), as of self-attention, got {layer.shape}")
        mixed = 0.5 * (layer.mean(axis=1) + tt.eye(layer.shape[-1], dtype=layer.dtype))
        mixed = mixed / mixed.sum(axis=-1, keepdims=True)
        rollouts.append(mixed @ rollouts[-1] if rollouts else mixed)
    return rollouts


def input_gradients(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Any:
    """Return the gradient norm of the outputs with respect to each position's input: a NumPy array (batch, length).

    ``function`` maps inputs (batch, length, width) to outputs (batch, n), row by row. The norm is the Frobenius norm of the n *
    width derivatives. It does not depend on the correct output.
    """
    inputs = tt.tensor(inputs.detach(), requires_grad=True)
    outputs = function(inputs)
    squares: Any = 0.0
    for i in range(outputs.shape[1]):
        gradient = tt.grad(outputs[:, i].sum(), inputs, retain_graph=True)
        squares = squares + (gradient * gradient).sum(axis=-1)
    return tt.sqrt(squares).numpy()
