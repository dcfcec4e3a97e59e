"""What is done alike on both backends: by the tests here, and in a process of its own on NumPy (see ``conftest.py``).

An experiment returns named NumPy arrays. It starts from its own seed, so that both sides draw the same weights, batches and
dropout keys.

python tests/gpu/experiments.py SIZE

runs those that its input asks for: each line is a list in JSON, ["FOUND.npz", "NAME", further words]. It writes a line when the
file is there. So all experiments need one process, whose start takes longer than most of them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from blocks import MIXED, random_weight
from op_cases import OPS, exact

import tinytensor as tt
from tinyformer.data.text import TextBatches
from tinyformer.decoding.generation import GPTDecoder, sample
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import evaluate
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor import kernels, nn, optim
from tinytensor.device.backend import xp

Found = dict[str, Any]
IS_STAND_IN = hasattr(xp, "synchronizations")  # which CuPy lacks
SIZE = "small" if IS_STAND_IN else "large"


def by_size(large: Any, small: Any) -> Any:
    return large if SIZE == "large" else small


# ------------------------------------------------------------------------------------------------------------- the ops


def op(name: str, dtype: str = "float64") -> Found:
    """The output of a case of ``OPS``, and the gradients of its inputs, for a random cotangent."""
    arrays = OPS[name].arrays(SIZE)
    tt.seed(1)  # of dropout
    xs = [tt.tensor(a).astype(dtype) if a.dtype.kind == "f" else tt.tensor(a) for a in arrays]
    for x in xs:
        x.requires_grad = x.dtype != "int64"
    out = OPS[name].f(*xs)
    out.backward(tt.tensor(exact(np.random.default_rng(4), out.shape)).astype(out.dtype))
    return {"output": wide(out), **{f"gradient {i}": wide(x.grad) for i, x in enumerate(xs) if x.requires_grad}}


def wide(x: tt.Tensor) -> Any:
    """The values in a dtype that files and NumPy know."""
    return (x if x.dtype in ("float32", "float64", "int64", "bool") else x.astype("float32")).numpy()


def masks() -> Found:
    """Dropout's masks, for many random keys, shapes and probabilities of keeping."""
    shapes = [by_size((1_000_003,), (5_003,)), (3, 0, 4), (), (2, 3, 5, 7), by_size((16, 6, 256, 256), (2, 3, 16, 16))]
    found = {}
    for random_key in ((0, 0), (1, 2), (2**64 - 1, 2**63 + 12345)):
        for keep_probability in (0.8, 0.5, 1 / 3, 1 / 512, 0.0, 1.0):
            for shape in shapes:
                mask = tt.tensor(kernels.keep_mask(random_key, shape, keep_probability)).numpy()
                found[f"{random_key}, {keep_probability}, {shape}"] = mask
    return found


def optimizers(dtype: str = "float32") -> Found:
    """Parameters of many sizes after steps of each optimizer, with clipping, from given gradients; and the norms."""
    shapes = by_size([(1_000_003,), (768, 3072), (384,), (1,), ()], [(5_003,), (24, 40), (7,), (1,), ()])
    makers = {
        "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "Adam": lambda p: optim.Adam(p, lr=0.01),
        "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    }
    found = {}
    for name, make in makers.items():
        rng = np.random.default_rng(5)
        parameters = [nn.Parameter(tt.tensor(exact(rng, shape)).astype(dtype)) for shape in shapes]
        optimizer = make(parameters)
        for step in range(3):
            for p in parameters:
                p.grad = tt.tensor(exact(rng, p.shape)).astype(dtype)
            found[f"{name}: norm {step}"] = wide(optim.clip_grad_norm(parameters, math.inf))
            _, scale = optim.norm_and_scale(parameters, 1.0)
            optimizer.step(gradient_scale=scale)
        found |= {f"{name}: {i}": wide(p) for i, p in enumerate(parameters)}
    return found


def negative_sampling(dtype: str = "float32") -> Found:
    """The vectors of words after steps of word2vec. Some places of the batches have no word."""
    words, width, examples = by_size((30_000, 100, 1024), (300, 24, 60))
    rng = np.random.default_rng(5)
    inputs, outputs = (tt.tensor(exact(rng, (words, width)) / 16).astype(dtype).data for _ in range(2))
    for _ in range(3):
        contexts, targets = rng.integers(0, words, (examples, 8)), rng.integers(0, words, (examples, 6))
        contexts[:, 1:][rng.random((examples, 7)) < 0.3] = -1
        targets[:, 1:][rng.random((examples, 5)) < 0.1] = -1
        kernels.negative_sampling_step(inputs, outputs, xp.asarray(contexts), xp.asarray(targets), 0.025)
    return {"inputs": wide(tt.tensor(inputs)), "outputs": wide(tt.tensor(outputs))}


def quantized() -> Found:
    """Products with weights of fewer bits, gradients through them, and rows of such weights."""
    (times, inputs, rows), rng = by_size((26, 2100, 70), (1, 1100, 17)), np.random.default_rng(6)
    parts = tuple((block_type, times * count) for block_type, count in MIXED)
    shapes = [(115 * times, inputs), (rows, inputs), (115 * times,)]
    values, x, bias = [tt.tensor(exact(rng, shape)).astype("float32") for shape in shapes]
    x.requires_grad = True
    packed = {name: tt.tensor(kernels.pack_rows(values.data, name)) for name in ("BF16", "Q8_0", "Q6_K")}  # others sum
    found = {name: wide(kept) for name, kept in packed.items()}
    blocks = nn.weights.BlockWeight(tt.tensor(random_weight(parts, inputs)[0]), parts, inputs)
    halves = nn.weights.BlockWeight(packed["BF16"].reshape(-1), (("BF16", 115 * times),), inputs)
    for name, weight in {"blocks": blocks, "bfloat16": halves}.items():
        weight.passes_gradient = True  # as where an addition to it learns
        product = nn.weights.linear(x, weight, bias)
        found[f"{name}: product"] = wide(product)
        found[f"{name}: gradient"] = wide(tt.grad(product.sum(), x))
        found[f"{name}: rows"] = wide(nn.weights.embedding(tt.tensor([0, 5, 5, 115 * times - 1]), weight))
    return found


# ------------------------------------------------------------------------------------------------------------ the model

TEXT = "".join(f"{a} and {b} make {a + b}. " for a in range(40) for b in range(40))
CHARACTERS = sorted(set(TEXT))


def model(dropout: float = 0.0, **changes: Any) -> GPT:
    """A small GPT for ``TEXT``; the same weights each time."""
    shape = {"block_size": 32, "num_layers": 2, "num_heads": 2, "d_model": by_size(64, 32), **changes}
    tt.seed(7)
    return GPT(GPTConfig(len(CHARACTERS), dropout=dropout, **shape))


def batches() -> TextBatches:
    """Windows of ``TEXT``; the same each time."""
    ids = np.array([CHARACTERS.index(c) for c in TEXT])
    return TextBatches(ids, block_size=32, batch_size=by_size(16, 8), seed=7)


def trainer(gpt: GPT, folder: Path | None = None, **settings: Any) -> Trainer:
    """A trainer with a constant learning rate, that evaluates only at the ends."""
    given = {"steps": 10, "learning_rate": 1e-3, "schedule": "constant", "warmup": 0, "shards": 1, "log_every": 1, **settings}
    return Trainer(gpt, batches(), TrainingConfig(eval_every=10**6, **given), RunFolder(folder or Path("never-written")))


def state_of(ours: GPT, kind: str) -> Found:
    """The values of the weights as they are now."""
    return {f"{kind}: {name}": value.numpy().copy() for name, value in ours.state_dict().items()}


def losses_of(steps: int, trained: Trainer) -> Any:
    """Return the losses of this many steps, read at the end."""
    trained.model.train()
    found = [trained.train_step()[0] for _ in range(steps)]
    return np.array([float(loss) for loss in found])


def gpt() -> Found:
    """A GPT with dropout: its weights, logits, loss and gradients, and then ten steps of AdamW."""
    ours = model(dropout=0.2)
    batch = batches().sample()
    found = state_of(ours, "weights")
    with tt.no_grad():
        found["logits"] = ours.eval()(batch.inputs).numpy()
    loss = ours.train().loss(batch.inputs, batch.targets)
    loss.backward()
    found["loss"] = loss.numpy()
    found |= {f"gradient: {name}": p.grad.numpy().copy() for name, p in ours.named_parameters()}
    found["losses"] = losses_of(10, trainer(ours))
    return found | state_of(ours, "stepped")


def training(dtype: str = "float32", steps: int | None = None) -> Found:
    """The losses of a short training run with dropout, and the validation loss after it."""
    trained = trainer(model(dropout=0.1), dtype=dtype)
    losses = losses_of(steps or by_size(300, 40), trained)
    return {"losses": losses, "validation": np.array(evaluate(trained.model, trained.batches))}


def greedy() -> Found:
    """Return the greedy text of a GPT with random weights."""
    ours = model()
    for p in ours.parameters():  # so that nothing is 0 or 1, and no two logits are close
        p.assign(p + tt.random.normal(p.shape, std=0.2))
    prompts = np.random.default_rng(8).integers(0, len(CHARACTERS), (5, 4))
    return {"tokens": np.stack(list(sample(GPTDecoder(ours), prompts, 28, Sampling(temperature=0))), axis=1)}


# ------------------------------------------------------------------------------------------------------ files of a run


def begin(folder: str) -> Found:
    """Three steps of a run, and its checkpoint in the folder."""
    RunFolder(folder).create({}, overwrite=True)
    trainer(model(dropout=0.1), Path(folder), steps=3).train()
    return {}


def go_on(folder: str) -> Found:
    """Three further steps of the run in the folder: see ``_ended``."""
    resumed = trainer(model(dropout=0.1), Path(folder), steps=6)
    resumed.resume()
    return _ended(resumed)


def uninterrupted(folder: str) -> Found:
    """The six steps without a stop."""
    RunFolder(folder).create({}, overwrite=True)
    return _ended(trainer(model(dropout=0.1), Path(folder), steps=6))


def _ended(trained: Trainer) -> Found:
    """Trains to the end: the losses of all steps, and the weights."""
    trained.train()
    return {"losses": np.array([row["train_loss"] for row in trained.rows[1:]]), **state_of(trained.model, "weights")}


EXPERIMENTS = {
    f.__name__: f
    for f in (op, masks, optimizers, negative_sampling, quantized, gpt, training, greedy, begin, go_on, uninterrupted)
}


def main(size: str, asked: Iterable[str]) -> None:
    """Run the named experiments, and write their results."""
    global SIZE
    SIZE, answers = size, sys.stdout
    sys.stdout = sys.stderr  # of what an experiment prints
    for line in asked:
        path, name, *words = json.loads(line)
        np.savez(path, **EXPERIMENTS[name](*words))
        print(name, file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin)
