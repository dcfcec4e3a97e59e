"""Train a GPT to write like Shakespeare, one character at a time, in a little over a minute on two cores.

python examples/char_gpt.py                    # Tiny Shakespeare
python examples/char_gpt.py --data my.txt      # your own text
"""

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import GPT, CharTokenizer, GPTConfig, Snapshots, TextBatches, evaluate, generate, open_text, plots, save_run

flags = script.flags(__doc__, steps=1500, data=None)
out = script.new_folder("runs/char_gpt")  # or runs/char_gpt-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# Data: characters as ids. The last tenth of the text is held out for validation.
text, source = open_text(flags.data)
tokenizer = CharTokenizer.train(text)
batches = TextBatches(tokenizer.encode(text), block_size=128, batch_size=12, seed=1337)
print(f"{source.name}: {len(text):,} characters, {tokenizer.vocab_size} of them distinct")

# Model: a small Qwen3. It reads up to 128 characters and predicts the next one at each position.
config = GPTConfig(
    vocab_size=tokenizer.vocab_size,
    block_size=128,
    num_layers=3,
    num_heads=4,
    d_model=96,
    positions="rotary",
    query_key_norm=True,
    norm="rms",
    activation="swiglu",
)
model = GPT(config)
print(f"GPT with {model.num_parameters():,} parameters")


def loss_of(model, batch):
    """Return the mean cross-entropy in nats per character, or for a shard its part of that mean."""
    return model.loss(batch.inputs, batch.targets, reduction="sum") / batch.num_targets


# Optimizer: Muon for the matrices of the blocks, AdamW for the rest (embeddings and norms). One layer computes queries, keys
# and values, so its weight is three stacked matrices. (``muon_for`` does the same.)
matrices = {name: p for name, p in model.blocks.named_parameters() if p.ndim == 2}
stacked = [p for name, p in matrices.items() if "query_key_value" in name]
single = [p for name, p in matrices.items() if "query_key_value" not in name]
rest = [p for name, p in model.named_parameters() if name.removeprefix("blocks.") not in matrices]
groups = [{"params": stacked, "parts": 3}, {"params": single}, {"params": rest, "orthogonal": False, "lr": 0.01}]
optimizer = tt.optim.Muon(groups, lr=0.02, betas=(0.9, 0.95))
schedule = tt.optim.LinearDecay(warmup=20, steps=flags.steps)  # a factor for both learning rates that falls to 0

# Training loop. Each core computes the loss and gradients of one shard of the batch, in its own thread.
cores = tt.parallel.default_shards()
rows = []  # log rows
snapshots = Snapshots(model, flags.steps)  # weights at a few steps, for the explorer's film
snapshots.keep(0)
steps = script.Steps(flags.steps)
for step in steps:
    batch = batches.sample()  # inputs and targets, both (12, 128): the targets are shifted by one character
    optimizer.zero_grad()
    loss = tt.parallel.backward(lambda shard: loss_of(model, shard), batch.split(cores))  # forward and backward pass
    tt.optim.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step(schedule(step - 1), threads=cores)

    if step % min(10, flags.steps // 20 or 1) == 0 or step == flags.steps:  # short runs get a curve, too
        rows.append({"step": step, "train_loss": loss.item(), "validation_loss": None})
    if step % 250 == 0 or step == flags.steps:
        rows[-1]["validation_loss"] = evaluate(model, batches, loss_of, cores)  # on all held-out text
        steps.print(f"step {step:5d}: loss {loss.item():.4f}, validation {rows[-1]['validation_loss']:.4f}")
    snapshots.keep(step)

# Results: a run for the other commands, a picture of the losses, and a sample.
save_run(out, "language model", model, tokenizer, rows, snapshots, model=config, data=source)
with plots.if_possible():
    plots.loss_curve(rows, out / "loss.png", title=f"A GPT learns {source.name}")
    print(f"\nLosses: {out / 'loss.png'}")
start = "\n" if "\n" in text else text[0]
print(f"Sample:\n{tokenizer.decode(list(generate(model, tokenizer.encode(start), 500)))}\n")
print(f"Write more: tinyformer sample {out}")
print(f"Look inside: tinyformer explore {out}")
