"""Names that are not here: each error says what to write."""

from __future__ import annotations

import importlib
import pickle
import re
from pathlib import Path

import pytest
from cases import PUBLIC_MODULES

import tinyformer
import tinytensor as tt
from tinytensor import functional, nn, optim
from tinytensor.common import missing

ROOT = Path(__file__).parents[2]
x, layer = tt.ones((2, 3)), nn.Linear(3, 2)

NAMES = {
    "view": (lambda: x.view(3, 2), "x.reshape(2, 3)"),
    "unsqueeze": (lambda: x.unsqueeze(0), "tt.expand_dims(x, 0)"),
    "a device": (lambda: x.cuda(), "TINYTENSOR_BACKEND=cupy"),
    "to": (lambda: x.to("float64"), "x.astype"),
    "to a device": (lambda: x.to("cuda"), "TINYTENSOR_BACKEND=cupy"),
    "a module to a device": (lambda: layer.to("cuda"), "TINYTENSOR_BACKEND=cupy"),
    "in place": (lambda: x.mul_(x), "tt.no_grad()"),
    "a function as a method": (lambda: x.amax(), "tt.max"),
    "manual_seed": (lambda: tt.manual_seed(0), "tt.seed(0)"),
    "randn": (lambda: tt.randn(2), "tt.random.normal"),
    "cat": (lambda: tt.cat([x, x]), "tt.concatenate"),
    "a loss": (lambda: nn.CrossEntropyLoss(), "tt.cross_entropy"),
    "another loss": (lambda: nn.BCEWithLogitsLoss(), "tt.binary_cross_entropy_with_logits"),
    "Conv2d": (lambda: nn.Conv2d, "write Conv2d yourself: docs/guides/recipes.md"),
    "conv2d": (lambda: functional.conv2d, "no convolutions"),
    "pooling": (lambda: nn.MaxPool2d(2), "write MaxPool2d yourself: docs/guides/recipes.md"),
    "batch norm": (lambda: nn.BatchNorm2d(3), "nn.GroupNorm"),
    "an average of weights": (lambda: optim.swa_utils, "docs/guides/recipes.md"),
    "a module's device": (lambda: layer.cuda(), "TINYTENSOR_BACKEND=cupy"),
    "schedules": (lambda: optim.lr_scheduler, "optim.Cosine"),
    "normalize": (lambda: functional.normalize, "tt.norm"),
    "a schedule": (lambda: optim.StepLR, "optim.Step"),
    "a package": (lambda: tt.autograd.grad, "tt.grad"),
    "a package of nn": (lambda: nn.utils, "optim.clip_grad_norm"),
    "a function that is a method there": (lambda: tt.unsqueeze(x, 0), "tt.expand_dims"),
    "another in place": (lambda: x.scatter_(0, x, 1), "no in-place methods"),
    "a name without _": (lambda: nn.init.xavier_uniform(layer.weight), "it is xavier_uniform_ here"),
    "a method without _": (lambda: layer.requires_grad, "it is requires_grad_ here"),
    "NumPy's": (lambda: tt.array([1]), "NumPy's np.array is tt.tensor"),
    "another of NumPy's": (lambda: tt.percentile(x, 5), "numpy.percentile is NumPy's"),
    "a method of NumPy's": (lambda: x.nonzero(), "numpy.nonzero(x.numpy())"),
    "another method of NumPy's": (lambda: x.tobytes(), "x.numpy().tobytes is NumPy's"),
    "of NumPy's random": (lambda: tt.random.gamma(1), "numpy.random.default_rng().gamma"),
    "of linalg": (lambda: tt.linalg.svd(x), "numpy.linalg.svd"),
    "norm of linalg": (lambda: tt.linalg.norm(x), "tt.norm"),
    "the indices of a maximum": (lambda: x.max(1).indices, "argmax"),
    "a dtype": (lambda: tt.long, "int64"),
    "of random": (lambda: tt.random.randperm(3), "tt.random.permutation"),
}


@pytest.mark.parametrize(("act", "says"), NAMES.values(), ids=NAMES)
def test_a_name_of_pytorchs_is_answered(act, says):
    with pytest.raises(AttributeError) as caught:
        act()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


IMPORTS = {
    "import tinytensor.nn.functional as F": "tinytensor.nn has no 'functional': PyTorch's nn.functional is tt",
    "from tinytensor.nn import functional": "tinytensor.nn has no 'functional': PyTorch's nn.functional is tt",
    "from tinytensor.nn import Linear, CrossEntropyLoss": "tinytensor.nn has no 'CrossEntropyLoss': .* is tt.cross_entropy",
    "from tinytensor import device, manual_seed": r"tinytensor has no 'manual_seed': .* is tt.seed\(0\)",
    "from tinytensor.nn.init import xavier_uniform": "tinytensor.nn.init has no 'xavier_uniform': it is xavier_uniform_ here",
    "from tinytensor.linalg import svd": "tinytensor.linalg has no 'svd': numpy.linalg.svd is NumPy's",
    "import tinytensor.utils.data": "tinytensor has no 'utils': .*DataLoader",
    "from tinytensor.optim.lr_scheduler import StepLR": "tinytensor.optim has no 'lr_scheduler': .* optim.Cosine",
    "from tinytensor.nn import made_up": "cannot import name 'made_up' from 'tinytensor.nn'",
    "import tinytensor.made_up": "No module named 'tinytensor.made_up'",
}


@pytest.mark.parametrize(("statement", "says"), IMPORTS.items())
def test_an_import_of_pytorchs_is_answered(statement, says):
    with pytest.raises(ImportError, match=says):
        exec(statement, {})


def test_a_device_is_answered():
    with pytest.raises(TypeError, match=r"tinytensor.device is a module: there is no device to choose: TINYTENSOR"):
        tt.device("cpu")


ARGUMENTS = {
    "dim": (lambda: x.sum(dim=1), "dim is axis here"),
    "dim of a composite": (lambda: tt.stack([x], dim=1), "dim is axis here"),
    "keepdim": (lambda: x.max(keepdim=True), "keepdim is keepdims here"),
    "device": (lambda: tt.zeros(2, device="cuda"), "nothing is moved to a device"),
    "unknown": (lambda: nn.Linear(2, 3, biass=True), "in_features, out_features, bias"),
    "a shape in parts": (lambda: tt.zeros(2, 3), "a shape is one argument"),
    "size": (lambda: x.size(), "x.shape"),
    "NumPy's names": (lambda: tt.random.normal((2,), loc=1), "loc is mean here"),
    "out": (lambda: tt.exp(x, out=x), "nothing is computed in place"),
    "inplace": (lambda: nn.ReLU(inplace=True), "nothing is computed in place, and it takes none"),
    "fused": (lambda: optim.AdamW(layer.parameters(), fused=True), "steps are fused"),
    "two tensors": (lambda: tt.max(x, x), "tt.maximum"),
    "a function": (lambda: tt.grad(lambda x: x, x), "tt.grad(f(x), x)"),
    "several inputs": (lambda: tt.gradcheck(lambda x, y: x * y, x, x), r"tt.gradcheck(f, [x, y])"),
    "a tensor to initialise": (lambda: nn.init.normal_(x), "tt.nn.Parameter(x)"),
    "three inputs of attention": (lambda: tinyformer.MultiHeadAttention(4, 2)(x, x, x), "takes x alone"),
    "a shape to normalize": (lambda: tt.layer_norm(x, (3,)), "no normalized_shape"),
    "NumPy's order": (lambda: tt.random.normal(0, 1, (2, 3)), "the shape comes first"),
    "attn_mask": (lambda: tt.scaled_dot_product_attention(x, x, x, attn_mask=None), "attn_mask is mask here"),
}


@pytest.mark.parametrize(("act", "says"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_of_pytorchs_is_answered(act, says):
    with pytest.raises(TypeError) as caught:
        act()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_transpose_with_two_axes_names_swapaxes():
    with pytest.raises(ValueError, match=r"each of 3 axes once.*swapaxes swaps two"):
        tt.zeros((2, 3, 4)).transpose(-2, -1)


def test_an_unknown_name_is_plainly_missing():
    for owner in (tt, nn, optim, functional, tt.random, nn.init, x, layer):
        assert not hasattr(owner, "frobnicate")
        with pytest.raises(AttributeError, match=r"has no 'frobnicate'$"):
            owner.frobnicate  # noqa: B018


@pytest.mark.parametrize("owner", [tt, x, layer], ids=["a module", "a tensor", "a layer"])
def test_an_unread_error_message_is_not_built(owner, monkeypatch):
    monkeypatch.setattr(missing, "_answer", lambda *_: pytest.fail("it was written"))
    assert getattr(owner, "frobnicate", None) is None


def test_an_error_can_be_sent_to_another_process():
    with pytest.raises(AttributeError) as caught:
        x.view(3, 2)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_size_is_a_number_like_others():
    assert (x.size, x.size + 1, [0] * x.size, f"{x.size:,}") == (6, 7, [0] * 6, "6")
    assert tt.zeros(x.size).shape == (6,)


def test_the_guide_has_the_tables_that_errors_quote():
    guide, for_numpy = ((ROOT / f"docs/guides/from_{name}.md").read_text("utf-8") for name in ("pytorch", "numpy"))
    table = (ROOT / "tinytensor/common/names_elsewhere.md").read_text("utf-8")
    left_out = [row for row in table.splitlines() if row.startswith("|") and row not in guide + for_numpy]
    rows = guide[guide.index("## Tensors\n") : guide.index("## Other differences")].splitlines()
    assert left_out + [row for row in rows if row.startswith("|") and row not in table] == []


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_completion_shows_public_names_alone(name):
    module = importlib.import_module(name)
    names = [name for name in dir(module) if not name.startswith("__")]
    assert names == sorted(module.__all__) and len(names) >= 2
    assert "__doc__" in dir(module) and all(hasattr(module, name) for name in dir(module))
    homes = {name: getattr(getattr(module, name), "__module__", repr(getattr(module, name))) for name in names}
    foreign = [name for name, home in homes.items() if not re.search("tinytensor|tinyformer", home)]
    assert foreign in ([], ["backend_name", "kernels_name"])


def test_a_star_imports_the_public_names():
    names: dict[str, object] = {}
    exec("from tinytensor import *", names)
    assert names.keys() - {"__builtins__"} == set(tt.__all__)
