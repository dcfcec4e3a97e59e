"""Runs to explore: small untrained models of each kind, in folders such as the examples make. And a server of them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tinytensor as tt
from tinyformer.common.makers import LANGUAGE_MODEL, MASKED_MODEL, TRANSLATOR, Maker
from tinyformer.explore.serving.server import ExplorerServer
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.bert import Bert, BertConfig, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
from tinyformer.models.seq2seq import Seq2SeqConfig
from tinyformer.models.transformer import TransformerConfig
from tinyformer.pretrained.loading import save_pretrained
from tinyformer.pretrained.tokenizers import save_pretrained_tokenizer
from tinyformer.tokenizers import CharTokenizer, Tokenizer, WordPieceTokenizer
from tinyformer.tokenizers.special import BEGIN, END, PADDING
from tinyformer.training.checkpoints import load_checkpoint, save_checkpoint
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.translation import ARCHITECTURES, TranslationConfig

TEXT = "The quick brown fox jumps over the lazy dog.\n<script>alert(1)</script> & \"æøå\" 'x' 日本語"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "dog", "jump", "##s", "over", "lazy", "quick", "<b>", "."]


def gpt_run(path: Path, latest: bool = True, tokenizer: Tokenizer | None = None, **settings: Any) -> Path:
    """A run with a GPT, by default of characters. With ``latest`` it has two checkpoints, whose weights differ."""
    tokenizer = tokenizer or CharTokenizer.train(TEXT)
    sizes = {"block_size": 32, "num_layers": 2, "num_heads": 2, "d_model": 16, **settings}
    config = GPTConfig(tokenizer.vocab_size, **sizes)
    text = {"architecture": "gpt", "bpe_tokens": 1024}
    return _write(path, LANGUAGE_MODEL, {"model": config, "text": text}, tokenizer, lambda: GPT(config), latest)


def named_run(path: Path) -> Path:
    """A run in which head 0 of layer 1 attends to the first token: its queries and keys are the positions' first value."""
    gpt_run(path, latest=False, query_key_value_bias=True, d_model=16)
    model = Subjects([path]).get("best").model
    positions = np.zeros(model.position_embedding.weight.shape, dtype=np.float32)
    positions[0, 0] = 200.0
    model.position_embedding.weight.assign(tt.tensor(positions))
    projection = model.blocks[1].attention.query_key_value
    weight, bias = projection.weight.numpy().copy(), projection.bias.numpy().copy()
    weight[0], weight[16] = 0.0, 0.0
    weight[16, 0] = 30.0  # the first number of the key is the first number of the stream
    bias[0], bias[16] = 30.0, 0.0
    projection.weight.assign(tt.tensor(weight))
    projection.bias.assign(tt.tensor(bias))
    save_checkpoint(RunFolder(path).best, {"model": model.state_dict()}, {"kind": "best", "step": 0})
    return path


def film_run(path: Path, steps: Sequence[int]) -> Path:
    """A run with a GPT and snapshots of these steps, whose weights differ. Its latest checkpoint has the log."""
    gpt_run(path)
    for step in steps:
        put_snapshot(path, step)
    rows = [(0, None, 4.0), (10, 3.0, None), (steps[-1], 2.5, 2.75)]
    told = [{"step": step, "train_loss": train, "validation_loss": validation} for step, train, validation in rows]
    for name, state in (("best", {"validation_loss": 2.75}), ("latest", {"rows": told})):
        groups = load_checkpoint(path / f"{name}.safetensors", name)[0]
        save_checkpoint(path / f"{name}.safetensors", groups, {"kind": name, "step": steps[-1], **state})
    return path


def put_snapshot(path: Path, step: int) -> None:
    """Write the snapshot of a step, whose weights grow with it from a tenth of the best ones."""
    weights = load_checkpoint(path / "best.safetensors", "best")[0]["model"]
    part = 0.1 + 0.05 * step
    mixed = {name: (tensor * part).astype("float16") for name, tensor in weights.items()}
    save_checkpoint(RunFolder(path).snapshot(step), {"model": mixed}, {"kind": "snapshot", "step": step})


def recurrent_run(path: Path, cell: str = "lstm") -> Path:
    """A run with a recurrent network."""
    tokenizer = CharTokenizer.train(TEXT)
    config = RecurrentConfig(tokenizer.vocab_size, cell, num_layers=2, d_model=12)
    text = {"architecture": cell, "bpe_tokens": 1024}
    return _write(path, LANGUAGE_MODEL, {"model": config, "text": text}, tokenizer, lambda: RecurrentLM(config))


def translation_run(path: Path, architecture: str = "transformer", lowercase: bool = False, **settings: Any) -> Path:
    """A run of a translator."""
    tokenizer = CharTokenizer.train(TEXT, special=(PADDING, BEGIN, END))
    make, kind = ARCHITECTURES[architecture]
    vocabulary = tokenizer.vocab_size, tokenizer.vocab_size
    pad = tokenizer.special[PADDING]
    config: Any
    if kind is TransformerConfig:
        sizes = {"d_model": 16, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 32, **settings}
        config = TransformerConfig(*vocabulary, source_pad=pad, **sizes)
    else:
        sizes = {"d_model": 12, "d_embedding": 8, "num_layers": 1}
        config = Seq2SeqConfig(*vocabulary, attention=architecture == "attention", source_pad=pad, **sizes)
    task = TranslationConfig(architecture, vocab_size=tokenizer.vocab_size, max_tokens=40, lowercase=lowercase)
    return _write(path, TRANSLATOR, {"task": task, "model": config}, tokenizer, lambda: make(config))


def masked_run(path: Path) -> Path:
    """A run of a masked language model."""
    tokenizer = WordPieceTokenizer(PIECES)
    config = BertConfig(tokenizer.vocab_size, num_layers=2, num_heads=2, d_model=16, d_ff=32, max_length=24)
    return _write(path, MASKED_MODEL, {"model": config, "text": {"wordpieces": 15}}, tokenizer, lambda: BertForMaskedLM(config))


def sentence_folder(path: Path) -> Path:
    """A pretrained model of sentences, in a folder of sentence-transformers."""
    tokenizer = WordPieceTokenizer(PIECES)
    tt.seed(3)
    model = Bert(BertConfig(tokenizer.vocab_size, num_layers=1, num_heads=2, d_model=8, d_ff=16, max_length=24))
    for parameter in model.parameters():
        parameter.assign(parameter + 0.3 * tt.random.normal(parameter.shape))
    save_pretrained(model, path)
    save_pretrained_tokenizer(tokenizer, path)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (place, kind) in enumerate(kinds.items())
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return path


RUNS: dict[str, Callable[[Path], Path]] = {
    "gpt": gpt_run,
    "recurrent": recurrent_run,
    "transformer": translation_run,
    "context": lambda path: translation_run(path, "lstm"),
    "attention": lambda path: translation_run(path, "attention"),
    "masked": masked_run,
}


def _write(
    path: Path, kind: str, settings: dict[str, Any], tokenizer: Tokenizer, make: Callable[[], Any], latest: bool = False
) -> Path:
    folder = RunFolder(path)
    folder.create({"made_by": Maker(kind, "program.py"), **settings})
    tokenizer.save(folder.tokenizer)
    folder.move_into_place()
    names: Sequence[str] = ("best", "latest") if latest else ("best",)
    for seed, name in enumerate(names):
        tt.seed(seed)
        model = make()
        for parameter in model.parameters():  # larger weights than before training make less uniform predictions
            parameter.assign(parameter * 3)
        save_checkpoint(getattr(folder, name), {"model": model.state_dict()}, {"kind": name, "step": 0})
    return path


@contextlib.contextmanager
def serving(subjects: Subjects, host: str = "127.0.0.1") -> Iterator[ExplorerServer]:
    """A server that runs in a thread."""
    with ExplorerServer(subjects, host) as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield started
        finally:
            started.shutdown()
            thread.join()


# JSON that surprises where something else is expected.
VALUES = ["1e400", "-1e400", "1e-400", "-1", "-0", "0.5", "1.0", "true", "false", "null", '"1"', "[]", "{}", "[[1]]",
           "1" * 400,
           str(2**31), str(2**63), str(-(2**63) - 1), str(2**64),
           "1e308", "5e-324", '"\\ud83d\\ude00"', '""', '"<script>"']  # fmt: skip
