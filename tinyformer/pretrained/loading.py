"""Loading a pretrained model, step by step.

``folders`` opens its settings and tensors, ``choosing`` finds its family, the family makes the model from the settings, and
``weights`` puts the tensors into it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.memory import only_as_large_as
from tinyformer.models.bert import Bert, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTVectors
from tinyformer.pretrained.adapters import load_adapter
from tinyformer.pretrained.choosing import PretrainedModel, families_of, family_among
from tinyformer.pretrained.folders import ADAPTER, find_folder, gguf_at, model_folder, read_settings, read_weights
from tinyformer.pretrained.weights import kept_for, load_into
from tinytensor.nn import Module, init

ENCODERS = (Bert, GPT, GPTVectors)


def from_pretrained(path_or_name: str | Path, revision: str | None = None, dtype: str | None = None) -> PretrainedModel:
    """The model in a folder in Hugging Face's layout, in a GGUF file, or of this name on the Hugging Face hub, for evaluation.

    A folder has config.json and model.safetensors, or the files that model.safetensors.index.json names. The architectures are

    - GPT-2, Llama, Mistral, Qwen2, Qwen3 and Gemma: a ``GPT``, or without output layer a ``GPTVectors``;
    - BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT and MPNet: a ``Bert``, or with a head that config.json names or the file
      has a ``BertForMaskedLM``, ``BertForClassification``, ``BertForTokenClassification``, ``BertForQuestionAnswering`` or
      ``BertForNextSentence``;
    - Marian: a ``Transformer``.

    A GGUF file, whose name ends in .gguf or which is the only one of a folder without config.json, holds a Llama, Qwen2,
    Qwen3 or Gemma, with weights of any type that the package gguf makes numbers of, such as Q8_0, Q4_0 or Q4_K.

    A folder with a LoRA adapter in PEFT's layout is the model that the adapter names, with the adapter in it, as by
    ``load_adapter``. Where the model's weights lie in that folder, too, it is the model alone, and a warning says so.

    ``assert isinstance(model, GPT)`` tells a type checker which it is. Weights that can be used as they are stay mapped: they
    are read when they are used. Nothing is unpickled. A warning of the logger "tinyformer" names layers that are not used.

    ``dtype`` is what the weights become: "float32", or for a model that is not trained "int8", "int4" or "bfloat16", as by
    ``quantize``. By default they stay as they are in the file if it has them in blocks of 8 or 4 bits: those that
    ``save_pretrained`` wrote, and types BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K in a GGUF file. All others become float32.

    Raises UserError for an unknown dtype, for a folder without these files, another architecture, settings that cannot be had
    here, weights that are not those of the settings, or cannot be rounded, and for a GGUF file without the package gguf.
    """
    folder = find_folder(path_or_name, revision)
    base = model_folder(folder)
    if base != folder:
        return load_adapter(_load(base, dtype), folder)
    if (folder / ADAPTER).exists():
        logging.getLogger("tinyformer").warning("%s has an adapter, too, which is not used: load_adapter reads it", folder)
    return _load(folder, dtype)


def load_differentiable(path_or_name: str | Path) -> PretrainedModel:
    """``from_pretrained`` for a model that needs gradients: the weights of a GGUF file become float32."""
    folder = find_folder(path_or_name)
    return from_pretrained(folder, dtype=None if gguf_at(folder) is None else "float32")


def load_encoder(folder: Path, dtype: str | None = None) -> Bert | GPT | GPTVectors:
    """The model in a folder without its head, as far as it gives tokens vectors. Raises UserError as ``from_pretrained`` does,
    and for a model that gives none, such as a translator."""
    base = model_folder(folder)
    model = _load(base, dtype, ENCODERS)
    assert isinstance(model, ENCODERS)
    return model if base == folder else load_adapter(model, folder)


def _load(folder: Path, dtype: str | None, kinds: tuple[type[Module], ...] = ()) -> PretrainedModel:
    """The model in a folder, of one of these kinds, if there are any."""
    settings = read_settings(folder)
    families = families_of(settings)
    if kinds:
        families = [family for family in families if family.kind in kinds]
        if not families:
            raise settings.error("a model of this architecture gives tokens no vectors: take a BERT, a GPT or their like")
    kept = kept_for(settings, dtype)
    weights = read_weights(folder)
    family = family_among(families, settings, weights)
    try:
        with init.skipped(), only_as_large_as(sum(array.nbytes for array in weights.values()), settings.path):
            model: Any = family.make(settings)
    except UserError as error:  # the names in a SettingError are those of the settings here
        raise settings.error(str(error)) if isinstance(error, SettingError) else error from None
    except (ValueError, OverflowError) as error:  # of a layer that cannot be made
        raise settings.error(shortened(str(error))) from None
    left_out = load_into(model, family, weights, folder, kept)
    bert = model.bert if isinstance(model, BertForMaskedLM) else model
    if any(name.endswith("weight") for name in left_out) and isinstance(bert, Bert) and bert.pooler is not None:
        bert.config.initialise(bert.pooler)
    return model.eval()
