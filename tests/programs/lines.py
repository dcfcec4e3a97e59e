"""Calls of every op, with random operands and settings: the lines of random programs.

A line is Python with OP for the op's name, in which ``Writer.draw`` draws each {...}; or, where one choice depends on
another, a function that writes it. Where a result has another dtype than its operands together, that comes second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cases
import numpy as np

import tinytensor as tt

if TYPE_CHECKING:
    from programs.writer import Writer

Line = str | Callable[[Any], Any]


def of_two(*operator: str) -> list[Line]:
    """A function of two tensors, or of a tensor and a number, and its operator."""
    calls: list[Line] = ["tt.OP({n}, {other})", "tt.OP({n}, {number})", "tt.OP({number}, {n})"]
    return (
        calls
        + [f"{{n}} {o} {right}" for o in operator for right in ("{other}", "{number}")]
        + [f"{{number}} {o} {{n}}" for o in operator]
    )


def joined(w: Writer) -> str:
    """The tensors for ``concatenate`` and its like."""
    x = w.value("any", 1)
    return ", ".join([x.name, *[w.of(x.shape, x.kind) for _ in range(w.integer(0, 2))]])


def concatenate(w: Writer) -> str:
    return f"tt.concatenate([{joined(w)}], {w.optional_axis()})"


def stack(w: Writer) -> str:
    return f"tt.stack([{joined(w)}], {w.integer(0, w.first().array.ndim)})"


def stacked(w: Writer) -> str:
    return f"tt.OP([{joined(w)}])"


def stretched(w: Writer) -> str:
    x = w.value("any")
    shape = tuple([w.integer(1, 3) if n == 1 else n for n in x.shape])
    return f"tt.broadcast_to({x}, {w.choice([shape, (w.integer(1, 2), *shape)])})"


def reshaped(w: Writer) -> str:
    x = w.value("any")
    n = x.array.size
    first = w.choice([d for d in range(1, n + 1) if n % d == 0] or [1])
    return f"tt.reshape({x}, {w.choice([(n,), (first, n // first), (1, first, n // first), (n, 1)])})"


def transposed(w: Writer) -> str:
    x = w.value("any")
    return f"tt.transpose({x}, {w.choice([None, w.rng.permutation(x.array.ndim).tolist()])})"


def padded(w: Writer) -> str:
    x = w.value("any", 1)
    return f"tt.pad({x}, {[(w.integer(0, 2), w.integer(0, 1)) for _ in x.shape]})"


def cut(w: Writer) -> str:
    x, a = w.value("any", 1), w.axis()
    places = w.choice([1, x.shape[a] or 1, sorted(w.ids(x.shape[a] + 1, (2,)))])
    return f"tt.split({x}, {places}, {a})[{w.integer(0, places - 1 if isinstance(places, int) else 2)}]"


def pieces(w: Writer) -> str:
    x, a = w.value("any", 1), w.axis()
    parts = w.integer(1, 4)
    return f"tt.array_split({x}, {parts}, {a})[{w.integer(0, parts - 1)}]"


def grid(w: Writer) -> str:
    count = w.integer(1, 3)
    one = w.of((3,))  # each result has the dtype of its own tensor, so all have one
    along = [f"{one}[: {w.integer(1, 3)}]" for _ in range(count)]
    return f"tt.meshgrid({', '.join(along)}, indexing={w.choice(['xy', 'ij'])!r})[{w.integer(0, count - 1)}]"


def dotted(w: Writer) -> str:
    n, k, m = [w.integer(1, 3) for _ in range(3)]
    return f"tt.dot({w.of(w.choice([(n, k), (k,), (2, n, k)]))}, {w.of(w.choice([(k, m), (k,), (2, k, m)]))})"


def indexed(w: Writer) -> str:
    """Any of NumPy's ways to index."""
    x = w.value("any", 1)
    parts = []
    for n in x.shape[: w.integer(0, x.array.ndim)]:
        low = w.integer(0, n)
        ways = [f"{low}:{w.integer(low, n)}", f"::{w.choice([-2, -1, 2])}", "None", ":"]
        ways += [str(w.integer(-n, n - 1)), str(w.rng.integers(-n, n, 3).tolist())] if n else []
        parts.append(w.choice(ways))
    return f"{x}[{', '.join(parts) or '...'}]"


def taken(w: Writer) -> str:
    x, a = w.value("any", 1), w.axis()
    return f"tt.take({x}, {w.ids(x.shape[a], (3,))}, {a})"


def gathered(w: Writer) -> str:
    x, a = w.value("any", 1), w.axis()
    shape = tuple([w.integer(1, 3) if i == a % x.array.ndim else n for i, n in enumerate(x.shape)])
    return f"tt.take_along_axis({x}, tt.tensor({w.ids(x.shape[a], shape)}), {a})"


def scattered(w: Writer) -> str:
    shape = w.choice([(4,), (3, 2), (2, 3)])
    index = w.choice([w.ids(shape[0], (3,)), slice(0, 2), 1])
    return f"tt.scatter({w.of(np.zeros(shape)[index].shape)}, {index}, {shape})"


def index_added(w: Writer) -> str:
    x, a, n = w.value("f", 1), w.axis(), w.integer(0, 3)
    shape = tuple([n if i == a % x.array.ndim else m for i, m in enumerate(x.shape)])
    return f"tt.index_add({x}, {w.ids(x.shape[a], (n,))}, {w.of(shape)}, {a})"


def product(w: Writer) -> str:
    n, k, m = [w.integer(1, 3) for _ in range(3)]
    lead, other = w.choice([((), ()), ((2,), ()), ((2,), (2,)), ((), (2,)), ((2, 1), (2,))])
    x, y = w.of(w.choice([(*lead, n, k), (k,)])), w.of(w.choice([(*other, k, m), (k,)]))
    return w.choice([f"{x} @ {y}", f"tt.matmul({x}, {y})"])


def linear(w: Writer) -> str:
    x = w.value("f", 1)
    return f"tt.linear({x}, {w.of((2, x.shape[-1]))}{w.choice(['', ', ' + w.of((2,))])})"


def norm_with(*weights: str) -> Line:
    def write(w: Writer) -> str:
        x = w.value("f", 1)
        given = "".join([f", {name}={w.of(x.shape[-1:])}" for name in weights if w.chance()])
        return f"tt.OP({x}{given}, eps={w.choice([0.1, 0.5])})"

    return write


def attend(w: Writer) -> str:
    lead, (t, s), d = w.choice([(), (2,), (2, 2)]), (w.integer(1, 3), w.integer(1, 3)), w.integer(1, 3)
    mask = w.choice(["", f", mask={w.condition((t, s))}", f", mask={w.of((t, s))}"])  # booleans, or numbers to add
    heads = f"{w.of((*lead, t, d))}, {w.of((*lead, s, d))}, {w.of((*lead, s, 2))}"
    return f"tt.scaled_dot_product_attention({heads}{mask}, is_causal={w.chance()})"


STEPS = "{None | tt.tensor([[True, True], [False, True]])}, {False | True}"  # a mask, and the order

REDUCTION = "{'mean' | 'sum' | 'none'}"
ROWS = f"ignore_index={{-100 | 0}}, reduction={REDUCTION}"
SMOOTHED = f"{ROWS}, label_smoothing={{0.0 | 0.1}}"
WEIGHTS = "weight=tt.abs({(3,)}) + 0.5"


def class_loss(settings: str, *operands: Any) -> Line:
    """A loss whose first operand has a row of 3 for each target, as ``operands`` (shapes but for the batch) say."""

    def write(w: Writer) -> Any:
        batch = w.choice([(3,), (2, 2), (), (1,)])
        tensors = [w.of((*batch, 3)), *[w.of(shape) for shape in operands]]
        return loss(f"tt.OP({', '.join(tensors)}, tt.tensor({w.ids(3, batch)}), {settings})")(w)

    return write


def loss(line: str) -> Callable[[Any], Any]:
    def write(w: Writer) -> Any:
        text = w.fill(line)
        return text, w.loss_dtype(text)

    return write


def converted(w: Writer) -> Any:
    x = w.value("any")
    dtype = w.choice(["int64", "bool", *[x.dtype] * 2])
    return f"tt.astype({x}, {dtype!r})", dtype


TABLE: dict[str, Line | list[Line]] = {
    "abs negative relu sign square": "tt.OP({n})",
    "arcsinh arctan degrees radians": "tt.OP({any})",
    "cos cosh elu erf exp exp2 expm1 logsigmoid sigmoid silu sin sinh softplus tanh": "tt.OP({any})",
    "gelu": "tt.gelu({any}, {'none' | 'tanh'})",
    "ceil floor round trunc": "tt.OP({n} * {1 | 2 | 4})",
    "log log10 log2 reciprocal rsqrt sqrt": "tt.OP({positive})",
    "log1p": "tt.log1p(tt.abs({any}))",
    "arccos arcsin arctanh": "tt.OP(tt.tanh({any}) * 0.9)",
    "arccosh": "tt.arccosh(tt.abs({any}) + 1.5)",
    "arctan2 hypot": "tt.OP({n}, {divisor})",
    "leaky_relu": "tt.leaky_relu({n}, 0.1)",
    "tan": "tt.tan(tt.tanh({any}))",
    "copy isfinite isinf isnan logical_not": "tt.OP({any})",
    "invert": ["tt.invert({bits})", "~{bits}"],
    "bitwise_and": ["tt.bitwise_and({bits}, {other bits})", "{bits} & {other bits}"],
    "bitwise_or": ["tt.bitwise_or({bits}, {other bits})", "{bits} | {other bits}"],
    "bitwise_xor": ["tt.bitwise_xor({bits}, {other bits})", "{bits} ^ {other bits}"],
    "add": of_two("+"),
    "subtract": of_two("-"),
    "multiply": of_two("*"),
    "logaddexp maximum minimum": of_two(),
    "divide": ["tt.divide({any}, {divisor})", "{any} / {divisor}", "{number} / {positive}", "{any} / 2"],
    "floor_divide": ["tt.floor_divide({n}, {divisor})", "{n} // {divisor}", "{n} // 2"],
    "remainder": ["tt.remainder({n}, {divisor})", "{n} % {divisor}", "{n} % 2"],
    "power": [
        "tt.power({positive}, {other})",
        "{f} ** {0 | 1 | 2 | 3 | 2.0}",
        "{positive} ** {-1 | -0.5 | 0.5 | 1.3}",
        "2.0 ** {n}",
    ],
    "equal greater greater_equal less less_equal not_equal": "tt.OP({any}, {any other})",
    "logical_and logical_or logical_xor": "tt.OP({any}, {any other})",
    "isclose": "tt.isclose({n}, {other})",
    "where": ["tt.where({mask}, {first}, {other})", "tt.where({mask}, {first}, {number})"],
    "masked_fill": "tt.masked_fill({f}, {mask}, {number})",
    "clip": [
        "tt.clip({f}, {-0.5, 0.75 | None, 0.25 | 0.125 | 0.0, None})",
        "tt.clip({n}, {other})",
        "tt.clip({n}, None, {other})",
    ],
    "logsumexp max mean min prod std sum var": "tt.OP({n}{over})",
    "norm": "tt.norm({n}, {2 | 1 | 0 | 3 | 1.5 | np.inf | -np.inf}{over})",
    "all any": "tt.OP({any}{over})",
    "cumprod cumsum": "tt.OP({n1}, {optional axis})",
    "cummax cummin": "tt.OP({n1}, {axis})[{0..1}]",
    "argmax argmin": "tt.OP({n1}, {optional axis})",
    "argsort sort": ["tt.OP({n1}, {axis})", "tt.OP({n1}, {axis}, descending=True)"],
    "log_softmax softmax": "tt.OP({any1}, {axis})",
    "topk": "tt.topk({n1}, {0..2}, {-1 | 0}, largest={True | False})[{0..1}]",
    "swiglu": "tt.swiglu({(2, 3)}, {(2, 3)})",
    "glu": "tt.glu({(2, 4)}, {-1..1})",
    "astype": converted,
    "broadcast_to": stretched,
    "concatenate": concatenate,
    "stack": stack,
    "hstack vstack": stacked,
    "expand_dims": "tt.expand_dims({any}, {-1..0})",
    "flip": "tt.flip({any1}, {optional axis})",
    "moveaxis swapaxes": "tt.OP({any1}, {axis}, {axis})",
    "pad": ["tt.pad({any1}, {1 | (1, 0)}, {'constant' | 'edge' | 'reflect' | 'symmetric' | 'wrap'})", padded],
    "repeat": "tt.repeat({any1}, {0..2}, {optional axis})",
    "reshape": reshaped,
    "roll": "tt.roll({any1}, {-2..3}, {optional axis})",
    "split": cut,
    "array_split": pieces,
    "meshgrid": grid,
    "diff": ["tt.diff({any1}, {0..2}, {axis})", "tt.diff({f1}, prepend={number}, append=0.5)"],
    "bincount": lambda w: f"tt.bincount(tt.tensor({w.ids(4, (3,))}), {w.of((3,))}, {w.integer(0, 5)})",
    "squeeze": "tt.squeeze({any})",
    "tile": "tt.tile({any}, {2 | (2, 1) | (1, 2)})",
    "transpose": transposed,
    "tril triu": "tt.OP({any2}, {-1..1})",
    "diag": ["tt.diag({(3,)}, {-1..1})", "tt.diag({(2, 3)}, {-1..1})"],
    "diagonal": "tt.diagonal({any2}, {-1..1}, {0, 1 | -1, 0 | -2, -1})",
    "getitem": [indexed, indexed, "{any1}[{mask}]"],
    "take": taken,
    "take_along_axis": gathered,
    "scatter": scattered,
    "index_add": index_added,
    "one_hot": lambda w: (f"tt.one_hot(tt.tensor({w.ids(4, (3,))}), 4)", "float32"),
    "embedding": lambda w: f"tt.embedding(tt.tensor({w.ids(3, w.choice([(2,), (2, 2), ()]))}), {w.of((3, 2))})",
    "sum_rows": lambda w: f"tt.sum_rows({w.of((4, 2))}, tt.tensor({w.ids(3, (4,))}), 3)",
    "matmul": product,
    "dot": dotted,
    "linear": linear,
    "rotate_pairs": "tt.rotate_pairs({(2, 4)}, tt.tensor([0.5, -0.25]), tt.tensor([0.75, 2.0]))",
    "norm_and_rotate": [
        "tt.norm_and_rotate({(2, 2, 12)}, 2, 2, {(2,)}, {(2,)}, {0.1 | 1e-5})",
        "tt.norm_and_rotate({(2, 2, 12)}, 2, rotation=tt.tensor([[0.5, 1.0], [-0.25, 2.0]]))",
        "tt.norm_and_rotate({(2, 2, 8)}, 2, 1, {(2,)}, {(2,)}, 0.1, tt.tensor([[0.5, 1.0], [-0.25, 2.0]]))",
    ],
    "outer": "tt.outer({f}, {f})",
    "tensordot": "tt.tensordot({(2, 3)}, {(3, 2)}, {0 | 1 | ([1], [0]) | ([0, 1], [1, 0])})",
    "einsum": [
        "tt.einsum('ij,jk->ik', {(2, 3)}, {(3, 2)})",
        "tt.einsum('bij,bjk->bk', {(2, 2, 3)}, {(2, 3, 2)})",
        "tt.einsum('...ij,...jk->...ik', {(2, 2, 3)}, {(3, 2)})",
        "tt.einsum('i,ij,j->', {(2,)}, {(2, 3)}, {(3,)})",
        "tt.einsum('i,j->ij', {(3,)}, {(2,)})",
        "tt.einsum('ij,ij->', {(2, 3)}, {(2, 3)})",
        "tt.einsum('{ij->ji | ij->i | ij->}', {(2, 3)})",
        "tt.einsum('{ii | ii->i}', {(3, 3)})",
    ],
    "layer_norm": norm_with("weight", "bias"),
    "rms_norm": norm_with("weight"),
    "cosine_similarity": "tt.cosine_similarity({f1}, {other}, -1, {0.1 | 0.5})",
    "group_norm": "tt.group_norm({(2, 4, 3)}, {1 | 2 | 4}, {(4,)}, {(4,)}, {0.1 | 0.5})",
    "dropout": "tt.dropout({f}, {0.0 | 0.3 | 1.0})",
    "causal_mask": "tt.causal_mask({1..3}, {1..3})",
    "scaled_dot_product_attention": attend,
    "multi_head_attention": [
        "tt.multi_head_attention({(2, 2, 12)}, 2, is_causal={True | False})",
        "tt.multi_head_attention({(1, 2, 4)}, 2, {(1, 3, 8)}, is_causal={True | False})",
        "tt.multi_head_attention({(2, 2, 4)}, 2, {(2, 1, 8)}, is_causal={True | False})",
    ],
    "rnn": f"tt.rnn({{(2, 2, 2)}}, {{(2, 2)}}, {{(2, 2)}}, {STEPS})",
    "gru": f"tt.gru({{(2, 2, 6)}}, {{(6, 2)}}, {{(6,)}}, {{(2, 2)}}, {STEPS})",
    "lstm": f"tt.lstm({{(2, 2, 8)}}, {{(8, 2)}}, {{(2, 2)}}, {{(2, 2)}}, {STEPS})",
    "cross_entropy": [
        class_loss(SMOOTHED),
        class_loss(f"{SMOOTHED}, {WEIGHTS}"),
        loss(f"tt.OP({{(2, 3)}}, tt.softmax({{(2, 3)}}), label_smoothing={{0.0 | 0.1}}, reduction={REDUCTION})"),
        loss(f"tt.OP({{(2, 2, 3)}}, tt.sigmoid({{(2, 2, 3)}}), reduction={REDUCTION}, {WEIGHTS})"),
    ],
    "linear_cross_entropy": class_loss(SMOOTHED.replace(" | 'none'", ""), (3, 3)),
    "nll_loss": [class_loss(ROWS), class_loss(f"{ROWS}, {WEIGHTS}")],
    "l1_loss mse_loss": loss(f"tt.OP({{f}}, {{alike}}, {REDUCTION})"),
    "huber_loss": loss(f"tt.OP({{f}}, {{alike}}, {REDUCTION}, {{0.5 | 1.0 | 2}})"),
    "smooth_l1_loss": loss(f"tt.OP({{f}}, {{alike}}, {REDUCTION}, {{0 | 0.5 | 2.0}})"),
    "kl_div": [
        loss("tt.OP({f}, tt.sigmoid({alike}), {'mean' | 'sum' | 'none' | 'batchmean'})"),
        loss("tt.OP({f}, {alike}, {'mean' | 'sum' | 'none' | 'batchmean'}, log_target=True)"),
    ],
    "binary_cross_entropy": [
        loss(f"tt.OP(tt.tanh({{f}}) * 0.4 + 0.5, tt.sigmoid({{alike}}), {REDUCTION})"),
        loss(f"tt.OP(tt.tanh({{f}}) * 0.4 + 0.5, tt.sigmoid({{alike}}), {REDUCTION}, {{row}})"),
    ],
    "binary_cross_entropy_with_logits": [
        loss(f"tt.OP({{f}}, tt.sigmoid({{alike}}), {REDUCTION})"),
        loss(f"tt.OP({{f}}, tt.sigmoid({{alike}}), {REDUCTION}, weight={{alike}})"),
        loss(f"tt.OP({{f}}, tt.sigmoid({{alike}}), {REDUCTION}, weight={{row}}, pos_weight={{row}})"),
    ],
}
LINES: dict[str, list[Line]] = {
    name: lines if isinstance(lines, list) else [lines] for names, lines in TABLE.items() for name in names.split()
}
# An op that has no line above is drawn as its row in tests/cases.py says.
OF_ONE = {cases.positive: "(tt.abs({f}) + 0.5)", cases.unit: "tt.sigmoid({f})"}
OF_TWO = {cases.positive: "(tt.abs({other}) + 0.5)", cases.nonzero: "{divisor}"}
for name, _, _, draw in cases.UNARY:
    if hasattr(tt, name):
        LINES.setdefault(name, [f"tt.OP({OF_ONE.get(draw, '{f}')})"])
for name, _, _, left, right in cases.BINARY:
    LINES.setdefault(name, [f"tt.OP({OF_ONE.get(left, '{f}')}, {OF_TWO.get(right, '{other}')})"])
for name, *_ in cases.REDUCTIONS:
    LINES.setdefault(name, ["tt.OP({n}{over})"])
