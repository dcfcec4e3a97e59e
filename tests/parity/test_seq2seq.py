"""The recurrent models against twins of PyTorch's own layers with copied weights: logits, loss and every gradient.

The twins are written from the papers, with time as the second axis and packed sequences, as PyTorch's users write them.
"""

import numpy
import pytest
import torch
from parity.compare import assert_close, to_float64
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import tinytensor as tt
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
from tinyformer.models.seq2seq import AdditiveAttentionModel, ContextVectorModel, Seq2SeqConfig

CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
WIDTH, EMBEDDING, SOURCE_WORDS, TARGET_WORDS = 8, 6, 13, 11

each_cell = pytest.mark.parametrize("cell", CELLS)
layers = pytest.mark.parametrize("num_layers", [1, 2])
precisions = pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-10), ("float32", 1e-4)], ids=["64", "32"])


def lengths_of(ids):
    return (ids != 0).sum(1)


class Maxout(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs)

    def forward(self, x):
        return self.linear(x).unflatten(-1, (-1, 2)).amax(-1)


class ContextVectorTwin(nn.Module):
    """Sutskever et al. (2014)."""

    def __init__(self, cell, num_layers, is_reversed, source_words=SOURCE_WORDS):
        super().__init__()
        self.is_reversed = is_reversed
        self.source_embedding = nn.Embedding(source_words, EMBEDDING)
        self.target_embedding = nn.Embedding(TARGET_WORDS, EMBEDDING)
        self.encoder = CELLS[cell](EMBEDDING, WIDTH, num_layers, batch_first=True)
        self.decoder = CELLS[cell](EMBEDDING, WIDTH, num_layers, batch_first=True)
        self.readout = Maxout(WIDTH + EMBEDDING, EMBEDDING)
        self.output = nn.Linear(EMBEDDING, TARGET_WORDS, bias=False)

    def forward(self, source, target):
        lengths = lengths_of(source)
        if self.is_reversed:  # all but the end, which stays at the end
            source = source.clone()
            for row, length in zip(source, lengths):
                row[: length - 1] = row[: length - 1].flip(0)
        packed = pack_padded_sequence(self.source_embedding(source), lengths, batch_first=True, enforce_sorted=False)
        words = self.target_embedding(target)
        outputs, _ = self.decoder(words, self.encoder(packed)[1])
        return self.output(self.readout(torch.cat([outputs, words], -1)))


class AttentionTwin(nn.Module):
    """Bahdanau et al. (2015)."""

    def __init__(self, cell, num_layers, source_words=SOURCE_WORDS):
        super().__init__()
        self.source_embedding = nn.Embedding(source_words, EMBEDDING)
        self.target_embedding = nn.Embedding(TARGET_WORDS, EMBEDDING)
        self.encoder = CELLS[cell](EMBEDDING, WIDTH, num_layers, batch_first=True, bidirectional=True)
        self.decoder = CELLS[cell](EMBEDDING + 2 * WIDTH, WIDTH, num_layers, batch_first=True)
        self.bridges = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2 if cell == "lstm" else 1))
        self.cross_attention = nn.ModuleDict(
            {
                "query": nn.Linear(WIDTH, WIDTH, bias=False),
                "key": nn.Linear(2 * WIDTH, WIDTH, bias=False),
                "score": nn.Linear(WIDTH, 1, bias=False),
            }
        )
        self.readout = Maxout(WIDTH + 2 * WIDTH + EMBEDDING, EMBEDDING)
        self.output = nn.Linear(EMBEDDING, TARGET_WORDS, bias=False)

    def context(self, memory, mask, top):
        energy = torch.tanh(self.cross_attention["query"](top).unsqueeze(1) + self.cross_attention["key"](memory))
        scores = self.cross_attention["score"](energy).squeeze(-1).masked_fill(~mask, float("-inf"))
        return torch.einsum("bs,bsd->bd", scores.softmax(-1), memory)

    def forward(self, source, target):
        packed = pack_padded_sequence(self.source_embedding(source), lengths_of(source), batch_first=True, enforce_sorted=False)
        outputs, last = self.encoder(packed)
        memory, _ = pad_packed_sequence(outputs, batch_first=True, total_length=source.shape[1])
        kinds = last if isinstance(last, tuple) else (last,)
        # (layers, directions, batch, width): the direction from the end stops at the first word.
        kinds = [k.unflatten(0, (-1, 2))[:, 1] for k in kinds]
        kinds = [torch.tanh(bridge(k)).contiguous() for bridge, k in zip(self.bridges, kinds)]
        state = tuple(kinds) if len(kinds) > 1 else kinds[0]
        found = []
        for word in self.target_embedding(target).unbind(1):
            top = (state[0] if isinstance(state, tuple) else state)[-1]
            context = self.context(memory, source != 0, top)
            out, state = self.decoder(torch.cat([word, context], -1).unsqueeze(1), state)
            found.append(self.readout(torch.cat([out[:, 0], context, word], -1)))
        return self.output(torch.stack(found, 1))


def copied(ours, theirs, dtype, seed=0):
    """Both with the same random weights. The names are the same, whatever their order."""
    rng = numpy.random.default_rng(seed)
    if dtype == "float64":
        to_float64(ours)
        theirs.double()
    mine, its = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert {name: p.shape for name, p in mine.items()} == {name: tuple(p.shape) for name, p in its.items()}
    with torch.no_grad():
        for name, p in mine.items():
            value = (0.4 * rng.standard_normal(p.shape)).astype(dtype)
            p.assign(value)
            its[name].copy_(torch.tensor(value))
    return mine, its


def batch():
    source = numpy.random.default_rng(1).integers(1, TARGET_WORDS, (4, 6))
    target = numpy.random.default_rng(2).integers(1, TARGET_WORDS, (4, 6))
    source[1, 4:], source[2, 1:], source[3, 2:] = 0, 0, 0
    target[0, 3:], target[3, 5:] = 0, 0
    return source, target


def assert_same_translation(ours, theirs, dtype, relative):
    """Logits, and the loss with all its gradients, which leaves out the padding of the target."""
    mine, its = copied(ours, theirs, dtype)
    source, target = batch()
    expected = theirs(torch.tensor(source), torch.tensor(target[:, :-1]))
    assert_close(ours(tt.tensor(source), tt.tensor(target[:, :-1])), expected, min(relative, 1e-5), what="the logits")
    inputs, outputs = tt.tensor(target[:, :-1]), tt.tensor(target[:, 1:])
    loss = ours.loss(tt.tensor(source), inputs, outputs, ignore_index=0, label_smoothing=0.1)
    its_loss = cross_entropy(expected.flatten(0, 1), torch.tensor(target[:, 1:]).flatten(), ignore_index=0, label_smoothing=0.1)
    assert_close(loss, its_loss, min(relative, 1e-5), what="the loss")
    assert_same_gradients(loss, its_loss, mine, its, relative)


def assert_same_gradients(loss, its_loss, mine, its, relative):
    loss.backward()
    its_loss.backward()
    for name, p in mine.items():
        assert float(abs(its[name].grad).max()) > 0, name
        assert_close(p.grad, its[name].grad, relative, what=f"the gradient of {name}")


def config(cell, num_layers, attention, **changes):
    sizes = {"d_model": WIDTH, "d_embedding": EMBEDDING, "num_layers": num_layers, "dropout": 0.0}
    return Seq2SeqConfig(**{"source_vocab_size": SOURCE_WORDS, "target_vocab_size": TARGET_WORDS, "attention": attention,
                            "cell": cell, **sizes, **changes})  # fmt: skip


@precisions
@layers
@each_cell
@pytest.mark.parametrize("is_reversed", [False, True], ids=["forward", "reversed"])
def test_one_context_vector(cell, num_layers, is_reversed, dtype, relative):
    ours = ContextVectorModel(config(cell, num_layers, False, reverse_source=is_reversed))
    assert_same_translation(ours, ContextVectorTwin(cell, num_layers, is_reversed), dtype, relative)


@precisions
@layers
@each_cell
def test_additive_attention(cell, num_layers, dtype, relative):
    ours = AdditiveAttentionModel(config(cell, num_layers, True))
    assert_same_translation(ours, AttentionTwin(cell, num_layers), dtype, relative)


@pytest.mark.parametrize("attention", [False, True])
def test_a_shared_embedding(attention):
    if attention:
        ours, theirs = AdditiveAttentionModel, AttentionTwin("gru", 1, TARGET_WORDS)
    else:
        ours, theirs = ContextVectorModel, ContextVectorTwin("gru", 1, False, TARGET_WORDS)
    theirs.target_embedding = theirs.source_embedding
    model = ours(config("gru", 1, attention, share_embeddings=True, source_vocab_size=TARGET_WORDS))
    assert_same_translation(model, theirs, "float64", 1e-10)


@precisions
@layers
@each_cell
@pytest.mark.parametrize("context", [0, 4])
def test_a_language_model(cell, num_layers, context, dtype, relative):
    """With a context, PyTorch reads it without gradients and continues from its state."""
    ours = RecurrentLM(RecurrentConfig(TARGET_WORDS, cell, num_layers=num_layers, d_model=WIDTH))
    theirs = nn.ModuleDict(
        {
            "token_embedding": nn.Embedding(TARGET_WORDS, WIDTH),
            "layers": CELLS[cell](WIDTH, WIDTH, num_layers, batch_first=True),
            "output": nn.Linear(WIDTH, TARGET_WORDS, bias=False),
        }
    )
    mine, its = copied(ours, theirs, dtype)
    ids = numpy.random.default_rng(1).integers(0, TARGET_WORDS, (3, 10))
    targets = numpy.random.default_rng(2).integers(0, TARGET_WORDS, (3, 10 - context))
    state = None
    if context:
        with torch.no_grad():
            _, state = theirs["layers"](theirs["token_embedding"](torch.tensor(ids[:, :context])))
    outputs, _ = theirs["layers"](theirs["token_embedding"](torch.tensor(ids[:, context:])), state)
    its_loss = cross_entropy(theirs["output"](outputs).flatten(0, 1), torch.tensor(targets).flatten())
    loss = ours.loss(tt.tensor(ids), tt.tensor(targets))
    assert_close(loss, its_loss, min(relative, 1e-5), what="the loss")
    assert_same_gradients(loss, its_loss, mine, its, relative)
