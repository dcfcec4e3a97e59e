"""Train an encoder for semantic search, by matching the two halves of passages, in about a minute on two cores.

python examples/search.py                                # Tiny Shakespeare
python examples/search.py --data my_notes                # a folder of your texts
python examples/search.py --data my_notes --model FOLDER # a pretrained sentence-transformers model
"""

import sys

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import (
    Bert,
    BertConfig,
    SentenceEncoder,
    SentenceModel,
    UserError,
    WordPieceTokenizer,
    open_text,
    plots,
    sentence_encoder,
)

flags = script.flags(__doc__, steps=400, data=None, model=None)
out = script.new_folder("runs/search")  # or runs/search-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# Data: passages separated by empty lines. Every tenth is held out.
text, source = open_text(flags.data)
passages = [" ".join(passage.split()) for passage in text.split("\n\n")]
passages = [passage for passage in passages if len(passage.split()) >= 16]
held_out, training = passages[::10], [passage for i, passage in enumerate(passages) if i % 10]
if len(training) < 2:
    raise UserError(f"{source.name} has only {len(passages)} passages of 16 words between empty lines: use a longer text")
print(f"{source.name}: {len(passages):,} passages of at least 16 words")


def halves(passages):
    """The first halves of passages, and the second ones."""
    words = [passage.split() for passage in passages]
    return [" ".join(w[: len(w) // 2]) for w in words], [" ".join(w[len(w) // 2 :]) for w in words]


def found(passages):
    """How many of the first halves find their second half, by the largest cosine."""
    first, second = map(encoder.encode, halves(passages))  # (passages, width) each, of length 1
    return sum(int(row.argmax()) == i for i, row in enumerate(first @ second.T))


# Model: a text's vector is the mean of a small BERT's token vectors.
if flags.model:
    encoder = sentence_encoder(flags.model)
else:
    tokenizer = WordPieceTokenizer.train(text, 2000)
    sizes = {"max_length": 64, "num_layers": 1, "num_heads": 4, "d_model": 128, "d_ff": 256}
    bert = Bert(BertConfig(tokenizer.vocab_size, pad=tokenizer.special["[PAD]"], **sizes))
    encoder = SentenceEncoder(SentenceModel(bert), tokenizer, max_length=64)
model = encoder.model
print(f"An encoder with {model.num_parameters():,} parameters")

# Training loop: each first half should be nearest to its own second half in the batch (van den Oord et al. 2018).
optimizer = tt.optim.AdamW(model.parameters(), lr=0.002)
schedule = tt.optim.LinearDecay(warmup=20, steps=flags.steps)
rows = []  # log rows
steps = script.Steps(0 if flags.model else flags.steps)
for step in steps:
    chosen = [training[i] for i in tt.random.generator().choice(len(training), min(64, len(training)), replace=False)]
    first, second = [model.train()(*encoder.padded(texts)) for texts in halves(chosen)]
    loss = tt.cross_entropy(20.0 * first @ second.T, tt.arange(len(chosen)))  # scaled cosines
    optimizer.zero_grad()
    loss.backward()
    optimizer.step(schedule(step - 1))
    rows.append({"step": step, "train_loss": loss.item(), "validation_loss": None})
    if step % 100 == 0 or step == flags.steps:
        tested = held_out[:200]
        steps.print(f"step {step:5d}: loss {loss.item():.4f}, {found(tested)} of {len(tested)} halves are matched")

# Results: the nearest passages to some held-out ones, and to what you type.
vectors = encoder.encode(passages)


def search(words, skipped=0):
    """Print the three passages nearest to some words, after so many that are left out."""
    cosines = vectors @ encoder.encode(words)
    print(f"\n{words[:110]}")
    for i in (-cosines).argsort()[skipped : skipped + 3]:
        print(f"    {cosines[i]:.2f}  {passages[i][:110]}")


for passage in held_out[:4]:
    search(passage, skipped=1)  # skip the passage itself
while sys.stdin.isatty() and (words := input("\nWhat do you look for? (Nothing: end) ").strip()):
    search(words)
if rows:  # a pretrained encoder learned nothing
    with plots.if_possible():
        plots.loss_curve(rows, out / "loss.png", title=f"An encoder learns {source.name}")
        print(f"\nLosses: {out / 'loss.png'}")
