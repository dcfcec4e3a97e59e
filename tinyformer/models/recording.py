"""A model's inner values: outputs of modules, residual streams, and the flow of information to the output."""

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
    """Return the function that computes a model's values without predictions (which are slow with a large vocabulary) from ids
    (batch, length), or the model itself if there is none."""
    return model.vectors if isinstance(model, GPT) else getattr(model, "bert", model)


def residual_streams(model: Module, *inputs: Any) -> dict[str, list[Tensor]]:
    """Record the values that flow from block to block in ``model(*inputs)``, in evaluation mode. (From ids alone, a GPT or Bert
    computes no predictions.)

    For each stack of blocks, return the residual stream (batch, length, d_model) before the first block and after each one. A
    GPT has the stack "blocks", a ``Transformer`` "encoder" and "decoder", and every Bert "encoder".

    For a recurrent model, return each layer's states after each token, (batch, length, width): "hidden", and "cell" with LSTMs,
    or "encoder.hidden" and so on of an encoder-decoder. Its directions are side by side. A ``reverse_source`` encoder has its
    states in reading order.

    Raises TypeError for a model with neither blocks nor recurrent layers.

    >>> from tinyformer import GPT, GPTConfig, residual_streams
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=2, d_model=32))
    >>> [x.shape for x in residual_streams(model, tt.zeros((1, 5), dtype=int))["blocks"]]
    [(1, 5, 32), (1, 5, 32), (1, 5, 32)]
    """
    streams: dict[str, list[Tensor]] = {}
    calls: dict[str, list[Any]] = {}  # the states of each call of each recurrent layer
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
    """Return the stack of the block with this name: "encoder" for "bert.encoder.blocks.3"."""
    *above, _, _ = ["blocks", *name.split(".")]
    return above[-1]


def _extend(stream: list[Tensor]) -> Hook:
    def extend(module: Module, inputs: tuple[Any, ...], output: Any) -> None:
        stream.extend([output] if stream else [inputs[0], output])

    return extend


def _keep_output(outputs: list[Any]) -> Hook:
    return lambda module, inputs, output: outputs.append(output)


def _states(calls: list[Any], layers: Recurrent[Any], index: int) -> list[Tensor]:
    """Return each layer's states over time, (batch, length, directions * width), from the results of its calls."""
    each_time = layers.num_layers * layers.directions
    by_direction = [tt.concatenate([states[index] for states in calls[i::each_time]]).swapaxes(0, 1) for i in range(each_time)]
    return [tt.concatenate(by_direction[i : i + layers.directions], -1) for i in range(0, each_time, layers.directions)]


# ----------------------------------------------------------------------------------------------------------- flow to the output


def attention_rollout(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return, for each layer of a stack, how much of each input token is in each position after it: (batch, length, length),
    with query rows that sum to 1 (Abnar and Zuidema 2020, equation 1).

    ``weights`` are the self-attention weights of each layer, first to last, (batch, heads, length, length), as from
    ``recording_attention``. Their mean over heads and the residual connection count one half each; norms and feed-forward
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
    """Return the norm of the gradient of the outputs with respect to each step's input: a NumPy array (batch, length).

    ``function`` maps inputs (batch, length, width) to outputs (batch, n), each row by itself. The norm is the Frobenius norm of
    the n * width derivatives, so it does not depend on which output is correct.
    """
    inputs = tt.tensor(inputs.detach(), requires_grad=True)
    outputs = function(inputs)
    squares: Any = 0.0
    for i in range(outputs.shape[1]):
        gradient = tt.grad(outputs[:, i].sum(), inputs, retain_graph=True)
        squares = squares + (gradient * gradient).sum(axis=-1)
    return tt.sqrt(squares).numpy()
