"""Language models, which continue texts: the networks, and how those of runs and of pretrained folders are opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import CELLS, RecurrentConfig, RecurrentLM
from tinyformer.pretrained.writing import Writing
from tinyformer.tokenizers import load_tokenizer
from tinyformer.tokenizers.texts import opening_text
from tinyformer.training.adding import LoraConfig
from tinyformer.training.checkpoints import class_in
from tinyformer.training.opened import Opened, without_tokens
from tinyformer.training.run_folder import RunFolder, load_weights
from tinytensor.nn import merge_lora

KIND = "language model"

# The networks that continue texts, by the names that users give them, each with the dataclass of its settings.
ARCHITECTURES: dict[str, tuple[type[Any], type[Any]]] = {
    "gpt": (GPT, GPTConfig),
    **dict.fromkeys(reversed(CELLS), (RecurrentLM, RecurrentConfig)),  # the youngest first
}


def open_run(folder: RunFolder, checkpoint: Path) -> Opened:
    """The model of a run with the weights of a checkpoint. Raises UserError for a damaged run."""
    part = folder.read_settings().get("text")
    text: Mapping[str, Any] = part if isinstance(part, Mapping) else {}  # runs of the first version have none
    architecture = text.get("architecture") or "gpt"
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        found = shortened(repr(architecture), 40)
        raise UserError(f"{folder.settings} is damaged: architecture must be {', '.join(ARCHITECTURES)}, not {found}")
    make, kind = ARCHITECTURES[architecture]
    config = folder.read_part("model", kind)
    # A pretrained model with which training began may have more outputs than its tokenizer has tokens.
    tokenizer = load_tokenizer(folder.tokenizer, None if text.get("init_from") else config.vocab_size)
    if folder.adds_to_another():
        model = with_additions(folder, config, checkpoint)
        merge_lora(model)
    else:
        model = class_in(checkpoint, make)(config)
        load_weights(model, checkpoint)
    first = tokenizer.encode(opening_text(tokenizer))
    return Opened(
        "language",
        model,
        tokenizer,
        start=(int(first[0]),),
        forbidden=tuple(without_tokens(config.vocab_size, tokenizer)),
        longest=config.block_size if isinstance(model, GPT) else None,
    )


def with_additions(folder: RunFolder, config: Any, checkpoint: Path) -> GPT:
    """The pretrained model of a run that only added to its weights, and what it added. Raises UserError for another model."""
    text = folder.read_settings().get("text")
    path = text.get("init_from") if isinstance(text, Mapping) else None
    if not isinstance(path, str) or not isinstance(config, GPTConfig):
        raise UserError(f"{folder.settings} is damaged: it does not name the GPT that this run added to")
    model = folder.read_part("lora", LoraConfig).base(str(folder.as_found(path)), config)
    load_weights(model, checkpoint)
    return model


def of_pretrained(model: GPT, tokenizer: Any, writing: Writing) -> Opened:
    """A pretrained GPT, and how its folder says that it writes."""
    return Opened(
        "language",
        model,
        tokenizer,
        before=tuple(tokenizer.before),
        # Without a start token a text begins where another one has ended.
        start=(writing.start if writing.start is not None else next(iter(writing.ends), 0),),
        ends=writing.ends,
        forbidden=(*writing.forbidden, *without_tokens(model.config.vocab_size, tokenizer)),
        rules=writing.rules(),
        longest=model.config.block_size,
    )


def sample_text(opened: Opened, folder: RunFolder) -> tuple[str, int]:
    """A text to try the model with, and how many tokens it may write after that."""
    known = getattr(opened.tokenizer, "characters", "\n")
    text = "\n" if "\n" in known else known[0]
    length = 50 if opened.longest is None else min(50, opened.longest - len(opened.tokenizer.encode(text)))
    return text, length
