"""Compare the memory of an RNN, a GRU, an LSTM and attention: recall the first of 101 tokens. Takes less than a minute.

python examples/memory.py
python examples/memory.py --steps 300          # a shorter run
"""

import math
from functools import partial

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import Block, BlockConfig, plots
from tinyformer.models.positions import SinusoidalPositions
from tinytensor import nn

flags = script.flags(__doc__, steps=1000)
out = script.new_folder("runs/memory")  # or runs/memory-2, if that exists
SYMBOLS, LONGEST, WIDTH = 8, 100, 32


# Data: sequences of random symbols. The target is the first symbol, ``distance`` steps before the end.
def rows_of(distance, count):
    ids = tt.random.integers(0, SYMBOLS, (count, distance + 1))
    return ids, ids[:, 0]


# Models. All embed the symbols and predict from their last output. They have about the same number of parameters.
class Recurrent(nn.Module):
    def __init__(self, kind):
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        size = round(WIDTH * (math.sqrt(1 + 48 / kind.gates) - 1) / 2)  # gates * size * (WIDTH + size) = 12 * WIDTH**2
        self.network = kind(WIDTH, size, batch_first=True)
        self.output = nn.Linear(size, SYMBOLS)
        if kind is not nn.RNN:  # the second gate is the forget gate: at first it keeps nearly everything (Gers et al. 2000)
            bias = self.network.bias_ih_l0
            bias.assign(tt.where(tt.arange(len(bias)) // size == 1, 1.0, bias))

    def forward(self, ids):
        outputs, _ = self.network(self.embedding(ids))  # (rows, length, size)
        return self.output(outputs[:, -1])


class Attention(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.positions = SinusoidalPositions(WIDTH)
        self.block = Block(BlockConfig(WIDTH, num_heads=4, d_ff=4 * WIDTH))
        self.output = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, ids):
        x = self.embedding(ids) + self.positions(ids.shape[1])
        return self.output(self.block(x, is_causal=True)[:, -1])


MODELS = {kind.__name__: partial(Recurrent, kind) for kind in (nn.RNN, nn.GRU, nn.LSTM)} | {"attention": Attention}
DISTANCES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100)


@tt.parallel.one_blas_thread()  # such small products are slower on several cores
def shares_of_right(name, make):
    """Train a model, and return how often it is right from each distance."""
    tt.seed(1337)  # the same weights in each run, and the same data for each model
    model = make()
    print(f"{name} with {model.num_parameters():,} parameters")
    optimizer = tt.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = tt.optim.Cosine(warmup=100, steps=flags.steps, final=0.03)
    steps = script.Steps(flags.steps)
    for step in steps:
        distance = tt.random.integers(1, LONGEST + 1, ()).item()  # one distance per batch
        ids, first = rows_of(distance, 64)
        loss = tt.cross_entropy(model(ids), first)
        optimizer.zero_grad()
        loss.backward()  # through as many steps as there are tokens
        tt.optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step(schedule(step - 1))
        if step % 250 == 0 or step == flags.steps:
            steps.print(f"step {step:5d}: loss {loss.item():.4f}, from a distance of {distance}")
    found = {}
    for distance in DISTANCES:
        ids, first = rows_of(distance, 1000)
        found[distance] = (model(ids).argmax(axis=-1) == first).astype("float32").mean().item()
    return found


# Results: accuracy by distance.
shares = {name: shares_of_right(name, make) for name, make in MODELS.items()}
print(f"\nAccuracy in %, by distance; guessing gets {100 / SYMBOLS:.1f}:\n")
print(f"    {'':10s}" + "".join(f"{distance:6d}" for distance in DISTANCES[::3]))
for name, found in shares.items():
    print(f"    {name:10s}" + "".join(f"{100 * found[distance]:6.1f}" for distance in DISTANCES[::3]))
with plots.if_possible():
    plots.accuracy_by_distance(shares, 1 / SYMBOLS, out / "accuracy.png")
    print(f"\nAccuracy by distance: {out / 'accuracy.png'}")
print("Why an RNN forgets: docs/lessons/05_memory.md")
