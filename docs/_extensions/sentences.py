"""The sentences of the README, the guides and the lessons that tell what was measured, with the figures left out, and where
each figure is from. ``results.py`` writes the figures into them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from results import Sentence, cell, number, read, tables

EPYC, XEON, LATEST_XEON = "amd-epyc", "intel-xeon", "intel-xeon-480mb"
PROCESSORS = {EPYC: "AMD EPYC", XEON: "Intel Xeon (Emerald Rapids)"}  # the names of the folders on pages
GPU = "nvidia-h200"

QUARTILE, MEDIAN = "fastest quartile ms", "median ms"
SIDES = ("PyTorch eager", "PyTorch compiled")
NUMPYS = "tinyformer, NumPy's kernels"
CONFIGURATIONS = ("A", "B", "C", "C_dropout", "D")


def ratios(name: str, column: str) -> list[float]:
    """The time of tinyformer over that of PyTorch, eager and compiled, in a results file."""
    return [cell(name, side, column) for side in SIDES]


def steps(name: str, row: str, column: str) -> list[float]:
    """The cell of each of configurations A to C."""
    return [cell(f"{EPYC}/{name}_{configuration}.md", row, column) for configuration in "ABC"]


def over_pytorch(folder: str) -> list[float]:
    """The time of each configuration's step over that of the faster PyTorch."""
    return [max(ratios(f"{folder}/train_step_{name}.md", "of fastest quartiles")) for name in CONFIGURATIONS]


def products_over(sides: Sequence[str], configuration: str) -> float:
    """The time of tinytensor's own products over that of a step, on the fastest of these sides; of medians."""
    name = f"{EPYC}/train_step_{configuration}.md"
    return cell(name, OWN_PRODUCTS, MEDIAN) / min(cell(name, side, MEDIAN) for side in sides)


def ours(name: str) -> list[float]:
    """Tokens a second: tinyformer's, Hugging Face's, and compiled; of the fastest quartiles, then of medians."""
    sides = ("tinyformer", "Hugging Face", "Hugging Face compiled")
    return [cell(name, side, "tokens/s", after=after) for after in (QUARTILE, MEDIAN) for side in sides]


SECONDS_OF_RUN = number(f"{GPU}/run.md", r"at most 60. It is ([\d.]+)")
SEEDS = ("seed 1337", "seed 1", "seed 2")
ARCHITECTURES = ("lstm", "attention", "transformer")


def by_length(architecture: str, words: str) -> float:
    """The BLEU of an architecture for sentences of so many words, German to English."""
    return cell("translate_multi30k", architecture, words)


def classified() -> list[float]:
    """Of sentences that a classifier was asked: how many % were right from pretrained weights; their number; from scratch."""
    return [
        cell(FILL, "question or statement, from these weights", ""),
        number(FILL, r"The sentences to classify are (\d+)"),
        cell(FILL, "question or statement, from scratch", ""),
    ]


def best_order() -> float:
    """The order of the Markov model with the lowest validation loss."""
    table = next(table for table in tables(read("markov")) if table[0][:2] == ["characters of context", "loss"])
    return min((float(loss), float(order)) for order, loss, *_ in table[1:] if order.isdigit())[1]


def nanogpts_own() -> float:
    """The validation loss that nanoGPT names for its settings for a CPU."""
    return number("char_gpt", r"nanoGPT's own estimate on 20 batches after the same 2000 steps is ([\d.]+\d)")


SPEEDRUN, MARKS = f"{XEON}/speedrun.md", ("1.886", "1.7", "1.6")
RECIPES = ("tinyformer's recipe", "nanoGPT's recipe, PyTorch")


def raced(mark: str, recipe: str, column: str) -> float:
    """A figure of the race of two recipes to a validation loss."""
    return cell(SPEEDRUN, f"{mark}, {recipe}", column)


def times_faster() -> list[float]:
    """The time of nanoGPT's recipe on PyTorch to each mark, over that of tinyformer's."""
    return [raced(mark, RECIPES[1], "mean s") / raced(mark, RECIPES[0], "mean s") for mark in MARKS]


FILL, DATES, HAND = "fill_mask", "translate_dates", f"{EPYC}/by_hand.md"
PRODUCTS = "matrix products alone"
OWN_PRODUCTS = f"{PRODUCTS}, tinytensor"
HALF = "forward and backward of half of A's batch, ms"
ALONE, BESIDE, BOTH = (
    "in one thread",
    "in one thread, beside another process that does the same",
    "both halves, in two threads of one process",
)

RANKS, RANKS_NUMPY = f"{EPYC}/train_step_A_workers_2.md", f"{EPYC}/train_step_A_workers_2_numpy.md"
RANKS_BUSY = f"{EPYC}/train_step_A_busy_1_workers_2.md"
TWO, THREADS = "tinyformer, 2 processes", "tinyformer"

GENERATORS = ("tinyformer", "Hugging Face")
PRETRAINED_GPT2, PRETRAINED_SMOLLM2 = f"{LATEST_XEON}/pretrained_gpt2.md", f"{LATEST_XEON}/pretrained_smollm2.md"


def attacked(script: str, pattern: str) -> float:
    """The number that the pattern's group finds in the row of a script that attacks."""
    (row,) = (line for line in read("promises").splitlines() if line.startswith(f"| `{script}.py"))
    found = re.search(pattern, row)
    assert found, f"{row} has no {pattern}"
    return float(found[1].replace(",", ""))


SENTENCES: list[Sentence] = [
    (
        "SmolLM2's loss on the held-out part falls from {:.2f} to {:.2f} in {:.0f} s; with weights in int8 from {:.2f} to "
        "{:.2f} in {:.0f} s.",
        lambda: [
            cell("fine_tuning", weights, column)
            for weights in ("float32", "int8")
            for column in ("loss before", "loss after", "seconds in all")
        ],
    ),
    (
        "On the Intel Xeon, compiled PyTorch is slightly faster in A: tinyformer runs at {1:.2f}x its speed, and at {0:.2f}x "
        f"the speed of eager PyTorch (`benchmarks/results/{XEON}/train_step_A.md`).",
        lambda: [1 / ratio for ratio in ratios(f"{XEON}/train_step_A.md", "of fastest quartiles")],
    ),
    (
        "The loss on the whole validation split falls from {:.2f} to {:.2f} (`benchmarks/results/char_gpt/`).",
        lambda: [cell("char_gpt", step, "seed 1337") for step in ("0", "1500")],
    ),
    (
        "other seeds end at {:.2f} and {:.2f} (`benchmarks/results/char_gpt/`).",
        lambda: [cell("char_gpt", "1500", "seed 1"), cell("char_gpt", "1500", "seed 2")],
    ),
    (
        "On the test split, the first twentieth of the text, the loss is {:.2f}.",
        lambda: [cell("char_gpt", "test loss", "seed 1337")],
    ),
    (
        "reaches the validation loss of nanoGPT's CPU settings {:.1f} times faster than nanoGPT on PyTorch",
        lambda: times_faster()[:1],
    ),
    (
        "reaches a validation loss of 1.886, the loss nanoGPT reports for its CPU settings, after {:.1f} s of training. "
        "nanoGPT's recipe on PyTorch needs {:.1f} s, so tinyformer is {:.1f}x faster. It reaches 1.7 {:.1f}x faster and 1.6 "
        "{:.1f}x faster",
        lambda: [*(raced("1.886", recipe, "mean s") for recipe in RECIPES), *times_faster()],
    ),
    (
        "A step is slower ({:.0f} ms, compared with {:.0f}),",
        lambda: [raced("1.886", recipe, "ms a step") for recipe in RECIPES],
    ),
    (
        "With these, {:.1f} million parameters and {:.0f} steps end at {:.2f}; nanoGPT itself ends at {:.2f}.",
        lambda: [
            cell(f"{EPYC}/layers.md", "AdamW | A", "shapes") / 1e6,
            number("char_gpt", r"batch 12, (\d+) steps, AdamW"),
            cell("char_gpt", "2000", "seed 1337"),
            nanogpts_own(),
        ],
    ),
    (
        "A larger model with dropout reaches {:.2f} in twenty minutes on two cores ({:.2f} and {:.2f} with other seeds):",
        lambda: [cell("char_gpt", "3500", seed) for seed in ("seed 1337", "seed 1", "seed 2")],
    ),
    (
        "The best validation loss of nanoGPT's GPU configuration is {:.4f}. Twenty minutes on two cores of the AMD EPYC reach "
        "{:.4f} ({:.4f} and {:.4f} with two other seeds)",
        lambda: [
            number("char_gpt", r"best validation loss at ([\d.]+)[.] Seeds"),
            *(cell("char_gpt", "3500", seed) for seed in ("seed 1337", "seed 1", "seed 2")),
        ],
    ),
    (
        "{:.1f} million parameters, {:.0f} steps",
        lambda: [
            number("char_gpt", r"a small Qwen3 of ([\d,]+) parameters") / 1e6,
            number("char_gpt", r"batch 12, (\d+) steps[.]"),
        ],
    ),
    (
        "On {:.0f} held-out dates it gets {:.0f} right (`benchmarks/results/translate_dates`):",
        lambda: [number(DATES, r"(\d+) held-out dates"), cell(DATES, "greedy", "exactly right")],
    ),
    (
        "With beam 5 it reaches {:.1f} BLEU on Multi30k German to English after {:.0f} epochs, {:.1f} on English to German "
        "with {:.1f} million parameters, {:.1f} after a second training on the first model's translations as well, and "
        "{:.1f} and {:.1f} in two runs of Tatoeba's English to Italian",
        lambda: [
            cell("translate_multi30k", "beam 5", "BLEU"),
            number("translate_multi30k", r"batches of 128, (\d+) epochs"),
            cell("translate_multi30k", "beam 5, --length-penalty 2.0", "BLEU of the first"),
            number("translate_multi30k", r"([\d.]+) million parameters"),
            cell("translate_multi30k", "beam 5, --length-penalty 1.5", "BLEU of the second"),
            cell("translate_tatoeba", "beam 5", "BLEU"),
            cell("translate_tatoeba", "0.3 | 48 | 1", "BLEU, beam 5"),
        ],
    ),
    (
        "Tatoeba's {:,.0f} pairs reached {:.1f} BLEU after 20 epochs with a dropout of 0.2, {:.1f} after 24 with 0.3, and "
        "{:.1f} after 48 with 0.3.",
        lambda: [
            number("translate_tatoeba", r"([\d,]+) pairs become"),
            *(cell("translate_tatoeba", row, "BLEU, beam 5") for row in ("0.2 | 20", "0.3 | 24", "0.3 | 48")),
        ],
    ),
    (
        "With {:.0f} characters of context the validation loss is {:.2f}. A GPT reaches, after a minute of training, "
        "{:.2f} (`benchmarks/results/markov/`).",
        lambda: [best_order(), cell("markov", f"{best_order():.0f}", "loss"), cell("markov", "GPT", "loss")],
    ),
    (
        "the best Markov model has {:.0f} characters of context. Its loss is {:.2f}, and that of a GPT of {:.1f} million "
        "weights after a minute of training {:.2f} (",
        lambda: [
            best_order(),
            cell("markov", f"{best_order():.0f}", "loss"),
            number("char_gpt", r"a small Qwen3 of ([\d,]+) parameters") / 1e6,
            cell("markov", "GPT", "loss"),
        ],
    ),
    (
        "a training step runs {:.1f} to {:.1f} times as fast as PyTorch's on two cores of an AMD EPYC, and {:.1f} to {:.1f} "
        "times as fast on an Intel Xeon.",
        lambda: [1 / pick(over_pytorch(folder)) for folder in (EPYC, XEON) for pick in (max, min)],
    ),
    (
        "Both fall from {:.1f}; the validation loss ends at {:.2f}.",
        lambda: [cell("char_gpt", step, "seed 1337") for step in ("0", "1500")],
    ),
    (
        "And seeds make a difference, too: of {:.2f} at the end of the full run.",
        lambda: [max(ends) - min(ends) for ends in [[cell("char_gpt", "2000", seed) for seed in SEEDS]]],
    ),
    (
        "two other seeds gave {:.0f} and {:.0f} % at the distance of 100",
        lambda: [cell("memory", "LSTM", f"{seed}: 100") for seed in SEEDS[1:]],
    ),
    (
        "From sentences of 6 to 10 words to those of 16 to 20, the LSTM loses {:.0f} % of its score, attention {:.0f} %, the "
        "Transformer {:.0f} %.",
        lambda: [100 - 100 * by_length(kind, "16-20") / by_length(kind, "6-10") for kind in ARCHITECTURES],
    ),
    ("{:.1f} % of {:.0f} held-out sentences are right from pretrained weights and {:.1f} % from scratch", classified),
    (
        "transcribes {:.0f} new recordings: {:.1f} % are exactly right without noise, {:.1f} % at {:.0f} dB, and {:.1f} % when "
        "the noise is as strong as the tones (`benchmarks/results/dial_tones/`).",
        lambda: [
            number("dial_tones", r"(\d+) new recordings each"),
            cell("dial_tones", "clean", "exactly right"),
            cell("dial_tones", "10 dB", "exactly right"),
            number("dial_tones", r"\| (\d+) dB \| 98"),
            cell("dial_tones", "0 dB", "exactly right"),
        ],
    ),
    (
        "return the first token {:.2f} s after the program starts; transformers needs {:.2f} s. After that they write {:.1f} "
        "tokens per second (transformers: {:.1f}), and {:.1f} with a model of SmolLM2's size (transformers: {:.1f}). Peak "
        "memory is {:.2f}x and {:.2f}x that of transformers",
        lambda: [
            *(cell(PRETRAINED_GPT2, side, "cold start to first token s") for side in GENERATORS),
            *(cell(PRETRAINED_GPT2, side, "tokens/s") for side in GENERATORS),
            *(cell(PRETRAINED_SMOLLM2, side, "tokens/s") for side in GENERATORS),
            *(
                cell(file, "tinyformer", "peak MB") / cell(file, "Hugging Face", "peak MB")
                for file in (PRETRAINED_GPT2, PRETRAINED_SMOLLM2)
            ),
        ],
    ),
    (
        "because its matrices are transposed in the file: {:.0f} MB of memory not backed by a file, compared with {:.0f} MB",
        lambda: [cell(PRETRAINED_GPT2, side, "own MB") for side in GENERATORS],
    ),
    (
        "With compiled kernels, an epoch of skip-gram is {:.2f}x as fast as gensim's on one core of an AMD EPYC (CBOW: "
        "{:.2f}x). With NumPy's kernels it takes {:.1f} times as long.",
        lambda: [
            *(1 / cell(f"{EPYC}/word2vec_{method}.md", "gensim", "of fastest quartiles") for method in ("skip_gram", "cbow")),
            cell(f"{EPYC}/word2vec_skip_gram.md", NUMPYS, QUARTILE) / cell(f"{EPYC}/word2vec_skip_gram.md", "gensim", QUARTILE),
        ],
    ),
    (
        "the plain LSTM reaches {:.1f} BLEU, with attention {:.1f}, and the Transformer {:.1f}. From sentences of 6 to 10 "
        "words to sentences of 16 to 20, they lose {:.0f}, {:.0f} and {:.0f} % of their score",
        lambda: [
            *(cell("translate_multi30k", kind, "BLEU, beam 5") for kind in ARCHITECTURES),
            *(100 - 100 * by_length(kind, "16-20") / by_length(kind, "6-10") for kind in ARCHITECTURES),
        ],
    ),
    (
        "an LSTM of {:.1f} million parameters, about as many as the GPT with nanoGPT's settings, ends at {:.2f} after the same "
        "number of steps, but at {:.2f} after the same time",
        lambda: [
            cell("char_gpt", "LSTM, equal steps", "parameters") / 1e6,
            *(cell("char_gpt", f"LSTM, equal {what}", "validation loss") for what in ("steps", "time")),
        ],
    ),
    (
        "an LSTM is {:.2f}x as fast as PyTorch's and a GRU {:.2f}x (`benchmarks/results/amd-epyc/recurrent.md`, an AMD EPYC).",
        lambda: [1 / cell(f"{EPYC}/recurrent.md", layer, "ratio of fastest quartiles") for layer in ("LSTM", "GRU")],
    ),
    (
        "recall the first of a sequence of symbols, each one of {:.0f}. After 100 steps the RNN is right for {:.1f} % of "
        "{:.0f} sequences (no better than guessing), the LSTM for {:.1f} %, the GRU and attention for {:.1f} % "
        "(`benchmarks/results/memory/`",
        lambda: [
            number("memory", r"all of them one of (\d+) symbols"),
            cell("memory", "RNN", "100"),
            number("memory", r"of (\d+) new rows each"),
            cell("memory", "LSTM", "100"),
            min(cell("memory", kind, "100") for kind in ("GRU", "attention")),
        ],
    ),
    (
        '"My [MASK], I will obey the king." is *lord* ({:.1f} %), *brother*, *son*.',
        lambda: [number(FILL, r"My \[MASK\], I will obey the king\. lord ([\d.]+) %, brother [\d.]+ %, son ")],
    ),
    (
        "{:.1f} % of {:.0f} held-out sentences are right with the pre-trained weights, {:.1f} % from scratch "
        "(`benchmarks/results/fill_mask/`).",
        classified,
    ),
    (
        "It solved all {:.0f} sorting problems (drawn from {:.0f} held-out ones), all {:.0f} copying problems, and "
        "{:.0f} of {:.0f} two-digit additions",
        lambda: [
            cell("algorithms", "sort six digits of three kinds", "right"),
            number("algorithms", r"\| 5000 of 5000 \(draws from (\d+) held-out problems\) \|"),
            cell("algorithms", "copy ten digits", "right"),
            cell("algorithms", "add two numbers of two digits", "right"),
            number("algorithms", r"\| 1000 of (\d+), and 9000 of 9000 trained on \|"),
        ],
    ),
    (
        "while the machine was slow, half a batch took {:.1f} ms in one thread, and {:.1f} ms next to another process doing "
        "the same. Both halves took {:.1f} ms in two threads of one process, which waited for the lock {:.0f} to {:.0f} times "
        "per step. While the machine was fast, half a batch took {:.1f} ms in one thread, and both halves {:.1f} ms in two.",
        lambda: [
            *(cell(HAND, row, "slow spell") for row in (ALONE, BESIDE, BOTH)),
            *(number(HAND, rf"waited for Python's lock {found} times a step") for found in (r"(\d+) to \d+", r"\d+ to (\d+)")),
            *(cell(HAND, row, "fast spell") for row in (ALONE, BOTH)),
        ],
    ),
    (
        "the matrix products of a step alone ran at {:.0f} to {:.0f} GFLOP/s in OpenBLAS, at {:.0f} to {:.0f} in PyTorch's "
        "MKL, and at {:.0f} to {:.0f} in tinytensor's own kernel.",
        lambda: [
            pick(cell(f"{EPYC}/train_step_{name}.md", side, "GFLOP/s") for name in CONFIGURATIONS)
            for side in (PRODUCTS, f"{PRODUCTS}, PyTorch", OWN_PRODUCTS)
            for pick in (min, max)
        ],
    ),
    (
        "By medians, tinyformer's step reaches {:.2f} (A) to {:.2f} (C) of that last rate, and PyTorch's step {:.2f} to "
        "{:.2f}.",
        lambda: [products_over(side, configuration) for side in (("tinyformer",), SIDES) for configuration in "AC"],
    ),
    ("with no other work, a step of C would be {:.2f}x as fast as PyTorch's.", lambda: [1 / products_over(SIDES, "C")]),
    (
        "On another day OpenBLAS ran at {:.0f} to {:.0f} GFLOP/s, while MKL was no faster. With NumPy's kernels a step was "
        "then {:.2f}x (A), {:.2f}x (B), {:.2f}x (C) and {:.2f}x (D) as fast as PyTorch's",
        lambda: [
            *(cell(HAND, model, "products alone, GFLOP/s") for model in "AD"),
            *(1 / cell(HAND, model, "time over PyTorch's") for model in "ABCD"),
        ],
    ),
    (
        "With one other program running on the two cores, a step of A takes {:.0f} ms. PyTorch takes {:,.0f} ms, or {:,.0f} ms "
        "compiled (medians {:.0f}, {:,.0f} and {:,.0f}; `train_step.py --busy 1`).",
        lambda: [
            cell(f"{EPYC}/train_step_A_busy_1.md", side, column)
            for column in (QUARTILE, MEDIAN)
            for side in ("tinyformer", *SIDES)
        ],
    ),
    (
        "With NumPy's kernels it is {:,.0f} for A and {:,.0f} for C.",
        lambda: [cell(f"{EPYC}/generate_{c}.md", NUMPYS, "tokens/s", after=QUARTILE) for c in "AC"],
    ),
    (
        "configuration A runs at {:,.0f} tokens per second, Hugging Face at {:,.0f} ({:,.0f} with a static cache and "
        "`torch.compile`)",
        lambda: ours(f"{EPYC}/generate_A.md")[:3],
    ),
    (
        "configuration C at {:,.0f}, Hugging Face at {:,.0f} ({:,.0f}). The medians are {:,.0f} and {:,.0f} ({:,.0f}) for A, "
        "and {:,.0f} and {:,.0f} ({:,.0f}) for C.",
        lambda: [*ours(f"{EPYC}/generate_C.md")[:3], *ours(f"{EPYC}/generate_A.md")[3:], *ours(f"{EPYC}/generate_C.md")[3:]],
    ),
    (
        "For C, each token reads {:.0f} MB of weights and takes {:.1f} ms. Reading that much memory on both cores takes about "
        "{:.0f} ms by itself.",
        lambda: [
            6 * 12 * 384**2 * 4 / 1e6,  # of each block four matrices for attention and eight inside, of 4-byte numbers
            cell(f"{EPYC}/generate_C.md", "tinyformer", QUARTILE)
            / number(f"{EPYC}/generate_C.md", r"configuration C: (\d+) tokens"),
            cell(HAND, "reading as much memory as its weights, on both cores", "ms"),
        ],
    ),
    (
        "takes {:.1f} ms in two processes and {:.1f} ms in two threads (medians {:.1f} and {:.1f}); with NumPy's kernels "
        "{:.1f} and {:.1f} ms.",
        lambda: [
            *(cell(RANKS, side, column) for column in (QUARTILE, MEDIAN) for side in (TWO, THREADS)),
            *(cell(RANKS_NUMPY, side, QUARTILE) for side in (TWO, THREADS)),
        ],
    ),
    (
        "Two processes are {:.2f}x as fast as PyTorch, and {:.2f}x as fast as compiled PyTorch (medians {:.2f}x and {:.2f}x).",
        lambda: [
            1 / cell(RANKS, side, column)
            for column in ("of fastest quartiles", "of medians")
            for side in ("PyTorch eager", "PyTorch compiled")
        ],
    ),
    (
        "Next to another program, threads are faster ({:.1f} ms, compared with {:.1f} ms),",
        lambda: [cell(RANKS_BUSY, side, QUARTILE) for side in (THREADS, TWO)],
    ),
    (
        "training step of nanoGPT's `shakespeare_char` is {:.1f} times as fast as with compiled PyTorch.",
        lambda: [1 / cell(f"{GPU}/steps-char.md", "PyTorch compiled, bfloat16", "of medians", table=3)],
    ),
    (
        "takes {:.1f} seconds from the start of the process to its end, in bfloat16 and captured. Its best validation "
        "loss is {:.4f}, at step {:.0f}.",
        lambda: [
            cell(f"{GPU}/run.md", f"{SECONDS_OF_RUN:.1f}", column) for column in ("seconds", "best validation loss", "at step")
        ],
    ),
    (
        "Decoding is slower than Hugging Face's: it takes {:.1f} times as long for one sequence, and {:.1f} times for 64.",
        lambda: [
            number(GPU, r"took tinyformer ([\d.]+) s") / number(GPU, r"and Hugging Face ([\d.]+) s for one"),
            number(GPU, r"for one text, and ([\d.]+) s") / number(GPU, r"s and ([\d.]+) s for 64 texts"),
        ],
    ),
    (
        "Tracing writes {:.2f} times as many tokens a second at A, {:.2f} at C (`generate.py --untraced`).",
        lambda: [
            cell(f"{EPYC}/generate_{c}.md", "tinyformer", "tokens/s", after=QUARTILE)
            / cell(f"{EPYC}/generate_{c}.md", "tinyformer untraced", "tokens/s", after=QUARTILE)
            for c in "AC"
        ],
    ),
    (
        "In {:.0f} tries {:.0f} signals stopped runs, and every run ended correctly. Of {:,.0f} folders with links, pipes, "
        "devices and hard links {:.0f} were rejected, and nothing outside a folder changed. Of {:,.0f} damaged files {:,.0f} "
        "were rejected, and {:,.0f} could be read; the slowest took {:.1f} seconds.",
        lambda: [
            attacked("kill_runs", r"\| (\d+) \| 0 \|"),
            attacked("kill_runs", r"(\d+) signals"),
            attacked("plant_links", r"\| ([\d,]+) \| 0 \|"),
            attacked("plant_links", r"(\d+) refused"),
            *(
                attacked("mutate_files", p)
                for p in (r"\| ([\d,]+) \| 0 \|", r"([\d,]+) refused", r"([\d,]+) could", r"([\d.]+) \|$")
            ),
        ],
    ),
    (
        "(D: {:.2f} of PyTorch's time for both, and no {:.0f} MB of logits)",
        lambda: [
            cell(f"{EPYC}/layers.md", "linear_cross_entropy | D", "ratio of fastest quartiles"),
            128 * 24 * 8000 * 4 / 1e6,  # batch, length and vocabulary, of 4-byte numbers
        ],
    ),
]
