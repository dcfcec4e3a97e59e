"""The sides of benchmarks/generate.py and translate.py write the same tokens from the same folder; the tables say how fast."""

import dataclasses
import re

import generate
import measure
import numpy
import pytest
import torch
import translate
from generate import CT2, OURS, THEIRS, CTranslate2, HuggingFace, Task, Tinyformer
from parity.compare import assert_close

import tinytensor as tt

SMALL = {"vocab_size": 65, "block_size": 160, "num_layers": 2, "num_heads": 3, "d_model": 24, "bias": True}
LLAMA = {**SMALL, "bias": False, "num_key_value_heads": 1, "positions": "rotary", "norm": "rms", "activation": "swiglu"}
MARIAN = {**translate.MODEL, "vocab_size": 90, "d_model": 24, "num_heads": 3, "d_ff": 32, "encoder_layers": 2}
DTYPES = ("float32", "int8")


@pytest.fixture(scope="module", params=[SMALL, LLAMA], ids=["gpt2", "llama"])
def task(request):
    """Three prompts, and a small model of each architecture."""
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    with generate.folder_with(generate.gpt(request.param), *DTYPES) as folder:
        yield Task(folder, batch=3, prompt_length=4, new_tokens=16)


@pytest.fixture(scope="module")
def translation():
    """Six sentences of 5 to 8 words, and a small translator."""
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    with generate.folder_with(translate.marian(**MARIAN), *DTYPES) as folder:
        yield translate.Task(folder, batch=6, shortest=5, prompt_length=8, new_tokens=7)


def test_no_weight_is_what_a_mistake_in_copying_could_pass_for():
    for name, value in generate.gpt(SMALL).state_dict().items():
        assert numpy.unique(value.numpy()).size > value.size // 2, name


def test_the_logits_agree(task):
    ids = numpy.random.default_rng(1).integers(0, 65, (2, 20))
    with tt.no_grad(), torch.no_grad():
        assert_close(Tinyformer(task).model(tt.tensor(ids)), HuggingFace(task).model(torch.tensor(ids)).logits)


def test_the_greedy_tokens_agree_and_vary(task):
    written = Tinyformer(task).step()
    assert HuggingFace(task).step() == CTranslate2(task).step() == written
    assert [len(row) for row in written] == [16, 16, 16]
    assert len({token for row in written for token in row}) > 3


@pytest.mark.parametrize(("prompt_length", "new_tokens"), [(4, 5), (40, 1)])
def test_one_prompt_and_a_continuation_that_does_not_fill_the_context(task, prompt_length, new_tokens):
    task = dataclasses.replace(task, batch=1, prompt_length=prompt_length, new_tokens=new_tokens)
    written = Tinyformer(task).step()
    assert HuggingFace(task).step() == CTranslate2(task).step() == written and len(written[0]) == new_tokens
    assert task.amount() == (40 if new_tokens == 1 else 5)  # what is read, where that is the work


def test_translations_agree_and_are_as_long_as_asked(translation):
    written = translate.Tinyformer(translation).step()
    assert translate.HuggingFace(translation).step() == translate.CTranslate2(translation).step() == written
    assert [len(row) for row in written] == [7] * 6 and len({*map(tuple, written)}) > 1
    lengths = {len(row) for row in translation.inputs()}
    assert {5, 8} <= lengths <= {5, 6, 7, 8}


def test_eight_bits_write_as_many_tokens(task, translation):
    assert [len(row) for row in CTranslate2(task, "int8").step()] == [16] * 3
    assert [len(row) for row in translate.CTranslate2(translation, "int8").step()] == [7] * 6


def test_our_dtype_is_given_to_from_pretrained_unless_it_is_the_default(task, monkeypatch):
    import tinyformer

    found = []
    monkeypatch.setattr(tinyformer, "from_pretrained", lambda folder, **given: found.append(given))
    Tinyformer(task), Tinyformer(task, "int8")
    assert found == [{}, {"dtype": "int8"}]


@pytest.fixture
def reported(monkeypatch, tmp_path):
    """A function that runs a benchmark with these words, and returns the file of this name that it writes."""

    def run(benchmark, words, name):
        monkeypatch.setattr("sys.argv", ["generate.py", *words.split(), "--turns", "1", "--output", str(tmp_path)])
        benchmark.main()
        return (tmp_path / "arm" / f"{name}.md").read_text(encoding="utf-8")

    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    monkeypatch.setitem(generate.PRETRAINED, "gpt2", {**SMALL, "num_layers": 1})
    monkeypatch.setitem(generate.TASKS, "batch_8", (2, 8, 4))
    monkeypatch.setattr(translate, "MODEL", MARIAN)
    monkeypatch.setattr(generate, "LOW_PRECISION", {CT2: ("int8",)})  # fewer processes
    monkeypatch.setattr(measure, "with_numpys_kernels", lambda *_: {})
    monkeypatch.setattr(measure, "_processor", lambda: "arm")
    return run


def test_a_pretrained_model_from_a_cold_start(reported):
    report = reported(generate, "--pretrained gpt2", "pretrained_gpt2")
    title = "# A pretrained gpt2 from a cold start: 128 tokens after a prompt of 8, batch 1"
    assert report.startswith(f"{title}\n\nMedians of 1 turn.") and re.search(r", ctranslate2 \d", report)
    for side in (OURS, THEIRS, CT2, f"{CT2}, int8"):
        (cells,) = re.findall(rf"^\| {side} +\| (.*) \|$", report.split("tinyformer over")[0], re.M)
        imported, loaded, first, cold, *rest = (float(cell) for cell in cells.split(" | "))
        assert cold == pytest.approx(imported + loaded + first, abs=0.02) and len(rest) == 3 and rest[0] > 0


@pytest.mark.parametrize(
    ("benchmark", "words", "name", "title"),
    [
        (
            generate,
            "--pretrained gpt2 --task batch_8",
            "pretrained_gpt2_batch_8",
            "A pretrained gpt2 that is loaded: 4 tokens after a prompt of 8, batch 2",
        ),
        (translate, "", "translate", "Translating 32 sentences of 20 to 30 words into 30 tokens each, beam 4"),
    ],
    ids=["generate", "translate"],
)
def test_models_that_are_loaded(reported, benchmark, words, name, title):
    report = reported(benchmark, f"{words} --steps 1 --warm-up 1", name)
    assert report.startswith(f"# {title}\n")
    for side in (OURS, THEIRS, CT2, f"{CT2}, int8"):
        (cells,) = re.findall(rf"^\| {side} +\| (.*) \|$", report.split("time of tinyformer over")[0], re.M)
        median, speed, *_, peak, imports = (float(cell.replace(",", "")) for cell in cells.split(" | "))
        amount = 8 if benchmark is generate else 32
        rounding = 0.06 * (1 + median / speed)  # each is told to a tenth
        assert median == pytest.approx(1000 * amount / speed, abs=rounding) and peak > imports > 0
    assert re.search(r"- CTranslate2, int8: ctranslate2 [\d.]+; \d+ threads?\n", report)


def test_other_tokens_are_refused_unless_a_low_precision_side_wrote_them():
    written = {OURS: [[1, 2], [3, 4]], THEIRS: [[1, 2], [3, 4]], f"{CT2}, int8": [[1, 2], [3, 5]]}
    generate.check_written(written)
    generate.check_written({**written, CT2: [[1, 2], [4, 4]]})  # as after a near tie
    with pytest.raises(measure.SideError, match="CTranslate2 writes other tokens than tinyformer: only 0 of 4 come before"):
        generate.check_written({**written, CT2: [[2, 3], [4, 4]]})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--pretrained gpt2 --untraced", "--untraced has no effect with --pretrained"),
        ("--pretrained gpt2 --steps 2", "--steps has no effect with --pretrained but without --task"),
        ("--task prompt", "--task has no effect without --pretrained"),
    ],
)
def test_what_has_no_effect_is_refused(words, says, capsys):
    with pytest.raises(SystemExit):
        generate.parse(words.split())
    assert says in capsys.readouterr().err
