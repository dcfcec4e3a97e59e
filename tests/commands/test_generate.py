"""`tinyformer generate` as its users run it, with models that are written here; and the small Llama that it makes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from running import Program, contents, entries

import tinytensor as tt
from tinyformer import (
    GPT,
    Bert,
    BertConfig,
    BPETokenizer,
    CharTokenizer,
    GPTConfig,
    HuggingFaceRule,
    Sampling,
    TextBatches,
    Tokenizer,
    Writing,
    beam_search,
    from_pretrained,
    generate,
    language_decoder,
    save_pretrained,
    save_pretrained_tokenizer,
)
from tinyformer.commands import generate as generate_program
from tinyformer.data.reading import TextSource

COMMAND = "generate"
END = "<|endoftext|>"
TEXT = "the quick brown fox jumps over a lazy dog, and then it sleeps.\n" * 20
TINY = {"block_size": 24, "num_layers": 1, "num_heads": 2, "d_model": 16}
GREEDY = ["--temperature", "0"]


def byte_pairs() -> BPETokenizer:
    return BPETokenizer.train(TEXT, 300, special=[END])


def write_model(folder: Path, tokenizer: Tokenizer, writing: Writing | None = None, **settings: Any) -> GPT:
    """A model that writes all kinds of tokens, in a folder with its tokenizer."""
    tt.seed(0)
    model = GPT(GPTConfig(**{"vocab_size": tokenizer.vocab_size, **TINY, **settings}))
    model.token_embedding.weight.assign(model.token_embedding.weight * 10)
    save_pretrained(model, folder, writing)
    save_pretrained_tokenizer(tokenizer, folder)
    return model.eval()


def write_data(folder: Path) -> None:
    write_model(folder / "model", byte_pairs(), Writing(start=299))
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")


FIRST_RUN = ["--model", "model", "--length", "3"]


def texts_of(printed: str, said: str) -> tuple[str, int]:
    """Return standard output, and the number of tokens in the last line of standard error."""
    text, last = printed.removesuffix("\n"), said.removesuffix("\n").rpartition("\n")[2]
    found = re.fullmatch(r"\(([\d,]+) tokens?(, [\d,.]+ a second)?\)", last)
    assert found, last
    count = int(found[1].replace(",", ""))
    assert not found[2] or count > 1
    assert (" tokens" in last) == (count != 1)
    return text, count


def write(program: Program, *words: str, typed: str = "") -> tuple[str, int]:
    """The text that the program writes, and the number of its tokens."""
    result = program(*words, typed=typed)
    assert result.returncode == 0, result.stderr
    return texts_of(result.stdout, result.stderr)


def ids_of(model: GPT, tokenizer: Tokenizer, prompt: str, length: int, sampling: Sampling, **options: Any) -> list[int]:
    ids = tokenizer.encode(prompt, allow_special=True).tolist()
    return list(generate(model, ids, length, sampling, **options))


# ---------------------------------------------------------------------------------------------------------- writing


def test_it_continues_the_prompt(finished: Program) -> None:
    model, tokenizer = from_pretrained(finished.folder / "model"), byte_pairs()
    assert isinstance(model, GPT)
    words = ["--model", "model", "--prompt", f"the lazy{END} fox", "--length", "60"]
    text, count = write(finished, *words)
    usual = Sampling(temperature=0.8, top_k=200, seed=1337)
    ids = ids_of(model, tokenizer, f"the lazy{END} fox", 60, usual)  # longer than the context
    assert (text, count) == (f"the lazy{END} fox" + tokenizer.decode(ids), 60)
    assert write(finished, *words)[0] == text
    assert write(finished, *words, "--seed", "1")[0] != text
    greedy = ids_of(model, tokenizer, f"the lazy{END} fox", 60, Sampling(temperature=0.0))
    assert write(finished, *words, *GREEDY)[0] == f"the lazy{END} fox" + tokenizer.decode(greedy)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_texts(finished: Program, length: int) -> None:
    text, count = write(finished, "--model", "model", "--prompt", "the dog", "--length", str(length))
    assert text.startswith("the dog")
    assert (len(text) > len("the dog")) == (length > 0)
    assert count == length


@pytest.mark.parametrize("prompt", [[], ["--prompt", ""]])
def test_without_a_prompt_it_begins_as_every_text(finished: Program, prompt: list[str]) -> None:
    model = from_pretrained(finished.folder / "model")
    assert isinstance(model, GPT)
    ids = list(generate(model, [299], 10, Sampling(temperature=0.0)))  # the start that generation_config.json names
    assert ids != list(generate(model, [0], 10, Sampling(temperature=0.0)))
    assert write(finished, "--model", "model", "--length", "10", *GREEDY, *prompt) == (byte_pairs().decode(ids), 10)


def test_a_long_prompt(finished: Program) -> None:
    text, count = write(finished, "--model", "model", "--prompt", TEXT, "--length", "2")
    assert text.startswith(TEXT)
    assert count == 2


def test_an_end_token_ends_the_text(program: Program) -> None:
    tokenizer = byte_pairs()
    model = write_model(program.folder / "model", tokenizer)
    ids = ids_of(model, tokenizer, "the", 30, Sampling(temperature=0.0))
    end = next(i for i in ids if ids.index(i) > 3)
    before = ids[: ids.index(end)]
    write_model(program.folder / "ends", tokenizer, Writing(ends=(999, end)))
    words = ["--model", "ends", "--prompt", "the", "--length", "30", *GREEDY]
    assert write(program, *words) == ("the" + tokenizer.decode(before), len(before) + 1)
    assert write(program, *words, "--ignore-end") == ("the" + tokenizer.decode(ids), 30)


def test_forbidden_tokens_are_never_written(program: Program) -> None:
    tokenizer = byte_pairs()
    model = write_model(program.folder / "model", tokenizer)
    first = ids_of(model, tokenizer, "the", 1, Sampling(temperature=0.0))
    write_model(program.folder / "forbids", tokenizer, Writing(forbidden=tuple(first)))
    ids = ids_of(model, tokenizer, "the", 20, Sampling(temperature=0.0), forbidden=first)
    expected = "the" + tokenizer.decode(ids)
    assert write(program, "--model", "forbids", "--prompt", "the", "--length", "20", *GREEDY)[0] == expected


def test_the_settings_of_the_model_are_obeyed(program: Program) -> None:
    tokenizer = byte_pairs()
    settings: dict[str, Any] = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    model = write_model(program.folder / "model", tokenizer, Writing(do_sample=False, **settings))
    ids = ids_of(model, tokenizer, "the", 40, Sampling(temperature=0.0), rules=Writing(**settings).rules())
    assert ids != ids_of(model, tokenizer, "the", 40, Sampling(temperature=0.0))
    words = ["--model", "model", "--prompt", "the", "--length", "40"]
    assert write(program, *words)[0] == "the" + tokenizer.decode(ids)
    damaged(program.folder / "model", "generation_config.json", sequence_bias=[[[1], 2.0]], num_beams=4)
    result = program(*words)
    best, *_ = beams_of(model, tokenizer, "the", 40, 4, Writing(**settings))
    assert texts_of(result.stdout, result.stderr)[0] == f"the{best}" != "the" + tokenizer.decode(ids)
    file = Path("model/generation_config.json")
    notice = "these settings have no effect, so texts may differ from transformers': sequence_bias\n"
    assert result.stderr.startswith(f"{file}: {notice}")
    damaged(program.folder / "model", "generation_config.json", sequence_bias=None, do_sample=True)
    assert "may differ from transformers': num_beams\n" in program(*words).stderr


def beams_of(model: GPT, tokenizer: Tokenizer, prompt: str, length: int, beams: int, writing: Writing) -> list[str]:
    """The texts of a beam search, best first."""
    rule = HuggingFaceRule(writing.length_penalty, writing.early_stopping)
    ids = tokenizer.encode(prompt).tolist()
    (found,) = beam_search(language_decoder(model), [ids], None, beams, length, beams, rule, rules=writing.rules())
    return [tokenizer.decode([*ids, *text.ids]).removeprefix(prompt) for text in found]


def test_beams_and_a_repetition_penalty(program: Program) -> None:
    tokenizer = byte_pairs()
    model = write_model(program.folder / "model", tokenizer, Writing(length_penalty=0.5))
    words = ["model", "--prompt", "the", "--length", "12", "--num-beams", "3"]
    best, second, _ = beams_of(model, tokenizer, "the", 12, 3, Writing(length_penalty=0.5))
    assert write(program, *words) == (f"the{best}", 12)
    assert write(program, *words, "--num-samples", "2") == (f"the{best}\n{'-' * 15}\nthe{second}", 24)
    best, *_ = beams_of(model, tokenizer, "the", 12, 3, Writing(length_penalty=0.5, repetition_penalty=1.7))
    assert write(program, *words, "--repetition-penalty", "1.7") == (f"the{best}", 12)
    greedy = ids_of(model, tokenizer, "the", 12, Sampling(temperature=0.0), rules=Writing(repetition_penalty=1.7).rules())
    assert write(program, *words[:5], *GREEDY, "--repetition-penalty", "1.7")[0] == "the" + tokenizer.decode(greedy)


def test_several_samples_are_picked_with_one_seed_after_the_other(finished: Program) -> None:
    words = ["model", "--prompt", "the", "--length", "9"]
    texts = [write(finished, *words, "--seed", seed)[0] for seed in ("5", "6")]
    assert write(finished, *words, "--seed", "5", "--num-samples", "2") == (f"{texts[0]}\n{'-' * 15}\n{texts[1]}", 18)
    assert texts[0] != texts[1]


def test_a_text_ends_before_the_first_that_stops_it(finished: Program) -> None:
    words = ["model", "--prompt", "the", "--length", "60"]
    whole, count = write(finished, *words)
    first, second = whole[8:11], whole[20:22]
    assert write(finished, *words, "--stop", second, "--stop", first)[0] == "the" + whole[3:].partition(first)[0]
    assert write(finished, *words, "--stop", "nowhere") == (whole, count)


def test_a_prompt_from_a_file_or_from_standard_input(finished: Program) -> None:
    expected = write(finished, "model", "--prompt", "the lazy\n fox", "--length", "5")
    (finished.folder / "prompt.txt").write_text("\ufeffthe lazy\r\n fox\r\n", encoding="utf-8")
    assert write(finished, "model", "-f", "prompt.txt", "--length", "5") == expected
    assert write(finished, "model", "--file", "-", "--length", "5", typed="the lazy\r\n fox\n") == expected


def test_what_is_about_a_text_is_on_standard_error_before_it(finished: Program) -> None:
    result = finished("model", "--prompt", "the dog " * 30, "--length", "2")
    assert result.stdout.startswith("the dog the dog") and "(" not in result.stdout
    assert re.match(r"\(The prompt has \d\d+ tokens\. The model reads 24, and so only the end of it\.\)\n", result.stderr)


@pytest.mark.parametrize(("said", "expected"), [({"max_new_tokens": 7}, 7), ({"max_length": 9}, 8)])
def test_the_model_says_how_long_a_text_is(program: Program, said: dict[str, Any], expected: int) -> None:
    write_model(program.folder / "model", byte_pairs(), Writing(**said))
    assert len(byte_pairs().encode("the")) == 1
    assert write(program, "--model", "model", "--prompt", "the")[1] == expected
    assert write(program, "--model", "model", "--prompt", "the", "--length", "5")[1] == 5


def test_outputs_that_are_no_tokens_are_never_written(program: Program) -> None:
    write_model(program.folder / "model", byte_pairs(), vocab_size=600)  # half of its outputs
    assert write(program, "--model", "model", "--length", "100", "--temperature", "3")[1] == 100


def test_a_name_with_spaces_and_a_tokenizer_of_characters(program: Program) -> None:
    write_model(
        program.folder / "a model", CharTokenizer.train(TEXT + "ö☃"), positions="rotary", norm="rms", activation="swiglu"
    )
    words = ["--model", "a model", "--length", "9"]
    text, _ = write(program, *words, "--prompt", "ö☃")
    assert text.startswith("ö☃")
    assert len(text) == 11
    message = program.bad(*words, "--prompt", "the é")
    assert "unknown character 'é' (U+00E9) at position 4" in message


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "-1"], "--length must be at least 0, got -1"),
        (["--temperature", "-1"], "--temperature must be 0 (greedy) or more, got -1.0"),
        (["--model", ""], "argument --model: the path is empty"),
        (["--model", "text.txt"], "text.txt is a file: pass the folder that holds config.json"),
        (["--model", "a/b/c"], "folder not found: 'a/b/c'. Pass a folder"),
        (["--model", "."], ". has no config.json"),
        (["--revision", "main"], "model is a folder and has no revision 'main': leave it out"),
        (["--num-samples", "0"], "--num-samples must be at least 1, got 0"),
        (["--num-samples", "2", "--temperature", "0"], "--num-samples: each greedy text is the same: choose a --temperature"),
        (["--num-samples", "3", "--num-beams", "2"], "--num-samples must be at most --num-beams, 2, got 3"),
        (["--num-beams", "2", "--length", "0"], "--length must be at least 1, got 0"),
        (["--num-beams", "2", "--top-p", "0.5"], "--top-p has no effect with --num-beams: leave it out"),
        (["--num-beams", "2", "--stop", "a"], "--stop has no effect with --num-beams: leave it out"),
        (["--repetition-penalty", "0"], "--repetition-penalty must be a number above 0, got 0.0"),
        (["--stop", ""], "argument --stop: the name is empty"),
        (["more", "and more"], "unrecognized arguments: and more (see tinyformer generate --help)"),
    ],
)
def test_mistakes(finished: Program, words: list[str], message: str) -> None:
    result = finished("--model", "model", "--prompt", "the", *words)
    assert result.stdout == ""  # nothing is written before
    assert message in finished.bad("--model", "model", "--prompt", "the", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--file", "nowhere.txt"], "nowhere.txt does not exist: pass a text file, or - for standard input"),
        (["--file", "a", "--prompt", "b"], "argument --prompt: not allowed with argument -f/--file"),
        (["--prompt", "-x"], "argument --prompt: expected one argument: write --prompt=-x, as it begins with -"),
        (["--prompt", "--length", "3"], "argument --prompt: expected one argument (see"),
        (["--num_samples", "3"], "unrecognized arguments: --num_samples: did you mean --num-samples? (see"),
        (["--temprature=3"], "unrecognized arguments: --temprature=3: did you mean --temperature? (see"),
    ],
)
def test_mistakes_in_flags(finished: Program, words: list[str], message: str) -> None:
    assert message in finished.bad("--model", "model", *words)


def test_a_revision_without_a_model(program: Program) -> None:
    assert "--revision has no effect without a name on the hub: leave it out" in program.bad("--revision", "main")
    assert not (program.folder / "runs").exists()


def test_a_model_that_writes_no_texts(program: Program) -> None:
    config = BertConfig(300, 0, num_layers=1, num_heads=2, d_model=8, d_ff=8, max_length=8)
    save_pretrained(Bert(config), program.folder / "bert")
    message = program.bad("--model", "bert")
    assert message == "bert holds a Bert, which does not continue texts: take GPT-2, Llama or Qwen\n"


def damaged(folder: Path, name: str, **changes: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def test_damaged_folders(copied: Program) -> None:
    def refused(folder: str) -> str:
        return copied.bad("--model", folder, "--length", "2")

    for name in ("none", "words", "start", "later"):
        shutil.copytree(copied.folder / "model", copied.folder / name)
    (copied.folder / "none" / "tokenizer.json").unlink()
    assert "none has no tokenizer: looked for tokenizer.json" in refused("none")
    damaged(copied.folder / "words", "generation_config.json", bad_words_ids=[[]])
    assert "words/generation_config.json: bad_words_ids has an empty sequence" in refused("words")
    damaged(copied.folder / "start", "config.json", eos_token_id="a")
    assert "start/config.json: eos_token_id must be " in refused("start")
    (copied.folder / "later" / "generation_config.json").write_text("[1]")
    assert "later/generation_config.json is damaged" in refused("later")
    (copied.folder / "later" / "generation_config.json").unlink()  # not every folder has one
    assert write(copied, "--model", "later", "--length", "2")[1] == 2


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_name_that_cannot_be_downloaded(program: Program, offline: str) -> None:
    message = program.bad("--model", "nobody/nothing", HF_HUB_OFFLINE=offline)
    assert message.startswith("folder not found: nobody/nothing")


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, and a signal sent to another process")
def test_a_reader_who_leaves_and_ctrl_c(finished: Program) -> None:
    words = ["--model", "model", "--length", "10000000"]
    command = shlex.join([sys.executable, str(finished.script), *finished.words(*words)])
    piped = subprocess.run(
        ["sh", "-c", f"{command} | head -c 20"], cwd=finished.folder, env=finished.environment, capture_output=True, check=True
    )
    assert len(piped.stdout) == 20
    assert piped.stderr == b""

    process = finished.begin(*words)
    assert process.stdout is not None
    assert process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "\ninterrupted\n")


# --------------------------------------------------------------------------------------------------- the small Llama


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, in an empty folder. Its Llama learns a short text, for a few steps."""
    module = generate_program
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "open_text", lambda path: (TEXT * 10, TextSource(None, "a short text", "")))
    short = dataclasses.replace(module.TRAINING, steps=4, eval_every=2, log_every=1, warmup=1, batch_size=2)
    monkeypatch.setattr(module, "TRAINING", short)
    return module


def run(example: ModuleType, *words: str) -> None:
    arguments = example.parse(list(words))
    arguments.run(arguments)


def test_without_a_model_a_small_llama_is_made_once(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("runs/small_llama")
    run(example, "--length", "5")
    written, printed = capsys.readouterr()
    assert "No model named, so training a Llama with " in printed
    assert "parameters on a short text" in printed
    files = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training",
    ]
    assert entries(folder) == files
    assert "Wrote runs/small_llama. It writes:\n\n" in printed
    assert texts_of(written, printed)[0].startswith("\n")
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"] == "llama"
    before = contents(folder)
    run(example, "--length", "5")
    assert texts_of(*capsys.readouterr())[0] == texts_of(written, printed)[0]
    run(example, "--length", "5", "--prompt", "the dog")
    assert capsys.readouterr().out.startswith("the dog")
    run(example, "--length", "5", "--model", str(folder), "--prompt", "\n")  # like any other
    assert texts_of(*capsys.readouterr())[0] == texts_of(written, printed)[0]
    assert contents(folder) == before


class Interrupted(TextBatches):
    """Batches that raise KeyboardInterrupt once."""

    drawn = 0

    def sample(self) -> Any:
        self.drawn += 1
        if self.drawn == 2:
            signal.raise_signal(signal.SIGINT)
        return super().sample()


def test_a_llama_that_is_not_finished_is_none(
    example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(example, "TextBatches", Interrupted)
        with pytest.raises(SystemExit) as ended:
            run(example)
    assert ended.value.code == 130
    assert capsys.readouterr().err.endswith("Stopped before its end: the next call begins again.\n")
    assert entries(Path("runs/small_llama")) == ["training"]
    run(example, "--length", "5")
    assert texts_of(*capsys.readouterr())[1] == 5
    assert "config.json" in entries(Path("runs/small_llama"))


def test_help_shows_the_defaults(finished: Program) -> None:
    text = " ".join(finished.good("--help").split())
    for flag, default in (
        ("--length", "200"),
        ("--temperature", "0.8"),
        ("--top-k", "200"),
        ("--top-p", "1.0"),
        ("--seed", "1337"),
    ):
        assert re.search(rf"{flag} (INT|FLOAT) [^()]*(\([^()]*\)[^()]*)*\(default: {re.escape(default)}\)", text), flag
    assert "--revision" in text
    assert "(default: )" not in text
