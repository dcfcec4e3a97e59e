"""Drawing the recorded graph: its text, its pictures and the tree of modules in them."""

import re
import weakref
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import GPT, GPTConfig
from tinytensor import nn


def leaf(*values):
    return tt.tensor(np.array(values), requires_grad=True)


def drawn(drawing):
    """Each node's number, lines of text, colour and shape."""
    found = re.findall(r'^\s*(\d+) \[label="((?:[^"\\]|\\.)*)" fillcolor="(\S+)" shape=(\w+)', drawing.source, re.MULTILINE)
    return [(number, label.split("\\n"), colour, shape) for number, label, colour, shape in found]


def parts(drawing):
    """The nodes of the drawing (number -> lines of text) and its edges."""
    nodes = {number: lines for number, lines, _, _ in drawn(drawing)}
    return nodes, set(re.findall(r"(\d+) -> (\d+)", drawing.source))


class Outline(HTMLParser):
    """The titles of the boxes in each picture of an HTML page, by the names of the details around it."""

    def __init__(self, html):
        super().__init__()
        self.open, self.around, self.pictures = [], [], {}
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        assert not {"id", "href", "onclick"} & dict(attributes).keys()
        assert tag != "script"
        if tag == "details":
            self.around.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "details":
            self.around.pop()

    def handle_startendtag(self, tag, attributes):
        """<rect/> and <path/> hold nothing."""

    def handle_data(self, data):
        if self.open[-1] == "code":
            self.around[-1] = data
        if self.open[-1] == "title":
            self.pictures.setdefault(tuple(self.around), []).append(data.split("\n")[0])


def outline(drawing):
    return Outline(drawing._repr_html_()).pictures


def gpt(layers):
    model = GPT(GPTConfig(vocab_size=11, block_size=8, num_layers=layers, num_heads=2, d_model=8))
    loss = tt.cross_entropy(model(tt.tensor([[1, 2, 3]])).reshape(3, 11), tt.tensor([1, 2, 3]))
    return model, loss


# ------------------------------------------------------------------------------------------------ the graph, as a text


def test_ops_leaves_and_edges():
    x, w = leaf([1.0, 2.0], [3.0, 4.0]), leaf(1.0, 2.0)
    nodes, edges = parts(tt.draw_graph(tt.exp(x * w).sum()))
    by_text = {label[0]: number for number, label in nodes.items() if label[0] != "leaf"}
    assert set(by_text) == {"multiply", "exp", "sum"}
    assert sorted(label[1] for label in nodes.values())[:4] == ["2", "2×2", "2×2", "2×2"]
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
    model = nn.Linear(1, 1)
    labels = {label[0] for label in parts(tt.draw_graph(model(x.astype("float32")), model.named_parameters()))[0].values()}
    assert {"weight", "bias", "linear", "leaf"} <= labels


def test_gradients_are_shown_and_none_is_left_behind():
    x = leaf(3.0, 4.0, 0.0, 0.0, 0.0)
    out = (x * x).sum() * 0.5
    nodes, _ = parts(tt.draw_graph(out, {"x": x}, gradients=True))
    labels = {label[0]: label for label in nodes.values()}
    assert labels["x"][1:] == ["5", "grad norm 5"]  # the gradient is x itself
    assert labels["sum"][1:] == ["grad 0.5"]
    assert x.grad is None
    out.backward()  # the graph is still there
    assert x.grad.tolist() == [3, 4, 0, 0, 0]


def test_gradients_need_one_element():
    with pytest.raises(ValueError, match="sum it first"):
        tt.draw_graph(leaf(1.0, 2.0) * 2, gradients=True)


def test_values():
    def lines(keep):
        a, b, c = (tt.tensor(v, requires_grad=True) for v in (2.0, -3.0, 10.0))
        if keep:
            with tt.keep_values():
                out = (a * b + c) * 2
        else:
            out = (a * b + c) * 2
        drawing = tt.draw_graph(out, {"a": a, "b": b, "c": c}, gradients=True)
        return [label[1] for label in sorted(parts(drawing)[0].values()) if label[0] != "leaf"]

    leaves = ["data 2 | grad -6", "data -3 | grad 4", "data 10 | grad 2"]
    # What two names share the place of: a, add, b, c, multiply, multiply
    assert lines(True) == [leaves[0], "data 4 | grad 2", *leaves[1:], "data -6 | grad 2", "data 8 | grad 1"]
    assert sorted(lines(False)) == sorted([*leaves, "grad 2", "grad 2", "data 8 | grad 1"])


def test_values_are_kept_on_request_alone():
    x = leaf(1.0)
    assert not hasattr((x * 2).node, "value")
    with tt.keep_values():
        y = x * 2
    assert y.node.value is y.data
    assert not hasattr((x * 2).node, "value")


@pytest.mark.parametrize(
    ("values", "text"),
    [([1.5, 2.0], "data [1.5, 2. ]"), ([float("nan")], "data nan"), ([], None), ([1.0] * 5, None), ([[1.0]], "data 1")],
)
def test_few_values_are_written_out(values, text):
    x = tt.tensor(np.array(values), requires_grad=True)
    lines = parts(tt.draw_graph(x * 1.0, {"x": x}))[0].values()
    assert [line[2:] for line in lines if line[0] == "x"] == [[text] if text else []]


def test_the_output_stands_out():
    x = leaf(1.0)
    look = {lines[0]: (colour, shape) for _, lines, colour, shape in drawn(tt.draw_graph(tt.exp(x) * 2))}
    assert [look[name][1] for name in ("leaf", "exp", "multiply")] == ["box", "ellipse", "ellipse"]
    assert len({colour for colour, _ in look.values()}) == 3


def test_nothing_recorded():
    with pytest.raises(RuntimeError, match="requires gradients"):
        tt.draw_graph(tt.ones(2) * 2)


def test_a_graph_that_backward_freed():
    y = leaf(1.0) * 2
    y.backward(retain_graph=True)
    assert len(parts(tt.draw_graph(y))[0]) == 2
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        tt.draw_graph(y)


def test_text_in_names_is_only_text():
    x = leaf(1.0)
    drawing = tt.draw_graph(x * 2, {'<b>"&\\': x})
    assert r'label="<b>\"&\\\n1\n' in drawing.source
    assert outline(drawing)[()] == ['<b>"&\\', "multiply"]
    assert "<b>" not in drawing._repr_html_()


def test_a_checkpoint_keeps_its_value_too():
    x = leaf(2.0)
    with tt.keep_values():
        out = tt.checkpoint(tt.exp, x) * 1.0
    assert ["checkpoint", "1", "data 7.389"] in parts(tt.draw_graph(out))[0].values()


def test_a_graph_that_backward_freed_in_part():
    shared = tt.exp(leaf(1.0))
    first, second = shared * 2, shared * 3
    first.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        tt.draw_graph(second)


def test_a_drawing_stays_when_the_graph_goes():
    x = leaf(1.0, 2.0)
    with tt.keep_values():
        middle = tt.exp(x) + 1.0
        out = (middle * 2).sum()
    drawing = tt.draw_graph(out, {"x": x})
    before = drawing.source, drawing._repr_html_()
    memory = weakref.ref(middle.data)
    out.backward()
    assert (drawing.source, drawing._repr_html_()) == before
    del middle, out
    assert memory() is None


def test_the_norm_of_large_gradients():
    x = tt.tensor(np.full(100, 3e3), "float16", requires_grad=True)
    drawing = tt.draw_graph((x * x * 0.5).astype("float64").sum(), {"x": x}, gradients=True)
    assert ["x", "100", "grad norm 3e+04"] in parts(drawing)[0].values()


@pytest.mark.parametrize("wrong", ["a module", "tensors", "numbers", "a number as a name", "a text"])
def test_names_that_are_none(wrong):
    x = leaf(1.0, 2.0)
    names = {"a module": nn.Linear(1, 1), "tensors": [x], "numbers": {"x": 3}, "a number as a name": {1: x}, "a text": "x"}
    with pytest.raises(TypeError, match="named_parameters"):
        tt.draw_graph(x * 2, names[wrong])


def test_not_a_valid_tensor():
    with pytest.raises(TypeError, match="output must be a tensor, got the tuple"):
        tt.draw_graph((leaf(1.0), leaf(1.0)))


# ------------------------------------------------------------------------------------------------------------- pictures


def test_a_gpt_is_grouped_by_module():
    model, loss = gpt(1)
    pictures = outline(tt.draw_graph(loss, model.named_parameters(), gradients=True))
    assert pictures[()] == [
        *("token_embedding", "position_embedding", "add", "blocks.0", "norm", "token_embedding", "reshape", "cross_entropy")
    ]
    assert pictures["blocks.0",] == [
        *("attention_norm", "attention", "add", "feed_forward_norm", "feed_forward", "add", "from add", "to norm")
    ]
    assert pictures["blocks.0", "attention"][:3] == ["query_key_value", "multi_head_attention", "output"]
    assert pictures["blocks.0", "feed_forward"][:3] == ["up", "gelu_tanh", "down"]
    assert pictures["blocks.0", "feed_forward", "up"] == ["weight", "linear", "from blocks.0.feed_forward_norm", "to gelu_tanh"]


def test_a_tied_weight_is_in_the_first_module_that_uses_it():
    model, loss = gpt(1)
    html = tt.draw_graph(loss, model.named_parameters())._repr_html_()
    assert html.count("<title>weight\n11×8") == 1
    assert html.count("<title>from token_embedding.weight<") == 1  # where it gives the logits


def test_a_loss_is_outside_of_the_last_module():
    class Net(nn.Module):
        def __init__(self):
            self.net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))

        def forward(self, x):
            return self.net(x)

    model = Net()
    pictures = outline(tt.draw_graph((model(tt.ones((3, 2))) ** 2).mean(), model.named_parameters()))
    assert pictures[()] == ["net", "square", "mean"]
    assert pictures["net",] == ["0", "tanh", "2", "to square"]


def test_several_blocks_are_one_box():
    model, loss = gpt(3)
    pictures = outline(tt.draw_graph(loss, model.named_parameters()))
    assert "blocks" in pictures[()]
    assert pictures["blocks",][:3] == ["0", "1", "2"]
    assert pictures["blocks", "2"][-1] == "to norm"


def test_every_op_is_in_one_picture():
    model, loss = gpt(2)
    drawing = tt.draw_graph(loss, model.named_parameters())
    shown = [title for titles in outline(drawing).values() for title in titles]
    nodes, _ = parts(drawing)
    for op in ("multi_head_attention", "linear", "layer_norm", "cross_entropy"):
        assert shown.count(op) == sum(lines[0] == op for lines in nodes.values()) > 0


def test_a_module_that_is_called_twice_has_two_boxes():
    class Twice(nn.Module):
        def __init__(self):
            self.first = nn.Linear(2, 2)
            self.second = nn.Linear(2, 2)

        def forward(self, x):
            return self.first(self.second(self.first(x)))

    model = Twice()
    pictures = outline(tt.draw_graph(model(tt.ones((1, 2))).sum(), model.named_parameters()))
    assert pictures[()] == ["first", "second", "first", "sum"]


def test_a_long_chain_is_cut_and_says_so():
    x = leaf(1.0)
    for _ in range(20_000):
        x = x + 1.0
    drawing = tt.draw_graph(x)
    assert len(parts(drawing)[0]) == 20_001
    html = drawing._repr_html_()
    assert "19,901 more before" in html
    assert "Not drawn: the first 19,901 of 20,001." in html
    assert html.count("<title>") == 101


def test_a_module_that_is_cut_shows_only_what_its_last_ops_read():
    weight, x = leaf(1.0), leaf(*np.ones(500))
    steps = [x[i] for i in range(500)]
    h = weight
    for step in steps:
        h = h + step * weight
    pictures = outline(tt.draw_graph(h * 1.0, {"rnn.weight": weight, "x": x}))
    assert 100 < len(pictures["rnn",]) < 170


def test_a_leaf_alone():
    x = tt.tensor(3.0, requires_grad=True)
    assert outline(tt.draw_graph(x, {"x": x})) == {(): ["x"]}


def test_boxes_keep_their_distance_and_arrows_go_down():
    model, loss = gpt(2)
    html = tt.draw_graph(loss, model.named_parameters())._repr_html_()
    pictures = [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    assert len(pictures) > 10
    for picture in pictures:
        rects = [[float(r.attrib[k]) for k in ("x", "y", "width", "height")] for r in picture.iter() if r.tag.endswith("}rect")]
        for i, (x, y, width, height) in enumerate(rects):
            for left, top, w, h in rects[:i]:
                assert x + width <= left or left + w <= x or y + height <= top or top + h <= y
        for path in picture.iter():
            if path.tag.endswith("}path") and path.attrib["fill"] == "none":
                numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.attrib["d"])]
                assert numbers[1] < numbers[-1]


def test_two_outputs_on_a_page_do_not_clash():
    model, loss = gpt(1)
    assert " id=" not in tt.draw_graph(loss, model.named_parameters())._repr_html_()


def test_each_picture_has_a_name_for_those_who_listen():
    model, loss = gpt(1)
    html = tt.draw_graph(loss, model.named_parameters())._repr_html_()
    labels = re.findall(r'<svg [^>]*role="group" aria-label="([^"]*)"', html)
    assert labels[0] == "graph"
    assert "graph of blocks.0.attention" in labels
    assert len(labels) == html.count("<svg")


# ---------------------------------------------------------------------------------------------------------------- files


def test_save(tmp_path):
    x = leaf(1.0)
    drawing = tt.draw_graph(tt.exp(x), {"x": x})
    assert drawing.save(tmp_path / "new" / "graph.svg").read_text(encoding="utf-8").startswith("<svg ")
    titles = ElementTree.parse(tmp_path / "new" / "graph.svg").iter("{http://www.w3.org/2000/svg}title")
    assert [title.text.split("\n")[0] for title in titles] == ["x", "exp"]
    assert drawing._repr_html_() in drawing.save(tmp_path / "graph.html").read_text(encoding="utf-8")
    assert drawing.save(str(tmp_path / "graph.dot")).read_text(encoding="utf-8") == drawing.source
    with pytest.raises(ValueError, match=r"\.svg"):
        drawing.save(tmp_path / "graph.png")


def test_names_that_a_file_cannot_hold(tmp_path):
    x = leaf(1.0)
    drawing = tt.draw_graph(x * 2, {"a\n\x00\x1b\ud800\u202eb": x})
    for ending in ("svg", "html", "dot"):
        assert r"a\n\x00\x1b\ud800\u202eb" in drawing.save(tmp_path / f"g.{ending}").read_text("utf-8").replace("\\\\", "\\")
    ElementTree.parse(tmp_path / "g.svg")


def test_endings_in_capitals(tmp_path):
    assert (leaf_drawing := tt.draw_graph(leaf(1.0))).save(tmp_path / "g.SVG").read_text("utf-8").startswith("<svg ")
    assert "color:black" in leaf_drawing.save(tmp_path / "g.svg").read_text("utf-8")  # on white, whatever page it is put into


@pytest.mark.needs("dot")
def test_the_dot_program_understands_the_text():
    import subprocess

    x = leaf(1.0)
    text = tt.draw_graph(x * 2, {'a "name"\\': x}).source
    assert b"<svg" in subprocess.run(["dot", "-Tsvg"], input=text.encode(), capture_output=True, check=True).stdout
