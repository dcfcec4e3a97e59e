"""A table of the activations of feed-forward networks.

To add an activation, add a row. The function is a tinytensor op or a composition of ops. Its ops must be in ``_WRITERS``
(``tinytensor/kernels/numba/instructions.py``), which keeps decoding in one compiled program. A test enforces this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tinytensor as tt
from tinytensor import Tensor


@dataclass(frozen=True)
class Activation:
    """An activation.

    - ``function``: takes one tensor. If ``is_gated``, it takes the gate and the tensor to multiply by it.
    - ``published``: names in Hugging Face files; all architectures know the first. Empty for gated activations: Hugging Face
      files name the gate function instead.
    - ``keeps``: values per d_ff unit and token that the backward pass needs, including the result.
    """

    function: Callable[..., Tensor]
    published: tuple[str, ...] = ()
    is_gated: bool = False
    keeps: int = 2

    def __post_init__(self) -> None:
        assert not (self.is_gated and self.published)


ACTIVATIONS = {
    "relu": Activation(tt.relu, ("relu",), keeps=1),
    "gelu_tanh": Activation(lambda x: tt.gelu(x, approximate="tanh"), ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")),
    "gelu_exact": Activation(tt.gelu, ("gelu",)),
    "silu": Activation(tt.silu, ("silu", "swish")),
    "swiglu": Activation(tt.swiglu, is_gated=True, keeps=3),
    "geglu": Activation(lambda gate, x: tt.gelu(gate, approximate="tanh") * x, is_gated=True, keeps=4),
}
CHOICES = ", ".join([*ACTIVATIONS][:-1]) + f" or {[*ACTIVATIONS][-1]}"  # for help texts


def published_names() -> dict[str, str]:
    """Return each activation's first name in Hugging Face files, the one that all architectures know."""
    return {name: activation.published[0] for name, activation in ACTIVATIONS.items() if activation.published}


def names_of_published() -> dict[str, str]:
    """Map names in Hugging Face files to ours."""
    return {theirs: name for name, activation in ACTIVATIONS.items() for theirs in activation.published}
