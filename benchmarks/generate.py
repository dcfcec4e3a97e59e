"""Greedy decoding with a key-value cache: tinyformer's GPT beside Hugging Face's transformers and CTranslate2.

python benchmarks/generate.py                        # configuration A, one prompt of 8 tokens, until the context is full
python benchmarks/generate.py --configuration C --compile --untraced --output benchmarks/results
python benchmarks/generate.py --pretrained gpt2      # from a cold start: a folder of GPT-2's size, 124 million parameters
python benchmarks/generate.py --pretrained gpt2 --task batch_8     # the same model after loading: a batch of eight

All sides read the same weights from a folder, and those in float32 must write the same tokens, except for near ties. The
weights are random, which does not change the time of a token. Conversions for CTranslate2 are made before anything is timed. If
llama-cpp-python and gguf are installed, llama.cpp runs the pretrained models, too.

For a configuration, the time includes the prompt and the complete continuation. Hugging Face runs as users run it: ``generate``
with its default cache, which grows with the text. ``--compile`` adds a compiled model with a fixed-size cache, and
``--untraced`` tinyformer without ``tt.trace``.

With ``--pretrained``, each turn starts a new process for each side. It imports the library, loads the folder, writes one token
after a prompt of 8, and then 128 tokens from the same prompt. "Own memory" is anonymous memory at the end; other pages belong
to files, which the system may drop and read again. With a ``--task`` the sides stay loaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import measure
from configurations import GPTS
from measure import Side, SideError, TorchSide, Worker, status

OURS, THEIRS, CT2, LLAMA = "tinyformer", "Hugging Face", "CTranslate2", "llama.cpp"
PACKAGES = ("numpy", "torch", "transformers", "ctranslate2")
PRETRAINED: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 50257, "block_size": 1024, "num_layers": 12, "num_heads": 12, "d_model": 768, "bias": True},
    "smollm2": {
        **{"vocab_size": 49152, "block_size": 8192, "num_layers": 30, "num_heads": 9, "num_key_value_heads": 3, "d_model": 576},
        **{"d_ff": 1536, "positions": "rotary", "rotary_base": 1e5, "norm": "rms", "activation": "swiglu"},
    },
}
GGUF_SETTINGS = {  # from most configurations' names to GPT-2's
    **{"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"},
    **{"max_position_embeddings": "n_positions", "intermediate_size": "n_inner"},
}
TASKS = {"prompt": (1, 512, 1), "batch_8": (8, 8, 64), "batch_32": (32, 8, 64)}  # batch, prompt length, new tokens


@dataclass(frozen=True)
class Task:
    """The work of every side: continue ``batch`` prompts of ``prompt_length`` tokens by ``new_tokens`` tokens each, with the
    model in a folder."""

    folder: str
    batch: int = 1
    prompt_length: int = 8
    new_tokens: int = 128
    unit: ClassVar[str] = "tokens"

    def inputs(self) -> list[list[int]]:
        """Return random ids of shape (batch, prompt_length), the same on every call."""
        import numpy

        return numpy.random.default_rng(0).integers(0, vocab_size(self.folder) - 1, (self.batch, self.prompt_length)).tolist()

    def amount(self) -> int:
        """Return the number of new tokens, or of prompt tokens if only one token is written."""
        return self.batch * (self.prompt_length if self.new_tokens == 1 else self.new_tokens)

    def described(self) -> str:
        """Describe the task for a title."""
        return f"{measure.counted(self.new_tokens, 'token')} after a prompt of {self.prompt_length}, batch {self.batch}"


def vocab_size(folder: str) -> int:
    """Return the vocabulary size of the model in a folder."""
    return int(json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))["vocab_size"])


def noisy(make: Callable[[], Any]) -> Any:
    """Make a model with noise on every weight, the same on every call. Without noise, zero biases and unit norms would hide
    mistakes in copying them, and texts would not vary."""
    import tinytensor as tt

    tt.seed(0)
    model = make()
    for parameter in model.parameters():
        parameter.assign(parameter + tt.random.normal(parameter.shape, std=0.05))
    return model


def convert(folder: str, dtype: str) -> None:
    """Convert the model in a folder for CTranslate2."""
    from ctranslate2.converters import TransformersConverter

    # The folder has no tokenizer: tokens are named by their ids, and the last is the padding, as in Marian.
    last = vocab_size(folder) - 1
    vocabulary = {**{str(i): i for i in range(last)}, "<pad>": last}
    converter = TransformersConverter(folder)
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "0")
    converter.load_tokenizer = lambda *_, **__: SimpleNamespace(get_vocab=lambda: vocabulary, **special)
    converter.convert(f"{folder}/{dtype}", quantization=None if dtype == "float32" else dtype)


def convert_to_gguf(folder: str, dtype: str) -> None:
    """Convert the GPT-2 or Llama in a folder for llama.cpp: int8 as Q8_0, int4 as Q4_1 with embeddings in Q8_0."""
    gguf = importlib.import_module("gguf")
    from safetensors.numpy import load_file

    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    architecture = gguf.MODEL_ARCH.LLAMA if config["model_type"] == "llama" else gguf.MODEL_ARCH.GPT2
    read = {name: config.get(name, config.get(other)) for name, other in GGUF_SETTINGS.items()}
    heads = read["num_attention_heads"]
    writer = gguf.GGUFWriter(f"{folder}/{dtype}.gguf", gguf.MODEL_ARCH_NAMES[architecture])
    add_settings(writer, config, read)
    names = gguf.get_tensor_name_map(architecture, read["num_hidden_layers"])
    for name, values in load_file(f"{folder}/model.safetensors").items():
        if name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight")):
            values = values.T
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp rotates neighbors, not halves
            count = heads if "q_proj" in name else config["num_key_value_heads"]
            values = values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        types = gguf.GGMLQuantizationType
        block_type = None if values.ndim < 2 or "wpe" in name else {"int8": types.Q8_0, "int4": types.Q4_1}.get(dtype)
        block_type = types.Q8_0 if block_type is not None and ("wte" in name or "embed" in name) else block_type
        values = values.copy() if block_type is None else gguf.quants.quantize(values, block_type)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), values, raw_dtype=block_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_settings(writer: Any, config: dict[str, Any], read: dict[str, Any]) -> None:
    """Write the settings of a config.json to GGUF. ``read`` holds those of ``GGUF_SETTINGS``."""
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(read["max_position_embeddings"])
    writer.add_embedding_length(read["hidden_size"])
    writer.add_block_count(read["num_hidden_layers"])
    writer.add_feed_forward_length(read["intermediate_size"] or 4 * read["hidden_size"])
    writer.add_head_count(read["num_attention_heads"])
    if config["model_type"] == "llama":
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
        writer.add_rope_dimension_count(read["hidden_size"] // read["num_attention_heads"])
    else:
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def gpt(settings: dict[str, Any]) -> Any:
    """Return a GPT with noise on every weight."""
    from tinyformer import GPT, GPTConfig

    return noisy(lambda: GPT(GPTConfig(**settings)))


@contextmanager
def folder_with(model: Any, *dtypes: str, with_llama: bool = False) -> Iterator[str]:
    """Yield a temporary folder with this model, CTranslate2's conversions in folders named after ``dtypes``, and llama.cpp's if
    ``with_llama``."""
    from tinyformer import save_pretrained

    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        for dtype in dtypes:
            convert(folder, dtype)
        for dtype in ("float32", "int8", "int4") if with_llama else ():
            convert_to_gguf(folder, dtype)
        yield folder


class Writer(Side):
    """A side that loads the model of a task, and records the seconds of importing and loading."""

    start: Callable[[], None]  # imports the library
    load: Callable[[], None]  # loads the model from the task's folder
    write: Callable[[Any, int], list[list[int]]]  # (inputs, count): count new tokens for each input

    def __init__(self, task: Any, dtype: str = "float32"):
        self.task, self.dtype, start = task, dtype, time.perf_counter()
        self.start()
        imported = time.perf_counter()
        self.imported()
        self.load()
        self.seconds = [imported - start, time.perf_counter() - imported]

    def step(self) -> list[list[int]]:
        """Run the task."""
        return self.write(self.task.inputs(), self.task.new_tokens)

    def cold(self) -> tuple[list[list[int]], dict[str, float]]:
        """Return the tokens written after a first one, and the values of ``COLUMNS``."""
        moments = [time.perf_counter()]
        for count in (1, self.task.new_tokens):
            written = self.write(self.task.inputs(), count)
            moments.append(time.perf_counter())
        starting = [*self.seconds, moments[1] - moments[0]]
        memory = (self.memory()[0] / 1e6, status().get("RssAnon", 0) / 1e6)
        return written, dict(zip(COLUMNS, [*starting, sum(starting), self.task.amount() / (moments[2] - moments[1]), *memory]))


class Tinyformer(Writer):
    """``from_pretrained`` and greedy sampling, traced by default as for users."""

    def __init__(self, task: Task, dtype: str = "float32", traced: bool = True):
        self.traced = traced
        super().__init__(task, dtype)

    def start(self) -> None:
        import tinyformer
        import tinytensor as tt

        self.library = tinyformer
        if not self.traced:
            tt.trace = lambda function: function

    def load(self) -> None:
        dtype: dict[str, Any] = {} if self.dtype == "float32" else {"dtype": self.dtype}
        self.model: Any = self.library.from_pretrained(self.task.folder, **dtype)

    def write(self, inputs: Any, count: int) -> list[list[int]]:
        library = self.library
        decoder = library.language_decoder(self.model, max_tokens=len(inputs[0]) + count)
        steps = library.sample(decoder, inputs, count, library.Sampling(temperature=0))
        return [[int(i) for i in row] for row in zip(*steps)]


class HuggingFace(TorchSide, Writer):
    """``AutoModelForCausalLM`` and ``generate``. If compiled, the cache has a fixed size, as compiling requires."""

    model_class = "AutoModelForCausalLM"

    def __init__(self, task: Any, compiled: bool = False, device: str = "cpu"):
        self.compiled, self.device = compiled, device
        super().__init__(task)

    def start(self) -> None:
        import torch
        import transformers

        self.torch, self.library = torch, getattr(transformers, self.model_class)

    def load(self) -> None:
        self.model = self.library.from_pretrained(self.task.folder).to(self.device)  # in evaluation mode
        if self.compiled:
            self.model.forward = self.torch.compile(self.model.forward)

    def write(self, inputs: Any, count: int) -> list[list[int]]:
        cache = {"cache_implementation": "static"} if self.compiled else {}
        return self.generate(inputs, count, **cache)[:, len(inputs[0]) :].tolist()

    def generate(self, inputs: Any, count: int, **settings: Any) -> Any:
        """Run Hugging Face's ``generate`` without sampling, and without an end token, so no text stops early."""
        torch, longest = self.torch, max(map(len, inputs))
        rows = [[[*row, *[0] * (longest - len(row))], [1] * len(row) + [0] * (longest - len(row))] for row in inputs]
        ids, mask = torch.tensor(rows, device=self.device).unbind(1)
        settings |= {"max_new_tokens": count, "min_new_tokens": count, "eos_token_id": None, "pad_token_id": 0}
        with torch.inference_mode():
            return self.model.generate(ids, attention_mask=mask, do_sample=False, **settings)


class CTranslate2(Writer):
    """CTranslate2's generator, with one thread per core."""

    model_class = "Generator"

    def start(self) -> None:
        import ctranslate2

        self.library = ctranslate2

    def load(self) -> None:
        threads = {"inter_threads": 1, "intra_threads": measure.cores()}
        self.model = getattr(self.library, self.model_class)(
            f"{self.task.folder}/{self.dtype}", compute_type=self.dtype, **threads
        )

    def write(self, inputs: Any, count: int) -> list[list[int]]:
        settings = {"min_length": count, "max_length": count, "end_token": [], "include_prompt_in_result": False}
        results = self.model.generate_batch([[*map(str, row)] for row in inputs], sampling_topk=1, **settings)
        return [result.sequences_ids[0] for result in results]

    def libraries(self) -> list[str]:
        return [f"ctranslate2 {self.library.__version__}", measure.counted(measure.cores(), "thread")]


class LlamaCpp(Writer):
    """llama.cpp through llama-cpp-python. It writes one text at a time."""

    def start(self) -> None:
        self.library = importlib.import_module("llama_cpp")

    def load(self) -> None:
        threads = {"n_threads": measure.cores(), "n_threads_batch": measure.cores()}
        size = {"n_ctx": self.task.prompt_length + self.task.new_tokens, "n_batch": 512}
        self.model = self.library.Llama(f"{self.task.folder}/{self.dtype}.gguf", verbose=False, **threads, **size)

    def write(self, inputs: Any, count: int) -> list[list[int]]:
        self.model.reset()  # forgets the prompt
        return [[*itertools.islice(self.model.generate(inputs[0], temp=0.0), count)]]

    def libraries(self) -> list[str]:
        return [f"llama-cpp-python {self.library.__version__}", measure.counted(measure.cores(), "thread")]


LOW = ("int8", "int4", "bfloat16")  # dtypes that may change the tokens
LOW_PRECISION = {OURS: LOW, CT2: ("int8",), LLAMA: ("int8", "int4")}


def sides_of(task: Any, classes: dict[str, Any], low_precision: bool = True) -> dict[str, tuple[Any, ...]]:
    """Return a side of each class (the first is ours in float32), and those in ``low_precision``."""
    sides: dict[str, tuple[Any, ...]] = {name: (side, task) for name, side in classes.items()}
    if low_precision:
        sides |= {f"{name}, {dtype}": (classes[name], task, dtype) for name in classes for dtype in LOW_PRECISION.get(name, ())}
    return {**sides, **measure.with_numpys_kernels(OURS, *sides[OURS])}


def check_written(written: dict[str, list[list[int]]]) -> None:
    """Raise SideError if less than a sixteenth of the tokens of a float32 side come before the first that differs from ours in
    the same row. (If two tokens are almost equally likely, rounding decides, and the texts diverge.)"""
    for name, rows in written.items():
        alike = [
            list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))
            for a, b in zip(written[OURS], rows, strict=True)
        ]
        equal, count = sum(map(len, alike)), sum(map(len, rows))
        if 16 * equal < count and not name.endswith(LOW):
            raise SideError(
                f"{name} writes other tokens than {OURS}: only {equal} of {count} come before the first that differs"
            )


def run(task: Any, sides: measure.Sides, turns: int, steps: int, warm_up: int) -> str:
    """Measure all sides, of which the first is ours: a table of them, one of ratios, and the libraries. Raises SideError as
    ``check_written``."""
    with ExitStack() as stack:
        workers = measure.start_all(stack, sides)
        check_written(measure.call_all(workers, "step"))
        measure.call_all(workers, "turn", warm_up, 1)
        measure.call_all(workers, "forget_peak")  # compiling is no part of decoding
        times = measure.take_turns(workers, turns, steps)
        speed, amount = f"{task.unit}/s", task.amount()
        columns = ("median ms", speed, "fastest quartile ms", speed)

        def cells(name: str) -> list[str]:
            seconds = (times[name].median, times[name].fastest_quartile)
            pairs = zip(times[name].milliseconds(), [f"{amount / each:,.1f}" for each in seconds])
            return [cell for pair in pairs for cell in pair]

        also = [name for name in sides if name in (f"{OURS}, int8", f"{OURS}, int4")]
        return measure.report(workers, times, columns, cells, also=also)


COLUMNS = ("import s", "load s", "first token s", "cold start to first token s", "tokens/s", "peak MB", "own MB")


def run_cold(sides: measure.Sides, turns: int) -> str:
    """Measure all sides from a cold start: a table of medians, and one of ratios. Raises SideError as ``check_written``."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    with measure.progress("taking turns", turns) as tell:
        for turn in range(turns):
            texts = {}
            for side in measure.rotated(list(sides), turn):
                with Worker(side, *sides[side]) as worker:
                    texts[side], values = worker.call("cold")
                found[side].append(values)
            check_written(texts)
            tell(", ".join(f"{side} {found[side][-1]['tokens/s']:.1f} tokens/s" for side in sides))
    medians = {side: [statistics.median(values[c] for values in found[side]) for c in COLUMNS] for side in sides}
    rows = [[side, *(f"{m:.{0 if 'MB' in c else 2}f}" for c, m in zip(COLUMNS, medians[side]))] for side in sides]
    rivals = [side for side in sides if side != OURS]
    ratios = [[side, *(f"{ours / theirs:.2f}" for ours, theirs in zip(medians[OURS], medians[side]))] for side in rivals]
    tables = [measure.table(["", *COLUMNS], rows), measure.table([f"{OURS} over", *COLUMNS], ratios)]
    return "\n\n".join([f"Medians of {measure.counted(turns, 'turn')}.", *tables])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    about = "Time greedy decoding by tinyformer's GPT beside other libraries', in turns; a step is a whole continuation."
    parser = measure.make_parser(about, GPTS, turns=20, steps=3, warm_up=3)
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too (needs a C++ compiler)")
    parser.add_argument("--untraced", action="store_true", help="measure tinyformer without tt.trace, too")
    cold = "a model of this size from a cold start instead; each turn is a new process"
    parser.add_argument("--pretrained", choices=PRETRAINED, help=cold)
    parser.add_argument("--task", choices=TASKS, help="after loading: a prompt of 512 tokens, or several texts in a batch")
    parser.has_no_effect(("configuration", "compile", "untraced"), lambda arguments: arguments.pretrained, "with --pretrained")
    cold = "with --pretrained but without --task"
    parser.has_no_effect(("steps", "warm_up"), lambda arguments: arguments.pretrained and not arguments.task, cold)
    parser.has_no_effect("task", lambda arguments: not arguments.pretrained, "without --pretrained")
    return measure.parse(parser, words, "torch", "transformers", "ctranslate2", "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    amounts = arguments.turns, arguments.steps, arguments.warm_up
    pretrained, configuration = arguments.pretrained, arguments.configuration
    model = PRETRAINED[pretrained] if pretrained else {**GPTS[configuration].model(), "bias": True}  # GPT-2 has biases
    is_alone = not arguments.task or TASKS[arguments.task][0] == 1
    with_llama = bool(pretrained) and is_alone and all(map(importlib.util.find_spec, ("llama_cpp", "gguf")))
    with folder_with(gpt(model), "float32", "int8", with_llama=with_llama) as folder:
        sizes = TASKS[arguments.task] if arguments.task else () if pretrained else (1, 8, model["block_size"] - 8)
        task = Task(folder, *sizes)
        classes = {OURS: Tinyformer, THEIRS: HuggingFace, CT2: CTranslate2, **({LLAMA: LlamaCpp} if with_llama else {})}
        sides = sides_of(task, classes, low_precision=bool(pretrained))
        if arguments.compile:
            sides[f"{THEIRS} compiled"] = (HuggingFace, task, True)
        if arguments.untraced:
            sides[f"{OURS} untraced"] = (Tinyformer, task, "float32", False)
        report = run(task, sides, *amounts) if arguments.task or not pretrained else run_cold(sides, arguments.turns)
    if pretrained:
        name = "_".join(["pretrained", pretrained, *([arguments.task] if arguments.task else [])])
        title = f"A pretrained {pretrained} {'that is loaded' if arguments.task else 'from a cold start'}"
    else:
        name, title = f"generate_{configuration}", f"Greedy decoding, configuration {configuration}"
    measure.publish(arguments.output, name, f"{title}: {task.described()}", report, *PACKAGES)


if __name__ == "__main__":
    main()
