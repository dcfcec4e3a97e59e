"""Load a pretrained model step by step, and save one.

``folders`` reads its settings and tensors, ``choosing`` selects the family, the family builds the model from the settings, and
``weights`` loads the tensors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.files import write_json
from tinyformer.common.memory import only_as_large_as
from tinyformer.models.bert import Bert, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTVectors
from tinyformer.models.quantizing import refuse_additions
from tinyformer.pretrained.adapters import load_adapter
from tinyformer.pretrained.choosing import PretrainedModel, families_of, family_among, family_for
from tinyformer.pretrained.families import Family, Source
from tinyformer.pretrained.folders import ADAPTER, INDEX, WHOLE, find_folder, gguf_at, model_folder, read_settings, read_weights
from tinyformer.pretrained.weights import described, kept_for, load_into, weight_beside
from tinyformer.pretrained.writing import Writing
from tinytensor import Tensor
from tinytensor.device.backend import Array, host
from tinytensor.device.disk import make_folder, remove
from tinytensor.io import save
from tinytensor.kernels.numpy.quantized import cut
from tinytensor.nn import Module, init
from tinytensor.nn.quantization import quantized_weights
from tinytensor.nn.weights import BlockWeight

ENCODERS = (Bert, GPT, GPTVectors)


def from_pretrained(path_or_name: str | Path, revision: str | None = None, dtype: str | None = None) -> PretrainedModel:
    """Load a model for evaluation from a folder in Hugging Face format, a GGUF file, or the Hugging Face hub.

    A folder has config.json and model.safetensors, or the files listed in model.safetensors.index.json. Architectures:

    - GPT-2, Llama, Mistral, Qwen2, Qwen3 and Gemma: a ``GPT``, or a ``GPTVectors`` if there is no output layer.
    - BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT and MPNet: a ``Bert``, or with a head in config.json or the weights, a
      ``BertForMaskedLM``, ``BertForClassification``, ``BertForTokenClassification``, ``BertForQuestionAnswering`` or
      ``BertForNextSentence``.
    - Marian: a ``Transformer``.

    A GGUF file (.gguf, or the only one in a folder without config.json) holds a Llama, Qwen2, Qwen3 or Gemma. Its weights may
    have any type that the gguf package can dequantize, such as Q8_0, Q4_0 or Q4_K.

    If a folder holds a LoRA adapter in PEFT format, returns the base model with the adapter, as ``load_adapter`` does. If the
    folder also holds the model's weights, returns only that model, with a warning.

    For type checkers, write ``assert isinstance(model, GPT)``. Weights that need no conversion stay memory-mapped. Nothing is
    unpickled. The "tinyformer" logger warns about unused layers.

    ``dtype`` is the dtype of the loaded weights: "float32" or, for models that are not trained, "int8", "int4" or "bfloat16"
    (see ``quantize``). By default, weights stored in blocks of 8 or 4 bits stay quantized: those from ``save_pretrained``, and
    types BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K in a GGUF file. All others become float32.

    Raises UserError for an unknown dtype, missing files, an unsupported architecture or setting, weights that do not fit the
    settings or cannot be rounded, and a GGUF file if the gguf package is missing.
    """
    folder = find_folder(path_or_name, revision)
    base = model_folder(folder)
    if base != folder:
        return load_adapter(_load(base, dtype), folder)
    if (folder / ADAPTER).exists():
        logging.getLogger("tinyformer").warning("%s also has an adapter, which is not used: load it with load_adapter", folder)
    return _load(folder, dtype)


def load_differentiable(path_or_name: str | Path) -> PretrainedModel:
    """Call ``from_pretrained`` for a model that needs gradients: GGUF weights become float32."""
    folder = find_folder(path_or_name)
    return from_pretrained(folder, dtype=None if gguf_at(folder) is None else "float32")


def load_encoder(folder: Path, dtype: str | None = None) -> Bert | GPT | GPTVectors:
    """Load a model without its head to compute token vectors. Raises UserError as ``from_pretrained`` does, and for a model
    without token vectors, such as a translator."""
    base = model_folder(folder)
    model = _load(base, dtype, ENCODERS)
    assert isinstance(model, ENCODERS)
    return model if base == folder else load_adapter(model, folder)


def _load(folder: Path, dtype: str | None, types: tuple[type[Module], ...] = ()) -> PretrainedModel:
    """Load the model in a folder, restricted to ``types`` if there are any."""
    settings = read_settings(folder)
    families = families_of(settings)
    if types:
        families = [family for family in families if family.model_class in types]
        if not families:
            raise settings.error("this architecture has no token vectors: pass a BERT, GPT or a relative")
    kept = kept_for(settings, dtype)
    weights = read_weights(folder)
    family = family_among(families, settings, weights)
    try:
        with init.skipped(), only_as_large_as(sum(array.nbytes for array in weights.values()), settings.path):
            model: Any = family.make(settings)
    except UserError as error:  # a SettingError uses our setting names
        raise settings.error(str(error)) if isinstance(error, SettingError) else error from None
    except (ValueError, OverflowError) as error:  # from a layer that cannot be built
        raise settings.error(shortened(str(error))) from None
    left_out = load_into(model, family, weights, folder, kept)
    bert = model.bert if isinstance(model, BertForMaskedLM) else model
    if any(name.endswith("weight") for name in left_out) and isinstance(bert, Bert) and bert.pooler is not None:
        bert.config.initialise(bert.pooler)
    return model.eval()


# ----------------------------------------------------------------------------------------------------------------------- saving

_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")  # as named by Hugging Face libraries


def save_pretrained(model: PretrainedModel, folder: str | Path, writing: Writing | None = None) -> None:
    """Save config.json and model.safetensors to a folder, creating it if needed. ``from_pretrained`` and Hugging Face classes,
    such as AutoModelForCausalLM, load them with the same logits. int8 and int4 weights are written as blocks, which only
    ``from_pretrained`` reads.

    ``writing`` becomes generation_config.json. A GPT becomes a GPT-2 or, with rotary positions, a Llama, Mistral, Qwen2, Qwen3
    or Gemma. A Bert becomes a BERT, a DistilBERT (no segments) or a RoBERTa (``skip_padding``). Raises UserError if no
    architecture of ``from_pretrained`` fits, and OSError if files cannot be written. Finally, removes shards of an earlier
    model in the folder.
    """
    refuse_additions(model, "saved here (save_adapter saves the additions alone)")
    family = family_for(model)
    settings = {**family.describe(model), **described(model)}
    tensors = dict(_tensors(model, family))
    folder = Path(folder)
    make_folder(folder)
    save(tensors, folder / WHOLE, {"format": "pt"})  # required by Hugging Face's reader
    write_json(folder / "generation_config.json", {} if writing is None else writing.settings())
    write_json(folder / "config.json", settings)
    _remove_shards(folder)


def _remove_shards(folder: Path) -> None:
    """Remove the index and shards of an earlier model once the new files are complete."""
    with suppress(FileNotFoundError):
        remove(folder / INDEX)
    for path in folder.iterdir():
        if _SHARD.fullmatch(path.name):
            with suppress(OSError):  # Windows keeps a mapped file, which is harmless without the index
                remove(path)


def _tensors(model: PretrainedModel, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors by its family's names. Adds zeros for biases that only the family has, and copies of biases that
    files store twice."""
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
    """Split one of our tensors into the file's tensors, by their names there."""
    ends = list(accumulate(source.lengths(model, len(values))))
    return zip(source.names, host.split(values, ends[:-1]))


def _blocks(model: PretrainedModel, source: Source, weight: BlockWeight) -> Iterator[tuple[str, Tensor]]:
    """Split a quantized weight's bytes into the file's tensors, each with blocks of one type."""
    values = weight.values.numpy()
    by_row = [(block_type, row) for block_type, _, rows in cut(values, weight.parts, weight.inputs) for row in rows]
    ends = [*accumulate(source.lengths(model, len(by_row)))]
    for name, first, last in zip(source.names, [0, *ends], ends):
        types, rows = zip(*by_row[first:last])
        yield f"{name}.{types[0]}", tt.tensor(host.stack(rows))
