"""Marian tokenizer, used by the opus-mt models (Tiedemann and Thottingal 2020): SentencePiece with different ids.

Each language has a SentencePiece model: source.spm and target.spm. Piece ids are in vocab.json, shared by both languages unless
each has its own file.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.files import damaged, read_file, read_json, write_json
from tinyformer.common.settings import read_value
from tinyformer.tokenizers.base import checked, checked_text, load_saved
from tinyformer.tokenizers.special import cut_at_special
from tinytensor.device.backend import host

MARIAN_UNKNOWN, MARIAN_END, MARIAN_PADDING = "<unk>", "</s>", "<pad>"


class MarianTokenizer:
    """Encodes source-language text and decodes target-language ids.

    ``vocabulary`` maps pieces to ids; ``target_vocabulary`` does so for the target language, if it differs. ``source`` and
    ``target`` are the bytes of SentencePiece models. Pieces without an id become <unk>. The model expects the ids ``after``,
    </s>, at the end of a sequence. ``encode`` does not add them.

    Raises UserError if <unk>, </s> or <pad> is missing or a SentencePiece model is invalid. Raises ImportError without
    ``sentencepiece``.
    """

    kind = "marian"

    def __init__(
        self, vocabulary: Mapping[str, int], source: bytes, target: bytes, target_vocabulary: Mapping[str, int] | None = None
    ):
        self.vocabulary = dict(vocabulary)
        self.target_vocabulary = self.vocabulary if target_vocabulary is None else dict(target_vocabulary)
        self.tokens = _in_order(self.vocabulary)
        self.target_tokens = _in_order(self.target_vocabulary)
        names = (MARIAN_UNKNOWN, MARIAN_END, MARIAN_PADDING)
        for ids in (self.vocabulary, self.target_vocabulary):
            missing = [name for name in names if name not in ids]
            if missing:
                raise UserError(f"the vocabulary of a Marian model needs {', '.join(names)}: it lacks {', '.join(missing)}")
        if any(self.vocabulary[name] != self.target_vocabulary[name] for name in names):
            raise UserError(f"the two vocabularies of a Marian model have different ids for {', '.join(names)}")
        self.special = {name: self.vocabulary[name] for name in names}
        self.before: tuple[int, ...] = ()
        self.after: tuple[int, ...] = (self.special[MARIAN_END],)
        self.source, self.target = source, target
        self._source, self._target = _processor(source, "source"), _processor(target, "target")
        # As in transformers, the source model joins the pieces of a shared vocabulary.
        self._joining = self._source if target_vocabulary is None else self._target

    @property
    def vocab_size(self) -> int:
        """The number of source-language tokens, including special tokens."""
        return len(self.tokens)

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of source-language text as a NumPy int64 array, without the final </s>.

        A leading name such as >>fra<< is one token that selects the target language of a multilingual model. If
        ``allow_special``, special-token names are encoded as special tokens. Raises UserError for invalid text.
        """
        return self._encode(text, allow_special, self._source, self.vocabulary)

    def encode_target(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of target-language text. See ``encode``."""
        return self._encode(text, allow_special, self._target, self.target_vocabulary)

    def _encode(self, text: str, allow_special: bool, processor: Any, vocabulary: Mapping[str, int]) -> Any:
        ids: list[int] = []
        unknown = self.special[MARIAN_UNKNOWN]
        reserved = set() if allow_special else set(self.special)
        for part, special in cut_at_special(checked_text(text), self.special if allow_special else {}):
            if special is not None:
                ids.append(special)
                continue
            pieces = []
            if part.startswith(">>") and "<<" in part:
                language, mark, part = part.partition("<<")
                pieces.append(language + mark)
            pieces += processor.encode(part, out_type=str)
            ids.extend(unknown if piece in reserved else vocabulary.get(piece, unknown) for piece in pieces)
        return host.array(ids, dtype=host.int64)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of target-language ids. If ``skip_special``, omit </s> and <pad>. Raises UserError for an invalid
        id."""
        leave_out = {self.special[MARIAN_END], self.special[MARIAN_PADDING]} if skip_special else ()
        special = set(self.special.values())
        line = ""
        pieces: list[str] = []
        for i in checked(ids, len(self.target_tokens), leave_out):
            if i in special:
                line += self._joining.decode_pieces(pieces) + self.target_tokens[i] + " "
                pieces = []
            else:
                pieces.append(self.target_tokens[i])
        return (line + self._joining.decode_pieces(pieces)).replace("▁", " ").strip()

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text of ``decode``, one piece per id and a final one. White space waits for the next piece, since no text
        ends with it. So does U+FFFD, which may be an incomplete character. Decoding depends on position, so each piece is
        decoded together with all earlier ones."""
        seen: list[int] = []
        shown = 0
        for i in ids:
            seen.append(i)
            certain = self.decode(seen, skip_special).rstrip("\ufffd").rstrip()
            yield certain[shown:]
            shown = max(shown, len(certain))
        yield self.decode(seen, skip_special)[shown:]

    def save(self, path: str | Path) -> None:
        """Save the tokenizer as a JSON file that includes the SentencePiece models."""
        saved: dict[str, Any] = {
            "kind": self.kind,
            "source": base64.b64encode(self.source).decode(),
            "target": base64.b64encode(self.target).decode(),
            "tokens": self.tokens,
        }
        if self.target_vocabulary is not self.vocabulary:
            saved["target_tokens"] = self.target_tokens
        write_json(Path(path), saved)

    @classmethod
    def load(cls, path: str | Path) -> MarianTokenizer:
        """Load a tokenizer written by ``save``. Raises UserError for any other file, and ImportError without
        ``sentencepiece``."""
        types = {"tokens": list[str], "source": str, "target": str, "target_tokens": list[str] | None}
        return load_saved(cls._from_saved, path, cls.kind, "Marian", **types)

    @classmethod
    def _from_saved(cls, tokens: list[str], source: str, target: str, target_tokens: list[str] | None) -> MarianTokenizer:
        models = [base64.b64decode(model, validate=True) for model in (source, target)]
        return cls(_numbered(tokens), models[0], models[1], None if target_tokens is None else _numbered(target_tokens))

    @classmethod
    def from_files(
        cls, vocabulary: str | Path, source: str | Path, target: str | Path, target_vocabulary: str | Path | None = None
    ) -> MarianTokenizer:
        """Load a published model's tokenizer from its files: vocab.json, source.spm, target.spm and, if each language has its
        own vocabulary, target_vocab.json. Raises UserError if a file is missing or damaged, and ImportError without
        ``sentencepiece``."""
        models = []
        for path in (source, target):
            try:
                models.append(read_file(path))
            except FileNotFoundError:
                raise UserError(f"{path} does not exist: a Marian model needs source.spm and target.spm") from None
        ids = [_read_vocabulary(path) for path in (vocabulary, target_vocabulary) if path is not None]
        with damaged(f"{vocabulary}, {source} or {target}"):
            return cls(ids[0], models[0], models[1], *ids[1:])


def _read_vocabulary(path: str | Path) -> dict[str, int]:
    with damaged(path):
        ids: dict[str, int] = read_value(dict[str, int], read_json(Path(path)), "the vocabulary")
        return ids


def _in_order(ids: Mapping[str, int]) -> list[str]:
    """Return all tokens ordered by id. Raises UserError unless the ids are 0, 1, 2 and so on."""
    if any(type(i) is not int for i in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"the ids must be the numbers from 0 to {len(ids) - 1}")
    return sorted(ids, key=ids.__getitem__)


def _numbered(tokens: list[str]) -> dict[str, int]:
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise UserError("a token occurs twice")
    return ids


def _processor(model: bytes, language: str) -> Any:
    """Return a SentencePiece processor for a model."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise ImportError(
            'a Marian tokenizer needs the package sentencepiece: pip install "tinyformer[sentencepiece]"'
        ) from error
    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        raise UserError(f"the {language} language has no valid SentencePiece model") from None
