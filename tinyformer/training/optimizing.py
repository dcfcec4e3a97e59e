"""Optimizers for training runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tinyformer.common.errors import SettingError
from tinyformer.models.attention import MultiHeadAttention
from tinyformer.models.blocks import Block
from tinytensor.nn import Module, Parameter
from tinytensor.optim import SGD, AdamW, Lion, Muon, Optimizer

if TYPE_CHECKING:
    from tinyformer.training.config import TrainingConfig


def optimizer_for(model: Module, config: TrainingConfig) -> Optimizer:
    """Return the optimizer selected in ``config``. As in GPT-2's training, only matrices decay, not biases and norms.

    Raises SettingError for Muon if the model has no blocks.
    """
    make, names, _ = OPTIMIZERS[config.optimizer]
    settings = {name: getattr(config, name) for name in names}
    if "beta1" in settings:
        settings["betas"] = settings.pop("beta1"), settings.pop("beta2")
    if make is muon_for:
        lr = settings.pop("muon_learning_rate")
        return make(model, lr, config.learning_rate, weight_decay=config.weight_decay, **settings)
    groups = _with_decay_of_matrices(list(model.parameters()), config.weight_decay)
    return make(groups, lr=config.learning_rate, **settings)


def muon_for(
    model: Module, lr: float, adamw_lr: float, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float = 0.0
) -> Muon:
    """Return a ``Muon`` that trains the matrices in a Transformer's blocks with learning rate ``lr``. All other parameters use
    AdamW with ``adamw_lr``, ``betas`` and ``weight_decay``. Raises SettingError if the model has no blocks.

    >>> from tinyformer import GPT, GPTConfig, muon_for
    >>> optimizer = muon_for(GPT(GPTConfig(vocab_size=65)), lr=0.02, adamw_lr=0.01)
    """
    by_parts = matrices_of_blocks(model)
    if not by_parts:
        message = f"optimizer muon trains the blocks of Transformers, but {type(model).__name__} has none: choose another"
        raise SettingError(message, "optimizer")
    in_blocks = {id(p) for matrices in by_parts.values() for p in matrices}
    groups = _with_decay_of_matrices([p for p in model.parameters() if id(p) not in in_blocks], weight_decay)
    groups += [{"params": matrices, "parts": parts, "orthogonal": True, "lr": lr} for parts, matrices in by_parts.items()]
    return Muon(groups, lr=adamw_lr, betas=betas, orthogonal=False)


def _with_decay_of_matrices(parameters: list[Parameter], weight_decay: float) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def matrices_of_blocks(model: Module) -> dict[int, list[Parameter]]:
    """Return the matrices in a model's blocks by number of parts. One weight may project queries, keys and values."""
    matrices: dict[int, list[Parameter]] = {}
    for block in model.modules():
        if isinstance(block, Block):
            num_parts = {id(p): parts for layer in block.modules() for p, parts in _joint_projection(layer)}
            for p in block.parameters():
                if p.ndim == 2:
                    matrices.setdefault(num_parts.get(id(p), 1), []).append(p)
    return matrices


def _joint_projection(layer: Module) -> list[tuple[Parameter, int]]:
    """Return an attention layer's weight that projects to several equally wide queries, keys and values, and their number."""
    if not isinstance(layer, MultiHeadAttention):
        return []
    if layer.cross:
        return [(layer.key_value.weight, 2)]
    return [(layer.query_key_value.weight, 3)] if layer.num_key_value_heads == layer.num_heads else []


class Choice(NamedTuple):
    """An ``--optimizer`` choice."""

    make: Callable[..., Optimizer]
    settings: tuple[str, ...]  # the TrainingConfig fields that it reads, besides learning_rate and weight_decay
    least_moments: int  # minimum number of state arrays per parameter


OPTIMIZERS = {
    "adamw": Choice(AdamW, ("beta1", "beta2"), 2),
    "muon": Choice(muon_for, ("muon_learning_rate", "beta1", "beta2"), 1),
    "sgd": Choice(SGD, ("momentum",), 0),
    "lion": Choice(Lion, ("beta1", "beta2"), 1),
}


def unless_read(name: str) -> dict[str, list[str]]:
    """Return the optimizers that ignore a setting, as an argument for ``setting(unless=...)``."""
    return {"optimizer": [optimizer for optimizer, choice in OPTIMIZERS.items() if name not in choice.settings]}
