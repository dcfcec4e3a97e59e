"""The encoder-decoder and its parts against PyTorch's own with copied weights: outputs and every gradient.

PyTorch's boolean masks say the opposite of ours: there, True = may NOT attend.
"""

import numpy
import pytest
import torch
from parity.compare import COTANGENTS, assert_close, to_float64

import tinytensor as tt
from tinyformer.common.vectors import Vectors
from tinyformer.models.attention import MultiHeadAttention, recording_attention
from tinyformer.models.bert import Bert, BertConfig
from tinyformer.models.blocks import Block, BlockConfig
from tinyformer.models.transformer import Stack, StridedConvolution, Transformer, TransformerConfig

WIDTH, HEADS, INNER = 16, 4, 24
PYTORCH_ACTIVATIONS = {"relu": "relu", "gelu_exact": "gelu"}  # PyTorch's gelu is the exact one unless told otherwise

norms = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
activations = pytest.mark.parametrize("activation", PYTORCH_ACTIVATIONS)


def normal(seed, *shape, dtype="float32"):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


def randomise(model, seed=0):
    """Every parameter random: a bias of 0 or a norm's weight of 1 hides mistakes, as does an attention that is all but even."""
    rng = numpy.random.default_rng(seed)
    for p in model.parameters():
        p.assign((0.2 * rng.standard_normal(p.shape) + (p.ndim == 1)).astype("float32"))
    return model


# ------------------------------------------------------------------------------------------------------- names

# The two libraries group the projections of cross-attention differently; elsewhere a parameter here is one there.
BLOCK = {
    "attention.": "self_attn.",
    "attention_norm.": "norm1.",
    "feed_forward.up.": "linear1.",
    "feed_forward.down.": "linear2.",
    "feed_forward_norm.": "norm2.",
}
DECODER_BLOCK = {
    **BLOCK,
    "cross_attention.": "multihead_attn.",
    "cross_attention_norm.": "norm2.",
    "feed_forward_norm.": "norm3.",
}


def attention_pairs(ours, theirs):
    """(name, our parameter, its rows in theirs, their parameter)."""
    for kind in ("weight", "bias"):
        joined = getattr(theirs, f"in_proj_{kind}")
        if ours.cross:
            yield f"query.{kind}", getattr(ours.query, kind), slice(0, WIDTH), joined
            yield f"key_value.{kind}", getattr(ours.key_value, kind), slice(WIDTH, None), joined
        else:
            yield f"query_key_value.{kind}", getattr(ours.query_key_value, kind), slice(None), joined
        yield f"output.{kind}", getattr(ours.output, kind), slice(None), getattr(theirs.out_proj, kind)


def pairs(ours, theirs, names, prefix=""):
    """The same for a module whose parts have these names in PyTorch, ours to theirs."""
    for our_name, their_name in names.items():
        mine, its = (dict(module.named_modules())[name[:-1]] for module, name in ((ours, our_name), (theirs, their_name)))
        if isinstance(mine, MultiHeadAttention):
            for name, *rest in attention_pairs(mine, its):
                yield f"{prefix}{our_name}{name}", *rest
        else:
            for name, p in mine.named_parameters():
                yield f"{prefix}{our_name}{name}", p, slice(None), its.get_parameter(name)


def stack_pairs(ours, theirs, names, prefix=""):
    """The same for a stack of blocks."""
    for i, (block, layer) in enumerate(zip(ours.blocks, theirs.layers, strict=True)):
        yield from pairs(block, layer, names, f"{prefix}blocks.{i}.")
    assert (ours.norm is None) == (theirs.norm is None)
    if ours.norm is not None:
        yield from pairs(ours, theirs, {"norm.": "norm."}, prefix)


def copy(found, ours, theirs):
    """Give PyTorch's module our values; every parameter of both must be among the pairs."""
    found = list(found)
    assert {id(p) for _, p, _, _ in found} == {id(p) for p in ours.parameters()}
    assert {id(q) for *_, q in found} == {id(q) for q in theirs.parameters()}
    assert sum(p.size for _, p, _, _ in found) == sum(q.numel() for q in theirs.parameters())
    with torch.no_grad():
        for _, p, rows, q in found:
            q[rows] = torch.tensor(p.numpy())
    return found


def assert_same(found, out, expected, mine=(), its=(), relative=1e-5):
    """The outputs agree, and for a random cotangent the gradients of all inputs and parameters."""
    assert_close(out, expected, min(relative, 1e-5), what="the output")
    cotangent = numpy.random.default_rng(COTANGENTS).standard_normal(expected.shape).astype(out.dtype)
    out.backward(tt.tensor(cotangent))
    expected.backward(torch.tensor(cotangent))
    for i, (x, y) in enumerate(zip(mine, its, strict=True)):
        assert_close(x.grad, y.grad, relative, what=f"the gradient of input {i}")
    # Against the largest of the whole parameter: the rows of a joined projection are of different sizes. The gradient of
    # the keys' bias is 0 but for rounding, as softmax does not see what is added to all scores of a row.
    for name, p, rows, q in found:
        assert float(abs(q.grad).max()) > 0, name
        allowed = relative * float(abs(q.grad).max())
        assert_close(p.grad, q.grad[rows], relative=0.0, absolute=allowed, what=f"the gradient of {name}")


def both(*arrays):
    """The arrays as tensors of both libraries, with gradients."""
    return [tt.tensor(a, requires_grad=True) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]


# ------------------------------------------------------------------------------------------------------- attention

REAL = numpy.array([[True, True, True, True, False], [True, True, False, False, False]])  # which tokens are not padding
SEEN = numpy.random.default_rng(3).random((3, 5)) < 0.6
SEEN[:, 0] = True  # PyTorch makes NaN of a row that may attend to nothing


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "both"])
def test_self_attention(mask, bias):
    ours = randomise(MultiHeadAttention(WIDTH, HEADS, bias=bias))
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True)
    if bias:
        found = copy(attention_pairs(ours, theirs), ours, theirs)
    else:
        found = copy([pair for pair in attention_pairs(ours, theirs) if pair[-1] is not None], ours, theirs)
    (x,), (y,) = both(normal(1, 2, 5, WIDTH))
    padding = tt.tensor(REAL[:, None, None]) if mask in ("padding", "both") else None
    is_causal = mask in ("causal", "both")
    their_masks = {
        "key_padding_mask": torch.tensor(~REAL) if padding is not None else None,
        "attn_mask": torch.tensor(~numpy.tri(5, dtype=bool)) if is_causal else None,
    }
    expected, their_weights = theirs(y, y, y, need_weights=True, average_attn_weights=False, **their_masks)
    with recording_attention(ours) as recorded:
        ours(x, padding, is_causal)
    assert_close(recorded[""][0], their_weights, what="the weights")
    assert_same(found, ours(x, padding, is_causal), expected, [x], [y])


@pytest.mark.parametrize("mask", ["none", "mask", "padding"])
def test_cross_attention(mask):
    ours = randomise(MultiHeadAttention(WIDTH, HEADS, cross=True))
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    found = copy(attention_pairs(ours, theirs), ours, theirs)
    (x, memory), (y, its_memory) = both(normal(1, 2, 3, WIDTH), normal(2, 2, 5, WIDTH))
    our_mask = {"none": None, "mask": tt.tensor(SEEN), "padding": tt.tensor(REAL[:, None, None])}[mask]
    their_masks = {
        "none": {},
        "mask": {"attn_mask": torch.tensor(~SEEN)},
        "padding": {"key_padding_mask": torch.tensor(~REAL)},
    }[mask]
    expected, their_weights = theirs(y, its_memory, its_memory, need_weights=True, average_attn_weights=False, **their_masks)
    with recording_attention(ours) as recorded:
        ours(x, our_mask, memory=memory)
    assert_close(recorded[""][0], their_weights, what="the weights")
    assert_same(found, ours(x, our_mask, memory=memory), expected, [x, memory], [y, its_memory])


# ------------------------------------------------------------------------------------------------------- blocks


def config(norm_first, activation, **changes):
    return BlockConfig(WIDTH, HEADS, INNER, norm_first=norm_first, activation=activation, **changes)


def options(norm_first, activation):
    return {
        "d_model": WIDTH,
        "nhead": HEADS,
        "dim_feedforward": INNER,
        "dropout": 0.0,
        "activation": PYTORCH_ACTIVATIONS[activation],
        "batch_first": True,
        "norm_first": norm_first,
    }


@norms
@activations
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "both"])
def test_encoder_layer(norm_first, activation, mask):
    ours = randomise(Block(config(norm_first, activation)))
    theirs = torch.nn.TransformerEncoderLayer(**options(norm_first, activation))
    found = copy(pairs(ours, theirs, BLOCK), ours, theirs)
    (x,), (y,) = both(normal(1, 2, 5, WIDTH))
    padding = tt.tensor(REAL[:, None, None]) if mask in ("padding", "both") else None
    is_causal = mask in ("causal", "both")
    expected = theirs(
        y,
        src_mask=torch.tensor(~numpy.tri(5, dtype=bool)) if is_causal else None,
        src_key_padding_mask=torch.tensor(~REAL) if padding is not None else None,
    )
    assert_same(found, ours(x, padding, is_causal), expected, [x], [y])


@norms
@activations
@pytest.mark.parametrize("padded", [False, True])
def test_decoder_layer(norm_first, activation, padded):
    ours = randomise(Block(config(norm_first, activation), cross_attention=True))
    theirs = torch.nn.TransformerDecoderLayer(**options(norm_first, activation))
    found = copy(pairs(ours, theirs, DECODER_BLOCK), ours, theirs)
    (x, memory), (y, its_memory) = both(normal(1, 2, 4, WIDTH), normal(2, 2, 5, WIDTH))
    targets = numpy.array([[True, True, True, True], [True, True, True, False]])
    expected = theirs(
        y,
        its_memory,
        tgt_mask=torch.tensor(~numpy.tri(4, dtype=bool)),
        tgt_key_padding_mask=torch.tensor(~targets) if padded else None,
        memory_key_padding_mask=torch.tensor(~REAL) if padded else None,
    )
    padding, memory_mask = (tt.tensor(m[:, None, None]) if padded else None for m in (targets, REAL))
    out = ours(x, padding, is_causal=True, memory=memory, memory_mask=memory_mask)
    assert_same(found, out, expected, [x, memory], [y, its_memory])


# ------------------------------------------------------------------------------------------------------- whole models

# The gradient that reaches a decoder through the queries of its cross-attention is a small difference of large numbers, so
# that in float32 two correct models part by a few times 1e-5. Float64 tells rounding from a mistake.
whole = pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-10), ("float32", 1e-4)], ids=["64", "32"])


def pytorch_transformer(norm_first, activation, encoder_layers, decoder_layers):
    """torch.nn.Transformer with stacks as ours: its own always end with a norm, but the paper has none after post-norm
    blocks, which end with one anyway."""
    settings = options(norm_first, activation)
    encoder_norm, decoder_norm = (torch.nn.LayerNorm(WIDTH) if norm_first else None for _ in range(2))
    layer = torch.nn.TransformerEncoderLayer(**settings)
    encoder = torch.nn.TransformerEncoder(layer, encoder_layers, encoder_norm, enable_nested_tensor=False)
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**settings), decoder_layers, decoder_norm)
    return torch.nn.Transformer(WIDTH, HEADS, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)


@whole
@norms
@activations
def test_encoder_and_decoder(norm_first, activation, dtype, relative):
    ours = tt.nn.ModuleList(
        [Stack(config(norm_first, activation), 2), Stack(config(norm_first, activation), 3, cross_attention=True)]
    )
    randomise(ours)
    theirs = pytorch_transformer(norm_first, activation, 2, 3)
    if dtype == "float64":
        to_float64(ours)
        theirs.double()
    found = copy(
        [
            *stack_pairs(ours[0], theirs.encoder, BLOCK, "encoder."),
            *stack_pairs(ours[1], theirs.decoder, DECODER_BLOCK, "decoder."),
        ],
        ours,
        theirs,
    )
    (source, target), (its_source, its_target) = both(normal(1, 2, 5, WIDTH, dtype=dtype), normal(2, 2, 4, WIDTH, dtype=dtype))
    mask = tt.tensor(REAL[:, None, None])
    out = ours[1](target, is_causal=True, memory=ours[0](source, mask), memory_mask=mask)
    expected = theirs(
        its_source,
        its_target,
        tgt_mask=torch.tensor(~numpy.tri(4, dtype=bool)),
        src_key_padding_mask=torch.tensor(~REAL),
        memory_key_padding_mask=torch.tensor(~REAL),
    )
    assert_same(found, out, expected, [source, target], [its_source, its_target], relative)


class Twin(torch.nn.Module):
    """The whole encoder-decoder of section 3: shared embeddings and sinusoids around torch.nn.Transformer."""

    def __init__(self, vocab_size, norm_first):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, WIDTH)
        self.transformer = pytorch_transformer(norm_first, "relu", 2, 2)

    def embed(self, ids):
        places, dimensions = (torch.arange(n, dtype=torch.float64) for n in (ids.shape[1], WIDTH // 2))
        angles = places[:, None] / 10000 ** (2 * dimensions / WIDTH)
        table = torch.stack([angles.sin(), angles.cos()], -1).reshape(ids.shape[1], WIDTH).float()
        return self.embedding(ids) * WIDTH**0.5 + table

    def forward(self, source, target):
        out = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=source == 0,
            memory_key_padding_mask=source == 0,
        )
        return out @ self.embedding.weight.T


@whole
@norms
def test_the_whole_transformer(norm_first, dtype, relative):
    """Logits, loss and gradients, with padding on both sides; a loss that leaves out the padding of the target."""
    settings = {"d_model": WIDTH, "num_heads": HEADS, "encoder_layers": 2, "decoder_layers": 2, "d_ff": INNER}
    ours = Transformer(TransformerConfig(11, 11, dropout=0.0, norm_first=norm_first, share_embeddings=True, **settings))
    randomise(ours)
    theirs = Twin(11, norm_first)
    if dtype == "float64":
        to_float64(ours)
        theirs.double()
    transformer = theirs.transformer
    found = copy(
        [
            *pairs(ours, theirs, {"source_embedding.tokens.": "embedding."}),
            *stack_pairs(ours.encoder, transformer.encoder, BLOCK, "encoder."),
            *stack_pairs(ours.decoder, transformer.decoder, DECODER_BLOCK, "decoder."),
        ],
        ours,
        theirs,
    )
    source = numpy.random.default_rng(1).integers(1, 11, (3, 6))
    target = numpy.random.default_rng(2).integers(1, 11, (3, 5))
    source[1, 4:], source[2, 1:], target[0, 3:] = 0, 0, 0
    logits = ours(tt.tensor(source), tt.tensor(target[:, :-1]))
    expected = theirs(torch.tensor(source), torch.tensor(target[:, :-1]))
    assert_close(logits, expected, min(relative, 1e-5), what="the logits")
    loss = tt.cross_entropy(logits, tt.tensor(target[:, 1:]), ignore_index=0)
    their_loss = torch.nn.functional.cross_entropy(
        expected.flatten(0, 1), torch.tensor(target[:, 1:]).flatten(), ignore_index=0
    )
    assert_same(found, loss, their_loss, relative=relative)


def test_bert():
    """The embeddings, and torch.nn.TransformerEncoder after them: post-norm blocks with the exact gelu."""
    ours = randomise(
        Bert(BertConfig(vocab_size=13, max_length=8, num_layers=2, num_heads=HEADS, d_model=WIDTH, d_ff=INNER, dropout=0.0))
    )
    layer = torch.nn.TransformerEncoderLayer(**options(False, "gelu_exact"), layer_norm_eps=1e-12)
    theirs = torch.nn.ModuleDict(
        {
            "tokens": torch.nn.Embedding(13, WIDTH),
            "positions": torch.nn.Embedding(8, WIDTH),
            "segments": torch.nn.Embedding(2, WIDTH),
            "norm": torch.nn.LayerNorm(WIDTH, eps=1e-12),
            "encoder": torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            "pooler": torch.nn.Linear(WIDTH, WIDTH),
        }
    )
    names = {"token_embedding.": "tokens.", "position_embedding.": "positions.", "segment_embedding.": "segments."}
    found = copy(
        [
            *pairs(ours, theirs, {**names, "norm.": "norm.", "pooler.": "pooler."}),
            *stack_pairs(ours.encoder, theirs["encoder"], BLOCK, "encoder."),
        ],
        ours,
        theirs,
    )
    ids = numpy.where(REAL, numpy.random.default_rng(1).integers(1, 13, (2, 5)), 0)
    segments = numpy.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    embedded = theirs["tokens"](torch.tensor(ids)) + theirs["positions"].weight[:5] + theirs["segments"](torch.tensor(segments))
    encoded = theirs["encoder"](theirs["norm"](embedded), src_key_padding_mask=torch.tensor(~REAL))
    out = ours(tt.tensor(ids), tt.tensor(segments))
    assert_close(out, encoded, what="the encoding")
    assert_same(found, ours.pool(out), torch.tanh(theirs["pooler"](encoded[:, 0])))


# ------------------------------------------------------------------------------------------------------ vectors


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_the_convolution_of_vectors(stride):
    theirs = torch.nn.Conv1d(5, 6, 2 * stride - 1, stride, padding=stride - 1).requires_grad_(False)
    ours = StridedConvolution(5, 6, stride)
    weight = theirs.weight.swapaxes(1, 2).reshape(6, -1)
    ours.load_state_dict({"projection.weight": tt.tensor(weight.numpy()), "projection.bias": tt.tensor(theirs.bias.numpy())})
    (mine,), (its,) = both(normal(0, 3, 11, 5))
    found, expected = ours(Vectors(mine, tt.tensor([11] * 3))).values, theirs(its.swapaxes(1, 2)).swapaxes(1, 2)
    assert_same((), found, expected, [mine], [its])
