"""Strings that are difficult for tokenizers: every type of character, and combining marks."""

from __future__ import annotations

import functools
import random

# Blocks of characters that Unicode 9 has, and that no later version put into another category: the libraries' tables are of
# different versions.
BLOCKS = {
    "ASCII": [(0x20, 0x7E)],
    "letters": [(0x41, 0x5A), (0x61, 0x7A)],
    "digits": [(0x30, 0x39), (0xB2, 0xB3), (0xBC, 0xBE), (0x660, 0x669), (0x2160, 0x2188), (0x2460, 0x2473)],
    "white space": [
        (0x20, 0x20),
        (0x09, 0x0D),
        (0x85, 0x85),
        (0xA0, 0xA0),
        (0x2000, 0x200A),
        (0x2028, 0x2029),
        (0x3000, 0x3000),
    ],
    "controls": [(0x00, 0x1F), (0x7F, 0x9F)],
    "format": [(0xAD, 0xAD), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2064), (0xFEFF, 0xFEFF)],
    "Latin": [(0xA1, 0x24F), (0x1E00, 0x1EFF), (0xFB00, 0xFB06)],
    "combining marks": [(0x300, 0x36F), (0x20D0, 0x20F0), (0xFE00, 0xFE0F)],
    "Greek": [(0x391, 0x3A1), (0x3A3, 0x3CE), (0x1F00, 0x1F15)],
    "Cyrillic": [(0x400, 0x481)],
    "Hebrew": [(0x5D0, 0x5EA), (0x591, 0x5BD)],
    "Arabic": [(0x621, 0x652), (0x6F0, 0x6F9), (0x60C, 0x60C), (0x61F, 0x61F)],
    "Devanagari": [(0x905, 0x939), (0x93C, 0x94D), (0x964, 0x96F)],
    "Thai": [(0xE01, 0xE3A), (0xE40, 0xE5B)],
    "Hangul": [(0xAC00, 0xD7A3), (0x1100, 0x1112), (0x1161, 0x1175)],
    "kana": [(0x3041, 0x3096), (0x3099, 0x309F), (0x30A1, 0x30FF)],
    "Chinese": [(0x4E00, 0x9FA5), (0x3400, 0x4DB5), (0x20000, 0x2A6D6), (0xF900, 0xFA2D)],
    "punctuation": [(0xA1, 0xBF), (0x2010, 0x2027), (0x2030, 0x205E), (0x3001, 0x3011), (0xFF01, 0xFF5E)],
    "symbols": [(0x20A0, 0x20BE), (0x2190, 0x23FA), (0x2500, 0x26FF)],
    "emoji": [(0x1F300, 0x1F64F), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF)],
    "private and odd": [(0xE000, 0xE010), (0xFFFD, 0xFFFD), (0x1D400, 0x1D454), (0xF0000, 0xF0010)],
}
WHOLE = [
    "don't",
    "WE'LL",
    "'s",
    "'re'd",
    "👩‍👩‍👧",
    "👍🏽",
    "🇮🇹🇩🇪",
    "é",
    "e\u0301",
    "İI",
    "ΟΔΟΣ",
    "ﬁ",
    "ẞß",
    "##a",
    "Ġ",
    "#version",
]
WHOLE += ["[UNK", "MASK]", "\r\n", "\n\n", "  \n  ", "\t\t", "3.14", "x_1", "\x00", "antidisestablishmentarianism", 101 * "a"]


@functools.cache
def strings(number: int = 4000, seed: int = 0) -> tuple[str, ...]:
    """Draw strings of a few runs of characters: of one block, of spaces, or known to be difficult."""
    rng = random.Random(seed)

    def run() -> str:
        kind = rng.random()
        if kind < 0.15:
            return " " * rng.choice([1, 1, 1, 2, 3, 7, 30])
        if kind < 0.3:
            return rng.choice(WHOLE)
        ranges = BLOCKS[rng.choice(list(BLOCKS))]
        return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 8)))

    return tuple("".join(run() for _ in range(rng.randint(1, 12))) for _ in range(number))
