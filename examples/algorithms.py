"""Train a GPT to sort or copy digits, or to add numbers, from examples alone, in half a minute on two cores.

python examples/algorithms.py
python examples/algorithms.py --task add
"""

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import GPT, GPTConfig, muon_for, plots, recording_attention
from tinyformer.data import synthetic

flags = script.flags(__doc__, task=("sort", "copy", "add"), steps=600)
out = script.new_folder(f"runs/{flags.task}")  # or runs/sort-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# Data: questions and answers as digits, such as 201120 and 001122, all of the same length. The answer of an addition starts
# with the ones, as in written addition. Some problems are held out for testing.
EQUALS = 10  # the token between a question and its answer
make = {"sort": synthetic.sorting, "copy": synthetic.copying, "add": synthetic.adding}[flags.task]
all_of_them = make(tt.random.generator())
questions, answers = (tt.tensor(side) for side in zip(*all_of_them))  # (problems, digits of a question), (problems, ...)
asked, answered = questions.shape[1], answers.shape[1]
rows = tt.concatenate([questions, tt.full((len(questions), 1), EQUALS, dtype=int), answers], axis=1)
rows = rows[tt.random.permutation(len(rows))]
held_out, training = rows[: min(len(rows) // 4, 1000)], rows[min(len(rows) // 4, 1000) :]
print(f"{flags.task}: {len(training):,} problems for training, {len(held_out):,} held out for testing")

# Model: it reads a question and writes the answer digit by digit, each from the digits before it.
model = GPT(GPTConfig(vocab_size=11, block_size=asked + answered, num_layers=2, num_heads=4, d_model=64, positions="rotary"))
print(f"GPT with {model.num_parameters():,} parameters")


def answers_of(rows):
    """What the model answers to the questions in rows: the likeliest digit, one after the other, (rows, digits)."""
    read = rows[:, : asked + 1]
    for _ in range(answered):
        read = tt.concatenate([read, model(read)[:, -1:].argmax(axis=-1)], axis=1)
    return read[:, asked + 1 :]


def right(rows):
    """The share of questions to which all digits of the answer are right."""
    return (answers_of(rows) == rows[:, asked + 1 :]).all(axis=1).astype("float32").mean().item()


# Training loop. Only the digits of the answer count in the loss, not the question.
optimizer = muon_for(model, lr=0.02, adamw_lr=0.003)  # Muon for the matrices of the blocks, AdamW for the rest
schedule = tt.optim.LinearDecay(warmup=20, steps=flags.steps)
steps = script.Steps(flags.steps)
for step in steps:
    batch = training[tt.random.integers(0, len(training), (128,))]
    logits = model(batch[:, :-1])[:, asked:]  # (128, digits of an answer, 11)
    loss = tt.cross_entropy(logits, batch[:, asked + 1 :])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step(schedule(step - 1))
    if step % 100 == 0 or step == flags.steps:
        steps.print(f"step {step:4d}: loss {loss.item():.4f}, {100 * right(held_out):5.1f} % of held-out problems right")

# Results: some answers, and the attention weights for one of them.
print()
for row, ours in zip(held_out[:6].tolist(), answers_of(held_out[:6]).tolist()):
    verdict = "right" if ours == row[asked + 1 :] else f"wrong: it is {row[asked + 1 :]}"
    print(f"    {' '.join(map(str, row[:asked]))}  ->  {' '.join(map(str, ours))}   {verdict}")
with recording_attention(model) as recorded:
    model(held_out[:1, :-1])
maps = {name: weights[0] for name, (weights,) in recorded.items()}  # (heads, queries, keys)
tokens = ["=" if i == EQUALS else str(i) for i in held_out[0, :-1].tolist()]
with plots.if_possible():
    plots.attention_maps(maps, tokens, tokens, out / "attention.png")
    print(f"\nAttention of each head: {out / 'attention.png'}")
print("Try another task: --task sort, --task copy or --task add")
