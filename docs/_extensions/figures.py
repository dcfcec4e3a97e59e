"""The tables of the pages that have measured figures, and the few such sentences, made from ``benchmarks/results``."""

from __future__ import annotations

import re
from collections.abc import Callable

from results import Table, cell, cells, number, read, tables

EPYC, XEON, LATEST_XEON, GPU = "amd-epyc", "intel-xeon", "intel-xeon-480mb", "nvidia-h200"
PROCESSORS = {EPYC: "AMD EPYC", XEON: "Intel Xeon (Emerald Rapids)"}  # folders, and how the pages name the processors
QUARTILE, MEDIAN, RATIO = "fastest quartile ms", "median ms", "of fastest quartiles"
SIDES = ("PyTorch eager", "PyTorch compiled")
NUMPYS = "tinyformer, NumPy's kernels"
SEEDS = ("seed 1337", "seed 1", "seed 2")
STEPS = {
    "train_step_A.md": "A: GPT, 4 layers, 4 heads, 128 wide, block 64, batch 12 (nanoGPT's settings)",
    "train_step_B.md": "B: GPT, 6 layers, 6 heads, 192 wide, block 128, batch 16",
    "train_step_C.md": "C: GPT, 6 layers, 6 heads, 384 wide, block 256, batch 8",
    "train_step_C_dropout.md": "C with dropout 0.2",
    "train_step_D.md": "D: encoder-decoder, 3 + 3 layers, 256 wide, batch 128, lengths 24, vocabularies 8000",
}
TRICKS = {  # the rows of lesson 12, and those of the files
    "memory kept": "freed memory given back",
    "shards (products then use both cores)": "batch not cut into shards",
    "layer norm's kernel": "layer norm not fused",
    "gelu's kernel": "gelu not fused",
    "attention's kernel, and heads as views": "attention not fused",
    "any compiled kernel": "no kernel compiled",
}


def ratios(name: str, column: str) -> list[float]:
    """Return the time of tinyformer divided by that of PyTorch, eager and compiled."""
    return [cell(name, side, column) for side in SIDES]


def speed(name: str) -> float:
    """Return the speed of tinyformer relative to the faster PyTorch."""
    return 1 / max(ratios(name, RATIO))


def training_steps(folder: str) -> Table:
    table = [[f"on an {PROCESSORS[folder]}, with compiled kernels", "ms", "speed", "peak memory", "speed with NumPy's kernels"]]
    for file, label in STEPS.items():
        name = f"{folder}/{file}"
        memory = cell(name, "tinyformer", "peak MB") / min(cell(name, side, "peak MB") for side in SIDES)
        numpys = min(cell(name, side, QUARTILE) for side in SIDES) / cell(name, NUMPYS, QUARTILE)
        label = label if folder == EPYC else label.partition(":")[0]
        row = [
            label,
            f"{cell(name, 'tinyformer', QUARTILE):.3g}",
            f"{speed(name):.2f}x ({1 / max(ratios(name, 'of medians')):.2f}x)",
        ]
        table.append([*row, f"{memory:.2f}x", f"{numpys:.2f}x"])
    return table


def training_speeds() -> Table:
    table = [["", *(f"on an {name}" for name in PROCESSORS.values())]]
    for file, label in STEPS.items():
        short = re.sub(r", \d heads|, batch \d.*| \(.*|, lengths.*", "", label)
        table.append([short, *(f"{speed(f'{folder}/{file}'):.2f}x" for folder in PROCESSORS)])
    return table


def time_to_loss() -> Table:
    table = [["validation loss", "tinyformer's recipe, s", "nanoGPT's recipe on PyTorch, s", "speed"]]
    for mark in ("1.886", "1.7", "1.6"):
        ours, theirs = (
            cell(f"{XEON}/speedrun.md", f"{mark}, {recipe}", "mean s")
            for recipe in ("tinyformer's recipe", "nanoGPT's recipe, PyTorch")
        )
        table.append([mark, f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.1f}x"])
    return table


def busy_steps() -> Table:
    sides = ("tinyformer", *SIDES)
    file = f"{EPYC}/train_step_A_busy_1.md"
    head = ["ms per step of A, next to another program", *sides]
    return [head, *([c.removesuffix(" ms"), *(f"{cell(file, side, c):,.0f}" for side in sides)] for c in (QUARTILE, MEDIAN))]


def decoding() -> Table:
    sides = ("tinyformer", NUMPYS, "Hugging Face", "Hugging Face compiled")
    rows = [[c, *(f"{cell(f'{EPYC}/generate_{c}.md', s, 'tokens/s', after=QUARTILE):,.0f}" for s in sides)] for c in "AC"]
    return [["tokens per second, AMD EPYC", *sides], *rows]


def cold_start() -> Table:
    columns = ("cold start to first token s", "tokens/s", "peak MB")
    rows = []
    for model, label in (("gpt2", "GPT-2's size"), ("smollm2", "SmolLM2's size")):
        for side in ("tinyformer", "Hugging Face"):
            seconds, rate, memory = (cell(f"{LATEST_XEON}/pretrained_{model}.md", side, column) for column in columns)
            rows.append([f"{label}, {side}", f"{seconds:.2f}", f"{rate:.1f}", f"{memory:.0f}"])
    return [["from a cold start, Intel Xeon", "first token, s", "tokens per second", "peak MB"], *rows]


def others() -> Table:
    """Return the speeds of word vectors and recurrent layers."""
    rows = []
    for label, peer, name, row, column in (
        ("skip-gram, an epoch on one core", "gensim", "word2vec_skip_gram.md", "gensim", RATIO),
        ("CBOW, an epoch on one core", "gensim", "word2vec_cbow.md", "gensim", RATIO),
        ("LSTM, forward and backward", "PyTorch", "recurrent.md", "LSTM", "ratio of fastest quartiles"),
        ("GRU, forward and backward", "PyTorch", "recurrent.md", "GRU", "ratio of fastest quartiles"),
    ):
        rows.append([label, peer, f"{1 / cell(f'{EPYC}/{name}', row, column):.2f}x"])
    return [["on an AMD EPYC, with compiled kernels", "compared with", "speed"], *rows]


def first_column(name: str, index: int) -> dict[str, str]:
    """Return a column of the first table of a results file by the rows' first cells, in whole numbers."""
    return {row[0]: f"{float(row[index].replace(',', '')):,.0f}" for row in tables(read(f"{LATEST_XEON}/{name}.md"))[0][1:]}


WEIGHTS = ("float32", "bfloat16", "int8", "int4")


def tokens_per_second() -> Table:
    sides = ("tinyformer", "CTranslate2", "Hugging Face", "llama.cpp")
    table = [["tokens per second", *sides]]
    for task, index in (("", 5), (", prompt of 512", 4)):
        for name, label in (("gpt2", "GPT-2's size"), ("smollm2", "SmolLM2's size")):
            rates = first_column(f"pretrained_{name}{'_prompt' if task else ''}", index)
            for dtype in WEIGHTS:
                names = [side if dtype == "float32" else f"{side}, {dtype}" for side in sides]
                table.append([f"{label}{task}, {dtype}", *(rates.get(name, "") for name in names)])
    return table


def accuracy() -> Table:
    language, sentences = ({row[0]: row[1:] for row in table[1:]} for table in tables(read(f"{LATEST_XEON}/fewer_bits.md")))
    rates = first_column("pretrained_smollm2", 5)
    head = ["weights", "KL from float32, mean", "99 % of KL", "perplexity", "other next token"]
    table = [[*head, "MiniLM: same nearest line", "tokens/s, SmolLM2's size"]]
    labels = [(d, f"tinyformer, {d}", "tinyformer" if d == "float32" else f"tinyformer, {d}") for d in WEIGHTS]
    for label, row, side in (("Q4_1", "the same file (Q4_1)", ", int4"), ("Q8_0", "Q8_0", ", int8"), ("F32", "F32", "")):
        labels.append((f"llama.cpp, {label}", f"llama.cpp, {row}", f"llama.cpp{side}"))
    for label, row, side in labels:
        perplexity, _, mean, most, other, _ = language[row]
        nearest = sentences[label][2] if label in sentences else ""
        table.append([label, mean.lstrip("-"), most, perplexity, other, nearest, rates[side]])
    return table


def gpu_steps() -> Table:
    files = [f"{GPU}/steps-{model}.md" for model in ("char", "gpt2")]
    sides = [row[0] for row in tables(read(files[0]))[0][1:]]
    rows = [[side, *(f"{cell(file, side, MEDIAN):.2f}" for file in files)] for side in sides]
    return [["", "`shakespeare_char`", "GPT-2 124M, batch 8"], *rows]


def processes() -> Table:
    table = [["ms per step, AMD EPYC", "two processes", "two threads"]]
    for label, file in (
        ("compiled kernels", "train_step_A_workers_2.md"),
        ("NumPy's kernels", "train_step_A_workers_2_numpy.md"),
        ("compiled kernels, next to another program", "train_step_A_busy_1_workers_2.md"),
    ):
        table.append(
            [label, *(f"{cell(f'{EPYC}/{file}', s, QUARTILE):.1f}" for s in ("tinyformer, 2 processes", "tinyformer"))]
        )
    return table


def character_losses() -> Table:
    """Return the last validation losses of each seed."""
    table = [["model", "parameters", "steps", *SEEDS]]
    for label, size, steps in (
        ("default", number("char_gpt", r"a small Qwen3 of ([\d,]+) parameters"), "1500"),
        ("`--recipe nanogpt`", cell("char_gpt", "GPT, nanoGPT's settings", "parameters"), "2000"),
        ("twenty minutes (below)", number("char_gpt", r"the default with ([\d,]+) parameters"), "3500"),
    ):
        table.append([label, f"{size:,.0f}", steps, *(f"{cell('char_gpt', steps, seed):.2f}" for seed in SEEDS)])
    return table


def translators() -> Table:
    name, columns = "translate_multi30k", ("BLEU, beam 5", "6-10", "16-20")
    rows = [[row, *(f"{cell(name, row, c):.1f}" for c in columns)] for row in ("lstm", "attention", "transformer")]
    return [["BLEU, German to English", "all sentences", "6 to 10 words", "16 to 20 words"], *rows]


def translations() -> Table:
    table, multi30k, tatoeba = [["pairs", "BLEU, beam 5"]], "translate_multi30k", "translate_tatoeba"
    for label, name, row, column in (
        ("Multi30k, German to English, 10 epochs", multi30k, "beam 5", "BLEU"),
        ("Multi30k, English to German", multi30k, "beam 5, --length-penalty 2.0", "BLEU of the first"),
        ("the same, with the first model's translations", multi30k, "beam 5, --length-penalty 1.5", "BLEU of the second"),
        ("Tatoeba, English to Italian, 20 epochs, `--dropout 0.2`", tatoeba, "0.2 | 20", "BLEU, beam 5"),
        ("Tatoeba, English to Italian, 24 epochs, `--dropout 0.3`", tatoeba, "0.3 | 24", "BLEU, beam 5"),
        ("Tatoeba, English to Italian, 48 epochs, `--dropout 0.3`", tatoeba, "0.3 | 48", "BLEU, beam 5"),
    ):
        table.append([label, f"{cell(name, row, column):.1f}"])
    return table


def remembered() -> Table:
    models, distances = ("RNN", "LSTM", "GRU", "attention"), ("1", "10", "100")
    rows = [[model, *(f"{cell('memory', model, distance):.1f}" for distance in distances)] for model in models]
    return [["% right after", "1 step", "10 steps", "100 steps"], *rows]


def without_tricks() -> Table:
    table = [["without, on an AMD EPYC", "A", "C"]]
    for label, row in TRICKS.items():
        table.append([label, *(f"{cell(f'{EPYC}/tricks_{c}.md', row, 'ratio of fastest quartiles'):.2f}" for c in "AC")])
    rates = [
        [cell(f"{EPYC}/generate_{c}.md", side, "tokens/s", after=QUARTILE) for side in ("tinyformer", "tinyformer untraced")]
        for c in "AC"
    ]
    return [*table, ["traces (time per generated token)", *(f"{traced / untraced:.2f}" for traced, untraced in rates)]]


TABLES: dict[str, Callable[[], list[Table]]] = {  # by page
    "README.md": lambda: [training_speeds()],
    "docs/guides/commands.md": lambda: [character_losses(), translators()],
    "docs/guides/examples.md": lambda: [cells(read("dial_tones"))[0], remembered()],
    "docs/guides/fine_tuning.md": lambda: [cells(read("fine_tuning"))[0]],
    "docs/guides/gpu.md": lambda: [gpu_steps()],
    "docs/guides/own_pairs.md": lambda: [translations()],
    "docs/guides/pretrained.md": lambda: [accuracy()],
    "docs/guides/promises.md": lambda: [cells(read("promises"))[0]],
    "docs/guides/several_cores.md": lambda: [processes()],
    "docs/guides/speed.md": lambda: [
        *map(training_steps, PROCESSORS),
        *(make() for make in (time_to_loss, busy_steps, decoding, cold_start, tokens_per_second, others)),
    ],
    "docs/lessons/12_fast.md": lambda: [without_tricks()],
}


def sentences() -> list[str]:
    """Return the phrases of the pages that have measured figures."""
    start, end = (cell("char_gpt", step, SEEDS[0]) for step in ("0", "1500"))
    faster, *_ = (row[-1].rstrip("x") for row in time_to_loss()[1:])
    captured = 1 / cell(f"{GPU}/steps-char.md", "PyTorch compiled, bfloat16", "of medians", table=3)
    run = f"{number(f'{GPU}/run.md', r'at most 60. It is ([0-9.]+)'):.1f}"
    one, many = (
        number(GPU, rf"{ours} ([\d.]+) s") / number(GPU, rf"{theirs} ([\d.]+) s for {batch}")
        for ours, theirs, batch in (("took tinyformer", "and Hugging Face", "one"), ("for one text, and", "s and", "64 texts"))
    )
    speeds = [[float(cell.rstrip("x")) for cell in column] for column in list(zip(*training_speeds()[1:]))[1:]]
    (epyc_low, epyc_high), (xeon_low, xeon_high) = ((min(column), max(column)) for column in speeds)
    markov, gpt = (cell("markov", row, "loss") for row in ("6", "GPT"))
    right, scratch = (cell("fill_mask", f"question or statement, from {row}", "") for row in ("these weights", "scratch"))
    return [
        f"The loss on the whole validation split falls from {start:.2f} to {end:.2f}",
        f"Both fall from {start:.1f}; the validation loss ends at {end:.2f}.",
        f"reaches the validation loss of nanoGPT's CPU settings {faster} times faster than nanoGPT on PyTorch",
        f"training step of nanoGPT's `shakespeare_char` is {captured:.1f} times as fast as with compiled PyTorch.",
        f"a training step runs {epyc_low:.1f} to {epyc_high:.1f} times as fast as PyTorch's on two cores of an AMD EPYC, and "
        f"{xeon_low:.1f} to {xeon_high:.1f} times as fast on an Intel Xeon.",
        f"nanoGPT's run of 5000 steps takes {cell(f'{GPU}/run.md', run, 'seconds'):.1f} seconds in all",
        f"Hugging Face decodes {one:.1f} times as fast for one sequence, and {many:.1f} times for 64.",
        f"With 6 characters of context the validation loss is {markov:.2f}. After a minute of training a GPT reaches {gpt:.2f}",
        f"{right:.1f} % of the held-out sentences are right with the pre-trained weights, {scratch:.1f} % from scratch",
    ]
