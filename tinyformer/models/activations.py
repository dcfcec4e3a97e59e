"""The activations of feed-forward networks: one table, which models and pretrained models read.

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

    - ``function``: of one tensor, or with ``is_gated`` of the gate and of what it multiplies.
    - ``published``: its names in Hugging Face's files, first the one that all architectures know. A gated one has none: there
      those files name the function of the gate, and the architecture says that there is a gate.
    - ``keeps``: how many numbers as wide as the network are kept for each token from forward to backward, its result included.
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
    """The name that all architectures know in Hugging Face's files, of each activation that has one."""
    return {name: activation.published[0] for name, activation in ACTIVATIONS.items() if activation.published}


def names_of_published() -> dict[str, str]:
    """Our name of each activation in Hugging Face's files."""
    return {theirs: name for name, activation in ACTIVATIONS.items() for theirs in activation.published}
