"""Translate sentences: task settings, and a model with its tokenizer and beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.files import damaged
from tinyformer.common.progress import show_progress
from tinyformer.common.settings import at_least, check_fields, one_of, setting
from tinyformer.data.batches import padded
from tinyformer.data.pair_files import one_line
from tinyformer.data.pairs import Pair, Specials
from tinyformer.decoding.beam_search import BeamRule, BeamStep, HuggingFaceRule, Hypothesis, WuRule, beam_search, check_n_best
from tinyformer.decoding.generation import translation_decoder
from tinyformer.decoding.sampling import LogitsRule
from tinyformer.models.attention import RecordsAttention, recording_attention
from tinyformer.models.evaluating import evaluating
from tinyformer.models.seq2seq import AdditiveAttentionModel, ContextVectorModel, EncoderDecoder, Seq2SeqConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.pretrained.folders import find_folder
from tinyformer.pretrained.loading import from_pretrained
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.pretrained.writing import read_writing
from tinyformer.tokenizers import BPETokenizer, Tokenizer, load_tokenizer
from tinyformer.tokenizers.special import BEGIN, END, PADDING
from tinyformer.tokenizers.texts import token_texts
from tinyformer.training.checkpoints import class_in
from tinyformer.training.run_folder import RunFolder, load_weights
from tinytensor import Tensor
from tinytensor.common.wording import a_or_an, counted

# Maximum sentences per batch, and maximum tokens over all its beams.
SENTENCES_AT_ONCE = 64
TOKENS_AT_ONCE = 64 * 5 * 101
# Up to this many beams, reading the weights takes longer than multiplying by them, so cores do not split the batch further.
BEAMS_OF_A_CORE = 8

Model = Transformer | EncoderDecoder

# Translation networks by user-facing name, each with its configuration class.
ARCHITECTURES: dict[str, tuple[type[Any], type[Any]]] = {
    "transformer": (Transformer, TransformerConfig),
    "lstm": (ContextVectorModel, Seq2SeqConfig),
    "attention": (AdditiveAttentionModel, Seq2SeqConfig),
}


@dataclasses.dataclass(frozen=True)
class TranslationConfig:
    """Task settings of a translator: how to tokenize and search. Raises SettingError for an invalid value."""

    architecture: str = setting(
        "transformer", "transformer, lstm (one context vector) or attention (LSTM with additive attention)"
    )
    vocab_size: int = setting(8000, "size of the shared byte-pair vocabulary")
    lowercase: bool = setting(False, "use lower case only")
    max_tokens: int = setting(100, "maximum length of a sentence, in tokens")
    length_penalty: float = setting(0.6, "length penalty of beam search; 0: none", changeable=True)
    label_smoothing: float = setting(0.1, "label smoothing", changeable=True)
    validation: int = setting(500, "validation pairs to hold out")
    test: int = setting(500, "test pairs to hold out")

    def __post_init__(self) -> None:
        check_fields(self)
        one_of(self, "architecture", ARCHITECTURES)
        at_least(self, max_tokens=1, validation=1, test=1)
        if not 0 <= self.length_penalty <= 50:  # an exponent; the power must not overflow
            raise SettingError(f"length_penalty must be from 0 to 50, got {self.length_penalty}")
        if not 0 <= self.label_smoothing <= 1:
            raise SettingError(f"label_smoothing must be from 0 to 1, got {self.label_smoothing}")

    def train_tokenizer(self, pairs: Sequence[Pair]) -> BPETokenizer:
        """Train a tokenizer for both languages, with the special tokens that a ``Translator`` needs."""
        sentences = (sentence for pair in pairs for sentence in pair)
        return BPETokenizer.train(sentences, self.vocab_size, special=(PADDING, BEGIN, END), progress=True)


@dataclasses.dataclass(frozen=True)
class Attended:
    """Attention weights of a translation.

    ``source``, ``read`` and ``written`` are token texts: the encoder's inputs, the decoder's inputs (from the start token on),
    and the decoder's output after each input, up to the end token. ``weights`` maps layer names to weights (heads, queries,
    keys). It is empty for a network without attention.
    """

    translation: str
    source: list[str]
    read: list[str]
    written: list[str]
    weights: dict[str, Tensor]

    def alignments(self) -> list[Tensor]:
        """Return each layer's attention weights on the source: (heads, written tokens, source tokens)."""
        return [weights for name, weights in self.weights.items() if "cross_attention" in name]


class Translator:
    """An encoder-decoder with a tokenizer for both languages.

    A model trained elsewhere may need:

    - ``specials``, if not the tokenizer's. Raises UserError if neither is available.
    - ``rule``: ranks hypotheses (default: Wu et al.'s rule with the task's ``length_penalty``).
    - ``forbidden`` tokens, other ``rules``, and ``force_end``: whether translations of maximum length end with the end token.
    - ``beam``: default beam width. ``longest_source``: maximum source length in tokens (default: the task's ``max_tokens``).
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        task: TranslationConfig,
        specials: Specials | None = None,
        rule: BeamRule | None = None,
        forbidden: Iterable[int] = (),
        force_end: bool = False,
        beam: int = 5,
        rules: Iterable[LogitsRule] = (),
        longest_source: int | None = None,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        self.specials = specials_of(tokenizer) if specials is None else specials
        self.rule = WuRule(task.length_penalty) if rule is None else rule
        self.forbidden = tuple(forbidden)
        self.force_end = force_end
        self.beam = beam
        self.rules = tuple(rules)
        self.longest_source = task.max_tokens if longest_source is None else longest_source

    def encode(self, sentence: str) -> list[int]:
        """Return the sentence's ids and the end token. Raises UserError for an empty or overlong sentence."""
        text = one_line(sentence, self.task.lowercase)
        if not text:
            raise UserError("the sentence is empty: give at least one word to translate")
        ids = [int(i) for i in self.tokenizer.encode(text)]
        if len(ids) > self.longest_source:
            limit = f"more than the {self.longest_source} that this model translates: split it"
            raise UserError(f"the sentence has {counted(len(ids), 'token')}, {limit}")
        return [*ids, self.specials.end]

    def search(
        self, sentences: Sequence[str], beam: int, n_best: int = 1, watch: Callable[[BeamStep], None] | None = None
    ) -> list[list[Hypothesis]]:
        """Return each sentence's ``n_best`` translations as ids with scores, best first. ``watch`` receives each step, as in
        ``beam_search``. A step's row is the sentence number."""
        source = padded([self.encode(sentence) for sentence in sentences], self.specials.pad)
        longest = self.task.max_tokens + 1  # the end token also counts
        decoder = translation_decoder(self.model, source, longest)
        prompts, end = [[self.specials.start]] * len(sentences), self.specials.end
        settings = self.rule, self.forbidden, self.force_end, watch, self.rules
        return beam_search(decoder, prompts, end, beam, longest, n_best, *settings)

    def search_all(
        self, sentences: Sequence[str], beam: int, n_best: int = 1, report: Callable[[int], object] | None = None
    ) -> list[list[Hypothesis]]:
        """Run ``search`` on any number of sentences. ``report`` receives the number of newly finished sentences.

        Sentences of similar length share a batch to reduce padding, and several cores share the batch.
        """
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        at_once = min(SENTENCES_AT_ONCE, max(1, TOKENS_AT_ONCE // (beam * (self.task.max_tokens + 1))))
        found: dict[int, list[Hypothesis]] = {}
        for first in range(0, len(order), at_once):
            together = order[first : first + at_once]
            shards = min(tt.parallel.default_shards(), len(together), -(-len(together) * beam // BEAMS_OF_A_CORE))
            parts = [together[i::shards] for i in range(shards)]
            searched = tt.parallel.run(
                lambda part: self.search([sentences[i] for i in part], beam, n_best), parts, [0] * shards
            )
            for part, hypotheses in zip(parts, searched):
                found.update(zip(part, hypotheses))
            if report is not None:
                report(len(together))
        return [found[i] for i in range(len(sentences))]

    def has_attention(self) -> bool:
        """Return True if the model has attention layers."""
        return any(isinstance(module, RecordsAttention) for module in self.model.modules())

    def attended(self, sentence: str) -> Attended:
        """Translate a sentence greedily and return the attention weights."""
        (hypotheses,) = self.search([sentence], beam=1)
        written = list(hypotheses[0].ids)
        if hypotheses[0].end is not None:  # it was not cut off
            written.append(self.specials.end)
        source, read = self.encode(sentence), [self.specials.start, *written[:-1]]
        with recording_attention(self.model) as recorded, evaluating(self.model):
            self.model(tt.tensor([source]), tt.tensor([read]))
        # A recurrent network attends once per token.
        weights = {name: tt.concatenate(calls, -2)[0] for name, calls in recorded.items()}
        return Attended(
            self.text(hypotheses[0]), self.tokens(source, is_source=True), self.tokens(read), self.tokens(written), weights
        )

    def text(self, hypothesis: Hypothesis) -> str:
        """Return a translation as one line of text, without special tokens."""
        return one_line(self.tokenizer.decode(hypothesis.ids, skip_special=True))

    def tokens(self, ids: Iterable[int], is_source: bool = False) -> list[str]:
        """Return each id's text from ``token_texts``, in the target language unless ``is_source``."""
        return token_texts(self.tokenizer, ids, is_source)

    def translate(self, sentences: Sequence[str], beam: int = 1, progress: bool = False) -> list[str]:
        """Return the best translation of each sentence. A ``beam`` of 1 is greedy. ``progress`` shows a progress bar."""
        with show_progress(f"translating, beam {beam}", len(sentences), "sentence", quiet=not progress) as bar:
            return [self.text(best) for best, *_ in self.search_all(sentences, beam, report=bar.update)]

    def check_beam(self, beam: int, n_best: int = 1) -> None:
        """Raise UserError unless the beam width is at least 1 and ``n_best``, and at most the vocabulary size."""
        if not 1 <= beam <= self.tokenizer.vocab_size:
            raise UserError(f"the beam must be 1 to {self.tokenizer.vocab_size} wide, as there are as many tokens, got {beam}")
        check_n_best(n_best, beam)

    def check_length(self) -> None:
        """Raise UserError unless the model can read and write sentences of ``max_tokens``, and they fit in memory."""
        longest = self.task.max_tokens
        if not isinstance(self.model, Transformer):  # recurrent networks have no maximum length
            return
        config = self.model.config
        if config.positions == "learned" and config.max_length <= longest:
            raise SettingError(f"max_length must be more than {longest}, the longest sentence, as its end needs a place, too")
        self.model.new_cache(longest + 1, 0)


def trained_translator(folder: RunFolder, checkpoint: Path | None = None) -> Translator:
    """Return a run's translator with the weights of a ``checkpoint`` (default: the best). Raises UserError for a damaged or any
    other folder."""
    task = folder.read_part("task", TranslationConfig)
    make, kind = ARCHITECTURES[task.architecture]
    config = folder.read_part("model", kind)
    tokenizer = load_tokenizer(folder.tokenizer, config.target_vocab_size)
    with damaged(folder.tokenizer):
        specials = specials_of(tokenizer)
    checkpoint = checkpoint or folder.best
    translator = Translator(class_in(checkpoint, make)(config), tokenizer, task, specials)
    load_weights(translator.model, checkpoint)
    return translator


def pretrained_translator(path_or_name: str | Path) -> Translator:
    """Return a translator with a Marian model from a folder in Hugging Face format or the Hugging Face hub. It searches like
    ``generate`` in transformers. Raises UserError as ``from_pretrained`` does, and for any other model."""
    folder = find_folder(path_or_name)
    model, writing = from_pretrained(folder), read_writing(folder)
    if not isinstance(model, Transformer):
        raise UserError(
            f"{folder} holds {a_or_an(type(model).__name__)}, which does not translate: take one of Marian's models"
        )
    if writing.start is None or len(writing.ends) != 1:
        raise UserError(f"{folder} does not say with which token a translation starts, and with which it ends")
    longest = writing.max_new_tokens + 1 if writing.max_new_tokens else writing.max_length or model.config.max_length
    if longest < 3:
        raise UserError(f"{folder} has a max_length of {longest}, with no place for a token between the start and the end")
    translator = Translator(
        model,
        pretrained_tokenizer(folder),
        TranslationConfig(max_tokens=longest - 2),  # excludes the start and end tokens
        Specials(model.config.source_pad, writing.start, writing.ends[0]),
        HuggingFaceRule(writing.length_penalty, writing.early_stopping),
        writing.forbidden,
        force_end=writing.forced_end is not None,
        beam=writing.num_beams or 5,
        rules=writing.rules(),
        longest_source=model.config.max_length - 1,  # reserves a position for the end token
    )
    try:
        translator.check_length()
    except SettingError as error:  # the settings may request any length
        raise UserError(f"{folder} asks for translations that are too long (max_length {longest}): {error}") from None
    return translator


def specials_of(tokenizer: Tokenizer) -> Specials:
    """Return the special-token ids. Raises UserError for a tokenizer that was not trained for translation."""
    names = (PADDING, BEGIN, END)
    missing = [name for name in names if name not in tokenizer.special]
    if missing:
        raise UserError(f"the tokenizer lacks {', '.join(missing)}: it is not one of a translation run")
    return Specials(*(tokenizer.special[name] for name in names))
