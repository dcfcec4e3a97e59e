"""Models as graphs of ONNX, as far as that needs no package onnx; and what the export refuses. Beside onnx and onnxruntime they
run in tests/parity/test_onnx.py."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from explored import gpt_run

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BertForMaskedLM,
    GPTConfig,
    RecurrentConfig,
    RecurrentLM,
    Transformer,
    TransformerConfig,
    UserError,
    WordTokenizer,
    export_onnx,
)
from tinyformer.commands.export import export, parse
from tinyformer.export.graph import FLOAT, INT, Graph
from tinyformer.export.models import bert_graph, decoder_graph, encoder_graph, gpt_graph
from tinyformer.export.web import web_page
from tinytensor.nn import Module

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "commands" / "runs_of_before"

GPT_CONFIG = GPTConfig(vocab_size=11, block_size=8, num_layers=2, num_heads=2, d_model=8)
BERT_CONFIG = BertConfig(vocab_size=11, max_length=8, num_layers=1, num_heads=2, d_model=8, d_ff=16)
TRANSFORMER_CONFIG = TransformerConfig(9, 11, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=2, d_ff=16)


def all_graphs() -> dict[str, tuple[Graph, GPT | BertForMaskedLM | Transformer]]:
    gpt, bert, transformer = GPT(GPT_CONFIG), BertForMaskedLM(BERT_CONFIG), Transformer(TRANSFORMER_CONFIG)
    return {
        "GPT": (gpt_graph(gpt).without_unread(), gpt),
        "GPT without cache": (gpt_graph(gpt, cache=False).without_unread(), gpt),
        "BERT": (bert_graph(bert).without_unread(), bert),
        "encoder": (encoder_graph(transformer).without_unread(), transformer),
        "decoder": (decoder_graph(transformer).without_unread(), transformer),
    }


GRAPHS = all_graphs()


@pytest.mark.parametrize("name", GRAPHS)
def test_a_node_reads_only_what_was_there_before_it(name: str) -> None:
    graph, _ = GRAPHS[name]
    known = {port.value.name for port in graph.inputs} | set(graph.constants)
    for node in graph.nodes:
        assert {value.name for value in node.inputs} <= known
        results = {value.name for value in node.outputs}
        assert not results & known
        known |= results
    assert {port.value.name for port in graph.outputs} <= known


@pytest.mark.parametrize("name", GRAPHS)
def test_every_input_is_read(name: str) -> None:
    graph, _ = GRAPHS[name]
    read = {value.name for node in graph.nodes for value in node.inputs}
    assert {port.value.name for port in graph.inputs} <= read
    assert set(graph.constants) <= read


def test_every_weight_is_in_the_graph_once_and_only_where_it_is_needed() -> None:
    for name in ("GPT", "GPT without cache", "BERT"):
        graph, model = GRAPHS[name]
        weights = {name for name, _ in model.named_parameters() if not name.startswith("bert.pooler")}
        assert {constant.removesuffix(".transposed") for constant in graph.constants} >= weights
        big = sum(array.size for array in graph.constants.values() if array.ndim == 2)
        assert big == sum(p.size for name, p in model.named_parameters() if p.ndim == 2 and name in weights)
    (encoder, model), (decoder, _) = GRAPHS["encoder"], GRAPHS["decoder"]
    named = [{name.removesuffix(".transposed") for name in graph.constants} for graph in (encoder, decoder)]
    parameters = dict(model.named_parameters())
    assert set.union(*named) >= set(parameters)
    shared = set.intersection(*named) & set(parameters)
    assert shared == set()


@pytest.mark.parametrize("name", GRAPHS)
def test_no_length_and_no_batch_size_is_a_number(name: str) -> None:
    graph, _ = GRAPHS[name]
    for port in graph.inputs + graph.outputs:
        numbers = [size for size in port.shape if isinstance(size, int)]
        is_state = "key" in port.value.name.split(".")[-1] or "value" in port.value.name.split(".")[-1]
        assert port.shape[0] == "batch_size"
        assert len(numbers) == (2 if is_state else 1 if port.dtype == FLOAT else 0)


def test_what_a_value_beside_another_becomes() -> None:
    graph = Graph()
    x = graph.input("x", FLOAT, "n", 2)
    for number, dtype in ((2, INT), (2.0, FLOAT), ([1, 2], INT)):
        _, constant = (x * number).graph.nodes[-1].inputs
        assert graph.constants[constant.name].dtype == dtype


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "model", [Bert(BERT_CONFIG), RecurrentLM(RecurrentConfig(vocab_size=11, cell="lstm", num_layers=1, d_model=8))]
)
def test_a_model_of_another_kind(tmp_path: Path, model: Module) -> None:
    kind = type(model).__name__
    with pytest.raises(UserError, match=rf"^{kind} cannot be exported to ONNX without inputs, such as \{{'ids': \('int64', "):
        export_onnx(model, tmp_path / "model.onnx")


class Sorted(GPT):
    """A GPT with an op that graphs do not have, in a helper of its forward."""

    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return tt.sort(super().logits_of(x))


def test_an_op_that_a_graph_does_not_have(tmp_path: Path) -> None:
    line = inspect.getsourcelines(Sorted.logits_of)[1] + 1
    where = rf"the model \({re.escape(__file__)}:{line}\)"
    why = rf"the op argsort is not supported here: {where} calls it"
    with pytest.raises(UserError, match=f"^Sorted cannot be exported to ONNX: {why}$"):
        export_onnx(Sorted(GPT_CONFIG), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


class Rounded(Transformer):
    """An encoder-decoder whose decoder has such an op."""

    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return tt.sort(super().logits_of(x))


def test_a_decoder_that_cannot_be_exported_leaves_no_encoder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Rounded cannot be exported to ONNX: the op argsort "):
        export_onnx(Rounded(TRANSFORMER_CONFIG), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


class Reading(GPT):
    """A GPT that reads its ids outside of ops."""

    def forward(self, ids: tt.Tensor, *others: Any) -> tt.Tensor:
        return super().forward(ids, *others) * float(ids.numpy().max())


def test_values_that_are_read_outside_of_ops(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Reading cannot .*: the model \(.*\): the values of a tensor are read outside "):
        export_onnx(Reading(GPT_CONFIG), tmp_path / "model.onnx")


class Ahead(Transformer):
    """An encoder-decoder with another forward, which no graph holds."""

    def forward(self, source: Any, target: tt.Tensor) -> tt.Tensor:
        return super().forward(source, target) * 2


def test_a_forward_that_no_graph_holds(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Ahead overrides forward, but ONNX files hold encode and decode: override these$"):
        export_onnx(Ahead(TRANSFORMER_CONFIG), tmp_path / "model.onnx")


def test_a_model_for_texts_that_are_too_short(tmp_path: Path) -> None:
    short = GPT(GPTConfig(vocab_size=11, block_size=4, num_layers=1, num_heads=2, d_model=8))
    with pytest.raises(UserError, match=r"^GPT cannot be exported to ONNX: .*crop them$"):
        export_onnx(short, tmp_path / "model.onnx")


def test_only_a_gpt_does_without_a_cache(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cache=False is only for a GPT, got Transformer: leave it out$"):
        export_onnx(Transformer(TRANSFORMER_CONFIG), tmp_path / "model.onnx", cache=False)


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    model = GPT(GPT_CONFIG)
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(UserError, match=r"path must end in .onnx, got .*best.safetensors"):
        export_onnx(model, tmp_path / "best.safetensors")
    with pytest.raises(UserError, match=r"folder not found: .*missing. Create it first"):
        export_onnx(model, tmp_path / "missing" / "model.onnx")
    with pytest.raises(UserError, match=r"folder.onnx is a folder: pass the path of a file"):
        export_onnx(model, tmp_path / "folder.onnx")


def test_without_the_package_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"^ONNX needs the package onnx: pip install 'tinyformer\[onnx\]'$"):
        export_onnx(GPT(GPT_CONFIG), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------- the command line


def changed_run(folder: Path, name: str, part: str, **settings: str | int) -> Path:
    """A copy of a run with other settings in a part of its config.json."""
    shutil.copytree(RUNS / name, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config[part] |= settings
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def refusal(tmp_path: Path, *words: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        export(parse([*map(str, words), str(tmp_path / "model.onnx")]))
    assert not (tmp_path / "model.onnx").exists()
    return str(caught.value)


@pytest.mark.parametrize(("name", "network"), [("lstm", "RecurrentLM"), ("attention", "AdditiveAttentionModel")])
def test_a_run_of_a_recurrent_network(tmp_path: Path, name: str, network: str) -> None:
    run = RUNS.with_name("kept_runs") / name
    assert refusal(tmp_path, run) == f"{run} holds a recurrent network ({network}): only Transformers can be exported to ONNX"


OTHERS = {
    "a dial tone transcriber": {"made_by": {"kind": "dial tone transcriber", "program": "tinyformer"}},
    "a recall network": {"made_by": {"kind": "recall network", "program": "memory.py"}},
    "my_sorter.py": {"made_by": {"kind": "sorter", "program": "my_sorter.py"}, "model": {}},
    "another program": {"model": {}},
}


@pytest.mark.parametrize("program", OTHERS)
def test_a_run_of_another_kind(tmp_path: Path, program: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OTHERS[program]), encoding="utf-8")
    only = "only a run of a language model, a masked language model or a translator can be exported to ONNX"
    assert refusal(tmp_path, tmp_path) == f"{tmp_path} holds a run of {program}: {only}"


def test_a_run_with_a_wrong_type(tmp_path: Path) -> None:
    for record, message in {
        "null": "made_by must be an object of settings, got None",
        '{"kind": 1, "program": "my.py"}': "made_by.kind must be text, got 1",
        '{"kind": "translator"}': "made_by.program is missing",
        '{"kind": "translator", "program": "../my.py"}': "program must be the name of a file, got '../my.py'",
        '{"kind": "translator", "program": ""}': "program must be the name of a file, got ''",
        '{"kind": "translator", "program": "-c"}': "program must be the name of a file, got '-c'",
        '{"kind": "translator", "program": ".."}': "program must be the name of a file, got '..'",
        f'{{"kind": "translator", "program": "{"my" * 200}"}}': "program must be the name of a file, got '"
        + ("my" * 18)
        + "...",
    }.items():
        (tmp_path / "config.json").write_text(f'{{"made_by": {record}}}', encoding="utf-8")
        assert refusal(tmp_path, tmp_path).removeprefix(f"{tmp_path / 'config.json'} is damaged").endswith(f": {message}")


def test_a_pretrained_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    how = f"export_onnx(from_pretrained('{tmp_path}'), 'model.onnx')"
    assert refusal(tmp_path, tmp_path) == f"{tmp_path} holds a pretrained model, not a run: export it in Python, with {how}"


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    assert refusal(tmp_path, tmp_path / "none").endswith("none does not exist: train first, or name the folder of another run")


def test_a_run_without_weights(tmp_path: Path) -> None:
    run = changed_run(tmp_path / "run", "char_gpt", "text")
    (run / "best.safetensors").unlink()
    assert refusal(tmp_path, run) == f"{run / 'best.safetensors'} does not exist"


def test_a_run_whose_settings_were_changed(tmp_path: Path) -> None:
    run = changed_run(tmp_path / "run", "char_gpt", "model", num_heads=1)
    assert "says 1 for model.num_heads, but best.safetensors was trained with 2" in refusal(tmp_path, run)


def test_mistakes_on_the_command_line_print_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tinyformer", "export"]
    result = subprocess.run([*command, "none", "model.onnx"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: none does not exist: train first, or name the folder of another run\n"


@pytest.mark.parametrize("words", [[], ["run"], ["run", ""], ["run", "model.onnx", "--opset", "9"]])
def test_words_that_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_help_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = capsys.readouterr().out
    for word in ("tinyformer export", "RUN", "FILE", "--no-cache", "--web", "onnxruntime", "translator"):
        assert word in shown


# ------------------------------------------------------------------------------------------------------------- a page


def page_refusal(tmp_path: Path, run: Path, name: str = "page.html") -> str:
    with pytest.raises(UserError) as caught:
        export(parse([str(run), "--web", str(tmp_path / name)]))
    assert not (tmp_path / "page.html").exists()
    return str(caught.value)


def test_a_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    export(parse([str(RUNS / "char_gpt"), "--web", str(path)]))
    page = path.read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith(f"Wrote {path} (0.1 MB). Open it in a browser")
    assert "<title>char_gpt</title>" in page and "$" not in page.split("</head>")[0]
    assert page == web_page(RUNS / "char_gpt")


def test_runs_that_no_page_holds(tmp_path: Path) -> None:
    assert page_refusal(tmp_path, RUNS / "fill_mask") == "only a GPT can be exported as a page, got a BertForMaskedLM"
    assert page_refusal(tmp_path, RUNS / "translate") == "only a GPT can be exported as a page, got a Transformer"
    assert page_refusal(tmp_path, RUNS / "char_gpt", "page.onnx") == f"path must end in .html, got {tmp_path / 'page.onnx'}"
    run = gpt_run(tmp_path / "run", tokenizer=WordTokenizer(["to", "be"]))
    assert page_refusal(tmp_path, run) == f"a page needs a run with a CharTokenizer, but {run} has a WordTokenizer"


@pytest.mark.parametrize("words", [["run"], ["run", "a.onnx", "--web", "a.html"], ["run", "--web", "a.html", "--no-cache"]])
def test_words_about_pages_that_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert capsys.readouterr().err.count("\n") == 1
