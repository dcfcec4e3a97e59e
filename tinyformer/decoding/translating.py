"""Translating sentences: a trained Transformer, its tokenizer and beam search behind one name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyformer.data.batches import padded
from tinyformer.data.pair_files import one_line
from tinyformer.data.pairs import Specials
from tinyformer.decoding.beam_search import Hypothesis, beam_search
from tinyformer.decoding.decoders import TransformerDecoder
from tinyformer.errors import UserError
from tinyformer.models.transformer import Transformer
from tinyformer.progress import show_progress

if TYPE_CHECKING:
    from tinyformer.tokenizers import Tokenizer

SENTENCES_AT_ONCE = 64


class Translator:
    """A trained model with the tokenizer of both its languages.

    ``max_tokens``: the longest sentence, and the longest translation. ``length_penalty``: how much beam search favours long
    translations. ``lowercase``: whether the model was trained on lower case only.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        specials: Specials,
        max_tokens: int = 100,
        length_penalty: float = 0.6,
        lowercase: bool = False,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.specials = specials
        self.max_tokens = max_tokens
        self.length_penalty = length_penalty
        self.lowercase = lowercase

    def encode(self, sentence: str) -> list[int]:
        """The sentence's ids and the end token, as the encoder reads them. Raises UserError for no sentence, or a long one."""
        text = one_line(sentence, self.lowercase)
        if not text:
            raise UserError("the sentence is empty: give at least one word to translate")
        ids = [int(i) for i in self.tokenizer.encode(text)]
        if len(ids) > self.max_tokens:
            raise UserError(f"the sentence has {len(ids)} tokens, more than the {self.max_tokens} of this run")
        return [*ids, self.specials.end]

    def search(self, sentences: Sequence[str], beam: int = 5, n_best: int = 1) -> list[list[Hypothesis]]:
        """The ``n_best`` translations of each sentence, as ids with scores, best first."""
        source = padded([self.encode(sentence) for sentence in sentences], self.specials.pad)
        longest = self.max_tokens + 1  # the end token counts, too
        decoder = TransformerDecoder(self.model, source, longest)
        start, end = self.specials.start, self.specials.end
        return beam_search(decoder, start, end, len(sentences), beam, longest, self.length_penalty, n_best)

    def text(self, hypothesis: Hypothesis) -> str:
        """A translation as one line of text, without special tokens."""
        return one_line(self.tokenizer.decode(hypothesis.ids, skip_special=True))

    def translate(self, sentences: Sequence[str], beam: int = 1, progress: bool = False) -> list[str]:
        """The best translation of each sentence. A ``beam`` of 1 is greedy; ``progress`` shows a bar.

        Sentences of similar length are translated together, so that there is little padding.
        """
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        found: dict[int, str] = {}
        with show_progress(f"translating, beam {beam}", len(order), "sentence", quiet=not progress) as bar:
            for first in range(0, len(order), SENTENCES_AT_ONCE):
                part = order[first : first + SENTENCES_AT_ONCE]
                for i, hypotheses in zip(part, self.search([sentences[i] for i in part], beam)):
                    found[i] = self.text(hypotheses[0])
                bar.update(len(part))
        return [found[i] for i in range(len(sentences))]

    def check_beam(self, beam: int) -> None:
        """Raise UserError unless the beam is 1 to the vocabulary's size wide."""
        if not 1 <= beam <= self.tokenizer.vocab_size:
            raise UserError(f"the beam must be 1 to {self.tokenizer.vocab_size} wide, as there are as many tokens, not {beam}")
