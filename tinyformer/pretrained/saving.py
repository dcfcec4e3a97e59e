"""Writing a model as Hugging Face's classes read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.files import write_json
from tinyformer.models.bert import Bert, BertForClassification, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.transformer import Transformer
from tinyformer.pretrained.bert import BERT, BERT_CLASSIFIER, BERT_MASKED_LM
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.gpt2 import GPT2
from tinyformer.pretrained.llama import LLAMA, QWEN2, QWEN3
from tinyformer.pretrained.loading import PretrainedModel
from tinyformer.pretrained.marian import MARIAN, MARIAN_SEPARATE
from tinyformer.pretrained.weights import INDEX, WHOLE
from tinyformer.pretrained.writing import Writing
from tinytensor import Tensor
from tinytensor.device.backend import host
from tinytensor.device.disk import make_folder, remove
from tinytensor.io import save
from tinytensor.nn import Module

_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")  # as Hugging Face's libraries name them


def save_pretrained(model: PretrainedModel, folder: str | Path, writing: Writing | None = None) -> None:
    """Write config.json and model.safetensors to a folder, which is made if it does not exist. ``from_pretrained`` reads them,
    and so do Hugging Face's classes, such as AutoModelForCausalLM: the logits are the same.

    ``writing`` says how the model writes, for generation_config.json. A GPT becomes a GPT-2, or with rotary
    positions a Llama, Qwen2 or Qwen3. Raises UserError for a model that is none of the architectures of ``from_pretrained``,
    and OSError if the files cannot be written. The shards of a model that was there before are removed in the end.
    """
    family = family_for(model)
    described = family.describe(model)
    tensors = dict(_tensors(model, family))
    folder = Path(folder)
    make_folder(folder)
    save(tensors, folder / WHOLE, {"format": "pt"})  # without this Hugging Face's reader refuses the file
    write_json(folder / "generation_config.json", {} if writing is None else writing.settings())
    write_json(folder / "config.json", described)
    _remove_shards(folder)


def _remove_shards(folder: Path) -> None:
    """Remove the index and the shards of a model that was in the folder before, now that the new files are complete."""
    with suppress(FileNotFoundError):
        remove(folder / INDEX)
    for path in folder.iterdir():
        if _SHARD.fullmatch(path.name):
            with suppress(OSError):  # Windows keeps a file that is mapped; without the index nobody looks for it
                remove(path)


def family_for(model: PretrainedModel) -> Family:
    """The architecture as which a model is written. Raises UserError for a model of another kind."""
    families: dict[type[Module], Family] = {
        Bert: BERT,
        BertForMaskedLM: BERT_MASKED_LM,
        BertForClassification: BERT_CLASSIFIER,
        Transformer: MARIAN,
    }
    if isinstance(model, GPT):
        return _family_for_gpt(model.config)
    if isinstance(model, Transformer) and not model.config.share_embeddings:
        return MARIAN_SEPARATE
    if type(model) not in families:
        known = ", ".join(kind.__name__ for kind in families)
        raise UserError(f"a {type(model).__name__} cannot be written in Hugging Face's layout; there are GPT, {known}")
    return families[type(model)]


def _family_for_gpt(config: GPTConfig) -> Family:
    if config.positions != "rotary":
        return GPT2
    if config.query_key_norm:
        return QWEN3
    return QWEN2 if config.query_key_value_bias else LLAMA


def _tensors(model: PretrainedModel, family: Family) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model by the names of its family, and zeros for the biases that only the family has."""
    state = model.state_dict()
    for name, tensor in state.items():
        source = family.source(name)
        values = tensor.numpy()
        ends = list(accumulate(source.lengths(model, len(values))))
        for theirs, part in zip(source.names, host.split(values, ends[:-1])):
            yield theirs, tt.tensor(source.as_theirs(part))
        bias = re.sub("weight$", "bias", name)
        if bias not in state and re.fullmatch(family.biases, bias):
            yield family.source(bias).names[0], tt.zeros(len(values))
