"""The optimizer of a training run: AdamW, with or without Muon for the matrices of the blocks."""

from __future__ import annotations

from tinyformer.common.errors import SettingError
from tinyformer.models.attention import MultiHeadAttention
from tinyformer.models.blocks import Block
from tinyformer.training.config import TrainingConfig
from tinytensor.nn import Module, Parameter
from tinytensor.optim import AdamW, Muon


def optimizer_for(model: Module, config: TrainingConfig) -> AdamW | Muon:
    """AdamW with weight decay for matrices, but not for biases and norms, as in GPT-2's training. With a
    ``muon_learning_rate``, Muon changes the matrices of the blocks. Raises SettingError if the model has no blocks."""
    of_blocks = matrices_of_blocks(model) if config.muon_learning_rate else {}
    taken = {id(p) for matrices in of_blocks.values() for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = config.beta1, config.beta2
    if not config.muon_learning_rate:
        return AdamW(groups, lr=config.learning_rate, betas=betas)
    if not of_blocks:
        message = f"muon_learning_rate is for the blocks of Transformers, and a {type(model).__name__} has none: leave it out"
        raise SettingError(message, "muon_learning_rate")
    orthogonal = {"orthogonal": True, "lr": config.muon_learning_rate}
    groups += [{"params": matrices, "parts": parts, **orthogonal} for parts, matrices in of_blocks.items()]
    return Muon(groups, lr=config.learning_rate, betas=betas, orthogonal=False)


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
