"""Drawing the recorded graph."""

import re
import sys

import numpy as np
import pytest

import tinytensor as tt

pytest.importorskip("graphviz")


def leaf(*values):
    return tt.tensor(np.array(values), requires_grad=True)


def drawn(drawing):
    """Each node's number, lines of text, colour and shape."""
    found = re.findall(r'^\s*(\d+) \[label="([^"]*)" fillcolor="(\S+)" shape=(\w+)', drawing.source, re.MULTILINE)
    return [(number, label.split("\n"), colour, shape) for number, label, colour, shape in found]


def parts(drawing):
    """The nodes of the drawing (number -> lines of text) and its edges."""
    nodes = {number: lines for number, lines, _, _ in drawn(drawing)}
    return nodes, set(re.findall(r"(\d+) -> (\d+)", drawing.source))


def test_ops_leaves_and_edges():
    x, w = leaf([1.0, 2.0], [3.0, 4.0]), leaf(1.0, 2.0)
    nodes, edges = parts(tt.draw_graph(tt.exp(x * w).sum()))
    by_text = {label[0]: number for number, label in nodes.items() if label[0] != "leaf"}
    assert set(by_text) == {"multiply", "exp", "sum"}
    assert sorted(label[1] for label in nodes.values()) == ["2", "2×2", "2×2", "2×2", "scalar"]
    leaves = [number for number, label in nodes.items() if label[0] == "leaf"]
    assert edges == {
        *[(number, by_text["multiply"]) for number in leaves],
        (by_text["multiply"], by_text["exp"]),
        (by_text["exp"], by_text["sum"]),
    }


def test_what_is_used_twice_is_drawn_once():
    x = leaf(1.0)
    h = tt.exp(x)
    nodes, edges = parts(tt.draw_graph((h * h + h).sum()))
    assert [label[0] for label in nodes.values()].count("exp") == 1
    assert len(edges) == 5  # x to exp, exp to multiply and to add, multiply to add, add to sum


def test_names():
    x, w = leaf(1.0), leaf(2.0)
    out = (x * w).sum()
    for names in ({"data": x, "weight": w}, [("data", x), ("weight", w)]):
        labels = {label[0] for label in parts(tt.draw_graph(out, names))[0].values()}
        assert labels == {"data", "weight", "multiply", "sum"}
    model = tt.nn.Linear(1, 1)
    labels = {label[0] for label in parts(tt.draw_graph(model(x.astype("float32")), model.named_parameters()))[0].values()}
    assert {"weight", "bias", "linear", "leaf"} <= labels


def test_gradients_are_shown_and_none_is_left_behind():
    x = leaf(3.0, 4.0)
    out = (x * x).sum() * 0.5
    nodes, _ = parts(tt.draw_graph(out, {"x": x}, gradients=True))
    labels = {label[0]: label for label in nodes.values()}
    assert labels["x"][2] == "gradient norm 5"  # the gradient is x itself
    assert labels["sum"][2] == "gradient 0.5"
    assert x.grad is None
    out.backward()  # the graph is still there
    assert x.grad.tolist() == [3, 4]


def test_gradients_need_one_element():
    with pytest.raises(ValueError, match="sum it first"):
        tt.draw_graph(leaf(1.0, 2.0) * 2, gradients=True)


def test_the_output_stands_out():
    x = leaf(1.0)
    look = {lines[0]: (colour, shape) for _, lines, colour, shape in drawn(tt.draw_graph(tt.exp(x) * 2))}
    assert [look[name][1] for name in ("leaf", "exp", "multiply")] == ["box", "ellipse", "ellipse"]
    assert len({colour for colour, _ in look.values()}) == 3


def test_nothing_recorded():
    with pytest.raises(RuntimeError, match="requires gradients"):
        tt.draw_graph(tt.ones(2) * 2)


def test_a_long_chain_is_drawn_without_recursion():
    x = leaf(1.0)
    for _ in range(2000):
        x = x + 1.0
    assert len(parts(tt.draw_graph(x))[0]) == 2001


@pytest.mark.parametrize("ask", [lambda d, path: d.pipe(format="svg"), lambda d, path: d.render(path / "graph")])
def test_without_the_dot_program(ask, tmp_path, monkeypatch):
    drawing = tt.draw_graph(leaf(1.0) * 2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"`dot`.*install graphviz.*\.source"):
        ask(drawing, tmp_path)
    assert "multiply" in drawing.source


@pytest.mark.needs("dot")
def test_with_the_dot_program():
    assert b"<svg" in tt.draw_graph(leaf(1.0) * 2).pipe(format="svg")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)  # None makes the import fail
    with pytest.raises(ImportError, match="pip install graphviz"):
        tt.draw_graph(leaf(1.0) * 2)
