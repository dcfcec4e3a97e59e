"""Writing a model as Hugging Face's classes read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.files import write_json
from tinyformer.models.quantizing import refuse_additions
from tinyformer.pretrained import weights
from tinyformer.pretrained.choosing import PretrainedModel, family_for
from tinyformer.pretrained.families import Family, Source
from tinyformer.pretrained.folders import INDEX, WHOLE
from tinyformer.pretrained.weights import weight_beside
from tinyformer.pretrained.writing import Writing
from tinytensor import Tensor
from tinytensor.device.backend import Array, host
from tinytensor.device.disk import make_folder, remove
from tinytensor.io import save
from tinytensor.kernels.numpy.quantized import cut
from tinytensor.nn.quantization import quantized_weights
from tinytensor.nn.weights import BlockWeight

_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")  # as Hugging Face's libraries name them


def save_pretrained(model: PretrainedModel, folder: str | Path, writing: Writing | None = None) -> None:
    """Write config.json and model.safetensors to a folder, which is made if it does not exist. ``from_pretrained`` reads them,
    and so do Hugging Face's classes, such as AutoModelForCausalLM: the logits are the same. Weights in int8 or int4 are
    written as their blocks, and only ``from_pretrained`` reads them.

    ``writing`` says how the model writes, for generation_config.json. A GPT becomes a GPT-2, or with rotary
    positions a Llama, Mistral, Qwen2, Qwen3 or Gemma; a Bert becomes a BERT, or without segments a DistilBERT, or with
    ``skip_padding`` a RoBERTa. Raises UserError for a model that is none of the architectures of ``from_pretrained``,
    and OSError if the files cannot be written. The shards of a model that was there before are removed in the end.
    """
    refuse_additions(model, "saved so (save_adapter saves them alone)")
    family = family_for(model)
    described = {**family.describe(model), **weights.described(model)}
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


def _tensors(model: PretrainedModel, family: Family) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model by the names of its family, zeros for the biases that only the family has, and the biases that it
    has twice beside the weight of their layer."""
    state: dict[str, Any] = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for name, weight in quantized_weights(model):
        del state[f"{name}.values"]
        state[name] = weight.numpy() if weight.kind == "bfloat16" else weight
    for name, values in state.items():
        source = family.source(name)
        if isinstance(values, BlockWeight):
            yield from _blocks(model, source, values)
        else:
            yield from ((theirs, tt.tensor(source.as_theirs(part))) for theirs, part in _parts(model, source, values))
        for copy, original in family.copies.items():
            if source.names == (weight_beside(copy),):
                yield (
                    copy,
                    next(tensor for ours, tensor in model.state_dict().items() if family.source(ours).names == (original,)),
                )
        bias = re.sub("weight$", "bias", name)
        if bias not in state and re.fullmatch(family.biases, bias):
            yield family.source(bias).names[0], tt.zeros(values.shape[0])


def _parts(model: PretrainedModel, source: Source, values: Array) -> Iterator[tuple[str, Array]]:
    """What is one tensor here, in the parts that a file has, with their names there."""
    ends = list(accumulate(source.lengths(model, len(values))))
    return zip(source.names, host.split(values, ends[:-1]))


def _blocks(model: PretrainedModel, source: Source, weight: BlockWeight) -> Iterator[tuple[str, Tensor]]:
    """The bytes of a weight in blocks, in the parts that a file has. Each part there has blocks of one type."""
    values = weight.values.numpy()
    by_row = [(block_type, row) for block_type, _, rows in cut(values, weight.parts, weight.inputs) for row in rows]
    ends = [*accumulate(source.lengths(model, len(by_row)))]
    for name, first, last in zip(source.names, [0, *ends], ends):
        types, rows = zip(*by_row[first:last])
        yield f"{name}.{types[0]}", tt.tensor(host.stack(rows))
