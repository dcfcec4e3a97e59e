"""The table of the kinds of runs whose models read and write texts, and what opens a run or a pretrained model.

A new kind is a row here, and a file of its own that says how its runs are opened. All that uses trained models, such as the
explorer and the export to ONNX, reads this table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.decoding.filling import with_mask
from tinyformer.models.bert import BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTVectors
from tinyformer.models.transformer import Transformer
from tinyformer.pretrained.folders import find_folder
from tinyformer.pretrained.loading import load_differentiable
from tinyformer.pretrained.sentences import MODULES, encoder_around
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.pretrained.writing import read_writing
from tinyformer.training import comparison, language, masked, translation
from tinyformer.training.opened import Opened
from tinyformer.training.run_folder import RunFolder
from tinytensor.common.wording import a_or_an


@dataclass(frozen=True)
class Kind:
    """How the runs of a kind are used.

    - ``load``: the run in a folder, with the weights of a checkpoint. Raises UserError for a damaged run.
    - ``sample``: a text to try the opened model with, and how many tokens it may write after that.
    """

    load: Callable[[RunFolder, Path], Opened]
    sample: Callable[[Opened, RunFolder], tuple[str, int]]


KINDS = {
    language.KIND: Kind(language.open_run, language.sample_text),
    masked.KIND: Kind(masked.open_run, masked.sample_text),
    translation.KIND: Kind(translation.open_run, comparison.sample_text),
}


def names_of_kinds() -> str:
    """The kinds in words: "a language model, a masked language model or a translator"."""
    *others, last = (a_or_an(name) for name in KINDS)
    return f"{', '.join(others)} or {last}"


def kind_of(folder: RunFolder, use: str) -> Kind:
    """The kind of the run in a folder, which is to be put to a ``use``, such as "explored". Raises UserError for a run of a
    kind that is not in the table."""
    maker = folder.maker()
    if maker is None or maker.kind not in KINDS:
        what = "a run of another program" if maker is None else maker.what
        raise UserError(f"{folder.path} holds {what}: only a run of {names_of_kinds()} can be {use}")
    return KINDS[maker.kind]


def open_run(folder: RunFolder, checkpoint: Path | None = None, use: str = "opened") -> Opened:
    """The model of a run with the weights of a ``checkpoint``, by default the best ones. Raises UserError for a damaged run,
    and for one of another kind, which names the ``use``."""
    return kind_of(folder, use).load(folder, checkpoint or folder.best)


def open_pretrained(path_or_name: str | Path) -> Opened:
    """The pretrained model in a folder in Hugging Face's layout, in a GGUF file, or of this name on the Hugging Face hub.

    Raises UserError as ``from_pretrained``, and for a BERT that fills masks whose tokenizer has none.
    """
    path = find_folder(path_or_name)
    model = load_differentiable(path)
    if isinstance(model, Transformer):
        return translation.opened(translation.pretrained_translator(path))
    tokenizer, writing = pretrained_tokenizer(path), read_writing(path)
    encoder: Any = getattr(model, "bert", model)
    sentences = functools.cache(partial(encoder_around, path, lambda _: encoder)) if (path / MODULES).exists() else None
    if isinstance(model, GPT):
        return replace(language.of_pretrained(model, tokenizer, writing), sentences=sentences)
    if isinstance(model, GPTVectors):
        raise UserError(f"{path} holds a model without output layer, which writes no texts: take one with its head")
    tokenizer = with_mask(tokenizer, path) if isinstance(model, BertForMaskedLM) else tokenizer
    return replace(masked.opened(model, tokenizer), sentences=sentences)
