"""BLEU and chrF, as sacrebleu computes them, with a tokenizer for the script of the references.

BLEU counts tokens. In a text without spaces between words, spaces would make each sentence one token, and its BLEU 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

_LETTER = regex.compile(r"\p{L}")
# Letters between which a line may end without a space (Unicode's line breaking classes), and those of other scripts without.
_CLASSES, _SCRIPTS = "LB=ID LB=CJ LB=SA LB=AK", "Han Hiragana Katakana Bopomofo Tibetan Javanese Balinese"
_UNSPACED = "[[" + "".join(rf"\p{{{name}}}" for name in f"{_CLASSES} {_SCRIPTS}".split()) + r"]&&\p{L}]"
_WITHOUT_SPACES = regex.compile(_UNSPACED, regex.VERSION1)
_COUNTED = regex.compile(rf"{_UNSPACED}[^\s\p{{L}}\p{{N}}]*|(?:(?!{_UNSPACED})\S)+", regex.VERSION1)  # with marks that follow
_HAN, _KANA, _HANGUL = (regex.compile(rf"[{scripts}]") for scripts in (r"\p{Han}", r"\p{Hiragana}\p{Katakana}", r"\p{Hangul}"))
# Of all letters. It is low, as a word of such a script has few letters, and a name in Latin ones has many.
_ENOUGH = 0.25
_KANA_ENOUGH = 0.05  # of the Chinese characters and kana of a text
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}  # what has to be installed with sacrebleu


def count_words(text: str) -> int:
    """How many words are between the spaces of a text. A letter of a script without spaces between words counts as one.

    >>> from tinyformer.training.text_scores import count_words
    >>> count_words("I love you."), count_words("我爱你。")
    (3, 3)
    """
    return sum(1 for _ in _COUNTED.finditer(text))


def bleu_tokenizer(references: Sequence[str]) -> str:
    """The name of sacrebleu's tokenizer for the script in which most of the references are: zh for Chinese, ja-mecab for
    Japanese, ko-mecab for Korean, char for other scripts without spaces between words, such as Thai, and 13a for all others.

    >>> from tinyformer.training.text_scores import bleu_tokenizer
    >>> bleu_tokenizer(["我爱你"]), bleu_tokenizer(["I love you."])
    ('zh', '13a')
    """
    text = "".join(references)

    def count(kind: regex.Pattern[str]) -> int:
        return sum(1 for _ in kind.finditer(text))

    han, kana, hangul, without = count(_HAN), count(_KANA), count(_HANGUL), count(_WITHOUT_SPACES)
    letters = count(_LETTER)
    if hangul >= _ENOUGH * letters and hangul > without:
        return "ko-mecab"
    if not without or without < _ENOUGH * letters:
        return "13a"
    if kana and kana >= _KANA_ENOUGH * (han + kana) and 2 * (han + kana) >= without:
        return "ja-mecab"
    return "zh" if 2 * han >= without else "char"


class TextScores:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015) of translations beside ``references`` of one language.

    ``tokenizer`` is sacrebleu's tokenizer for BLEU, and ``note`` says what to install for a better one, if there is one. Where
    no translation has four tokens, BLEU counts runs of as many as there are (its effective order); else this changes nothing.
    Raises ImportError without sacrebleu.
    """

    def __init__(self, references: Sequence[str]):
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        self.tokenizer, self.note = bleu_tokenizer(references), ""
        try:
            self._bleu = BLEU(tokenize=self.tokenizer, effective_order=True)
        except (ImportError, RuntimeError):  # MeCab is not installed
            package = f'pip install "sacrebleu[{_EXTRAS[self.tokenizer]}]"'
            self.note = f"BLEU of characters, as sacrebleu's tokenizer {self.tokenizer} is not installed: {package}"
            self.tokenizer = "char"
            self._bleu = BLEU(tokenize=self.tokenizer, effective_order=True)
        self._chrf = CHRF()

    def bleu(self, translations: Sequence[str], references: Sequence[str]) -> float:
        """The BLEU of a corpus, from 0 to 100."""
        score: float = self._bleu.corpus_score(translations, [references]).score
        return score

    def chrf(self, translations: Sequence[str], references: Sequence[str]) -> float:
        """The chrF of a corpus, from 0 to 100."""
        score: float = self._chrf.corpus_score(translations, [references]).score
        return score

    def signature(self) -> str:
        """The settings of both scores, as sacrebleu writes them for others to compute the same; then the note. Both must have
        been computed before."""
        lines = [f"BLEU {self._bleu.get_signature()}", f"chrF {self._chrf.get_signature()}", self.note]
        return "\n".join(filter(None, lines))
