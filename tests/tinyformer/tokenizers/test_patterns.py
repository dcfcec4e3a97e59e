"""Regular expressions of tokenizer.json: what means the same in Python passes, all else is refused; and cutting by several."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tinyformer.common.errors import UserError
from tinyformer.tokenizers.cutting import CuttingRules
from tinyformer.tokenizers.patterns import GPT2_WORDS, compiled

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        # By hand, from the pattern: contractions in any case, three digits at a time, a sign before a word, line ends together.
        (LLAMA3, "I'Ll pay 12345 $x!\n\n  ok ", ["I", "'Ll", " pay", " ", "123", "45", " $", "x", "!\n\n", " ", " ok", " "]),
        (GPT2_WORDS, "I'Ll pay 12345 $x!", ["I", "'", "Ll", " pay", " 12345", " $", "x", "!"]),
        (r"\p{N}", "a12b", ["a", "1", "2", "b"]),
        (r"(ab)+", "xababy", ["x", "abab", "y"]),  # a group that is remembered cuts like any other
        (r"[\u4e00-\u9fff]+", "a一二b", ["a", "一二", "b"]),
        (r"[-a]+|[^\]\-]", "a-b]", ["a-", "b", "]"]),
        (r"a{2}|.", "aaa\n", ["aa", "a", "\n"]),
        (r"(?<=a)b|(?<!x)c|d(?=e)", "abxcc de df", ["a", "b", "xc", "c", " ", "d", "e df"]),
        (r"'(?i:[sdmt]|ll|ve|re)|\p{Lu}?+\p{Ll}++", "It'S Done", ["It", "'S", " ", "Done"]),
        (r"\/|\t|#", "a/b\tc#d", ["a", "/", "b", "\t", "c", "#", "d"]),
    ],
)
def test_cutting(pattern: str, text: str, expected: list[str]) -> None:
    assert CuttingRules([pattern]).words(text) == expected


def test_patterns_one_after_another() -> None:
    assert CuttingRules([r"\p{N}", GPT2_WORDS]).words("ab 12 c") == ["ab", " ", "1", "2", " c"]
    assert CuttingRules([r"\p{N}", GPT2_WORDS], space_before=True).words("ab1 c") == [" ab", " 1", " c"]
    assert CuttingRules([]).words("ab 1") == ["ab 1"]
    assert CuttingRules().words("") == CuttingRules([]).words("") == []


@given(st.text(), st.sampled_from([[LLAMA3], [r"\p{N}", GPT2_WORDS], [r"a|\s"], []]))
def test_nothing_is_lost(text: str, patterns: list[str]) -> None:
    assert "".join(CuttingRules(patterns).words(text)) == text


def test_normal_forms() -> None:
    assert CuttingRules(normal_form="NFC").normalized("e\u0301") == "é"
    assert CuttingRules(normal_form="NFD").normalized("é") == "e\u0301"
    assert CuttingRules().normalized("e\u0301") == "e\u0301"


@pytest.mark.parametrize(
    "pattern",
    [
        # Other in Oniguruma than in Python's regex.
        r"a{1,2}+", r"a{2}?", r"a{,2}", r"\s+$", r"^a", r"\h", r"\R", r"\w", r"\b", r"a\Z", r"\x41", r"\141", r"\v",
        r"[a-c&&b]", r"[[a]b]", r"[a--b]", r"[a||b]", r"[a~~b]", r"[]a]", r"[^]a]", r"[a-\s]", r"[\s-z]", r"[\p{L}-z]",
        r"(?i:ss)", r"(?i:STR)", r"(?i:fl)", r"(?i:i)", r"(?i:[a-z])", r"(?i:[^a])", r"(?i:\p{Lu})", r"(?i:a+)", r"(?i:ß)",
        r"(?i)a", r"(?m:a.b)", r"(?x: a)", r"(?#note)a", r"(?<name>a)", r"(a)\1", r"(?~a)", r"(?(1)a)", r"(?|a)", r"\p{Alpha}",
        r"(a?)+b", r"(?:a|b*){2}c", r"(?=a)+b", r"\p{^L}", r"\p{IsGreek}", r"\Qa\E", r"\K", r"\X",
        # Wrong in both.
        "(", ")", "(a", "a)", "[a", "[", "*a", "a**", "+", "a{", "{", "a|*", "\\", r"[a\]", "[z-a]", r"\p{L", "(?i:a",
        "(?i:|a)", "(?i:)", "a{99999999999}", "(" * 60 + "a" + ")" * 60,
    ],
)  # fmt: skip
def test_what_may_mean_something_else_is_refused(pattern: str) -> None:
    with pytest.raises(UserError, match="regular expression"):
        compiled(pattern)


@pytest.mark.parametrize("pattern", ["", "x*", "a|", "|a", "a?", "a{0,3}", "(?=a)", "(?!a)", "(?<=a)", "(a|b*)", "()", "a{00}"])
def test_a_pattern_that_matches_nothing_at_all_is_refused(pattern: str) -> None:
    # The engines go on in different ways after an empty match.
    with pytest.raises(UserError, match="matches the empty string"):
        compiled(pattern)


def test_rules_that_cannot_be() -> None:
    with pytest.raises(UserError, match="'NFX' is not a normal form"):
        CuttingRules(normal_form="NFX")
    with pytest.raises(UserError, match="needs a pattern"):
        CuttingRules([], space_before=True)
    with pytest.raises(UserError, match="at position 1 "):
        CuttingRules([GPT2_WORDS, "a{1}+"])
