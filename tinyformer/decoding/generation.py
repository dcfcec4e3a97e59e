"""Generation loop: a ``Decoder`` computes the logits of the next token, ``Sampling`` picks it, and the decoder reads it.

``sample`` is this loop. A decoder stores results for earlier tokens in a cache or a state, so it reads only new tokens.
Sampling and beam search work with any decoder, on NumPy arrays. Picking a token is cheap on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.settings import check_counts
from tinyformer.common.vectors import Vectors, check_lengths, check_vectors
from tinyformer.data.batches import check_ids, check_integers
from tinyformer.decoding.sampling import LogitsRule, Sampling, TokenRules
from tinyformer.models.blocks import Cache
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.recurrent import RecurrentLM, State
from tinyformer.models.seq2seq import EncoderDecoder, Seq2SeqConfig
from tinyformer.models.transformer import Transformer
from tinytensor import Tensor, kernels_name, random
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.backend import host
from tinytensor.nn import Module


def sample(
    decoder: Decoder,
    prompts: Any,
    num_tokens: int,
    sampling: Sampling,
    end: int | Iterable[int] | None = None,
    forbidden: Iterable[int] = (),
    force_end: bool = False,
    rules: Iterable[LogitsRule] = (),
) -> Iterator[Any]:
    """Continue ``prompts`` (batch, length) by up to ``num_tokens`` tokens. Yield the ids of each step, (batch,).

    For ``end``, ``forbidden``, ``force_end`` and ``rules``, see ``TokenRules``. A finished row repeats its end token. The
    iteration stops once all rows have ended. Raises UserError if prompts are empty or of different lengths, or if num_tokens is
    negative. An empty batch yields nothing.
    """
    if num_tokens < 0:
        raise UserError(f"the length must be at least 0, got {num_tokens}")
    tokens = TokenRules(end, forbidden, force_end, rules)
    return _sample(decoder, batch_of_ids(prompts, "prompts"), num_tokens, sampling, tokens) if len(prompts) else iter(())


def _sample(decoder: Decoder, prompts: Any, num_tokens: int, sampling: Sampling, tokens: TokenRules) -> Iterator[Any]:
    rng = random.generator() if sampling.seed is None else host.random.default_rng(sampling.seed)
    texts, new, finished = prompts, prompts, [False] * len(prompts)
    for step in range(1, num_tokens + 1):
        logits = tokens.restrict(decoder.next_logits(new), step == num_tokens, texts, step - 1)
        rows = zip(logits, new[:, -1], finished)
        ids = host.array([last if is_finished else sampling.pick(row, rng) for row, last, is_finished in rows], host.int64)
        yield ids
        finished = [is_finished or i in tokens.ends for i, is_finished in zip(ids.tolist(), finished)]
        if all(finished):
            return
        new = ids[:, None]
        if tokens.rules:
            texts = host.concatenate([texts, new], axis=1)


def generate(
    model: GPT | RecurrentLM,
    prompt: Sequence[int],
    num_tokens: int,
    sampling: Sampling | None = None,
    end: int | Iterable[int] | None = None,
    use_cache: bool = True,
    forbidden: Iterable[int] = (),
    force_end: bool = False,
    rules: Iterable[LogitsRule] = (),
) -> Iterator[int]:
    """Continue ``prompt``, a sequence of token ids, with a language model. Yield up to ``num_tokens`` ids and stop after
    ``end`` (an id or several). For ``forbidden``, ``force_end`` and ``rules``, see ``TokenRules``. Raises UserError if the
    prompt is empty or num_tokens is negative.

    >>> from tinyformer import GPT, GPTConfig, Sampling, generate
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=1, d_model=32)).eval()
    >>> len(list(generate(model, [1, 2, 3], 10, Sampling(temperature=0.8, top_k=5))))
    10
    """
    sampling = Sampling() if sampling is None else sampling
    ids = batch_of_ids([prompt.numpy() if isinstance(prompt, Tensor) else prompt], "prompts")
    decoder = language_decoder(model, use_cache, ids.shape[1] + max(num_tokens, 0))
    steps = sample(decoder, ids, num_tokens, sampling, end, forbidden, force_end, rules)
    return (int(ids[0]) for ids in steps)


def compile_first(model: GPT | RecurrentLM, sampling: Sampling) -> None:
    """Compile the generation kernels, if any, so that compiler messages appear before the text."""
    if kernels_name == "numba":
        list(generate(model, [0, 0], 3, replace(sampling, seed=0)))


def note_on_length(model: GPT | RecurrentLM, length: int) -> str:
    """Return a note if a prompt of this length exceeds the model's context, else ""."""
    limit = model.config.block_size
    if isinstance(model, RecurrentLM) or length <= limit:
        return ""
    return f"The prompt has {counted(length, 'token')}. The model reads {limit:,}, and so only the end of it."


# -------------------------------------------------------------------------------------------------------------------- decoders


class Decoder(Protocol):
    """Protocol for the generation state of one batch. Each batch needs a new decoder."""

    def next_logits(self, new: Any) -> Any:
        """Read new ids (batch, count). Return the logits (batch, vocab_size) of each sequence's next token."""

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch, in this order. A row may be repeated."""


class GPTDecoder:
    """Decoder for a GPT. It uses a cache while all tokens fit into the context of block_size tokens. After that, every token's
    position shifts at each step, so the last block_size tokens are recomputed without a cache.

    The cache holds at most ``max_tokens`` tokens. Pass it if it is known and block_size is large.
    """

    def __init__(self, model: GPT, use_cache: bool = True, max_tokens: int | None = None):
        self.model = model
        self.ids: Any = None  # the last block_size tokens
        self.cache: Cache | None = model.new_cache(max_tokens) if use_cache else None
        cache, logits = self.cache, _last_logits(model, lambda ids, cache: model(ids, cache, last_only=True))
        self._logits = logits  # calls ``model.forward``
        # The same logits. The first call records the kernels of ``model.forward``, and later calls replay them (compiled).
        self._logits_of_one_token: Any = tt.trace(lambda ids: logits(ids, cache))

    def next_logits(self, new: Any) -> Any:
        """Return the logits (batch, vocab_size) after the new ids (batch, count).

        The first call raises UserError for ids outside the vocabulary. Later calls raise it if the number of rows differs.
        """
        block_size = self.model.config.block_size
        ids, new = _joined(self.ids, new, self.model.config.vocab_size)
        if self.cache is not None and ids.shape[1] > self.cache.capacity:
            self.cache = self._logits_of_one_token = None  # the traced program also holds the cache
        if self.cache is None:
            ids = ids[:, -block_size:]
            logits = self._logits(tt.tensor(ids), None)
        elif new.shape[1] == 1:
            logits = self._logits_of_one_token(tt.tensor(new))
        else:
            logits = self._logits(tt.tensor(new), self.cache)
        self.ids = ids  # set last: the model may reject them
        return logits.numpy()

    def keep_common(self, ids: Any) -> int:
        """Replace the only sequence by ids (length,). Keep their common prefix in the cache, without the last token. Return the
        number of tokens kept. Pass the remaining ones to ``next_logits``. Raises UserError for ids outside the vocabulary."""
        check_ids(ids, self.model.config.vocab_size)
        kept = 0
        if self.cache is not None:
            length = 0 if self.ids is None else min(self.ids.shape[1], len(ids) - 1)
            kept = int(host.cumprod(self.ids[0, :length] == ids[:length]).sum()) if length else 0
            self.cache.keep(kept)
        self.ids = self.ids[:, :kept] if kept else None
        return kept

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch."""
        if self.cache is not None:
            self.cache.select(rows, _shared(self.ids, rows))
        self.ids = None if self.ids is None else self.ids[rows]


def _shared(ids: Any, rows: Any) -> int:
    """For each row, return how many leading ids (batch, length) it shares with the row that it replaces."""
    if ids is None or len(rows) != len(ids):
        return 0
    same = (ids[rows] == ids).all(axis=0)
    return int(host.cumprod(same).sum())


def _joined(ids: Any, new: Any, vocab_size: int) -> tuple[Any, Any]:
    """Return all ids, and the new ids alone. ``ids`` are the earlier ids, initially None."""
    if ids is None:
        first = batch_of_ids(new, "prompts")
        check_ids(first, vocab_size)
        return first, first
    if len(new) != len(ids):
        raise UserError(f"a decoder of {counted(len(ids), 'text')} got ids for {len(new)}: make a new decoder for other texts")
    return host.concatenate([ids, new], axis=1), new


def _last_logits(model: Module, logits: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that computes ``logits`` at the last position, in evaluation mode, without gradients."""
    in_evaluation = evaluating(model)

    def last(*inputs: Any) -> Tensor:
        with tt.no_grad(), in_evaluation:
            return logits(*inputs)[:, -1]

    return last


class TransformerDecoder:
    """Decoder for an encoder-decoder. It encodes ``source``, ids (batch, length) or ``Vectors``, only once.

    It reads up to ``max_tokens`` tokens. Raises UserError if the source is empty, has ids outside the vocabulary, or has
    vectors that the model cannot read.
    """

    def __init__(self, model: Transformer, source: Any, max_tokens: int, use_cache: bool = True):
        check_counts(max_tokens=max_tokens)
        self.model = model
        self.max_tokens = max_tokens
        with tt.no_grad(), evaluating(model):
            self.memory, self.memory_mask = model.encode(_sources(source, model))
        self.sources = host.arange(len(self.memory))  # source number per memory row
        self.texts_of_each = 1  # number of consecutive sequences that share a memory row
        self.ids: Any = None
        self.cache = model.new_cache(max_tokens, self.memory.shape[1]) if use_cache else None
        cache, memory, logits = self.cache, self.memory, _last_logits(model, model.decode)
        self._logits = logits
        # Computes the same logits by replaying the kernels of ``model.decode``.
        self._logits_of_one_token = tt.trace(lambda ids, memory_mask: logits(ids, memory, memory_mask, cache))

    def next_logits(self, new: Any) -> Any:
        """Return the logits (batch, vocab_size) after the new ids (batch, count).

        The first call raises UserError for ids outside the vocabulary. Every call raises it if the number of rows differs from
        the source's, or after more than ``max_tokens`` tokens.
        """
        batch = len(self.memory) * self.texts_of_each
        if len(new) != batch:
            raise UserError(f"a decoder of {counted(batch, 'source')} got ids for {len(new)}: pass one row for each source")
        ids, new = _joined(self.ids, new, self.model.config.target_vocab_size)
        if ids.shape[1] > self.max_tokens:
            raise UserError(
                f"this decoder takes {counted(self.max_tokens, 'token')}, not {ids.shape[1]}: pass it a larger max_tokens"
            )
        seen = tt.tensor(ids if self.cache is None else new)
        is_filled = self.cache is not None and self.cache.length  # a filled cache holds the memory's keys and values
        if is_filled and seen.shape[1] == 1:
            logits = self._logits_of_one_token(seen, self.memory_mask)
        else:
            logits = self._logits(seen, self.memory, self.memory_mask, self.cache)
        self.ids = ids  # set last: the model may reject them
        return logits.numpy()

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch. Neighboring rows with the same source share its memory if possible."""
        rows = host.asarray(rows)
        before = self.sources.repeat(self.texts_of_each)
        sources, kept = before[rows], rows // self.texts_of_each
        can_share = self.cache is not None and self.cache.length > 0  # a filled cache holds the memory's keys and values
        self.texts_of_each = _repeats(sources) if can_share else 1
        kept = kept[:: self.texts_of_each]
        if self.cache is not None:
            shared = _shared(self.ids, rows) if host.array_equal(sources, before) else 0
            self.cache.select(rows, shared, kept)
        self.sources = self.sources[kept]
        self.ids = None if self.ids is None else self.ids[rows]
        index = tt.tensor(kept)
        self.memory, self.memory_mask = self.memory[index], self.memory_mask[index]


def _repeats(numbers: Any) -> int:
    """Return the largest count such that numbers (n,) consist of runs of ``count`` equal values."""
    changes = host.flatnonzero(host.diff(numbers)) + 1
    return math.gcd(len(numbers), *changes.tolist()) or 1


class RecurrentDecoder:
    """Decoder for recurrent models, whose state summarizes the tokens so far.

    A language model starts without a ``state``. An encoder-decoder starts with the state that ``encode`` returned for a batch
    of sources. The decoder reads up to ``max_tokens`` tokens.
    """

    def __init__(self, model: RecurrentLM | EncoderDecoder, state: State | None = None, max_tokens: float = math.inf):
        self.model = model
        self.state = state
        self.max_tokens = max_tokens
        self.num_tokens = 0  # so far
        self._in_evaluation = evaluating(model)
        config = model.config
        self._vocab_size = config.target_vocab_size if isinstance(config, Seq2SeqConfig) else config.vocab_size

    def next_logits(self, new: Any) -> Any:
        """Return the logits (batch, vocab_size) after the new ids (batch, count).

        The first call raises UserError for ids outside the vocabulary. Every call raises it if the number of rows differs from
        the state's, or after more than ``max_tokens`` tokens.
        """
        if self.state is not None and len(new) != self.state.batch_size:
            raise UserError(
                f"a decoder of {counted(self.state.batch_size, 'text')} got ids for {len(new)}: pass one row for each"
            )
        if not self.num_tokens:
            new = batch_of_ids(new, "prompts")
            check_ids(new, self._vocab_size)
        ids = tt.tensor(new)
        num_tokens = self.num_tokens + ids.shape[1]
        if num_tokens > self.max_tokens:
            raise UserError(
                f"this decoder takes {counted(self.max_tokens, 'token')}, not {num_tokens}: pass it a larger max_tokens"
            )
        with tt.no_grad(), self._in_evaluation:
            logits, self.state = self.model.step(ids, self.state)
        self.num_tokens = num_tokens  # set last: the model may reject the ids
        return logits.numpy()

    def select(self, rows: Any) -> None:
        """Keep these rows of the batch."""
        self.state = None if self.state is None else self.state.select(rows)


def language_decoder(model: GPT | RecurrentLM, use_cache: bool = True, max_tokens: int | None = None) -> Decoder:
    """Return a decoder for a language model, for up to ``max_tokens`` tokens if set. ``use_cache`` is ignored for recurrent
    models. Raises UserError for other models."""
    if not isinstance(model, (GPT, RecurrentLM)):
        raise UserError(f"{a_or_an(type(model).__name__)} does not continue texts: take GPT-2, Llama or Qwen")
    return RecurrentDecoder(model) if isinstance(model, RecurrentLM) else GPTDecoder(model, use_cache, max_tokens)


def translation_decoder(model: Transformer | EncoderDecoder, source: Any, max_tokens: int) -> Decoder:
    """Return a decoder that translates ``source`` (batch, length) into at most ``max_tokens`` tokens. Raises UserError as
    ``TransformerDecoder`` does."""
    if isinstance(model, Transformer):
        return TransformerDecoder(model, source, max_tokens)
    check_counts(max_tokens=max_tokens)
    with tt.no_grad(), evaluating(model):
        state = model.encode(_sources(source, model))
    return RecurrentDecoder(model, state, max_tokens)


def _sources(source: Any, model: Transformer | EncoderDecoder) -> Any:
    """Return source ids (batch, length) or vectors for the encoder. Raises UserError if the model cannot read them."""
    check_vectors(source, getattr(model.config, "source_features", 0))
    if isinstance(source, Vectors):
        check_lengths(source)
        return source
    ids = batch_of_ids(source, "sources")
    check_ids(ids, model.config.source_vocab_size)
    return tt.tensor(ids)


def batch_of_ids(rows: Any, name: str) -> Any:
    """Return token ids as an int64 array (batch, length). Raises UserError for another shape or no tokens. ``name`` is a plural
    noun for messages."""
    rows = rows.numpy() if isinstance(rows, Tensor) else rows
    lengths = sorted({len(row) for row in rows if hasattr(row, "__len__")})
    if len(lengths) > 1:
        raise UserError(
            f"the {name} have from {lengths[0]} to {counted(lengths[-1], 'token')}: all texts of a batch must have the same "
            "length, so make a batch for each length"
        )
    ids = host.asarray(rows)
    if ids.ndim != 2:
        raise UserError(f"the {name} must be (batch, length), got shape {ids.shape}")
    if lengths == [0]:
        raise UserError(f"the {name[:-1]} is empty: give at least one token")
    check_integers(ids)
    return ids.astype(host.int64)
