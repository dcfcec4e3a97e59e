"""What the modules of a model compute while it runs, and the residual stream between its blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import tinytensor as tt
from tinyformer.models.blocks import Block
from tinyformer.models.evaluating import evaluating
from tinyformer.models.running import recording
from tinytensor import Tensor
from tinytensor.nn import Module
from tinytensor.nn.recurrent import Recurrent

Watcher = Callable[[tuple[Any, ...], Any], None]  # is told the arguments of a call, and what it returned

_lock = threading.Lock()
# The watchers of each method of a module that is watched. The method is shadowed by an attribute of the module itself.
_watchers: WeakKeyDictionary[Module, dict[str, list[Watcher]]] = WeakKeyDictionary()
_shadowed: WeakKeyDictionary[Module, dict[str, Any]] = WeakKeyDictionary()  # what the attribute was before, if it was there


@contextmanager
def recording_outputs(model: Module, kinds: type[Module] | tuple[type[Module], ...]) -> Iterator[dict[str, list[Any]]]:
    """A context that records what every module of these kinds returns, in one list for each module, with an entry for each
    call.

    The dict that it yields has the names of the modules as keys. No gradients are recorded inside the context. Several may be
    open at once, of one model, too.

    >>> from tinyformer import GPT, Block, GPTConfig, recording_outputs
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=2, d_model=32)).eval()
    >>> with recording_outputs(model, Block) as recorded:
    ...     _ = model(tt.zeros((1, 5), dtype=int))
    >>> {name: outputs[0].shape for name, outputs in recorded.items()}
    {'blocks.0': (1, 5, 32), 'blocks.1': (1, 5, 32)}
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    recorded: dict[str, list[Any]] = {name: [] for name in modules}

    def keep(name: str) -> Watcher:
        return lambda inputs, output: recorded[name].append(output)

    with _watching([(module, "forward", keep(name)) for name, module in modules.items()]), tt.no_grad():
        yield recorded


@contextmanager
def _watching(watched: list[tuple[Module, str, Watcher]]) -> Iterator[None]:
    """A context in which each watcher is told of every call of a method of a module."""
    with recording():
        with _lock:
            for module, method, watcher in watched:
                watchers = _watchers.setdefault(module, {}).setdefault(method, [])
                if not watchers:
                    _shadow(module, method, watchers)
                watchers.append(watcher)
        try:
            yield
        finally:
            with _lock:
                for module, method, watcher in watched:
                    watchers = _watchers[module][method]
                    watchers.remove(watcher)
                    if not watchers:
                        del vars(module)[method]
                        vars(module).update(_shadowed.pop(module, {}))


def _shadow(module: Module, method: str, watchers: list[Watcher]) -> None:
    """Set the attribute ``method`` of the module to a function that calls the method, and then tells the watchers."""
    original = getattr(module, method)
    if method in vars(module):
        _shadowed[module] = {method: original}

    def call(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        for watcher in list(watchers):
            watcher(args, output)
        return output

    vars(module)[method] = call


def residual_streams(model: Module, *inputs: Any) -> dict[str, list[Tensor]]:
    """What flows through a model from block to block, as it computes ``model(*inputs)`` in evaluation mode.

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
    watched: list[tuple[Module, str, Watcher]] = []
    recurrent: dict[str, Recurrent] = {}
    for name, module in model.named_modules():
        if isinstance(module, Block):
            stream = streams.setdefault(_stack_of(name), [])
            watched.append((module, "forward", _extend(stream)))
        elif isinstance(module, Recurrent):
            recurrent[name], calls[name] = module, []
            watched.append((module, "layer_states", _keep_output(calls[name])))
    if not watched:
        raise TypeError(f"{type(model).__name__} has neither blocks nor recurrent layers")
    with _watching(watched), tt.no_grad(), evaluating(model):
        model(*inputs)
    for name, layers in recurrent.items():
        prefix = "" if name == "layers" else f"{name}."
        for kind, label in zip(range(layers.num_states), ("hidden", "cell")):
            streams[prefix + label] = _states(calls[name], layers, kind)
    return streams


def _stack_of(name: str) -> str:
    """The stack to which the block of this name belongs: "encoder" for "bert.encoder.blocks.3"."""
    *above, _, _ = ["blocks", *name.split(".")]
    return above[-1]


def _extend(stream: list[Tensor]) -> Watcher:
    def extend(inputs: tuple[Any, ...], output: Any) -> None:
        stream.extend([output] if stream else [inputs[0], output])

    return extend


def _keep_output(outputs: list[Any]) -> Watcher:
    return lambda inputs, output: outputs.append(output)


def _states(calls: list[Any], layers: Recurrent, kind: int) -> list[Tensor]:
    """The states of each layer over time, (batch, length, directions * width), from what each call returned."""
    each_time = layers.num_layers * layers.directions
    ways = [tt.concatenate([states[kind] for states in calls[i::each_time]]).swapaxes(0, 1) for i in range(each_time)]
    return [tt.concatenate(ways[i : i + layers.directions], -1) for i in range(0, each_time, layers.directions)]
