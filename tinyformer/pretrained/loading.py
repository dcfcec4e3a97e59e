"""Loading a pretrained model: its settings and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.memory import only_as_large_as
from tinyformer.models.bert import Bert, BertForClassification, BertForMaskedLM
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Transformer
from tinyformer.pretrained.bert import BERT, BERT_CLASSIFIER, BERT_MASKED_LM
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.folders import find_folder
from tinyformer.pretrained.gpt2 import GPT2
from tinyformer.pretrained.llama import LLAMA, QWEN2, QWEN3
from tinyformer.pretrained.marian import MARIAN, MARIAN_SEPARATE
from tinyformer.pretrained.settings import PretrainedSettings
from tinyformer.pretrained.weights import load_into, read_weights, weight_files
from tinyformer.runs.makers import PRETRAINED, found_in
from tinytensor.nn import init

PretrainedModel = GPT | Bert | BertForMaskedLM | BertForClassification | Transformer
FAMILIES = (GPT2, LLAMA, QWEN2, QWEN3, BERT, MARIAN)
HEADS = {  # the architectures of BERT that have a head
    "BertForMaskedLM": BERT_MASKED_LM,
    "BertForPreTraining": BERT_MASKED_LM,
    "BertForSequenceClassification": BERT_CLASSIFIER,
}


def from_pretrained(path_or_name: str | Path, revision: str | None = None) -> PretrainedModel:
    """The model in a folder in Hugging Face's layout, or of this name on the Hugging Face hub, for evaluation.

    A folder has config.json and model.safetensors, or the files that model.safetensors.index.json names. The architectures are
    GPT-2, Llama, Qwen2 and Qwen3 (a ``GPT``), BERT (``BertForMaskedLM``, ``BertForClassification`` or ``Bert``) and Marian (a
    ``Transformer``); ``assert isinstance(model, GPT)`` tells a type checker which it is. Weights that can be used as they are
    stay mapped: they are read when they are used. Nothing is unpickled.

    Raises UserError for a folder without these files, another architecture, settings that cannot be had here, and weights that
    are not those of the settings.
    """
    folder = find_folder(path_or_name, revision)
    settings = read_settings(folder)
    family = family_of(settings)
    if settings.values.get("quantization_config"):
        raise settings.error("quantized weights cannot be read: pass a folder with weights in float32, float16 or bfloat16")
    try:
        with init.skipped(), only_as_large_as(weight_files(folder), settings.path):
            model: Any = family.make(settings)
    except UserError as error:  # the names in a SettingError are those of the settings here
        raise settings.error(str(error)) if isinstance(error, SettingError) else error from None
    except (ValueError, OverflowError) as error:  # of a layer that cannot be made
        raise settings.error(shortened(str(error))) from None
    left_out = load_into(model, family, read_weights(folder), folder)
    if left_out and isinstance(model, (Bert, BertForMaskedLM)):
        model.config.initialise(model.pooler if isinstance(model, Bert) else model.bert.pooler)
    return model.eval()


def read_settings(folder: Path) -> PretrainedSettings:
    """The config.json of a folder. Raises UserError if there is none, and if it is that of a run."""
    found = found_in(folder)
    if found is not None and found.kind != PRETRAINED:
        raise found.refusal(folder, f"a {PRETRAINED}")
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} has no config.json: pass the folder of a pretrained model in Hugging Face's layout")
    return PretrainedSettings(folder / "config.json")


def family_of(settings: PretrainedSettings) -> Family:
    """The architecture that a config.json names. Raises UserError if it is not one of those here."""
    kind = settings.read(str, "model_type")
    for family in FAMILIES:
        if kind in family.model_types:
            break
    else:
        known = ", ".join(name for family in FAMILIES for name in family.model_types)
        raise settings.error(f"the architecture {shortened(repr(kind), 40)} is not known; there are {known}")
    if family is MARIAN and not settings.read(bool, "share_encoder_decoder_embeddings", True):
        return MARIAN_SEPARATE
    for architecture in settings.read(list[str], "architectures", []) if family is BERT else []:
        return HEADS.get(architecture, BERT)
    return family
