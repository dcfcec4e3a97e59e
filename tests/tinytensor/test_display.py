"""Tensors and modules in a notebook."""

import re
import time
from html import unescape

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn
from tinytensor.device.backend import bfloat16


def text_of(html):
    return unescape(re.sub(r"<[^>]*>", "\n", html)).strip()


def words(html):
    """The text without its spaces: each module's name, class and settings, and its number of parameters."""
    return "".join(text_of(html).split())


def lines(thing):
    return [line.strip() for line in text_of(thing._repr_html_()).splitlines() if line.strip()]


# --------------------------------------------------------------------------------------------------------------- tensors

TENSORS = {
    "matrix": (lambda: tt.tensor([[1.5, 2.0], [3.0, float("nan")]]), ["[[1.5, 2. ],", "[3. , nan]]", "tensor · 2×2 · float32"]),
    "scalar": (lambda: tt.tensor(3), ["3", "tensor · scalar · int64"]),
    "empty": (lambda: tt.zeros((0, 3)), ["[]", "tensor · 0×3 · float32"]),
    "one": (lambda: tt.tensor([True]), ["[ True]", "tensor · 1 element · bool"]),
    "leaf": (lambda: nn.Parameter([1.0]), ["[1.]", "parameter · 1 element · float32 · requires_grad"]),
    "op": (lambda: nn.Parameter([1.0]) * 2, ["[2.]", "tensor · 1 element · float32 · op multiply"]),
    "long": (lambda: tt.arange(1000), ["[  0,   1,   2, ..., 997, 998, 999]", "tensor · 1,000 elements · int64"]),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors(case):
    tensor, want = TENSORS[case]
    assert lines(tensor()) == want


@pytest.mark.parametrize("shape", [(100, 100), (20, 30), (5, 100), (100, 3), (7, 1000)])
def test_a_large_matrix_is_shortened_as_numpy_does(shape):
    values = np.random.default_rng(0).standard_normal(shape)
    want = np.array2string(values, separator=", ", precision=4, threshold=256, max_line_width=100)
    assert want in unescape(tt.tensor(values)._repr_html_())


def test_a_huge_tensor_is_quick_and_many_axes_are_short():
    x = tt.broadcast_to(tt.tensor([1.0]), (1000, 1000, 1000, 1000))  # 4 TB, if it were copied
    start = time.perf_counter()
    html = x._repr_html_()
    assert time.perf_counter() - start < 1
    assert "1000×1000×1000×1000" in html
    assert len(tt.zeros((9, 9, 9, 9, 9))._repr_html_().split()) < 200


def test_many_short_axes():
    """NumPy shortens no axis of two elements: it would write down all of these."""
    start = time.perf_counter()
    text = text_of(tt.arange(2**20).reshape((2,) * 20)._repr_html_())
    assert time.perf_counter() - start < 2
    assert text.startswith("[" * 20 + "   0,    1],")
    assert "1023" + "]" * 10 + ", ...]" * 10 in text


@pytest.mark.needs("cupy")
def test_bfloat16():
    if bfloat16 is None:
        pytest.skip("needs ml_dtypes")
    assert lines(tt.tensor([1.5, 2.0]).astype("bfloat16")) == ["[1.5, 2. ]", "tensor · 2 elements · bfloat16"]


# --------------------------------------------------------------------------------------------------------------- modules


def test_a_module_has_the_lines_and_numbers_of_its_repr():
    model = nn.Sequential(nn.Linear(3, 1000), nn.ReLU(), nn.Sequential(nn.Linear(1000, 2), nn.Dropout(0.5)))
    html = model._repr_html_()
    assert words(html) == words(repr(model))
    assert html.count(" open>") == 1
    assert html.count("<details") == 2


def test_a_module_inside_itself_and_text_that_is_not_html():
    class Odd(nn.Module):
        def __init__(self):
            self.me = self

        def extra_repr(self):
            return "<script>"

    html = Odd()._repr_html_()
    assert "<script>" not in html
    assert words(html) == words(repr(Odd()).replace("<script>", "&lt;script&gt;"))


def test_a_long_description_is_broken_into_lines():
    class Long(nn.Module):
        def extra_repr(self):
            return "x" * 500

    assert "overflow-wrap:anywhere" in Long()._repr_html_()


def test_a_shared_module_comes_at_each_of_its_places():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, shared)
    assert words(model._repr_html_()) == words(repr(model))


def test_what_draws_is_not_loaded_before_it_is_needed(python):
    code = "import sys, tinytensor; print([name for name in sys.modules if 'tinytensor.display' in name])"
    assert python(code, TINYTENSOR_BACKEND="numpy").stdout == "['tinytensor.display', 'tinytensor.display.graph']\n"
