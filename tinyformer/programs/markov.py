"""From counting to attention: guess the next word from how often it came next before.

Small sets of sentences show what a table of words cannot know, what votes of pairs of words add, and why votes need a mask.
Then one layer of attention, trained on the same sentences, finds such a mask by itself. At the end Markov models of 0 to 8
characters learn a whole text, and write. All of it takes about half a minute.

tinyformer train markov                          # the sentences, then Tiny Shakespeare
tinyformer train markov --data my.txt            # ... then your own text
tinyformer train markov --gpt runs/char_gpt      # beside a GPT that learned the same text
tinyformer train markov --prompt "ROMEO:"        # what the texts at the end go on from
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError, print_line, stop_script
from tinyformer.common.files import write_csv
from tinyformer.common.progress import show_progress
from tinyformer.common.signals import stop_on_signals
from tinyformer.data.folders import mark_results
from tinyformer.data.reading import TextSource, fingerprint, open_text
from tinyformer.markov import KneserNey, SkipVotes, TransitionTable
from tinyformer.models.attention import MultiHeadAttention, recording_attention
from tinyformer.plots import if_possible, loss_by_order
from tinyformer.runs.checkpoints import load_checkpoint
from tinyformer.runs.makers import check_kind
from tinyformer.runs.run_folder import RunFolder, check_folder
from tinyformer.scripting.command_line import Parser, add_text_flag, some_path
from tinyformer.tasks.language import KIND
from tinyformer.tokenizers import CharTokenizer, load_tokenizer
from tinytensor import Tensor, nn
from tinytensor.common.wording import counted
from tinytensor.device.backend import host
from tinytensor.device.disk import make_folder

DEFAULT_OUT = "runs/markov"
VALIDATION = 0.1  # the end of the text, on which `tinyformer train gpt` validates, too


# -------------------------------------------------------------------------------------------------- sentences as ids

DRINKS = ["ann drinks black tea", "bob drinks green juice", "ann buys black ink", "bob buys green paint"]
VOICES = {"dog": "barked", "cat": "purred", "lion": "roared", "owl": "hooted", "wolf": "howled", "duck": "quacked"}
PLACES = ["ran through", "slept in", "lived by"]
ANIMALS = [f"the {animal} that {place} the old park {voice}" for animal, voice in VOICES.items() for place in PLACES]
UNEVEN = [
    "the dog that ran through the old park barked",
    "the dog that slept in the old park barked",
    "the cat that slept in the old park purred",
]


class Sentences:
    """Sentences of words, and the same as ids, numbered in the order of the alphabet."""

    def __init__(self, sentences: Sequence[str]):
        self.words = sorted({word for sentence in sentences for word in sentence.split()})
        self.ids = [self.encode(sentence) for sentence in sentences]

    def encode(self, sentence: str) -> list[int]:
        return [self.words.index(word) for word in sentence.split()]

    def guesses(self, probabilities: Tensor) -> str:
        """The possible words and their probabilities in %, the likeliest first."""
        found = sorted(zip(probabilities.tolist(), self.words), key=lambda pair: (-round(pair[0], 6), pair[1]))
        return ", ".join(f"{word} {100 * p:.0f} %" for p, word in found if p > 0.005)


def show_sentences(title: str, sentences: Sequence[str]) -> Sentences:
    """Print sentences under a title."""
    print(f"\n{title}\n")
    for sentence in sentences[:6]:
        print(f"    {sentence}")
    if len(sentences) > 6:
        print(f"    ... {len(sentences):,} in all")
    print()
    return Sentences(sentences)


def show_guesses(of: Sentences, context: str, models: Mapping[str, Callable[[Sequence[int]], Tensor]]) -> None:
    """Print what each model expects after a context."""
    print(f'After "{context}":')
    for name, predict in models.items():
        print(f"    {name:14s}  {of.guesses(predict(of.encode(context)))}")


# ------------------------------------------------------------------------------------------------------------- counting


def first_order() -> None:
    """One word of context, and where it is not enough."""
    some = show_sentences("1. One word of context. How often each word (across) followed each word (down), in %:", DRINKS)
    table, pairs = TransitionTable(some.ids, len(some.words)), TransitionTable(some.ids, len(some.words), order=2)
    width = max(map(len, some.words)) + 2
    print(" " * width + "".join(f"{word:>{width}s}" for word in some.words))
    for word, row in zip(some.words, table.matrix.tolist()):
        print(f"{word:{width}s}" + "".join(f"{f'{100 * p:.0f}' if p else '.':>{width}s}" for p in row))
    print("\nA row is found by a product: a vector with a single 1 for the word, times this matrix.\n")
    models = {"one word": table.predict, "two words": pairs.predict}
    show_guesses(some, "ann drinks black", models)
    print('"drinks black" knows what "black" alone does not. But the word that decides may be farther away than that.')


def skips() -> None:
    """Where two words of context are not enough, but one of the pairs is."""
    some = show_sentences("2. The word that decides is far away:", ANIMALS)
    votes = SkipVotes(some.ids, len(some.words))
    models = {
        "one word": votes.first_order.predict,
        "two words": TransitionTable(some.ids, len(some.words), order=2).predict,
        "votes": lambda context: votes.predict(context, masked=False),
        "masked votes": votes.predict,
    }
    context = "the owl that slept in the old park"
    show_guesses(some, context, models)
    print('\nEach earlier word votes, together with the last one, for what followed the two ("..." stands for words between):')
    ids = some.encode(context)
    for word, weight in zip(ids[:-1], votes.weights(ids).tolist()):
        pair = f"{some.words[word]} ... {some.words[ids[-1]]}"
        print(f"    {pair:16s}  {'silenced' if not weight else 'counts':8s}  {some.guesses(votes.votes[ids[-1], word])}")
    print("The mask keeps the votes that differ from those of the last word alone.")


def masks() -> None:
    """Where votes without a mask are wrong."""
    some = show_sentences("3. What is frequent outvotes what is known:", UNEVEN)
    votes = SkipVotes(some.ids, len(some.words))
    models = {"votes": lambda context: votes.predict(context, masked=False), "masked votes": votes.predict}
    show_guesses(some, "the cat that slept in the old park", models)
    show_guesses(some, "the dog that slept in the old park", models)
    print("\nThe mask by products: the last word is the query, the earlier words are the keys, M holds all masks.")
    ids = some.encode("the cat that slept in the old park")
    query, keys = (tt.one_hot(tt.tensor(part), len(some.words)) for part in (ids[-1], ids[:-1]))
    print(f"    Q M K^T = {(query @ votes.mask @ keys.T).tolist()}")


# ------------------------------------------------------------------------------------------------------------- attention


class AttentionOnly(nn.Module):
    """A Transformer of one layer with one head, without feed-forward network, norms and positions.

    As the votes do, each word attends to the words before it, but not to itself: what it says alone goes around the attention.
    """

    def __init__(self, vocab_size: int, d_model: int = 32):
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.attention = MultiHeadAttention(d_model, 1, bias=False)
        self.output = nn.Linear(d_model, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (batch, length) -> logits (batch, length, vocab_size) of the next word."""
        x = self.embedding(ids)
        earlier = tt.tril(tt.ones((ids.shape[1], ids.shape[1])), -1) > 0
        earlier[0, 0] = True  # the first word has none, and sees itself
        return self.output(x + self.attention(x, mask=earlier))


def train_attention(some: Sentences, seed: int, steps: int = 600) -> tuple[Tensor, Tensor]:
    """Train on sentences of one length. Returns, of the word before the last one, what it attends to (sentences, words before),
    and what it expects (sentences, vocabulary)."""
    tt.seed(seed)
    ids = tt.tensor(some.ids)
    model = AttentionOnly(len(some.words))
    optimizer = tt.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        tt.cross_entropy(model(ids[:, :-1]).reshape(-1, len(some.words)), ids[:, 1:].reshape(-1)).backward()
        optimizer.step()
    with recording_attention(model) as recorded:
        expected = model(ids[:, :-1]).softmax(axis=-1)[:, -1]
    return recorded["attention"][0][:, 0, -1, :-1], expected


def attention(seed: int) -> None:
    """Attention that is trained, beside the mask that was made by hand."""
    print("\n4. One layer of attention, trained on the sentences of 2. What it attends to at the end of a sentence of each")
    print("animal, in %, under the weights of the masked votes; then what it expects, and in brackets what comes:\n")
    some = Sentences(ANIMALS)
    votes = SkipVotes(some.ids, len(some.words))
    weights, expected = train_attention(some, seed)
    found = 0
    for row in range(0, len(ANIMALS), len(PLACES)):
        *context, last = ANIMALS[row].split()
        by_hand = votes.weights(some.ids[row][:-1]).tolist()
        learned = weights[row].tolist()
        found += learned.index(max(learned)) == by_hand.index(max(by_hand))
        print(f"    {'':9s}" + "".join(f"{word:>9s}" for word in context[:-1]))
        print(f"    {'by hand':9s}" + "".join(f"{100 * weight:9.0f}" for weight in by_hand))
        print(f"    {'learned':9s}" + "".join(f"{100 * weight:9.0f}" for weight in learned))
        print(f"    {'':9s}-> {some.guesses(expected[row])}  ({last})\n")
    print(f"For {found} of {len(VOICES)} animals the largest weight is on the animal.")
    if found == len(VOICES) - 1:
        print("All it has to know of the other one is that it saw none of these.")


# ------------------------------------------------------------------------------------------------------------ a whole text


@dataclass(frozen=True)
class TextData:
    """A text, its name, tokenizer and ids, of which those from ``cut`` on validate, the prompt, and the loss of a GPT."""

    text: str
    name: str
    tokenizer: CharTokenizer
    ids: Any
    cut: int
    prompt: str
    gpt: float | None


def read(arguments: argparse.Namespace) -> TextData:
    """The text and what goes with it, and the folder of the results, which is made. What the user did wrong shows here."""
    text, source = open_text(arguments.data, field=arguments.field)
    tokenizer = CharTokenizer.train(text)
    ids = host.asarray(tokenizer.encode(text))
    cut = int(len(ids) * (1 - VALIDATION))
    if min(cut, len(ids) - cut) <= arguments.order + 1:
        remedy = "a longer text, or a lower --order" if arguments.order and min(cut, len(ids) - cut) > 1 else "a longer text"
        raise UserError(
            f"{source.name} has {counted(len(ids), 'character')}, too few for --order {arguments.order}: choose {remedy}"
        )
    prompt = ("\n" if "\n" in text else text[0]) if arguments.prompt is None else arguments.prompt
    tokenizer.encode(prompt)  # raises for characters that the text does not have
    gpt = gpt_loss(arguments.gpt, text)
    out = Path(arguments.out)
    check_folder(out)
    make_folder(out)
    mark_results(out)
    return TextData(text, source.name, tokenizer, ids, cut, prompt, gpt)


def learn_text(data: TextData, arguments: argparse.Namespace) -> None:
    """Models of all orders of a text's characters: their losses, as a table and a picture, and what they write."""
    validating = f"the last {len(data.ids) - data.cut:,} validate"
    counts = f"{counted(len(data.text), 'character')}, {data.tokenizer.vocab_size} of them distinct"
    print()
    print_line(f"5. {data.name}: {counts}; {validating}.")
    print("Markov models with Kneser and Ney's smoothing: where a context is rare, a shorter one helps. Ruled out are")
    print("characters that counts alone would have thought impossible:\n")
    print("    characters  loss (nats)  perplexity  ruled out")
    out = Path(arguments.out)
    losses, written, stopped = count_orders(data, arguments)
    if data.gpt is not None:
        print(f"    {'GPT':>10s}  {data.gpt:11.4f}  {math.exp(data.gpt):10.2f}  {'0.0 %':>9s}")
    best = min(losses, key=lambda order: losses[order])
    for order in sorted({1, 3, best} & set(written)):
        print(f"\nWritten with {counted(order, 'character')} of context:\n\n{data.prompt}{written[order]}")
    with if_possible():
        loss_by_order(losses, data.gpt, out / "losses.png", data.name)
    print(f"\nWrote the losses, as .csv and .png, to {out}")
    if stopped:
        stop_script(stopped, f"Stopped by {stopped} after {len(losses):,} of {counted(arguments.order + 1, 'order')}.")


def count_orders(data: TextData, arguments: argparse.Namespace) -> tuple[dict[int, float], dict[int, str], str]:
    """The loss of the model of each order, what it writes, and what stopped this before the last order, if anything did.

    The losses are kept in a file as orders finish. Ctrl-C, SIGTERM and SIGHUP stop it after the order that is being counted.
    """
    training, validation = data.ids[: data.cut], data.ids[data.cut :]
    prompt = data.tokenizer.encode(data.prompt)
    rng = host.random.default_rng(arguments.seed)
    losses: dict[int, float] = {}
    written: dict[int, str] = {}
    signals: list[str] = []
    with stop_on_signals(signals.append), show_progress("orders", arguments.order + 1, "order") as progress:
        for order in range(arguments.order + 1):
            model = KneserNey(training, order, data.tokenizer.vocab_size)
            losses[order] = model.loss(validation)
            write_csv(Path(arguments.out) / "losses.csv", [("order", "validation_loss"), *losses.items()])
            ruled_out = f"{100 * model.unseen(validation):.1f} %"
            progress.write(f"    {order:10d}  {losses[order]:11.4f}  {math.exp(losses[order]):10.2f}  {ruled_out:>9s}")
            written[order] = data.tokenizer.decode(model.generate(prompt, arguments.length, rng))
            progress.update()
            if signals and order < arguments.order:
                return losses, written, signals[0]
    return losses, written, ""


def gpt_loss(run: str | None, text: str) -> float | None:
    """The best validation loss of a run of a GPT. Raises UserError where it is of another text, or not of characters."""
    if run is None:
        return None
    check_kind(KIND, run)
    folder = RunFolder(run)
    source = folder.read_part("data", TextSource)
    if source.sha256 != fingerprint(text):
        field = f" --field {source.field}" if source.field else ""
        its_own = f": choose that with --data{field}" if source.path else ""
        raise UserError(f"{run} learned another text, {source.name}, and cannot be compared{its_own}")
    if not isinstance(load_tokenizer(folder.tokenizer), CharTokenizer):
        raise UserError(f"{run} does not predict characters, and cannot be compared: choose a run with --tokenizer char")
    _, state = load_checkpoint(folder.best, "best")
    return float(state["validation_loss"])


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="tinyformer train markov",
        description="Markov models, from a table of words to attention, and of a text's characters.",
    )
    add_text_flag(parser)
    parser.add_argument(
        "--out", help="the folder of the table and the picture", default=DEFAULT_OUT, type=some_path, metavar="FOLDER"
    )
    parser.add_argument(
        "--gpt", help="a run of tinyformer train gpt on the same text, to compare with", type=some_path, metavar="FOLDER"
    )
    parser.add_argument("--order", help="the most characters of context", type=int, default=8, metavar="INT")
    parser.add_argument("--prompt", help="the text to go on from (default: a new line)", metavar="TEXT")
    parser.add_argument("--length", help="characters to write", type=int, default=300, metavar="INT")
    parser.add_argument(
        "--seed", help="of the trained attention, and of what is written", type=int, default=1337, metavar="INT"
    )
    parser.set_defaults(run=show_all)
    arguments = parser.parse_args(words)
    for name in ("order", "length", "seed"):
        if getattr(arguments, name) < 0:
            parser.error(f"argument --{name}: it must be at least 0, not {getattr(arguments, name)}")
    return arguments


def show_all(arguments: argparse.Namespace) -> None:
    """Everything, one after the other."""
    data = read(arguments)
    first_order()
    skips()
    masks()
    attention(arguments.seed)
    learn_text(data, arguments)
