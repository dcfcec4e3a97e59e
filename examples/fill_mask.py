"""Train a small BERT to fill in masked words, in about three minutes on two cores.

python examples/fill_mask.py                   # Tiny Shakespeare
python examples/fill_mask.py --data my.txt     # your own text
"""

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import (
    BertConfig,
    BertForMaskedLM,
    MaskedBatches,
    Masking,
    WordPieceTokenizer,
    evaluate,
    muon_for,
    open_text,
    plots,
    save_run,
)

flags = script.flags(__doc__, steps=2500, data=None)
out = script.new_folder("runs/fill_mask")  # or runs/fill_mask-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# Data: words and pieces of rare words. Three tenths of them are masked, newly drawn each time.
text, source = open_text(flags.data)
tokenizer = WordPieceTokenizer.train(text, 1000)
special = tokenizer.special
masking = Masking(tokenizer.vocab_size, special["[MASK]"], special.values(), 0.3)
around = special["[CLS]"], special["[SEP]"]  # before and after each window of 64 tokens
batches = MaskedBatches(tokenizer.encode(text), masking, *around, window=64, batch_size=32, seed=1337)
print(f"{source.name}: {len(batches.training):,} tokens for training")

# Model: without a causal mask, each token is predicted from both sides.
config = BertConfig(
    vocab_size=tokenizer.vocab_size,
    pad=special["[PAD]"],
    max_length=66,
    num_layers=2,
    num_heads=4,
    d_model=128,
    d_ff=512,
    norm_first=True,
    positions="rotary",
    query_key_norm=True,
    dropout=0.0,
)
model = BertForMaskedLM(config)
print(f"BERT with {model.num_parameters():,} parameters")


def loss_of(model, batch):
    """Return the mean cross-entropy of the masked tokens in nats, or for a shard its part of that mean."""
    row, column = tt.tensor(batch.hidden.nonzero())  # the positions of the masked tokens, the only ones predicted
    logits = model(batch.inputs, places=(row, column))
    return tt.cross_entropy(logits, batch.targets[row, column], reduction="sum") / batch.num_targets


# Training loop. Each core computes the loss and gradients of one shard of the batch, in its own thread.
optimizer = muon_for(model, lr=0.02, adamw_lr=0.003, weight_decay=0.01)  # Muon for matrices of blocks, AdamW for the rest
schedule = tt.optim.LinearDecay(warmup=100, steps=flags.steps)
cores = tt.parallel.default_shards()
rows = []  # log rows
steps = script.Steps(flags.steps)
for step in steps:
    batch = batches.sample()
    optimizer.zero_grad()
    loss = tt.parallel.backward(lambda shard: loss_of(model, shard), batch.split(cores))  # forward and backward pass
    tt.optim.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step(schedule(step - 1), threads=cores)

    if step % min(10, flags.steps // 20 or 1) == 0 or step == flags.steps:  # short runs get a curve, too
        rows.append({"step": step, "train_loss": loss.item(), "validation_loss": None})
    if step % 250 == 0 or step == flags.steps:
        rows[-1]["validation_loss"] = evaluate(model, batches, loss_of, cores)
        steps.print(f"step {step:5d}: loss {loss.item():.4f}, validation {rows[-1]['validation_loss']:.4f}")

# Results: predictions for held-out text, a run for the other commands, and a picture of the losses.
print("\nLikeliest words for a masked one, in held-out text:\n")
words = tokenizer.decode(batches.validation[:400]).split()
for start in [i for i in range(0, len(words) - 8, 8) if words[i + 4].isalpha()][:7]:
    hidden = [*words[start : start + 4], "[MASK]", *words[start + 5 : start + 8]]
    ids = [around[0], *tokenizer.encode(" ".join(hidden), allow_special=True).tolist(), around[1]]
    probabilities = model(tt.tensor([ids]))[0, ids.index(special["[MASK]"])].softmax(axis=-1)
    values, best = tt.topk(probabilities, 3)
    guesses = ", ".join(f"{tokenizer.tokens[i]} {100 * p:.0f} %" for p, i in zip(values.tolist(), best.tolist()))
    print(f"    {' '.join(hidden):55s} {guesses}   (correct: {words[start + 4]})")
save_run(out, "masked language model", model, tokenizer, rows, model=config, data=source)
with plots.if_possible():
    plots.loss_curve(rows, out / "loss.png", title=f"A BERT learns {source.name}")
    print(f"\nLosses: {out / 'loss.png'}")
print(f"Fill in more: tinyformer fill --out {out} 'a sentence with a [MASK]'")
print(f"Look inside: tinyformer explore {out}")
