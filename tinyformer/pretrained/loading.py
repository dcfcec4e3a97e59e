"""Loading a pretrained model: its weights, its tokenizer, and the tokens between which it writes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyformer.errors import SettingError, UserError, shortened
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
from tinyformer.pretrained.weights import load_into, read_weights
from tinyformer.training.makers import found_in
from tinytensor.nn import init

PretrainedModel = GPT | Bert | BertForMaskedLM | BertForClassification | Transformer
FAMILIES = (GPT2, LLAMA, QWEN2, QWEN3, BERT, MARIAN)
HEADS = {  # the architectures of BERT that have a head
    "BertForMaskedLM": BERT_MASKED_LM,
    "BertForPreTraining": BERT_MASKED_LM,
    "BertForSequenceClassification": BERT_CLASSIFIER,
}


@dataclass(frozen=True)
class Writing:
    """The ids between which a model writes: the one that a text starts with, those that end it, and those that are never
    written. ``forced_end`` is written where a text reaches ``max_length`` tokens, the start included. ``length_penalty`` and
    ``early_stopping`` are those of ``HuggingFaceRule``, for beam search."""

    start: int | None = None
    ends: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    forced_end: int | None = None
    max_length: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def settings(self) -> dict[str, Any]:
        """The settings of a generation_config.json that say this."""
        named: dict[str, Any] = {
            "bos_token_id": self.start,
            "decoder_start_token_id": self.start,
            "eos_token_id": list(self.ends),
        }
        named |= {"forced_eos_token_id": self.forced_end, "bad_words_ids": [[word] for word in self.forbidden]}
        named |= {"max_length": self.max_length, "length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
        return {name: value for name, value in named.items() if value not in (None, [])}


def from_pretrained(path_or_name: str | Path, revision: str | None = None) -> PretrainedModel:
    """The model in a folder in Hugging Face's layout, or of this name on the Hugging Face hub, for evaluation.

    A folder has config.json and model.safetensors, or the files that model.safetensors.index.json names. The architectures are
    GPT-2, Llama, Qwen2 and Qwen3 (a ``GPT``), BERT (``BertForMaskedLM``, ``BertForClassification`` or ``Bert``) and Marian (a
    ``Transformer``). Weights that can be used as they are stay mapped: they are read when they are used. Nothing is unpickled.

    Raises UserError for a folder without these files, another architecture, settings that cannot be had here, and weights that
    are not those of the settings.
    """
    folder = find_folder(path_or_name, revision)
    settings = read_settings(folder)
    family = family_of(settings)
    if settings.values.get("quantization_config"):
        raise settings.error("quantized weights cannot be read: pass a folder with weights in float32, float16 or bfloat16")
    try:
        with init.skipped():
            model: Any = family.make(settings)
    except SettingError as error:  # whose names are those of the settings here
        raise settings.error(str(error)) from None
    left_out = load_into(model, family, read_weights(folder), folder)
    if left_out and isinstance(model, (Bert, BertForMaskedLM)):
        model.config.initialise(model.pooler if isinstance(model, Bert) else model.bert.pooler)
    return model.eval()


def read_settings(folder: Path) -> PretrainedSettings:
    """The config.json of a folder. Raises UserError if there is none, and if it is that of a run."""
    found = found_in(folder)
    if found is not None and found.what != "a pretrained model":
        raise found.refusal(folder, "a pretrained model")
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


def read_writing(folder: Path) -> Writing:
    """How the model in a folder writes, from its generation_config.json and, where that says nothing, its config.json. Ids that
    are not in the vocabulary count for nothing: a small model may have kept the ids of a larger one."""
    files = [read_settings(folder)]
    vocab_size = files[0].read(int, "decoder_vocab_size", files[0].read(int, "vocab_size", sys.maxsize))
    if (folder / "generation_config.json").exists():
        files.insert(0, PretrainedSettings(folder / "generation_config.json"))

    def said(name: str) -> PretrainedSettings:
        """The first file that has the setting."""
        return next((file for file in files if file.values.get(name) is not None), files[-1])

    def read(kind: Any, name: str, default: Any) -> Any:
        return said(name).read(kind, name, default)

    def ids(name: str) -> list[int]:
        """A setting that is one id, several, or none."""
        found = read(int | list[int], name, [])
        return [i for i in (found if isinstance(found, list) else [found]) if 0 <= i < vocab_size]

    forbidden = read(list[list[int]], "bad_words_ids", [])
    if any(len(words) != 1 for words in forbidden):
        problem = "bad_words_ids forbids sequences of tokens; only single tokens can be forbidden here"
        raise said("bad_words_ids").error(problem)
    early_stopping = read(bool | str, "early_stopping", False)
    if early_stopping not in (True, False, "never"):
        problem = f"early_stopping must be true, false or 'never', not {shortened(repr(early_stopping), 40)}"
        raise said("early_stopping").error(problem)
    return Writing(
        start=next(iter(ids("decoder_start_token_id") or ids("bos_token_id")), None),
        ends=tuple(ids("eos_token_id")),
        forbidden=tuple(word for (word,) in forbidden if 0 <= word < vocab_size),
        forced_end=next(iter(ids("forced_eos_token_id")), None),
        max_length=read(int, "max_length", 0) or None,
        length_penalty=read(float, "length_penalty", 1.0),
        early_stopping=early_stopping,
    )
