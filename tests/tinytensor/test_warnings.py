"""No function gives a floating-point warning: an infinite result is a result, and ``detect_anomaly`` finds faults."""

import numpy as np
import pytest
from cases import CASES

import tinytensor as tt
from tinytensor import nn, optim

BIG = np.array([1e300, -1e300, np.inf, np.nan])


def huge(x):
    """The input in float16, with its numbers so large that their sums and products are infinite."""
    with np.errstate(all="ignore"):
        return (x * 3e4).astype("float16") if x.dtype.kind == "f" else x


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("op", sorted({case.op for case in CASES}))
def test_ops_with_huge_numbers(op):
    """Forward, into gradients that are there already, and twice backward."""
    for case in (case for case in CASES if case.op == op):
        inputs = [tt.tensor(huge(x), requires_grad=i not in case.constant) for i, x in enumerate(case.inputs)]
        try:
            y = case.f(*inputs)
        except ValueError:
            continue  # these numbers are none for the op, such as probabilities above 1
        if not y.requires_grad:
            continue
        for create_graph in (False, False, True):
            y.backward(tt.full_like(y, 6e4), retain_graph=True, create_graph=create_graph)
        second = sum((x.grad * x.grad).sum() for x in inputs if x.grad is not None)
        if second.requires_grad:
            second.backward()


ON_THE_CPU = {
    "tensor": lambda: tt.tensor([1e300]),
    "tensor of float16": lambda: tt.tensor(BIG, dtype="float16"),
    "tensor of integers": lambda: tt.tensor(BIG, dtype="int32"),
    "normal": lambda: tt.random.normal(50, 3e38, 3e38),
    "uniform": lambda: tt.random.uniform(50, 3.3e38, 3.4e38),
}


@pytest.mark.parametrize("function", ON_THE_CPU.values(), ids=ON_THE_CPU)
def test_functions_that_compute_on_the_cpu_on_either_backend(function):
    function()


FUNCTIONS = {
    "full": lambda: tt.full((2,), 1e300),
    "full_like": lambda: tt.full_like(tt.ones(2), 1e300),
    "arange": lambda: tt.arange(0, 1e6, 1e5, dtype="float16"),
    "linspace": lambda: tt.linspace(0, 1e300, 5),
    "astype": lambda: tt.tensor(BIG).astype("float16"),
    "setitem of a number": lambda: tt.ones(4).__setitem__(0, 1e300),
    "setitem of an array": lambda: tt.ones(4).__setitem__(slice(None), BIG),
    "assign": lambda: nn.Parameter(np.ones(4, "float32")).assign(BIG),
    "load_state_dict": lambda: nn.Linear(4, 1).load_state_dict({"weight": BIG[None], "bias": BIG[:1]}),
    "an initialiser": lambda: nn.init.constant_(nn.Parameter(np.ones(4, "float32")), 1e300),
    "an initialiser in float16": lambda: nn.init.normal_(nn.Linear(2, 2).astype("float16").weight, 0, 1e6),
    "repr": lambda: [repr(tt.tensor(BIG)), repr(tt.tensor(np.float16([6e4, -6e4, 1e-7]))), tt.tensor(BIG)._repr_html_()],
    "raw arrays": lambda: tt.add(tt.tensor([1e38]).data * 3, tt.tensor([1e38]).data * 3),
    "dropout": lambda: tt.dropout(tt.full((20,), 3e38), 0.9),
}


@pytest.mark.needs("numpy")  # a GPU has no warnings
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_other_functions_with_huge_numbers(function):
    function()


@pytest.mark.needs("numpy")
def test_an_op_leaves_numpys_settings_as_they_were():
    with np.errstate(divide="raise", over="print"):
        before = np.geterr()
        tt.tensor([0.0], requires_grad=True).log().backward()
        with pytest.raises(ValueError, match="broadcast"):
            tt.ones(2) + tt.ones(3)
        assert np.geterr() == before


@pytest.mark.needs("numpy")
def test_shards_with_huge_numbers():
    x = tt.ones((1,), requires_grad=True)
    for _ in range(2):
        tt.parallel.backward(lambda k: (x * k).sum(), [3e38, 3e38, 3e38])
    assert x.grad.tolist() == [np.inf]


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW, optim.Muon])
@pytest.mark.parametrize(("dtype", "largest"), [("float16", 6e4), ("float32", 3e38), ("float64", 1e308)])
def test_optimizers_with_huge_numbers(make, dtype, largest):
    p = nn.Parameter(np.full((2, 2), largest, dtype))
    optimizer = make([p], lr=1e30, weight_decay=1e30)
    for value in (largest, np.inf, 0.0):
        p.grad = tt.full((2, 2), value, dtype)
        optim.clip_grad_norm([p], 1.0)
        optimizer.step(1e300)
    state = optimizer.state_dict()
    optimizer.load_state_dict({name: tt.full_like(t, 1e300, "float64") if t.ndim == 2 else t for name, t in state.items()})


@pytest.mark.needs("numpy")
def test_a_file_with_huge_numbers(tmp_path):
    tt.save({"x": tt.tensor(BIG).astype("float16")}, tmp_path / "file")
    assert tt.load(tmp_path / "file")["x"].tolist()[:3] == [np.inf, -np.inf, np.inf]
