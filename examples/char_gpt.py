"""A GPT learns to write like Shakespeare, one character after the other, in a little over a minute on two cores.

python examples/char_gpt.py                    # Tiny Shakespeare
python examples/char_gpt.py --data my.txt      # your own text
"""

import tinyformer.scripting.short as script  # first: from here on, a mistake is told in a line
import tinytensor as tt
from tinyformer import GPT, CharTokenizer, GPTConfig, Snapshots, TextBatches, evaluate, generate, open_text, plots, save_run

flags = script.flags(__doc__, steps=1500, data=None)
out = script.new_folder("runs/char_gpt")  # or runs/char_gpt-2, if that is taken
tt.seed(1337)  # the same seed repeats a run exactly

# The data: characters as numbers. The last tenth of the text is held out, to validate with.
text, source = open_text(flags.data)
tokenizer = CharTokenizer.train(text)
batches = TextBatches(tokenizer.encode(text), block_size=128, batch_size=12, seed=1337)
print(f"{source.name}: {len(text):,} characters, {tokenizer.vocab_size} of them distinct")

# The model: a small Qwen3. It reads up to 128 characters, and predicts the next one after each of them.
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
    """The mean cross-entropy of the predictions, in nats a character. A shard of a batch has its part of that mean."""
    return model.loss(batch.inputs, batch.targets, reduction="sum") / batch.num_targets


# The optimizer: Muon for the matrices of the blocks, AdamW for all else, such as the embedding and the gains of the norms. One
# layer makes queries, keys and values: its weight is three matrices, one above another. (``muon_for`` writes these lines.)
matrices = {name: p for name, p in model.blocks.named_parameters() if p.ndim == 2}
stacked = [p for name, p in matrices.items() if "query_key_value" in name]
single = [p for name, p in matrices.items() if "query_key_value" not in name]
rest = [p for name, p in model.named_parameters() if name.removeprefix("blocks.") not in matrices]
groups = [{"params": stacked, "parts": 3}, {"params": single}, {"params": rest, "orthogonal": False, "lr": 0.01}]
optimizer = tt.optim.Muon(groups, lr=0.02, betas=(0.9, 0.95))
schedule = tt.optim.LinearDecay(warmup=20, steps=flags.steps)  # a factor for both learning rates, which falls to 0

# The loop. Each core takes a shard of the batch, whose loss and gradients it computes in a thread of its own.
cores = tt.parallel.default_shards()
rows = []  # of the log
snapshots = Snapshots(model, flags.steps)  # some of the weights along the run, of which the explorer makes a film
snapshots.keep(0)
steps = script.Steps(flags.steps)
for step in steps:
    batch = batches.sample()  # inputs and targets, both (12, 128): the targets are one character later
    optimizer.zero_grad()
    loss = tt.parallel.backward(lambda shard: loss_of(model, shard), batch.split(cores))  # forward and backward, all shards
    tt.optim.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step(schedule(step - 1), threads=cores)

    if step % min(10, flags.steps // 20 or 1) == 0 or step == flags.steps:  # a short run has a curve, too
        rows.append({"step": step, "train_loss": loss.item(), "validation_loss": None})
    if step % 250 == 0 or step == flags.steps:
        rows[-1]["validation_loss"] = evaluate(model, batches, loss_of, cores)  # on all of the text that is held out
        steps.print(f"step {step:5d}: loss {loss.item():.4f}, validation {rows[-1]['validation_loss']:.4f}")
    snapshots.keep(step)

# The result: a run that other programs open, the losses as a picture, and a sample.
save_run(out, "language model", model, tokenizer, rows, snapshots, model=config, data=source)
with plots.if_possible():
    plots.loss_curve(rows, out / "loss.png", title=f"A GPT learns {source.name}")
    print(f"\nThe losses as a picture: {out / 'loss.png'}")
start = "\n" if "\n" in text else text[0]
print(f"It writes:\n{tokenizer.decode(list(generate(model, tokenizer.encode(start), 500)))}\n")
print(f"Write more: tinyformer sample {out}")
print(f"Look inside: tinyformer explore {out}")
