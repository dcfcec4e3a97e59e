"""BLEU and chrF by the script of the references, beside sacrebleu's own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tinyformer.training.comparison import TextScores, bleu_tokenizer, count_words

sacrebleu = pytest.importorskip("sacrebleu")

JAPANESE, CHINESE, KOREAN, THAI = "猫が好きです。", "我爱你，你爱我吗？", "나는 고양이를 좋아합니다.", "ฉันรักแมว"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("I love you.", "13a"), ("Ich liebe 日本 und seine Menschen", "13a"), ("Я тебя люблю", "13a"), ("أحبك", "13a"),
        ("मैं तुमसे", "13a"), ("42", "13a"), ("", "13a"), (CHINESE, "zh"), ("我用Python写代码", "zh"), ("繁體中文", "zh"),
        (JAPANESE, "ja-mecab"),
        ("東京タワー", "ja-mecab"), ("ｶﾀｶﾅ", "ja-mecab"), (KOREAN, "ko-mecab"),
        ("大韓民國 만세 우리나라", "ko-mecab"),
        (THAI, "char"), ("ຂ້ອຍຮັກເຈົ້າ", "char"), ("ខ្ញុំស្រលាញ់", "char"), ("ချစ်တယ်", "char"), ("བོད་སྐད་", "char"),
    ],
)  # fmt: skip
def test_the_tokenizer_follows_the_script(text: str, name: str) -> None:
    assert bleu_tokenizer([text]) == name
    assert bleu_tokenizer(["", text, text]) == name


@pytest.mark.parametrize(
    "text", ["a", "two words", "now three words", "我", "我爱你", "は", "네", "แ", "1", JAPANESE, CHINESE, KOREAN, THAI]
)
def test_the_same_text_has_100_and_another_0(text: str) -> None:
    scores = TextScores([text])
    assert scores.bleu([text], [text]) == pytest.approx(100)
    assert scores.chrf([text], [text]) == pytest.approx(100)
    assert scores.bleu(["z"], [text]) == scores.bleu([""], [text]) == 0


@pytest.mark.parametrize(
    ("name", "ours", "references"),
    [
        ("zh", ["我爱你，他爱我吗？", "今天天气很好"], [CHINESE, "今天的天气很好"]),
        ("char", ["ฉันรักหมา"], [THAI]),
        ("13a", ["the dog saw a small cat", "it is red"], ["the dog saw a big cat", "it was red"]),
    ],
)
def test_partly_right_translations_have_what_sacrebleu_gives(name: str, ours: list[str], references: list[str]) -> None:
    scores = TextScores(references)
    expected = sacrebleu.corpus_bleu(ours, [references], tokenize=name).score
    assert scores.bleu(ours, references) == expected
    assert 5 < expected < 95
    assert scores.chrf(ours, references) == sacrebleu.corpus_chrf(ours, [references]).score
    bleu, chrf = scores.signature().splitlines()
    assert bleu.startswith("BLEU nrefs:1|") and f"|tok:{name}|" in bleu and f"|version:{sacrebleu.__version__}" in bleu
    assert chrf.startswith("chrF nrefs:1|") and "|nc:6|" in chrf


@pytest.mark.parametrize(("text", "name", "module"), [(JAPANESE, "ja-mecab", "MeCab"), (KOREAN, "ko-mecab", "mecab_ko")])
def test_characters_count_where_mecab_is_not_installed(text: str, name: str, module: str) -> None:
    scores = TextScores([text])
    assert scores.bleu([text[1:]], [text]) > 50 and scores.chrf([text], [text]) > 50
    if find_spec(module):
        assert scores.tokenizer == name and not scores.note
    else:
        assert scores.tokenizer == "char"
        language = name[:2]
        expected = f'BLEU of characters, as sacrebleu\'s tokenizer {name} is not installed: pip install "sacrebleu[{language}]"'
        assert scores.signature().splitlines()[2] == expected


def test_words_without_spaces_are_counted_by_letters() -> None:
    for text in ("", "  ", "one", "a , b - c", "l'uomo è qui.", "42 мир"):
        assert count_words(text) == len(text.split())
    assert [count_words(text) for text in (CHINESE, THAI, "我用Python写代码。", KOREAN)] == [7, 7, 6, 3]
