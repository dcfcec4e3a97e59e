"""The models in the folders of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.decoding.filling import with_wordpieces
from tinyformer.models.bert import BertConfig, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import CELLS, RecurrentConfig, RecurrentLM
from tinyformer.runs.makers import made_by
from tinyformer.runs.run_folder import RunFolder, load_weights
from tinyformer.tasks.translation import Model, Translator, trained_translator
from tinyformer.tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Trained:
    """What a run trained: a model and its tokenizer, and for an encoder-decoder the ``translator`` that has both."""

    model: GPT | RecurrentLM | BertForMaskedLM | Model
    tokenizer: Tokenizer
    translator: Translator | None = None


def load_trained(folder: RunFolder, checkpoint: Path | None = None) -> Trained:
    """The model of a run whose script is a key of ``READERS``, with the weights of a ``checkpoint``, by default the best ones.
    Raises UserError for a damaged run."""
    script, architecture = made_by(folder.read_settings())
    return READERS[str(script)](folder, architecture, checkpoint or folder.best)


def _language_model(folder: RunFolder, architecture: Any, checkpoint: Path) -> Trained:
    model: GPT | RecurrentLM
    if architecture not in (None, "gpt", *CELLS):
        found = shortened(repr(architecture), 40)
        raise UserError(f"{folder.settings} is damaged: architecture must be gpt, {', '.join(CELLS)}, not {found}")
    if architecture in CELLS:
        model = RecurrentLM(folder.read_part("model", RecurrentConfig))
    else:
        model = GPT(folder.read_part("model", GPTConfig))
    tokenizer = load_tokenizer(folder.tokenizer, model.config.vocab_size)
    load_weights(model, checkpoint)
    return Trained(model, tokenizer)


def _masked_model(folder: RunFolder, architecture: Any, checkpoint: Path) -> Trained:
    config = folder.read_part("model", BertConfig)
    tokenizer = with_wordpieces(load_tokenizer(folder.tokenizer, config.vocab_size), folder.tokenizer)
    model = BertForMaskedLM(config)
    load_weights(model, checkpoint)
    return Trained(model, tokenizer)


def _translation(folder: RunFolder, architecture: Any, checkpoint: Path) -> Trained:
    translator = trained_translator(folder, checkpoint)
    return Trained(translator.model, translator.tokenizer, translator)


READERS: dict[str, Callable[[RunFolder, Any, Path], Trained]] = {
    "char_gpt.py": _language_model,
    "fill_mask.py": _masked_model,
    "translate.py": _translation,
}
