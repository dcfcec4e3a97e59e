"""Train the Transformer of "Attention Is All You Need" to turn dates in words into ISO dates, in half a minute on two cores.

python examples/translate.py
python examples/translate.py --steps 100       # a shorter run
"""

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import (
    PairBatches,
    Transformer,
    TransformerConfig,
    TranslationConfig,
    Translator,
    dates,
    evaluate,
    muon_for,
    plots,
    save_run,
)

flags = script.flags(__doc__, steps=500)
out = script.new_folder("runs/translate")  # or runs/translate-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# Data: pairs such as ("the fifth of May, nineteen oh five", "1905-05-05"), all distinct; a thousand are held out.
pairs = dates(20_000)
validation, test, training = pairs[:500], pairs[500:1000], pairs[1000:]
task = TranslationConfig(vocab_size=400, label_smoothing=0.0)
tokenizer = task.train_tokenizer(training)  # byte pairs: frequent words are one token, rare ones several

# Model: an encoder reads the words, and a decoder writes the date. It attends to its own output and to the encoder's.
config = TransformerConfig(
    source_vocab_size=tokenizer.vocab_size,
    target_vocab_size=tokenizer.vocab_size,
    share_embeddings=True,
    source_pad=tokenizer.special["[PAD]"],
    encoder_layers=2,
    decoder_layers=2,
    num_heads=4,
    d_model=64,
    d_ff=256,
    norm_first=True,
    positions="rotary",
    query_key_norm=True,
)
model = Transformer(config)
translator = Translator(model, tokenizer, task)  # the model and its tokenizer, for sentences
print(f"Transformer with {model.num_parameters():,} parameters; {len(training):,} dates for training")


def encoded(pairs):
    return [tuple(tokenizer.encode(side).tolist() for side in pair) for pair in pairs]


batches = PairBatches(encoded(training), encoded(validation), translator.specials, batch_size=64, seed=1337)


def loss_of(model, batch):
    """The mean cross-entropy of the dates, in nats a token. A shard of a batch has its part of that mean."""
    sides = batch.source, batch.target_inputs, batch.target_outputs  # the outputs are the inputs shifted by one token
    return model.loss(*sides, translator.specials.pad, reduction="sum") / batch.num_targets


# Training loop. Each core computes the loss and gradients of one shard of the batch, in its own thread.
optimizer = muon_for(model, lr=0.02, adamw_lr=0.003)  # Muon for the matrices of the blocks, AdamW for the rest
schedule = tt.optim.LinearDecay(warmup=50, steps=flags.steps)
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
    if step % 100 == 0 or step == flags.steps:
        rows[-1]["validation_loss"] = evaluate(model, batches, loss_of, cores)
        now = translator.translate([test[0][0]])[0]
        steps.print(f"step {step:4d}: validation loss {rows[-1]['validation_loss']:.4f}   {test[0][0]} -> {now}")

# Results: exact matches, a run for the other commands, and attention weights.
found = translator.translate([words for words, _ in test])
right = sum(ours == iso for ours, (_, iso) in zip(found, test))
print(f"\n{right} of {len(test)} held-out dates are exactly right:\n")
for (words, iso), ours in zip(test[:8], found):
    print(f"    {words:50s} {ours}  {'' if ours == iso else f'wrong: {iso}'}")
save_run(out, "translator", model, tokenizer, rows, model=config, task=task)
with plots.if_possible():
    seen = translator.attended(max((words for words, _ in test), key=len))
    plots.attention_means(seen.weights, seen.source, seen.read, out / "attention.png")
    print(f"\nAttention: {out / 'attention.png'}")
print(f"Translate more: tinyformer translate --out {out} 'the tenth of June, twenty twelve'")
print(f"Look inside: tinyformer explore {out}")
