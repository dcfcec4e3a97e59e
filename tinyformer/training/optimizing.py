"""The optimizers of training runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tinyformer.common.errors import SettingError
from tinyformer.models.attention import MultiHeadAttention
from tinyformer.models.blocks import Block
from tinytensor.common.wording import a_or_an
from tinytensor.nn import Module, Parameter
from tinytensor.optim import SGD, AdamW, Lion, Muon, Optimizer

if TYPE_CHECKING:
    from tinyformer.training.config import TrainingConfig


def optimizer_for(model: Module, config: TrainingConfig) -> Optimizer:
    """The optimizer that ``config`` names. Weights decay in matrices, but not in biases and norms, as in GPT-2's training.
    Raises SettingError for Muon if the model has no blocks."""
    make, names, _ = OPTIMIZERS[config.optimizer]
    settings = {"betas": (config.beta1, config.beta2)} if "beta1" in names else {"momentum": config.momentum}
    if make is muon_for:
        return make(model, config.muon_learning_rate, config.learning_rate, weight_decay=config.weight_decay, **settings)
    groups = _with_decay_of_matrices(list(model.parameters()), config.weight_decay)
    return make(groups, lr=config.learning_rate, **settings)


def muon_for(
    model: Module, lr: float, adamw_lr: float, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float = 0.0
) -> Muon:
    """Muon with the learning rate ``lr`` for the matrices in the blocks of a Transformer, and AdamW with ``adamw_lr``,
    ``betas`` and ``weight_decay`` for all its other parameters. Raises SettingError if the model has no blocks.

    >>> from tinyformer import GPT, GPTConfig, muon_for
    >>> optimizer = muon_for(GPT(GPTConfig(vocab_size=65)), lr=0.02, adamw_lr=0.01)
    """
    of_blocks = matrices_of_blocks(model)
    if not of_blocks:
        message = (
            f"optimizer muon is for the blocks of Transformers, and {a_or_an(type(model).__name__)} has none: choose another"
        )
        raise SettingError(message, "optimizer")
    taken = {id(p) for matrices in of_blocks.values() for p in matrices}
    groups = _with_decay_of_matrices([p for p in model.parameters() if id(p) not in taken], weight_decay)
    orthogonal = {"orthogonal": True, "lr": lr}
    groups += [{"params": matrices, "parts": parts, **orthogonal} for parts, matrices in of_blocks.items()]
    return Muon(groups, lr=adamw_lr, betas=betas, orthogonal=False)


def _with_decay_of_matrices(parameters: list[Parameter], weight_decay: float) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def matrices_of_blocks(model: Module) -> dict[int, list[Parameter]]:
    """The matrices in the blocks of a model, by the number of matrices that each of them holds, one above another: queries,
    keys and values are made by one layer."""
    found: dict[int, list[Parameter]] = {}
    for block in model.modules():
        if isinstance(block, Block):
            together = {id(p): parts for layer in block.modules() for p, parts in _made_at_once(layer)}
            for p in block.parameters():
                if p.ndim == 2:
                    found.setdefault(together.get(id(p), 1), []).append(p)
    return found


def _made_at_once(layer: Module) -> list[tuple[Parameter, int]]:
    """The weight of an attention layer that makes several of queries, keys and values, if these are equally many."""
    if not isinstance(layer, MultiHeadAttention):
        return []
    if layer.cross:
        return [(layer.key_value.weight, 2)]
    return [(layer.query_key_value.weight, 3)] if layer.num_key_value_heads == layer.num_heads else []


class Choice(NamedTuple):
    """An optimizer that a run can have."""

    make: Callable[..., Optimizer]
    settings: tuple[str, ...]  # those that it reads, beside learning_rate and weight_decay
    least_moments: int  # the least number of arrays that it keeps of a parameter


OPTIMIZERS = {
    "adamw": Choice(AdamW, ("beta1", "beta2"), 2),
    "muon": Choice(muon_for, ("muon_learning_rate", "beta1", "beta2"), 1),
    "sgd": Choice(SGD, ("momentum",), 0),
    "lion": Choice(Lion, ("beta1", "beta2"), 1),
}


def unless_read(name: str) -> dict[str, list[str]]:
    """The optimizers beside which a setting has no effect, as ``setting(unless=...)`` takes them."""
    return {"optimizer": [optimizer for optimizer, choice in OPTIMIZERS.items() if name not in choice.settings]}
