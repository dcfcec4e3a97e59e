"""The measured figures of the README, the front page, the guides and the lessons are those of the results files.

docs/_extensions/figures.py makes their tables and sentences. A figure elsewhere in the prose is an error unless it is listed
here. The cells of a lesson assert what they compute. Timings are kept by processor.
"""

from __future__ import annotations

import re

import pages
import pytest
from figures import EPYC, GPU, LATEST_XEON, PROCESSORS, STEPS, TABLES, XEON, ratios, sentences, speed
from pages import LESSONS, PAGES, in_a_line
from results import RESULTS, cell, cells, number, read, tables, with_tables

from tinyformer import GPTConfig
from tinyformer.commands.gpt import TextConfig, parse
from tinyformer.common.settings import settings_from
from tinyformer.training.opening import ARCHITECTURES

PRINTED = [block for page in PAGES.values() for block in pages.blocks(page, "text")]
PROSE = {name: pages.prose(page) for name, page in (PAGES | LESSONS).items()}


def is_told(sentence: str) -> bool:
    """Whether a page says this, word for word."""
    return any(sentence in prose for prose in PROSE.values())


# ---------------------------------------------------------------------------------------------------------- processors

WITH_SPEEDS = ("README.md", "docs/guides/speed.md")  # the pages that tell how fast it is


def test_every_processor_with_results_is_named() -> None:
    assert {path.parent.name for path in RESULTS.glob("*/*.md") if path.name != "README.md"} == {*PROCESSORS, LATEST_XEON, GPU}
    assert [name for name in PROCESSORS.values() for page in WITH_SPEEDS if f"on an {name}" not in PAGES[page]] == []


def test_where_pytorch_is_faster_on_the_other_processor() -> None:
    assert [label[0] for name, label in STEPS.items() if speed(f"{XEON}/{name}") < 1] == ["A"]
    eager, compiled = ratios(f"{XEON}/train_step_A.md", "of fastest quartiles")
    assert eager < 1 < compiled
    assert is_told("On the Intel Xeon, compiled PyTorch is slightly faster in A.")


def test_steps_were_measured_with_compiled_kernels() -> None:
    assert all(", kernels: numba, " in read(f"{folder}/{name}") for folder in PROCESSORS for name in STEPS)


def test_the_single_ops_that_pytorch_computes_faster() -> None:
    slower = {op for op, *_, fastest, _ in tables(read(f"{EPYC}/layers.md"))[0][1:] if float(fastest) > 1}
    assert is_told(f"PyTorch is faster in {', '.join(sorted(slower))} (`benchmarks/results/{EPYC}/layers.md`).")


# -------------------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("name", PAGES | LESSONS)
def test_the_tables_of_a_page_are_those_of_the_results(name: str) -> None:
    measured = [table for table in cells((PAGES | LESSONS)[name]) if any(re.search(MEASURED, c) for row in table for c in row)]
    table_of_lesson = name in LESSONS and name not in TABLES  # which the lesson computes
    expected = TABLES[name]() if name in TABLES else []
    assert sorted(measured) == sorted(expected) or table_of_lesson, "python docs/_extensions/results.py writes the tables"


def test_tables_are_written_where_they_stand() -> None:
    page = "Now.\n\n| a | b |\n| --- | ---: |\n| old | 1 |\n\n| a | c |\n| --- | --- |\n| x | 2 |\n"
    written = with_tables(page, [[["a", "b"], ["", "3"], ["new", "4"]]])
    assert written == page.replace("| old | 1 |", "| | 3 |\n| new | 4 |")
    assert with_tables(page, []) == page


@pytest.mark.parametrize(("name", "label"), [item for item in STEPS.items() if "GPT" in item[1]])
def test_the_models_of_the_table_are_those_that_were_measured(name: str, label: str) -> None:
    settings = label.partition("GPT, ")[2].removesuffix(" (nanoGPT's settings)")
    assert f"\n{settings}, no dropout; " in read(f"{EPYC}/{name}")


# ----------------------------------------------------------------------------------------------------- what was printed


def printed(beginning: str) -> str:
    """The block of what a program printed that begins so. There is one."""
    (found,) = (block for block in PRINTED if block.startswith(beginning))
    return found


def test_the_character_model_printed_this() -> None:
    parameters = number("char_gpt", r"a small Qwen3 of ([\d,]+) parameters")
    lines = [f"GPT with {parameters:,.0f} parameters on numpy; run folder runs/char_gpt"]
    for step, loss, perplexity, *_ in tables(read("char_gpt"))[0][1:]:
        lines.append(f"step {step:>5}: validation loss {loss}, perplexity {perplexity}")
    told, _, sample = printed("GPT with").partition("\n\n")
    assert told.splitlines() == lines
    assert sample in read("char_gpt/sample.txt")


def test_the_character_model_wrote_this() -> None:
    assert printed("LADY CAPULET") in read("char_gpt/sample.txt")


def test_the_translator_printed_this() -> None:
    share, *dates = printed("greedy: ").splitlines()
    right, of = (number("translate_dates", rf"\| greedy \| {figures} ") for figures in (r"(\d+) of \d+", r"\d+ of (\d+)"))
    assert share == f"greedy: {right:.0f} of {of:.0f} exactly right ({100 * right / of:.2f} %)"
    assert dates
    assert [date for date in dates if date not in read("translate_dates").splitlines()] == []


def test_the_markov_models_printed_this() -> None:
    assert printed("                        the") in read("markov/example.txt")


def test_programs_printed_nothing_else() -> None:
    assert len(PRINTED) == 4


# ----------------------------------------------------------------------------------------------------------- sentences


@pytest.mark.parametrize("sentence", sentences())
def test_a_page_has_the_sentence(sentence: str) -> None:
    assert is_told(sentence)


# What is told in words, or beside other words: on a page, and in the file.
WORDS = [
    ("in about half a minute, on data that it generates", "translate_dates", "it trained in 30 s"),
    ("in about three minutes, and prints its guesses", "fill_mask", "about three minutes of two cores"),
    ("with up to twice as many keys, takes about ten minutes on one core", "dial_tones", "628 s of them computing"),
    ("about three minutes of computing", "algorithms", "2 min 55 s of them computing"),
    ('"I love you very much." is "Ti amo molto."', "translate_tatoeba", "I love you very much. -> Ti amo molto."),
    ("relative to PyTorch 2.13", f"{EPYC}/train_step_A.md", "on AMD EPYC with 2 cores"),
    ("relative to PyTorch 2.13", f"{EPYC}/train_step_A.md", "torch 2.13.0+cpu"),
    ("relative to PyTorch 2.13", f"{XEON}/train_step_A.md", "Xeon(R) Processor with 2 cores"),
    ("relative to PyTorch 2.13", f"{XEON}/train_step_A.md", "torch 2.13.0+cpu"),
]


@pytest.mark.parametrize(("sentence", "name", "source"), WORDS)
def test_words_are_those_of_the_results(sentence: str, name: str, source: str) -> None:
    assert is_told(sentence)
    assert source in in_a_line(read(name))


def test_what_was_measured_are_the_programs_defaults() -> None:
    """A results file of "every setting the default" is about the models that the defaults make now."""
    text = "".join(map(chr, range(65)))
    for flags, pattern in (
        ([], r"a small Qwen3 of ([\d,]+) parameters"),
        (["--recipe", "nanogpt"], r"\| GPT, nanoGPT's settings \| ([\d,]+) \|"),
        (["--architecture", "lstm"], r"\| LSTM, equal steps \| ([\d,]+) \|"),
    ):
        assert parameters_of(flags, text) == number("char_gpt", pattern), flags
    assert abs(cell("markov", "GPT", "loss") - cell("char_gpt", "1500", "seed 1337")) < 0.01
    assert cell("markov", "GPT", "loss") == number("markov/log.txt", r" GPT +([\d.]+) ")


def parameters_of(flags: list[str], text: str) -> int:
    """The parameters of the model that ``tinyformer train gpt`` makes with these flags."""
    chosen = settings_from(TextConfig, vars(parse(["train", *flags])))
    make, kind = ARCHITECTURES[chosen.architecture]
    settings = chosen.defaults()["model"] if kind is GPTConfig else {"cell": chosen.architecture}
    return make(kind(vocab_size=chosen.train_tokenizer(text).vocab_size, **settings)).num_parameters()


def test_times_in_words_are_about_what_was_measured() -> None:
    assert "in a little over a minute on two cores." in PROSE["README.md"]
    shortest, longest = (
        number("char_gpt", rf"A run took {seconds} s in all") for seconds in (r"(\d+) to \d+", r"\d+ to (\d+)")
    )
    assert 60 < shortest <= longest < 80


# Figures of no results file: what was chosen, or stands in papers, or is computed on the page, whose cells assert it.
CHOSEN = (
    "Python 3.10 or later",
    "a speed of 1.24x means that PyTorch takes 1.24 times as long",
    "after a prompt of 8 tokens",
    "PyTorch 2.13",
    "PyTorch 2.11",
    "Numba itself takes about 100 MB of memory",
    "at least 259 tokens",
    "up to 200,000 characters",
    "within 30 seconds",
    "after each 256 tokens",
    "at most 2,048 tokens",
    "at most 8192 tokens",
    "run up to 1.6 times as fast as PyTorch's",
    "after 15 seconds",
    "up to 10 MB takes at most 10 seconds and 1 GB of memory",
    "more than 30 times as large unpacked",
    "larger than 4,096 pixels",
    "of at most 5 MB in all",
    "each of 2 bytes a parameter (0.7 MB for the default model)",
    "(beyond 65,504)",
    "weights of up to 40 MB",
    "the first 32 tokens that the model sees",
    "At most 20,000 tokens are read",
    "of up to 100 tokens",
    "a chain of 20,000 operations",
    "now carries 1.65 of one",
    "carries 0.85 of",
    "the weights 1/16 = 0.063",
    "section 3.3",
    "1.886 is the loss nanoGPT reports",
    "Its loss, 1.52, is about the same",
    "the LSTM loses 29 % of its score, attention 21 %, the Transformer 10 %",
    "first 4,000 steps",
    "a source of 9 tokens",
    "In each sentence 15 % of the tokens",
    "in 80 % of the cases",
    "in 10 % a random token",
    "in 10 % the word itself",
    '"BERT masks 15 % of the tokens."* It chooses 15 %, and masks four fifths of them: 12 % of all.',
    "chosen words of a text, 15 % of them",
    "each of 5 to 15 minutes",
    "keeps *it* (0.55) and *here* (0.45)",
    "*here we* (0.405) and *it starts* (0.22)",
    "with 0.22, and is put aside",
    "with 0.405, and wins",
    "A temperature of 1.5",
    "more than 150,000 characters",
    "GPT-2 has 50,257 tokens",
    "takes 12 tokens above",
)
UNITS = "ms|s|seconds|minutes|MB|GB|million|times|tokens|points|tests|BLEU|of \\d"
MEASURED = rf"\d[\d,]*\.\d+|\d+(?:,\d{{3}})+|\d+ (?:%|(?:{UNITS})\b)"


def unexplained(prose: str) -> list[str]:
    """What looks like a measured figure in the prose, and is in no sentence above, nor in code."""
    for phrase in [*sentences(), *CHOSEN]:
        prose = prose.replace(phrase, "")
    return re.findall(MEASURED, re.sub(r"`[^`]*`", "", prose))


@pytest.mark.parametrize("name", PROSE)
def test_no_figure_is_without_a_source(name: str) -> None:
    assert unexplained(PROSE[name]) == []


def test_a_figure_without_a_source_is_found() -> None:
    more = "It takes 3.5 ms, 12 % more, 20 ms and 3,000 tokens."
    assert unexplained(f"{PROSE['README.md']} {more}") == ["3.5", "12 %", "20 ms", "3,000"]
