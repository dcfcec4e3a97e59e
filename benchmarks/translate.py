"""Translating with a beam of 4: tinyformer's encoder-decoder of Marian's size beside Hugging Face's and CTranslate2.

python benchmarks/translate.py --output benchmarks/results

All sides read the same random weights from a folder. Each translates a batch of 32 sentences of 20 to 30 words into exactly 30
tokens each. The float32 sides must produce the same translations.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import generate
import measure

BEAM, END = 4, 0
MODEL: dict[str, Any] = {  # of the size of the Opus-MT models
    **{"vocab_size": 58000, "d_model": 512, "num_heads": 8, "d_ff": 2048, "encoder_layers": 6, "decoder_layers": 6},
    **{"max_length": 512, "activation": "silu", "scale_embeddings": True},
}


@dataclass(frozen=True)
class Task(generate.Task):
    """The work of every side: translate ``batch`` sentences of ``shortest`` to ``prompt_length`` words."""

    batch: int = 32
    prompt_length: int = 30
    new_tokens: int = 30
    shortest: int = 20
    unit: ClassVar[str] = "sentences"

    def inputs(self) -> list[list[int]]:
        """Return random ids of each sentence, the same on every call."""
        import numpy

        rng = numpy.random.default_rng(0)
        lengths = rng.integers(self.shortest, self.prompt_length, self.batch, endpoint=True)
        return [rng.integers(1, self.pad(), length).tolist() for length in lengths]

    def pad(self) -> int:
        """Return the padding token, which also starts a translation: the last of the vocabulary, as in Marian."""
        return generate.vocab_size(self.folder) - 1

    def amount(self) -> int:
        return self.batch


def marian(vocab_size: int, **settings: Any) -> Any:
    """Return Marian's encoder-decoder with noise on every weight except the padding's embedding: translations start with
    zeros."""
    from tinyformer import Transformer, TransformerConfig

    shared: dict[str, Any] = {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size, "source_pad": vocab_size - 1}
    shared |= {"share_embeddings": True, "tie_output": True, "learn_padding": False, "output_bias": True}
    variant: dict[str, Any] = {"positions": "sinusoidal_halves", "norm_first": False, "dropout": 0.0}
    model = generate.noisy(lambda: Transformer(TransformerConfig(**shared, **variant, **settings)))
    values = model.source_embedding.tokens.weight.numpy().copy()
    values[-1] = 0.0
    model.source_embedding.tokens.weight.assign(values)
    return model


class Tinyformer(generate.Tinyformer):
    """``beam_search``."""

    def write(self, inputs: Any, count: int) -> list[list[int]]:
        library, pad, longest = self.library, self.task.pad(), max(map(len, inputs))
        source = [[*row, *[pad] * (longest - len(row))] for row in inputs]
        decoder = library.translation_decoder(self.model, source, count)
        beams = library.beam_search(decoder, [[pad]] * len(source), None, BEAM, count, forbidden=(END, pad))
        return [list(best.ids) for best, *_ in beams]


class HuggingFace(generate.HuggingFace):
    """``generate`` with a beam."""

    model_class = "AutoModelForSeq2SeqLM"

    def write(self, inputs: Any, count: int) -> list[list[int]]:
        pad = self.task.pad()
        unwanted = {"suppress_tokens": [END, pad], "decoder_start_token_id": pad}
        return self.generate(inputs, count, num_beams=BEAM, **unwanted)[:, 1:].tolist()


class CTranslate2(generate.CTranslate2):
    """``translate_batch``."""

    model_class = "Translator"

    def write(self, inputs: Any, count: int) -> list[list[int]]:
        lengths = {"min_decoding_length": count, "max_decoding_length": count}
        results = self.model.translate_batch([[*map(str, row)] for row in inputs], beam_size=BEAM, **lengths)
        return [[int(token) for token in result.hypotheses[0]] for result in results]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    about = "Time translating with a beam by tinyformer's encoder-decoder beside other libraries', in turns."
    parser = measure.make_parser(about, turns=10, steps=1, warm_up=1)
    return measure.parse(parser, words, *generate.PACKAGES[1:], "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    with generate.folder_with(marian(**MODEL), "float32", "int8") as folder:
        task = Task(folder)
        sides = generate.sides_of(task, {generate.OURS: Tinyformer, generate.THEIRS: HuggingFace, generate.CT2: CTranslate2})
        report = generate.run(task, sides, arguments.turns, arguments.steps, arguments.warm_up)
    sentences = f"{task.batch} sentences of {task.shortest} to {task.prompt_length} words into {task.new_tokens} tokens each"
    measure.publish(arguments.output, "translate", f"Translating {sentences}, beam {BEAM}", report, *generate.PACKAGES)


if __name__ == "__main__":
    main()
