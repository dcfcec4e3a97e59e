"""The programs with pretrained models, beside transformers: the same translations, the same words for masks, the same texts.
All models are made here, with random weights; their tokenizers are trained here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.published_tokenizers import PUBLISHED
from running import Program

from tinyformer.data.reading import standard_library_text
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.tokenizers.texts import token_texts

tf = pytest.importorskip("transformers")
hugging_face = pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece")

END = "<|endoftext|>"
SENTENCES = ["The file is not open.", "Return a new list, please!", "def name(self): pass", "What else can you do?"]
PROMPTS = ["def main(", f"import {END}os", "Grüße ☃"]


@pytest.fixture(scope="module")
def text() -> str:
    return standard_library_text(200_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return tmp_path


def run(command: str, folder: Path, *words: str) -> str:
    return Program(command, folder, {**os.environ, "HF_HUB_OFFLINE": "1"}).good(*words)


def stirred(model: Any, size: float = 0.25) -> Any:
    """The model with weights that make it write all kinds of tokens."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(size * torch.randn_like(parameter))
    return model.eval()


# ---------------------------------------------------------------------------------------------------------- translating


def write_marian(folder: Path, text: str) -> Any:
    """A Marian model, and a SentencePiece tokenizer trained on the text; returns both sides of transformers."""
    folder.mkdir()
    lines = [line for line in text.splitlines() if line.strip()]
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"), model_prefix=str(folder / "source"), vocab_size=600, minloglevel=2
    )
    (folder / "source.model").rename(folder / "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    tokens = ["</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    named = {"source_lang": "en", "target_lang": "it", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    pad = len(tokens) - 1
    model = stirred(
        tf.MarianMTModel(
            tf.MarianConfig(
                vocab_size=len(tokens),
                d_model=32,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=64,
                decoder_ffn_dim=64,
                max_position_embeddings=64,
                activation_function="swish",
                scale_embedding=True,
                pad_token_id=pad,
                decoder_start_token_id=pad,
                eos_token_id=0,
                forced_eos_token_id=0,
            )
        )
    )
    model.final_logits_bias.normal_()
    model.generation_config = tf.GenerationConfig(
        bad_words_ids=[[pad]],
        decoder_start_token_id=pad,
        pad_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        max_length=40,
        num_beams=4,
    )
    model.save_pretrained(folder)
    return model, tf.AutoTokenizer.from_pretrained(folder)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_translations(folder: Path, text: str) -> None:
    model, tokenizer = write_marian(folder / "marian", text)
    found = set()
    for beam, longest in ((1, 40), (5, 40), (4, 6)):  # with 6, sentences to translate are longer than what may be written
        model.generation_config.max_length = longest
        model.generation_config.save_pretrained(folder / "marian")
        expected = []
        for sentence in SENTENCES:
            with torch.no_grad():
                ids = model.generate(**tokenizer(sentence, return_tensors="pt"), num_beams=beam)
            expected.append(" ".join(tokenizer.decode(ids[0], skip_special_tokens=True).split()))
        words = ["translate", "--model", "marian", "--beam", str(beam), *SENTENCES]
        assert run("translate", folder, *words).splitlines() == expected
        found |= set(expected)
    assert len(found) > len(SENTENCES)  # beam search finds others


# -------------------------------------------------------------------------------------------------------------- filling


def test_filled_masks(folder: Path, text: str) -> None:
    words = sorted({word for word in text.lower().split() if word.isalpha()})[:300]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *".,!?abcdefghijklmnopqrstuvwxyz"]
    tokens += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    tokens = list(dict.fromkeys(tokens))
    (folder / "bert").mkdir()
    (folder / "bert" / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    config = tf.BertConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    model = stirred(tf.BertForMaskedLM(config))
    model.save_pretrained(folder / "bert")
    tokenizer = tf.BertTokenizer(vocab=str(folder / "bert" / "vocab.txt"))
    for sentence in ("The [MASK] is not [MASK].", "[MASK], Open a File!"):
        inputs = tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            shares = model(**inputs).logits[0].softmax(-1)[inputs["input_ids"][0] == tokenizer.mask_token_id]
        lines = [sentence]
        for row in shares:
            best, ids = row.topk(5)
            pairs = zip(tokenizer.convert_ids_to_tokens(ids.tolist()), best.tolist())
            lines.append("    " + ", ".join(f"{token} {100 * share:.1f} %" for token, share in pairs))
        assert run("fill", folder, "fill", "--model", "bert", sentence).splitlines() == lines


@pytest.mark.parametrize("kind", ["RoBERTa", "MPNet", "XLM-RoBERTa"])
def test_filled_masks_of_relatives(kind: str, folder: Path) -> None:
    content, name = PUBLISHED[kind](), kind.replace("-", "").replace("RoBERTa", "Roberta")
    tokenizer = hugging_face.Tokenizer.from_str(json.dumps(content))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = getattr(tf, f"{name}Config")(
        **sizes, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=40, pad_token_id=1
    )
    model = stirred(getattr(tf, f"{name}ForMaskedLM")(config))
    model.save_pretrained(folder / "model")
    (folder / "model" / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    ours, mask = pretrained_tokenizer(folder / "model"), tokenizer.token_to_id("<mask>")
    for sentence in ("The <mask> is not <mask>.", "<mask>, Open a File!", "name  <mask>s"):
        ids = torch.tensor([tokenizer.encode(sentence).ids])
        with torch.no_grad():
            shares = model(ids).logits[0].softmax(-1)[ids[0] == mask]
        lines = [sentence]
        for row in shares:
            best, found = row.topk(5)
            texts = [text.strip() or repr(text) for text in token_texts(ours, found.tolist())]
            lines.append("    " + ", ".join(f"{text} {100 * share:.1f} %" for text, share in zip(texts, best.tolist())))
        assert run("fill", folder, "fill", "--model", "model", sentence).splitlines() == lines


# -------------------------------------------------------------------------------------------------------------- writing


def byte_pairs(text: str) -> Any:
    """A tokenizer as those of GPT-2, with a tokenizer.json."""
    tokenizer = hugging_face.Tokenizer(hugging_face.models.BPE())
    tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = hugging_face.decoders.ByteLevel()
    trainer = hugging_face.trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=hugging_face.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
WRITERS = {
    "gpt2": lambda size: tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=size, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    ),
    "llama": lambda size: tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=size, **SIZES)),
    "qwen2": lambda size: tf.Qwen2ForCausalLM(tf.Qwen2Config(vocab_size=size, **SIZES)),
    "qwen3": lambda size: tf.Qwen3ForCausalLM(tf.Qwen3Config(vocab_size=size, head_dim=8, **SIZES)),
}


def greedy(model: Any, tokenizer: Any, prompt: str, length: int) -> list[int]:
    """The ids that transformers writes after a prompt."""
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=length, do_sample=False, pad_token_id=0)[0].tolist()
    return list(ids[inputs["input_ids"].shape[1] :])


def written(folder: Path, model: str, prompt: str, length: int) -> str:
    """The text that generate.py writes, prompt included."""
    words = ["--model", model, "--prompt", prompt, "--length", str(length), "--temperature", "0"]
    return run("generate", folder, *words).removesuffix("\n")


@pytest.mark.parametrize("name", WRITERS)
def test_greedy_texts(folder: Path, text: str, name: str) -> None:
    tokenizer = byte_pairs(text)
    model = stirred(WRITERS[name](len(tokenizer)))
    model.save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    ids = [greedy(model, tokenizer, prompt, 60) for prompt in PROMPTS]
    assert {END in prompt for prompt in PROMPTS} == {True, False}
    for prompt, new in zip(PROMPTS, ids):
        assert len(set(new)) > 5
        shown = new[:-1] if new[-1] == tokenizer.eos_token_id else new
        assert written(folder, name, prompt, 60) == prompt + tokenizer.decode(shown)
    # A folder that names another end.
    assert len(ids[0]) == 60
    model.generation_config.eos_token_id = ids[0][15]
    model.save_pretrained(folder / "ends")
    tokenizer.save_pretrained(folder / "ends")
    ended = greedy(model, tokenizer, PROMPTS[0], 60)
    assert ended == ids[0][: ids[0].index(ids[0][15]) + 1]
    assert written(folder, "ends", PROMPTS[0], 60) == PROMPTS[0] + tokenizer.decode(ended[:-1])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--recipe", "nanogpt", "--bias"],
        ["--no-query-key-norm"],
        ["--recipe", "nanogpt", "--tokenizer", "bpe", "--bpe-tokens", "280"],
        ["--init-from", "qwen2", "--block-size", "32"],
    ],
)
def test_a_run_of_char_gpt_taken_there(folder: Path, text: str, words: list[str]) -> None:
    (folder / "text.txt").write_text(text[:5000], encoding="utf-8")
    sizes = ["--num-layers", "2", "--num-heads", "2", "--d-model", "16", "--block-size", "32"]
    if "--init-from" in words:
        tokenizer, sizes = byte_pairs(text), []
        stirred(WRITERS["qwen2"](len(tokenizer))).save_pretrained(folder / "qwen2")
        tokenizer.save_pretrained(folder / "qwen2")
    short = [
        "--data",
        "text.txt",
        "--out",
        "run",
        "--steps",
        "40",
        "--batch-size",
        "4",
        "--learning-rate",
        "1e-2",
        "--warmup",
        "5",
    ]
    run("train gpt", folder, *short, *sizes, *words)
    run("train gpt", folder, "save", "saved", "--out", "run")
    model = tf.AutoModelForCausalLM.from_pretrained(folder / "saved").eval()
    tokenizer = tf.AutoTokenizer.from_pretrained(folder / "saved")
    for prompt in ("def ", "import"):
        expected = prompt + tokenizer.decode(greedy(model, tokenizer, prompt, 20))
        sampling = ["--prompt", prompt, "--length", "20", "--temperature", "0"]
        assert run("train gpt", folder, "sample", "--out", "run", *sampling) == expected + "\n"
        assert written(folder, "saved", prompt, 20) == expected
