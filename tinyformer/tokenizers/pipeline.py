"""Published tokenizers, run by the ``tokenizers`` package. A tokenizer.json describes a normalizer, a pre-tokenizer, a model, a
post-processor and a decoder, applied in this order."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import regex

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import damaged, write_json
from tinyformer.tokenizers.base import checked, checked_text, load_saved
from tinyformer.tokenizers.bpe import can_be_hidden, hidden
from tinyformer.tokenizers.special import skippable, special_names
from tinytensor.common.wording import counted
from tinytensor.device.backend import host
from tinytensor.device.forks import free_in_forks

Section = dict[str, Any]
Around = tuple[Sequence[str], Sequence[str]]

_LONG = 50_000  # characters; above this, encoding a batch is faster because it does not track offsets
_LOCAL = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece")  # decoders: see _is_local


class PipelineTokenizer:
    """Tokenizer described by the content of a tokenizer.json, such as those of GPT-2, Llama, Qwen, BERT or T5.

    ``more`` are extra added tokens in tokenizer.json format, without ids. ``around`` are the names of tokens before and after a
    sequence (default: the post-processor's). ``added`` maps ids of added tokens to their contents.

    Raises UserError for inconsistent content, content that is too slow to run, or a missing ``tokenizers`` package.
    """

    kind = "pipeline"

    def __init__(self, content: Section, more: Iterable[Section] = (), around: Around | None = None):
        check_content(content)
        model, more = content["model"], list(more)
        listed = [token for token in content.get("added_tokens") or [] if token["content"]]
        special_names(dict.fromkeys(token["content"] for token in [*listed, *more]))
        with _in_words():
            self._tokenizer = _made({**content, "added_tokens": listed}, more, around)
            ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
            added = sorted(self._tokenizer.get_added_tokens_decoder().items())
        if not ids or max(ids.values()) >= 2 * len(ids) or len({*ids.values()}) < len(ids):
            raise UserError("two tokens share an id, or many ids have no token")
        for token in (token for token in listed if ids[token["content"]] != token["id"]):
            name = shortened(repr(token["content"]), 80)
            raise UserError(f"added token {name} has id {token['id']}, but {ids[token['content']]} in the vocabulary")
        self.added = {i: token.content for i, token in added}
        self.special = {token.content: i for i, token in added if token.special}
        plain = {_unknown(model, ids), *(i for name, i in self.special.items() if len(name) == 1)}
        self._reserved = {*self.special.values()} - plain
        self.num_merges = len(model["merges"]) if model.get("merges") and not model.get("ignore_merges") else None
        self._size = 1 + max(ids.values())
        self._decoders = parts_of(content.get("decoder"), "decoders")
        self._lock = free_in_forks(threading.Lock())
        self._guarded: Any = None  # created on first use
        self.before, self.after = self._around()

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids that the post-processor adds before and after a sequence."""
        for text in filter(None, ("a", "A", "1", " ", "\n", *map(self._tokenizer.id_to_token, range(min(self._size, 500))))):
            with _in_words():
                encoding = self._tokenizer.encode(text)
                plain = self._tokenizer.encode(text, add_special_tokens=False).ids
            of_text = [i for i, part in enumerate(encoding.sequence_ids) if part is not None]
            if plain:
                break
        else:
            return (), ()
        before = encoding.ids[: of_text[0]] if of_text else []
        after = encoding.ids[of_text[-1] + 1 :] if of_text else []
        if encoding.ids != [*before, *plain, *after]:
            raise UserError("the post-processor must keep the text once between the tokens around it")
        if max((*before, *after), default=0) >= self._size:
            raise UserError("the post-processor puts ids around a text that are out of range")
        return tuple(before), tuple(after)

    @property
    def content(self) -> Section:
        """The tokenizer.json content for this tokenizer."""
        content: Section = json.loads(self._tokenizer.to_str())
        return content

    @property
    def vocab_size(self) -> int:
        """The highest id plus one. Some ids may have no token."""
        return self._size

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of the text as a NumPy int64 array. Unknown text is dropped or becomes the unknown token. Raises
        UserError for invalid text."""
        checked_text(text)
        with self._lock, _in_words():
            ids = self._encode(self._tokenizer, text, allow_special)
            if not allow_special and not self._reserved.isdisjoint(ids):
                # the model maps plain text to a special token
                self._guarded = self._guarded or _made(_without(self.content, self.added, self._reserved))
                ids = self._encode(self._guarded, text, False)
        return host.array(ids, dtype=host.int64)

    @staticmethod
    def _encode(tokenizer: Any, text: str, allow_special: bool) -> list[int]:
        tokenizer.encode_special_tokens = not allow_special
        if len(text) > _LONG:
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        else:
            encoding = tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the decoded text. Raises UserError for an invalid id."""
        leave_out = skippable(self.special) if skip_special else ()
        return self._text(list(checked(ids, self._size, leave_out)))

    def _text(self, ids: list[int]) -> str:
        with _in_words():
            text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text of ``decode`` in pieces, each as soon as it is final. Bytes are final once another token follows
        them."""
        waiting: list[int] = []  # the last id shown completely, and later ids
        shown = 0  # characters already shown
        is_local, of_bytes = _is_local(self._decoders), any(part["type"] == "ByteLevel" for part in self._decoders)
        for i in checked(ids, self._size, skippable(self.special) if skip_special else ()):
            waiting.append(i)
            if is_local and _byte_of(self._tokenizer.id_to_token(i)) is None:
                text = self._text(waiting)
                if not of_bytes or not text.endswith("\ufffd"):  # may be an incomplete character
                    yield text[shown:]
                    alone = len(self._text([i]))  # 0 if the text loses its leading space and the id is only a space
                    waiting, shown = ([i], alone) if alone else (waiting, len(text))
        if last := self._text(waiting)[shown:]:
            yield last

    def text_of(self, i: int) -> str:
        """Return the readable text of one id in mid-sentence, such as " the". Part of a character becomes ``\\xe6``; a
        WordPiece keeps its ##."""
        (i,) = checked([i], self._size)
        token = self.added.get(i) or self._tokenizer.id_to_token(i) or ""
        decoders = {part["type"] for part in self._decoders}
        if i in self.added or "WordPiece" in decoders:
            return token
        if "ByteLevel" in decoders and can_be_hidden(token):
            return hidden([token])[0].decode("utf-8", "backslashreplace")
        if "ByteFallback" in decoders and (byte := _byte_of(token)) is not None:
            return bytes([byte]).decode("utf-8", "backslashreplace")
        return self.decode([i, i])[len(self.decode([i])) :]  # the first may have lost its space

    def save(self, path: str | Path) -> None:
        """Save the tokenizer as a JSON file."""
        write_json(Path(path), {"kind": self.kind, "content": self.content})

    @classmethod
    def load(cls, path: str | Path) -> PipelineTokenizer:
        """Load a tokenizer written by ``save``. Raises UserError for any other file."""
        with read_from(path):
            return load_saved(cls, path, cls.kind, "pipeline", content=dict[str, Any])


def _made(content: Section, more: Iterable[Section] = (), around: Around | None = None) -> Any:
    """Return the ``tokenizers.Tokenizer`` described by the content."""
    try:
        from tokenizers import AddedToken, Tokenizer
        from tokenizers.processors import TemplateProcessing
    except ImportError:
        raise UserError('a published tokenizer needs the package tokenizers: pip install "tinyformer[pretrained]"') from None
    tokenizer = Tokenizer.from_str(json.dumps(_with_all_ids({**content, "truncation": None, "padding": None})))
    tokenizer.add_tokens([AddedToken(**token) for token in more])
    if around is not None:
        before, after = around
        single = [*before, "$A", *after]
        pair = [*single, "$B:1", *(f"{name}:1" for name in after)]
        names = [(name, tokenizer.token_to_id(name)) for name in {*before, *after}]
        tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=names)
    return tokenizer


def _with_all_ids(content: Section) -> Section:
    """Return the content with added tokens also in the vocabulary if their ids leave gaps. The package otherwise assigns the
    next free id and ignores the file's id."""
    model, vocabulary = content["model"], content["model"]["vocab"]
    if isinstance(vocabulary, list):
        return content
    new = {token["content"]: token["id"] for token in content["added_tokens"] if token["content"] not in vocabulary}
    if sorted(new.values()) == list(range(len(vocabulary), len(vocabulary) + len(new))):
        return content
    return {**content, "model": {**model, "vocab": {**vocabulary, **new}}}


def _without(content: Section, names: Mapping[int, str], reserved: Collection[int]) -> Section:
    """Return the content with unguessable names for ``reserved`` ids, so that no text encodes to them."""
    secret = secrets.token_hex(16)
    new = {names[i]: names[i] + secret for i in reserved}
    added = [{**token, "content": new.get(token["content"], token["content"])} for token in content["added_tokens"]]
    model = dict(content["model"])
    if isinstance(model["vocab"], list):
        model["vocab"] = [[new.get(token, token), score] for token, score in model["vocab"]]
    else:
        model["vocab"] = {new.get(token, token): i for token, i in model["vocab"].items()}
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if new.keys().isdisjoint([*merge, "".join(merge)])]
    return {**content, "model": model, "added_tokens": added, "post_processor": None}


def _unknown(model: Section, ids: Mapping[str, int]) -> int | None:
    """Return the id of the unknown token."""
    unknown: int | None = model.get("unk_id", ids.get(model.get("unk_token") or ""))
    return unknown


def _is_local(decoders: list[Section]) -> bool:
    """Return True if a token's text depends at most on the previous token, and bytes only on the rest of their character."""
    joined = next((n for n, part in enumerate(decoders) if part["type"] in ("Fuse", "ByteLevel")), len(decoders))
    after = [part for part in decoders[joined + 1 :] if part["type"] != "Fuse"]
    strips = all(part["type"] == "Strip" and part["start"] <= 1 and part["stop"] == 0 for part in after)
    return strips and len(after) <= 1 and all(part["type"] in _LOCAL for part in decoders)


def _byte_of(token: str | None) -> int | None:
    """Return the byte of a token such as <0x0A>, or None for other tokens."""
    is_byte = token and len(token) == 6 and regex.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token)
    return int(token[3:5], 16) if token and is_byte else None


@contextmanager
def read_from(path: str | Path, folder: str | Path = "") -> Iterator[None]:
    """Context manager that turns errors in a tokenizer file into UserErrors. The message names the file, or another file in
    ``folder``."""
    try:
        yield
    except UserError as error:
        named = str(path) in str(error) or (folder and str(folder) in str(error))
        raise error if named else UserError(f"{path}: {error}") from None
    except Exception as error:
        with damaged(path):
            raise error


@contextmanager
def _in_words() -> Iterator[None]:
    """Context manager that turns package errors and Rust panics into UserErrors."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"the package tokenizers reports: {shortened(' '.join(str(error).split()), 300)}") from None


# ---------------------------------------------------------------------------------------------------------------------- limits


_MOST_AROUND = 1000  # ids before and after a sequence
# Published files have up to 8 components per section, literals of 20 characters, regular expressions of 700 and words of 200.
# They lengthen a text up to 36 times.
_MOST_PARTS, _LONGEST_LITERAL, _LONGEST_PATTERN, _LONGEST_WORD, _MOST_GROWTH = 20, 200, 10_000, 1000, 100
_SECTIONS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def check_content(content: dict[str, Any]) -> None:
    """Raise UserError for tokenizer.json content that exceeds the limits, uses dropout, or lacks its unknown token."""
    growth = 1.0
    for name, within in _SECTIONS.items():
        growth *= 1 if name == "decoder" else _growth(name, parts_of(content.get(name), within))
    decoder = _growth("decoder", parts_of(content.get("decoder"), "decoders"))
    if (factor := max(growth, decoder)) > _MOST_GROWTH:
        raise UserError(f"the parts make a text up to {factor:.3g}x as long; the limit is {_MOST_GROWTH}x")
    model = content["model"]
    if model.get("dropout"):
        raise UserError(f"the model's dropout = {model['dropout']!r} is not supported: the ids would be random")
    if "max_input_chars_per_word" in model and model["unk_token"] not in model["vocab"]:  # WordPiece needs it
        raise UserError(f"the unknown token {shortened(repr(model['unk_token']), 40)} is not in the vocabulary")
    if (longest := model.get("max_input_chars_per_word") or 0) > _LONGEST_WORD:
        raise UserError(f"max_input_chars_per_word must be at most {_LONGEST_WORD:,}, got {longest:,}")


def parts_of(section: Any, within: str) -> list[dict[str, Any]]:
    """Return a section's components. It may be missing, a single component or a sequence. Raises UserError for too many."""
    parts: list[dict[str, Any]] = []
    count, waiting = 0, [section] if section else []
    while waiting:
        part = waiting.pop()
        count += 1
        if count > _MOST_PARTS:
            raise UserError(f"too many {within}: the limit is {_MOST_PARTS}")
        if part["type"] == "Sequence":
            waiting += reversed(part[within][: _MOST_PARTS + 1])
        else:
            parts.append(part)
    return parts


def _growth(name: str, parts: list[dict[str, Any]]) -> float:
    """Return the largest factor by which components lengthen a text. Raises UserError if a component is too slow."""
    growth = 1.0
    for part in parts:
        for key, literal in _literals(part):
            limit = _LONGEST_PATTERN if key == "Regex" else _LONGEST_LITERAL
            if len(literal) > limit:
                size = counted(len(literal), "character")
                raise UserError(f"{key} of {part['type']} in the {name} has {size}; the limit is {limit:,}")
        if part["type"] == "Replace":
            growth *= max(1, len(part["content"]) / max(1, len(part["pattern"].get("String", "x"))))
        elif part["type"] == "ByteLevel" and name == "pre_tokenizer":
            growth *= 2
        elif part["type"] == "Precompiled":
            block = base64.b64decode(part["precompiled_charsmap"] or "")
            growth *= max(1, *map(len, block[4 + int.from_bytes(block[:4], "little") :].split(b"\0")))
        elif part["type"] == "TemplateProcessing":
            named = {piece["SpecialToken"]["id"] for piece in part["single"] if "SpecialToken" in piece}
            if missing := named - set(part["special_tokens"]):
                raise UserError(f"the post-processor has no ids for {shortened(', '.join(sorted(missing)), 80)}")
            counts = {name: len(part["special_tokens"][name]["ids"]) for name in named}
            if sum(counts[piece["SpecialToken"]["id"]] for piece in part["single"] if "SpecialToken" in piece) > _MOST_AROUND:
                raise UserError(f"the post-processor puts more than {_MOST_AROUND} ids around a text")
    return growth


def _literals(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a component's strings, including patterns."""
    for key, value in part.items():
        if key == "pattern" and isinstance(value, dict):
            yield from ((name, text) for name, text in value.items() if isinstance(text, str))
        elif isinstance(value, str) and key != "precompiled_charsmap":
            yield key, value
