"""The activations of feed-forward networks, in one table.

To add one, add a row. The function is a tinytensor op or a composition of ops. To keep decoding in one compiled program, the
ops must be in ``_WRITERS`` (``tinytensor/kernels/numba/instructions.py``); a test fails for an activation that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tinytensor as tt
from tinytensor import Tensor


@dataclass(frozen=True)
class Activation:
    """An activation.

    - ``function``: takes one tensor, or with ``is_gated`` the gate and the tensor that it multiplies.
    - ``published``: its names in Hugging Face's files; all architectures know the first. A gated one has none: those files name
      the gate's function.
    - ``keeps``: the values per unit of d_ff that the backward pass needs for each token, the result included.
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
CHOICES = ", ".join([*ACTIVATIONS][:-1]) + f" or {[*ACTIVATIONS][-1]}"  # in words, for help texts


def published_names() -> dict[str, str]:
    """Return the name in Hugging Face's files, known to all architectures, of each activation that has one."""
    return {name: activation.published[0] for name, activation in ACTIVATIONS.items() if activation.published}


def names_of_published() -> dict[str, str]:
    """Return our name of each activation in Hugging Face's files."""
    return {theirs: name for name, activation in ACTIVATIONS.items() for theirs in activation.published}
