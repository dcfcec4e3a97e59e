"""Export the model of a run, and print Python code that runs it in onnxruntime.

The code can be pasted into a file or an interpreter. It generates greedily.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.export.writing import parts_of
from tinyformer.models.bert import BertForMaskedLM
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Stack, Transformer
from tinyformer.tokenizers import Tokenizer
from tinyformer.training.opening import kind_of
from tinyformer.training.run_folder import RunFolder

_IMPORTS = """\
import numpy as np
import onnxruntime
from tinyformer import load_tokenizer

tokenizer = load_tokenizer({tokenizer!r})
"""

_WITH_CACHE = """\
session = onnxruntime.InferenceSession({model!r})
new = ids = np.array([tokenizer.encode({text!r})])
past = {{x.name: np.zeros({empty}, "float32") for x in session.get_inputs() if x.name.startswith("past")}}
for _ in range({count}):
    positions = np.arange(ids.shape[1])[None]
    feed = {{"input_ids": new, "attention_mask": np.ones_like(positions), "position_ids": positions[:, -new.shape[1] :]}}
    logits, *present = session.run(None, feed | past)
    new, past = logits[:, -1:].argmax(-1), dict(zip(past, present))
    ids = np.append(ids, new, axis=1)

print(tokenizer.decode(ids[0]))
"""

_WITHOUT_CACHE = """\
session = onnxruntime.InferenceSession({model!r})
ids = np.array([tokenizer.encode({text!r})])
for _ in range({count}):
    feed = {{"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None]}}
    (logits,) = session.run(None, feed)
    ids = np.append(ids, logits[:, -1:].argmax(-1), axis=1)

print(tokenizer.decode(ids[0]))
"""

_MASKED = """\
session = onnxruntime.InferenceSession({model!r})
ids = np.array([tokenizer.encode({text!r}, allow_special=True)])
feed = {{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}}
(logits,) = session.run(None, feed)
print(tokenizer.decode(logits[ids == tokenizer.special["[MASK]"]].argmax(-1)))
"""

_TRANSLATION = """\
encoder, decoder = onnxruntime.InferenceSession({encoder!r}), onnxruntime.InferenceSession({decoder!r})
end = tokenizer.special["[EOS]"]
source = np.array([[*tokenizer.encode({text!r}), end]])
_, *memory = encoder.run(None, {{"input_ids": source, "attention_mask": np.ones_like(source)}})
names = [x.name for x in decoder.get_inputs()]
inputs = {{"encoder_attention_mask": np.ones_like(source), **dict(zip((n for n in names if ".encoder." in n), memory))}}
past = {{n: np.zeros({empty}, "float32") for n in names if ".decoder." in n}}
ids = [tokenizer.special["[BOS]"]]
while ids[-1] != end and len(ids) <= {count}:
    logits, *present = decoder.run(None, {{"input_ids": np.array([ids[-1:]])}} | inputs | past)
    past = dict(zip(past, present))
    ids.append(int(logits[0, -1].argmax()))

print(tokenizer.decode(ids, skip_special=True))
"""


@dataclass(frozen=True)
class TrainedRun:
    """A run's best model, its tokenizer, a ``text`` to try it with, and the maximum number of new tokens."""

    model: GPT | BertForMaskedLM | Transformer
    tokenizer: Tokenizer
    text: str
    max_tokens: int


def load_run(path: str | Path) -> TrainedRun:
    """Load a run from a folder. Raises UserError if there is no run, it is damaged, or its model cannot be exported."""
    folder = RunFolder(path)
    if "model_type" in folder.read_settings():  # Hugging Face format
        call = f"export_onnx(from_pretrained({str(path)!r}), 'model.onnx')"
        raise UserError(f"{path} holds a pretrained model, not a run: export it in Python, with {call}")
    task = kind_of(folder, "exported to ONNX")
    opened = task.load(folder, folder.best)
    if not isinstance(opened.model, (GPT, BertForMaskedLM, Transformer)):
        name = type(opened.model).__name__
        raise UserError(f"{path} holds a recurrent network ({name}): only Transformers can be exported to ONNX")
    return TrainedRun(opened.model, opened.tokenizer, *task.sample(opened, folder))


def lines_that_run(run: TrainedRun, model: Path, tokenizer: Path, cache: bool = True) -> str:
    """Return Python code to run the file ``model`` from ``export_onnx`` with the run's tokenizer in the file ``tokenizer``."""
    values = {"text": run.text, "count": run.max_tokens}
    if isinstance(run.model, Transformer):
        encoder, decoder = map(str, parts_of(model))
        lines = _TRANSLATION
        values |= {"encoder": encoder, "decoder": decoder, "empty": _no_tokens(run.model.decoder)}
    elif isinstance(run.model, GPT):
        lines = _WITH_CACHE if cache else _WITHOUT_CACHE
        values |= {"model": str(model), "empty": _no_tokens(run.model)}
    else:
        lines = _MASKED
        values |= {"model": str(model)}
    return (_IMPORTS + lines).format(tokenizer=str(tokenizer), **values)


def _no_tokens(model: GPT | Stack) -> tuple[int, ...]:
    """Return the shape of the keys of one sequence without tokens."""
    layer = model.blocks[0].attention
    return 1, layer.num_key_value_heads, 0, layer.d_head
