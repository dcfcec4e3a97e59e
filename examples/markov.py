"""From counting to attention: predict what comes next from what came next before. Takes half a minute.

python examples/markov.py                      # a few sentences, then Tiny Shakespeare
python examples/markov.py --data my.txt        # ... then your own text
"""

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import CharTokenizer, KneserNey, SkipVotes, TransitionTable, open_text, plots
from tinytensor import nn

flags = script.flags(__doc__, data=None)
text, source = open_text(flags.data)
out = script.new_folder("runs/markov")  # or runs/markov-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# 1. One word of context. A table of counts: how often did each word follow "park"? Six answers, equally likely.
VOICES = {"dog": "barked", "cat": "purred", "lion": "roared", "owl": "hooted", "wolf": "howled", "duck": "quacked"}
PLACES = ("ran through", "slept in", "lived by")
sentences = [f"the {animal} that {place} the old park {voice}".split() for animal, voice in VOICES.items() for place in PLACES]
words = sorted({word for sentence in sentences for word in sentence})
ids = [[words.index(word) for word in sentence] for sentence in sentences]
*context, _ = ids[3]  # the cat that ran through the old park ...


def guesses(probabilities):
    likely = sorted(zip(probabilities.tolist(), words), reverse=True)
    return ", ".join(f"{word} {100 * p:.0f} %" for p, word in likely if p > 0.01)


print('After "the cat that ran through the old park", after 18 such sentences:\n')
print("    one word of context    ", guesses(TransitionTable(ids, len(words)).predict(context)))
print("    two words              ", guesses(TransitionTable(ids, len(words), order=2).predict(context)))

# 2. Votes. Each earlier word, paired with the last one, votes for what followed the pair. Most pairs carry no information; a
# mask silences them. A product looks up the mask: the last word is the query, the earlier words are the keys.
votes = SkipVotes(ids, len(words))
print("    votes of pairs         ", guesses(votes.predict(context, masked=False)))
print("    masked votes           ", guesses(votes.predict(context)))


# 3. Attention. Vectors replace the tables, and all matrices are learned.
class Attention(nn.Module):
    def __init__(self, width=32):
        self.embedding = nn.Embedding(len(words), width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, len(words))

    def forward(self, ids):
        x = self.embedding(ids)  # (sentences, words, width)
        scores = self.query(x) @ self.key(x).swapaxes(-1, -2) / x.shape[-1] ** 0.5
        weights = tt.where(tt.causal_mask(ids.shape[1]), scores, -1e9).softmax(axis=-1)  # causal: no word attends to later ones
        return self.output(x + weights @ self.value(x)), weights


model = Attention()
optimizer = tt.optim.AdamW(model.parameters(), lr=3e-3)
sequences = tt.tensor(ids)
for _ in range(600):
    logits, weights = model(sequences[:, :-1])
    loss = tt.cross_entropy(logits.reshape(-1, len(words)), sequences[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("    attention, 600 steps   ", guesses(logits[3, -1].softmax(axis=-1)))
print("\nWeights at the end of that sentence, in %:\n")
print("                  " + "".join(f"{words[i]:>9s}" for i in context))
print("    masked votes  " + "".join(f"{100 * weight:9.0f}" for weight in votes.weights(context).tolist()))
print("    attention     " + "".join(f"{100 * weight:9.0f}" for weight in weights[3, -1].tolist()))
on_animals = ", ".join(f"{animal} {100 * weights[3 * i, -1, 1].item():.0f} %" for i, animal in enumerate(VOICES))
print(f"\nAttention to the animal: {on_animals}. (One animal needs none: it is predicted by default.)")

# 4. A text by characters, with more and more context. Long contexts are rare, so the model backs off to shorter ones (Kneser
# and Ney 1995). The last tenth is held out.
tokenizer = CharTokenizer.train(text)
characters = tokenizer.encode(text)
cut = len(characters) * 9 // 10
print(f"\n{source.name}, {len(text):,} characters. The loss on its last tenth, by characters of context:\n")
losses = {}
for order in range(9):
    counted = KneserNey(characters[:cut], order, tokenizer.vocab_size)
    losses[order] = counted.loss(characters[cut:])
    print(f"    {order}    {losses[order]:.4f} nats")
    if losses[order] == min(losses.values()):
        written = counted.generate(tokenizer.encode(text[cut : cut + 20]), 300, tt.random.generator())
print(f"\nSample from the best model:\n{tokenizer.decode(written)}\n")
with plots.if_possible():
    plots.loss_by_order(losses, out / "losses.png", source.name)
    print(f"Losses: {out / 'losses.png'}")
print("Train attention on the same text: python examples/char_gpt.py")
