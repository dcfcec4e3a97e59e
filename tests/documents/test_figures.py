"""Every figure that the README, the front page, the guides and the lessons tell of a measurement is that of its results file.

Their sentences are listed in docs/_extensions/sentences.py, and the site is built with the figures that the files have then.
Here the pages' own text must have them, too, and so must their tables and what programs printed. A figure that none of that
accounts for is an error: it stands there by hand. (A lesson also computes figures in front of the reader, and its cells assert
what its sentences say of them: those are listed.) Timings are kept by processor.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pages
import pytest
from pages import LESSONS, PAGES, in_a_line
from results import RESULTS, Sentence, cell, number, pattern_of, read, tables, up_to_date
from sentences import EPYC, GPU, LATEST_XEON, MEDIAN, NUMPYS, QUARTILE, SENTENCES, SIDES, XEON, ratios

from tinyformer import GPTConfig
from tinyformer.common.settings import settings_from
from tinyformer.programs.gpt import TextConfig, parse
from tinyformer.tasks.language import ARCHITECTURES

PRINTED = [block for page in PAGES.values() for block in pages.blocks(page, "text")]
PROSE = {name: pages.prose(page) for name, page in (PAGES | LESSONS).items()}
PROCESSORS = {EPYC: "AMD EPYC", XEON: "Intel Xeon (Emerald Rapids)"}  # the names of the folders on pages


def is_told(sentence: str) -> bool:
    """Whether a page says this, word for word."""
    return any(sentence in prose for prose in PROSE.values())


# ---------------------------------------------------------------------------------------------------------- processors

WITH_SPEEDS = ("README.md", "docs/guides/speed.md")  # the pages that tell how fast it is


def kernels(name: str) -> str:
    """Which kernels a results file is about, in the pages' words."""
    return "compiled kernels" if ", kernels: numba, " in read(name) else "NumPy's kernels"


def test_every_processor_with_results_is_named() -> None:
    assert {path.parent.name for path in RESULTS.glob("*/*.md") if path.name != "README.md"} == {*PROCESSORS, LATEST_XEON, GPU}
    assert [name for name in PROCESSORS.values() for page in WITH_SPEEDS if f"on an {name}" not in PAGES[page]] == []


def test_where_pytorch_is_faster_on_the_other_processor() -> None:
    slower = [label for name, label in STEPS.items() if max(ratios(f"{XEON}/{name}", "of fastest quartiles")) > 1]
    assert [label[0] for label in slower] == ["A"]
    eager, compiled = ratios(f"{XEON}/train_step_A.md", "of fastest quartiles")
    assert eager < 1 < compiled
    assert is_told("On the Intel Xeon, compiled PyTorch is slightly faster in A: tinyformer runs at")


def test_the_single_ops_that_pytorch_computes_faster() -> None:
    slower = {op for op, *_, fastest, _ in tables(read(f"{EPYC}/layers.md"))[0][1:] if float(fastest) > 1}
    assert is_told(f"PyTorch is faster in {', '.join(sorted(slower))} (`benchmarks/results/{EPYC}/layers.md`).")


# -------------------------------------------------------------------------------------------------------------- tables

MEMORY = "peak MB"
STEPS = {  # the pages' names of what the files are about
    "train_step_A.md": "A: GPT, 4 layers, 4 heads, 128 wide, block 64, batch 12 (nanoGPT's settings)",
    "train_step_B.md": "B: GPT, 6 layers, 6 heads, 192 wide, block 128, batch 16",
    "train_step_C.md": "C: GPT, 6 layers, 6 heads, 384 wide, block 256, batch 8",
    "train_step_C_dropout.md": "C with dropout 0.2",
    "train_step_D.md": "D: encoder-decoder, 3 + 3 layers, 256 wide, batch 128, lengths 24, vocabularies 8000",
}


def step_row(name: str, label: str) -> list[str]:
    """A model's row in the table of training steps: over the better of PyTorch's two sides, whichever it is."""
    time, medians = (max(ratios(name, column)) for column in ("of fastest quartiles", "of medians"))
    memory = cell(name, "tinyformer", MEMORY) / min(cell(name, side, MEMORY) for side in SIDES)
    row = [label, f"{cell(name, 'tinyformer', QUARTILE):.3g}", f"{1 / time:.2f}x ({1 / medians:.2f}x)", f"{memory:.2f}x"]
    if kernels(name) == "compiled kernels":
        row.append(f"{min(cell(name, side, QUARTILE) for side in SIDES) / cell(name, NUMPYS, QUARTILE):.2f}x")
    return row


def speeds(folder: str) -> list[list[str]]:
    """The table of the training steps that were measured on a processor."""
    rows = [step_row(f"{folder}/{name}", label) for name, label in STEPS.items()]
    (which,) = {kernels(f"{folder}/{name}") for name in STEPS}
    head = [f"on an {PROCESSORS[folder]}, with {which}", "ms", "speed", "peak memory", "speed with NumPy's kernels"]
    return [head[: len(rows[0])], *rows]


def in_short() -> list[list[str]]:
    """The table of the same models that gives only the speed on each processor."""
    rows = []
    for name, label in STEPS.items():
        short = re.sub(r", \d heads|, batch \d.*| \(.*|, lengths.*", "", label)
        worst = [max(ratios(f"{folder}/{name}", "of fastest quartiles")) for folder in PROCESSORS]
        rows.append([short, *(f"{1 / ratio:.2f}x" for ratio in worst)])
    return [["", *(f"on an {name}" for name in PROCESSORS.values())], *rows]


TRICKS = {  # the lesson's names of the files' rows
    "memory kept": "freed memory given back",
    "shards (products then use both cores)": "batch not cut into shards",
    "layer norm's kernel": "layer norm not fused",
    "gelu's kernel": "gelu not fused",
    "attention's kernel, and heads as views": "attention not fused",
    "any compiled kernel": "no kernel compiled",
}


def ratio(configuration: str, row: str) -> str:
    """The time of a step without a trick over that of one with all."""
    return f"{cell(f'{EPYC}/tricks_{configuration}.md', row, 'ratio of fastest quartiles'):.2f}"


def test_the_tables_are_those_of_the_results() -> None:
    measured = [speeds(folder) for folder in PROCESSORS if (RESULTS / folder / "train_step_A.md").exists()]
    without = [["without, on an AMD EPYC", "A", "C"], *([k, ratio("A", v), ratio("C", v)] for k, v in TRICKS.items())]
    assert [figures_in(PAGES[name]) for name in WITH_SPEEDS] == [[in_short()], [*measured, tokens_a_second()]]
    assert {name: figures_in(PAGES[name]) for name in PAGES if name not in WITH_SPEEDS and figures_in(PAGES[name])} == {
        ON_A_GPU: [gpu_steps()],
        "docs/guides/fine_tuning.md": tables(read("fine_tuning"))[:1],
        "docs/guides/pretrained.md": [accuracy()],
    }
    assert without in tables(LESSONS["docs/lessons/12_fast.md"])


WEIGHTS = ("float32", "bfloat16", "int8", "int4")


def column(name: str, index: int) -> dict[str, str]:
    """A column of the first table of a results file, by the first cells of its rows, in whole numbers."""
    return {row[0]: f"{float(row[index].replace(',', '')):,.0f}" for row in tables(read(f"{LATEST_XEON}/{name}.md"))[0][1:]}


def tokens_a_second() -> list[list[str]]:
    """The table of generation and of prompts: of cold starts the fifth column, of prompts the fastest quartiles."""
    sides = ("tinyformer", "CTranslate2", "Hugging Face", "llama.cpp")
    rows = [["tokens per second", *sides]]
    for task, index in (("", 5), (", prompt of 512", 4)):
        for name, label in (("gpt2", "GPT-2's size"), ("smollm2", "SmolLM2's size")):
            speed = column(f"pretrained_{name}{'_prompt' if task else ''}", index)
            for dtype in WEIGHTS:
                names = [side if dtype == "float32" else f"{side}, {dtype}" for side in sides]
                rows.append([f"{label}{task}, {dtype}", *(speed.get(name, "") for name in names)])
    return rows


def accuracy() -> list[list[str]]:
    """The table of the accuracy of low-precision weights, with the speed of SmolLM2's size."""
    language, sentences = ({row[0]: row[1:] for row in table[1:]} for table in tables(read(f"{LATEST_XEON}/fewer_bits.md")))
    speed = column("pretrained_smollm2", 5)
    head = ["weights", "KL from float32, mean", "99 % of KL", "perplexity", "other next token"]
    rows = [[*head, "MiniLM: same nearest line", "tokens/s, SmolLM2's size"]]
    others = [("Q4_1", "the same file (Q4_1)", ", int4"), ("Q8_0", "Q8_0", ", int8"), ("F32", "F32", "")]
    labels = [(d, f"tinyformer, {d}", "tinyformer" if d == "float32" else f"tinyformer, {d}") for d in WEIGHTS]
    labels += [(f"llama.cpp, {label}", f"llama.cpp, {row}", f"llama.cpp{side}") for label, row, side in others]
    for label, row, side in labels:
        perplexity, _, mean, most, other, _ = language[row]
        nearest = sentences[label][2] if label in sentences else ""
        rows.append([label, mean.lstrip("-"), most, perplexity, other, nearest, speed[side]])
    return rows


ON_A_GPU = "docs/guides/gpu.md"


def gpu_steps() -> list[list[str]]:
    """The table of the training steps that were measured on a GPU."""
    files = [f"{GPU}/steps-{model}.md" for model in ("char", "gpt2")]
    sides = [cells[0] for cells in tables(read(files[0]))[0][1:]]
    rows = [[side, *(f"{cell(file, side, MEDIAN):.2f}" for file in files)] for side in sides]
    return [["", "shakespeare_char", "GPT-2 124M, batch 8"], *rows]


def figures_in(page: str) -> list[list[list[str]]]:
    """The tables of a page that have a measured figure."""
    return [table for table in tables(page) if any(re.search(MEASURED, cell) for row in table for cell in row)]


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


@pytest.mark.parametrize("name", PROSE)
def test_a_page_has_the_figures_of_the_results(name: str) -> None:
    page = (PAGES | LESSONS)[name]
    assert up_to_date(page, SENTENCES) == page, "python docs/_extensions/results.py writes them"


@pytest.mark.parametrize(("sentence", "figures"), SENTENCES, ids=[sentence[:40] for sentence, _ in SENTENCES])
def test_a_sentence_is_told(sentence: str, figures: Callable[[], list[float]]) -> None:
    assert is_told(sentence.format(*figures()))


def test_figures_are_renewed_where_they_stand() -> None:
    told: list[Sentence] = [
        ("It takes {:.2f} s, {:.0f} % of\u00a0{:,.0f}.", lambda: [1.5, 12.0, 3000.0]),
        ("{1:.1f}, not {0:.1f}", lambda: [1.0, 2.0]),
    ]
    text = "Now. It takes 9.87\n  s, 5 % of\u00a02,999. And 3, not 4.5 in 1.50 s."
    assert up_to_date(text, told) == "Now. It takes 1.50\n  s, 12 % of\u00a03,000. And 2.0, not 1.0 in 1.50 s."
    assert up_to_date("It takes no time.", told) == "It takes no time."
    assert re.fullmatch(pattern_of(told[0][0]), "It takes 1 s, 2 % of\u00a03.") is not None


# What is told in words, or beside other words: on a page, and in the file.
WORDS = [
    ("in about half a minute, on data that it generates", "translate_dates", "it trained in 30 s"),
    ("in about three minutes, and prints its guesses", "fill_mask", "about three minutes of two cores"),
    ("with up to twice as many keys, takes about ten minutes on one core", "dial_tones", "628 s of them computing"),
    ("about three minutes of computing", "algorithms", "2 min 55 s of them computing"),
    ('"I love you very much." is "Ti amo molto."', "translate_tatoeba", "I love you very much. -> Ti amo molto."),
    ("next to PyTorch 2.13 on the same two cores", f"{EPYC}/train_step_A.md", "on AMD EPYC with 2 cores"),
    ("next to PyTorch 2.13 on the same two cores", f"{EPYC}/train_step_A.md", "torch 2.13.0+cpu"),
    ("next to PyTorch 2.13 on the same two cores", f"{XEON}/train_step_A.md", "Xeon(R) Processor with 2 cores"),
    ("next to PyTorch 2.13 on the same two cores", f"{XEON}/train_step_A.md", "torch 2.13.0+cpu"),
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
    "a text of 1.1 million characters",
    "now carries 1.65 of one",
    "carries 0.85 of",
    "the weights 1/16 = 0.063",
    "section 3.3",
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
    known = [sentence.format(*figures()) for sentence, figures in SENTENCES]
    for phrase in [*known, *CHOSEN]:
        prose = prose.replace(phrase, "")
    return re.findall(MEASURED, re.sub(r"`[^`]*`", "", prose))


@pytest.mark.parametrize("name", PROSE)
def test_no_figure_is_without_a_source(name: str) -> None:
    assert unexplained(PROSE[name]) == []


def test_a_figure_without_a_source_is_found() -> None:
    more = "It takes 3.5 ms, 12 % more, 20 ms and 3,000 tokens."
    assert unexplained(f"{PROSE['README.md']} {more}") == ["3.5", "12 %", "20 ms", "3,000"]
