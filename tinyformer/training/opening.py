"""Load models from runs and pretrained folders, with their tokenizers.

``KINDS`` has one row per run type. All code that uses trained models, such as the explorer and ONNX export, reads it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.files import open_file
from tinyformer.common.makers import LANGUAGE_MODEL, MASKED_MODEL, TRANSLATOR
from tinyformer.common.settings import at_least, check_fields, setting
from tinyformer.data.pair_files import one_line
from tinyformer.decoding.filling import with_mask, with_wordpieces
from tinyformer.decoding.sampling import LogitsRule
from tinyformer.models.bert import Bert, BertConfig, BertForMaskedLM, BertHead
from tinyformer.models.gpt import GPT, GPTConfig, GPTVectors
from tinyformer.models.recurrent import CELLS, RecurrentConfig, RecurrentLM
from tinyformer.models.transformer import Transformer
from tinyformer.pretrained.folders import find_folder, weight_files
from tinyformer.pretrained.loading import load_differentiable
from tinyformer.pretrained.sentences import MODULES, encoder_around
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.pretrained.writing import Writing, read_writing
from tinyformer.tokenizers import Tokenizer, load_tokenizer
from tinyformer.tokenizers.special import mask_name
from tinyformer.tokenizers.texts import opening_text
from tinyformer.training.checkpoints import class_in
from tinyformer.training.comparison import read_translations
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.translation import Translator, pretrained_translator, trained_translator
from tinytensor.common.wording import a_or_an
from tinytensor.nn import Linear, add_lora, merge_lora

if TYPE_CHECKING:
    from tinyformer.pretrained.sentences import SentenceEncoder

# Networks that continue text, by user-facing name, each with its configuration class.
ARCHITECTURES: dict[str, tuple[type[Any], type[Any]]] = {
    "gpt": (GPT, GPTConfig),
    **dict.fromkeys(reversed(CELLS), (RecurrentLM, RecurrentConfig)),  # newest first
}


@dataclass(frozen=True)
class Opened:
    """A model of a run or a pretrained folder, for evaluation, and its special ids.

    - ``kind``: "language" (a GPT or recurrent network that continues text), "translation" (an encoder-decoder), "masked" (a
      BERT that fills in masks) or "encoder" (a BERT that predicts no tokens).
    - ``before`` and ``after``: ids around every sequence, such as BERT's [CLS] and [SEP].
    - ``start``: initial ids if there is no prompt. An encoder-decoder's target always starts with them.
    - ``ends``: end tokens. ``forbidden``: ids that are never generated. ``rules``: other rules for generated tokens.
    - ``longest``: maximum number of ids that the model can read, or None if unlimited.
    - ``sentences``: returns the sentence encoder of a sentence-transformers folder. Raises UserError.
    - ``translator``: translator of an encoder-decoder. ``mask``: id of BERT's [MASK].
    """

    kind: str
    model: Any
    tokenizer: Tokenizer
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    rules: tuple[LogitsRule, ...] = ()
    longest: int | None = None
    translator: Translator | None = None
    sentences: Callable[[], SentenceEncoder] | None = None
    mask: int | None = None


def _without_tokens(outputs: int, tokenizer: Tokenizer) -> range:
    """Return the model outputs without a token. Some published models have more outputs than tokens."""
    return range(len(getattr(tokenizer, "target_tokens", range(tokenizer.vocab_size))), outputs)


# ------------------------------------------------------------------------------------------------------------ LoRA adapters

_ALL = {"lora_rank": [0]}


@dataclass(frozen=True)
class LoraConfig:
    """Settings of a LoRA adapter on the frozen weights of a pretrained model. Raises SettingError for an invalid value.

    ``base_sha256`` is the SHA-256 of the pretrained model's files, which are not part of the run.
    """

    lora_rank: int = setting(0, "rank of the LoRA adapter; 0: train all weights")
    lora_alpha: float = setting(16.0, "LoRA scale, times the rank", unless=_ALL)
    lora_dropout: float = setting(0.0, "dropout probability of the adapter's inputs", unless=_ALL)
    lora_targets: str = setting("query_key_value,output,gate,up,down", "layers to adapt", unless=_ALL)
    base_sha256: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, lora_rank=0)
        if not self.lora_alpha > 0:
            raise SettingError(f"lora_alpha must be positive, got {self.lora_alpha}")
        if not 0.0 <= self.lora_dropout < 1.0:
            raise SettingError(f"lora_dropout must be at least 0 and less than 1, got {self.lora_dropout}")

    def added_to(self, model: GPT) -> GPT:
        """Freeze the model's weights and add an adapter. Raises SettingError for targets that the model lacks, and for a rank
        above its width."""
        if self.lora_rank > model.config.d_model:  # a higher rank adds nothing
            message = f"lora_rank must be at most the model's width, {model.config.d_model}, got {self.lora_rank}"
            raise SettingError(message, "lora_rank")
        layers = {name.rpartition(".")[2] for name, layer in model.blocks.named_modules() if isinstance(layer, Linear)}
        targets = [name.strip() for name in self.lora_targets.split(",")]
        usual = LoraConfig.lora_targets.split(",")  # a model without gates lacks one of these
        unknown = [name for name in targets if name not in layers and not (name in usual and layers & set(targets))]
        if unknown:
            message = f"lora_targets: the blocks have no linear layer {unknown[0]!r}: there are {', '.join(sorted(layers))}"
            raise SettingError(message, "lora_targets")
        names = "|".join(map(re.escape, targets))
        return add_lora(model, self.lora_rank, self.lora_alpha, rf"blocks\..*\.({names})", self.lora_dropout)

    def base(self, path_or_name: str, config: GPTConfig) -> GPT:
        """Return the pretrained model with this configuration and an adapter. Raises UserError if its files have changed."""
        if fingerprint_of(path_or_name) != self.base_sha256:
            raise UserError(f"{path_or_name} has changed since this run began, which needs it as it was: put that model back")
        model = load_differentiable(path_or_name)
        assert isinstance(model, GPT)
        return self.added_to(model.adapted(config))


def fingerprint_of(path_or_name: str) -> str:
    """Return the SHA-256 of a pretrained model's settings and weights."""
    folder, digest = find_folder(path_or_name), hashlib.sha256()
    for path in (*folder.glob("config.json"), *weight_files(folder)):
        with open_file(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()


def with_additions(folder: RunFolder, config: Any, checkpoint: Path) -> GPT:
    """Return a run's pretrained model with the adapter that the run trained. Raises UserError for another model."""
    text = folder.read_settings().get("text")
    path = text.get("init_from") if isinstance(text, Mapping) else None
    if not isinstance(path, str) or not isinstance(config, GPTConfig):
        raise UserError(f"{folder.settings} is damaged: it does not name the GPT that this run added to")
    model = folder.read_part("lora", LoraConfig).base(str(folder.as_found(path)), config)
    load_weights(model, checkpoint)
    return model


# ------------------------------------------------------------------------------------------------------------ types of runs


def _language_model(folder: RunFolder, checkpoint: Path) -> Opened:
    part = folder.read_settings().get("text")
    text: Mapping[str, Any] = part if isinstance(part, Mapping) else {}  # runs of the first version have none
    architecture = text.get("architecture") or "gpt"
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        shown = shortened(repr(architecture), 40)
        raise UserError(f"{folder.settings} is damaged: architecture must be {', '.join(ARCHITECTURES)}, got {shown}")
    make, config_class = ARCHITECTURES[architecture]
    config = folder.read_part("model", config_class)
    # A pretrained model that was trained further may have more outputs than its tokenizer has tokens.
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
        forbidden=tuple(_without_tokens(config.vocab_size, tokenizer)),
        longest=config.block_size if isinstance(model, GPT) else None,
    )


def _language_sample(opened: Opened, folder: RunFolder) -> tuple[str, int]:
    known = getattr(opened.tokenizer, "characters", "\n")
    text = "\n" if "\n" in known else known[0]
    length = 50 if opened.longest is None else min(50, opened.longest - len(opened.tokenizer.encode(text)))
    return text, length


def _pretrained_gpt(model: GPT, tokenizer: Any, writing: Writing) -> Opened:
    return Opened(
        "language",
        model,
        tokenizer,
        before=tuple(tokenizer.before),
        # Without a start token, a sequence begins where another one ended.
        start=(writing.start if writing.start is not None else next(iter(writing.ends), 0),),
        ends=writing.ends,
        forbidden=(*writing.forbidden, *_without_tokens(model.config.vocab_size, tokenizer)),
        rules=writing.rules(),
        longest=model.config.block_size,
    )


def _masked_model(folder: RunFolder, checkpoint: Path) -> Opened:
    config = folder.read_part("model", BertConfig)
    tokenizer = with_wordpieces(load_tokenizer(folder.tokenizer, config.vocab_size), folder.tokenizer)
    model = class_in(checkpoint, BertForMaskedLM)(config)
    load_weights(model, checkpoint)
    return _opened_bert(model, tokenizer)


def _opened_bert(model: Bert | BertForMaskedLM | BertHead, tokenizer: Any) -> Opened:
    name = mask_name(tokenizer.special)
    return Opened(
        "masked" if isinstance(model, BertForMaskedLM) else "encoder",
        model,
        tokenizer,
        before=tuple(tokenizer.before),
        after=tuple(tokenizer.after),
        forbidden=tuple(_without_tokens(model.config.vocab_size, tokenizer)),
        longest=model.config.max_length,
        mask=None if name is None else tokenizer.special[name],
    )


def _masked_sample(opened: Opened, folder: RunFolder) -> tuple[str, int]:
    text = "[CLS]to be or [MASK] to be[SEP]"
    fits = len(opened.tokenizer.encode(text, allow_special=True)) <= (opened.longest or 0)
    return (text if fits else "[MASK]"), 0  # it generates nothing after that


def _opened_translator(translator: Translator) -> Opened:
    specials, model, tokenizer = translator.specials, translator.model, translator.tokenizer
    return Opened(
        "translation",
        model,
        tokenizer,
        start=(specials.start,),
        ends=(specials.end,),
        forbidden=(*translator.forbidden, *_without_tokens(model.config.target_vocab_size, tokenizer)),
        rules=translator.rules,
        longest=translator.task.max_tokens + 1,  # the start token also counts
        translator=translator,
    )


def _translation_sample(opened: Opened, folder: RunFolder) -> tuple[str, int]:
    assert opened.translator is not None
    task = opened.translator.task
    text = read_translations(folder.sample)[0].source if folder.sample.exists() else "hello"
    return one_line(text, task.lowercase), task.max_tokens + 1


@dataclass(frozen=True)
class Kind:
    """How to use runs of one type.

    - ``load``: loads a run's model with a checkpoint's weights. Raises UserError for a damaged run.
    - ``sample``: returns a prompt to try the model with, and the maximum number of new tokens.
    """

    load: Callable[[RunFolder, Path], Opened]
    sample: Callable[[Opened, RunFolder], tuple[str, int]]


KINDS = {
    LANGUAGE_MODEL: Kind(_language_model, _language_sample),
    MASKED_MODEL: Kind(_masked_model, _masked_sample),
    TRANSLATOR: Kind(
        lambda folder, checkpoint: _opened_translator(trained_translator(folder, checkpoint)), _translation_sample
    ),
}


def names_of_kinds() -> str:
    """Return the types as a phrase: "a language model, a masked language model or a translator"."""
    *first, last = (a_or_an(name) for name in KINDS)
    return f"{', '.join(first)} or {last}"


def kind_of(folder: RunFolder, use: str) -> Kind:
    """Return the type of a run. Raises UserError for a type that is not in the table. The message includes the ``use``, such as
    "explored"."""
    maker = folder.maker()
    if maker is None or maker.kind not in KINDS:
        contents = "a run of another program" if maker is None else maker.what
        raise UserError(f"{folder.path} holds {contents}: only a run of {names_of_kinds()} can be {use}")
    return KINDS[maker.kind]


def open_run(folder: RunFolder, checkpoint: Path | None = None, use: str = "opened") -> Opened:
    """Load a run's model with the weights of a ``checkpoint`` (default: the best). Raises UserError for a damaged run, and as
    ``kind_of`` does."""
    return kind_of(folder, use).load(folder, checkpoint or folder.best)


def open_pretrained(path_or_name: str | Path) -> Opened:
    """Load a pretrained model from a folder in Hugging Face format, a GGUF file, or the Hugging Face hub.

    Raises UserError as ``from_pretrained`` does, and if the tokenizer of a masked language model has no mask.
    """
    path = find_folder(path_or_name)
    model = load_differentiable(path)
    if isinstance(model, Transformer):
        return _opened_translator(pretrained_translator(path))
    tokenizer, writing = pretrained_tokenizer(path), read_writing(path)
    encoder: Any = getattr(model, "bert", model)
    sentences = functools.cache(partial(encoder_around, path, lambda _: encoder)) if (path / MODULES).exists() else None
    if isinstance(model, GPT):
        return replace(_pretrained_gpt(model, tokenizer, writing), sentences=sentences)
    if isinstance(model, GPTVectors):
        raise UserError(f"{path} holds a model without output layer, which writes no texts: take one with its head")
    tokenizer = with_mask(tokenizer, path) if isinstance(model, BertForMaskedLM) else tokenizer
    return replace(_opened_bert(model, tokenizer), sentences=sentences)
