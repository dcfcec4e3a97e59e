"""Train word vectors with skip-gram, in about two minutes on two cores.

python examples/word_vectors.py                # Tiny Shakespeare
python examples/word_vectors.py --data my.txt  # your own text
"""

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import Corpus, WordVectors, open_text, passages, plots, save_vectors
from tinyformer.word_vectors.batches import Examples

flags = script.flags(__doc__, steps=3000, data=None)
text, source = open_text(flags.data)
out = script.new_folder("runs/word_vectors")  # or runs/word_vectors-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# Data: a word, one of its neighbors, and five random words as negative samples. No window crosses a paragraph.
corpus = Corpus.of(passages(text, "paragraph"), min_count=5, name=source.name)
examples = Examples(corpus, is_skip_gram=True, window=5, negative=5, sample=1e-3)
vocabulary = corpus.vocabulary.words
print(f"{source.name}: {corpus.num_words:,} words, {len(vocabulary):,} different ones of at least 5 occurrences")


def batches(size=2048):
    """Batches without end: contexts (size,), and targets (size, 6), the right word first; -1 where there is none."""
    while True:
        for _, contexts, targets in examples.of_an_epoch(tt.random.generator()):
            for first in range(0, len(contexts), size):
                yield tt.tensor(contexts[first : first + size, 0]), tt.tensor(targets[first : first + size])


# Model: each word has a context vector and a target vector. Their dot product scores how well two words fit.
WIDTH = 100
inputs = tt.random.uniform((len(vocabulary), WIDTH), -0.5 / WIDTH, 0.5 / WIDTH)
inputs.requires_grad = True
outputs = tt.zeros((len(vocabulary), WIDTH), requires_grad=True)
optimizer = tt.optim.Adam([inputs, outputs], lr=0.005)
schedule = tt.optim.LinearDecay(steps=flags.steps)

# Training loop: raise the score of the neighbor and lower those of the negative samples (Mikolov et al. 2013).
steps = script.Steps(flags.steps)
for step, (contexts, targets) in zip(steps, batches()):
    vectors = inputs[contexts]  # (2048, 100): a lookup is a product with a one-hot vector, without the zeros
    scores = (outputs[tt.maximum(targets, 0)] @ vectors[:, :, None])[..., 0]  # (2048, 6)
    signs = tt.where(tt.arange(6) == 0, 1.0, -1.0)
    losses = tt.where(targets >= 0, -tt.logsigmoid(signs * scores), 0.0)
    loss = losses.sum() / len(contexts)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step(schedule(step - 1))
    if step % 500 == 0 or step == flags.steps:
        steps.print(f"step {step:5d}: loss {loss.item():.4f}")

# Results: words used in similar contexts, without the most frequent ones, such as "the".
found = WordVectors(vocabulary, inputs.numpy())
asked = [word for word in "king queen love death sword night hand".split() if word in found]
asked = asked or vocabulary[min(len(vocabulary) // 4, 50) :][:8]
print("\nNearest words by cosine:\n")
for word in asked:
    print(f"    {word:10s} " + ", ".join(f"{other} {cosine:.2f}" for other, cosine in found.nearest(word, 6)))
save_vectors(found, out / "vectors.txt")
groups = {word: [word, *(other for other, _ in found.nearest(word, 5))] for word in asked}
shown = list(dict.fromkeys(word for group in groups.values() for word in group))
points, share = found.plane(shown)
with plots.if_possible():
    note = f"The plane that shows most of the differences, {100 * share:.0f} %. Words that are used alike lie near each other."
    plots.word_map(dict(zip(shown, points.tolist())), groups, note, out / "map.png")
    print(f"\nMap: {out / 'map.png'}")
print(f"Ask for other words: tinyformer vectors {out / 'vectors.txt'} --ask {asked[-1]}")
