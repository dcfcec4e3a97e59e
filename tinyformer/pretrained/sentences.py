"""sentence-transformers models: sentence vectors that are close together for similar meanings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.files import damaged, parse_json, read_json, read_utf8
from tinyformer.common.settings import read_value
from tinyformer.data.batches import padded
from tinyformer.models.bert import Bert
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT, GPTVectors
from tinyformer.models.sentences import POOLINGS, Normalize, Projection, SentenceModel
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.folders import WHOLE, find_folder, read_weights
from tinyformer.pretrained.loading import load_encoder
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.pretrained.weights import numbers_of
from tinyformer.tokenizers import Tokenizer
from tinyformer.tokenizers.special import cut_at_special
from tinytensor import Tensor
from tinytensor.device.backend import Array, host
from tinytensor.parallel import default_shards
from tinytensor.parallel.threads import call_together

MODULES = "modules.json"
_PROMPTS = {"query": "", "document": ""}  # defaults
_FILES = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")]
# Transformer settings that are read or have no effect, and the values that others must have.
_READ = ("max_seq_length", "do_lower_case", "unpad_inputs")
_TEXTS: dict[str, Any] = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
_TEXTS["modality_config"] = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_SHARED = ("__version__", "requirements", "prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name")
_OF_SENTENCES = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
SIMILARITIES: dict[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda x, y: x @ y.T / host.maximum(host.outer(*(host.linalg.norm(rows, axis=1) for rows in (x, y))), 1e-24),
    "dot": lambda x, y: x @ y.T,
    "euclidean": lambda x, y: -host.stack([host.linalg.norm(row - y, axis=1) for row in x]),
    "manhattan": lambda x, y: -host.stack([host.abs(row - y).sum(1) for row in x]),
}
_TOKENS_AT_ONCE = 1024  # tokens per batch, including padding: the values must fit in a core's cache


@dataclass
class SentenceEncoder:
    """A sentence model with its tokenizer.

    ``max_length`` is the maximum number of tokens, including special tokens. ``prompts`` maps names such as "query" to prefixes
    for sentences, and ``default_prompt`` is the default name. ``lowercase`` lowercases the input. If ``count_prompt`` is False,
    pooling skips prompt tokens. Vectors are truncated to ``truncate_dim`` values, if set. ``similarity_fn_name`` is "cosine",
    "dot", "euclidean" or "manhattan". Raises SettingError for any other.
    """

    model: SentenceModel
    tokenizer: Tokenizer
    max_length: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    lowercase: bool = False
    count_prompt: bool = True
    truncate_dim: int | None = None
    similarity_fn_name: str = "cosine"

    def __post_init__(self) -> None:
        if self.similarity_fn_name not in SIMILARITIES:
            shown, known = shortened(repr(self.similarity_fn_name), 40), ", ".join(SIMILARITIES)
            raise SettingError(f"similarity_fn_name must be one of {known}, got {shown}")

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
    ) -> Array:
        """Return sentence vectors as a float32 NumPy array (number of sentences, width), or (width,) for a single sentence.

        ``prompt_name`` selects one of the ``prompts``; ``prompt`` is a prefix itself. Special-token names are encoded as
        special tokens, as in "Title[SEP]Abstract". Vectors are truncated to ``truncate_dim`` values. Batches of sentences of
        similar length run on several cores. Raises UserError for anything but strings, an unknown prompt name, or a
        ``truncate_dim`` below 1.
        """
        if isinstance(sentences, str):
            return self.encode([sentences], prompt_name, prompt, truncate_dim)[0]
        if not isinstance(sentences, Iterable) or isinstance(sentences, (bytes, Mapping)):
            raise UserError(f"sentences must be a string or a list of strings, got {shortened(repr(sentences), 40)}")
        size = self.truncate_dim if truncate_dim is None else truncate_dim
        if size is not None and size < 1:
            raise UserError(f"truncate_dim must be at least 1, got {size}")
        before = self._prompt(prompt_name) if prompt is None else prompt
        texts = [self.ids_of(before, sentence) for sentence in sentences]
        skipped = 0
        if before and not self.count_prompt:
            ids = self.ids_of("", before)
            skipped = len(ids) - (ids[-1] in self.tokenizer.special.values())
        batches = _batches([len(ids) for ids in texts])
        shards = [batches[i :: default_shards()] for i in range(default_shards())]
        work = functools.partial(self._vectors, texts, skipped)
        parts = call_together([functools.partial(work, shard) for shard in shards if shard])
        rows = host.concatenate([row for part in parts for row in part] or [host.empty((0, self.width), host.float32)])
        order = [i for shard in shards for batch in shard for i in batch]
        result = host.empty(rows.shape, rows.dtype)
        result[order] = rows
        return result[:, :size]

    def encode_query(self, sentences: str | Iterable[str], prompt_name: str | None = None, **settings: Any) -> Array:
        """Call ``encode`` for questions, with the "query" prompt by default."""
        return self.encode(sentences, prompt_name or "query", **settings)

    def encode_document(self, sentences: str | Iterable[str], prompt_name: str | None = None, **settings: Any) -> Array:
        """Call ``encode`` for documents to search, with the "document" prompt by default."""
        return self.encode(sentences, prompt_name or "document", **settings)

    def similarity(self, vectors: Any, others: Any) -> Array:
        """Return pairwise similarities (n, m) of vectors (n, width) and (m, width), float32: cosine, dot product or negative
        distance, depending on ``similarity_fn_name``."""
        x, y = (host.atleast_2d(host.asarray(rows, host.float32)) for rows in (vectors, others))
        return SIMILARITIES[self.similarity_fn_name](x, y)

    @property
    def width(self) -> int:
        """The width of a sentence vector."""
        projections = [layer.linear.weight.shape[0] for layer in self.model.layers if isinstance(layer, Projection)]
        width = projections[-1] if projections else self.model.encoder.config.d_model * len(self.model.pooling.kinds)
        return int(min(width, self.truncate_dim or width))

    def ids_of(self, prompt: str, sentence: str) -> list[int]:
        """Return the ids of a prompt and a sentence, with special tokens around them."""
        if not isinstance(sentence, str):
            raise UserError(f"a sentence must be a string, got {shortened(repr(sentence), 40)}: pass a list of strings")
        text = prompt + sentence
        around = self.tokenizer.before, self.tokenizer.after
        room = max(self.max_length - sum(map(len, around)), 0)
        if self.lowercase:
            parts = cut_at_special(text, self.tokenizer.special)
            text = "".join(part if special is not None else "".join(map(str.lower, part)) for part, special in parts)
        ids = self.tokenizer.encode(text, allow_special=True)[:room].tolist()
        return [*around[0], *ids, *around[1]] or [self.pad]  # models need at least one token

    @property
    def pad(self) -> int:
        """The padding id. A GPT has none, but its tokens never attend to later ones."""
        return self.model.encoder.config.pad if isinstance(self.model.encoder, Bert) else 0

    def padded(self, texts: Sequence[str], prompt: str = "") -> tuple[Tensor, Tensor]:
        """Return the ids of sentences after a prompt, and a mask of their tokens, (number of sentences, length) each."""
        rows = [self.ids_of(prompt, text) for text in texts]
        return tt.tensor(padded(rows, self.pad)), tt.tensor(_is_token(rows))

    def _prompt(self, name: str | None) -> str:
        name = self.default_prompt if name is None else name
        prompts = {**_PROMPTS, **self.prompts}
        if name is not None and name not in prompts:
            shown, known = shortened(repr(name), 40), ", ".join(prompts)
            raise UserError(f"prompt_name must be one of {known}, got {shown}: pass any other text as prompt=")
        return "" if name is None else prompts[name]

    def _vectors(self, texts: Sequence[Sequence[int]], skipped: int, batches: Sequence[Sequence[int]]) -> list[Array]:
        """Return the vectors of each batch of sentence indices."""
        vectors = []
        with tt.no_grad(), evaluating(self.model):
            for batch in batches:
                rows = [texts[i] for i in batch]
                is_token = _is_token(rows)
                counted = is_token & (host.arange(is_token.shape[1]) >= skipped)
                inputs = tt.tensor(padded(rows, self.pad)), tt.tensor(is_token), tt.tensor(counted) if skipped else None
                vectors.append(self.model(*inputs).numpy())
        return vectors


def _is_token(rows: Sequence[Sequence[int]]) -> Array:
    """Return the boolean mask of padded rows (number of rows, maximum length)."""
    lengths = host.array([len(row) for row in rows])
    return host.arange(lengths.max()) < lengths[:, None]


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Group sentence indices, longest first, into batches with similar token counts, including padding."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > _TOKENS_AT_ONCE:
            batches.append([])
        batches[-1].append(i)
    return batches


def sentence_encoder(path_or_name: str | Path, revision: str | None = None, dtype: str | None = None) -> SentenceEncoder:
    """Load a sentence-transformers model and its tokenizer from a folder or the Hugging Face hub.

    The folder's modules.json must list a Transformer (a ``from_pretrained`` family; its head is dropped), a Pooling, and
    optionally Dense and Normalize modules in any order. For ``dtype``, see ``from_pretrained``.

    Raises UserError for other modules or settings, and as ``from_pretrained`` and ``pretrained_tokenizer`` do.
    """
    return encoder_around(find_folder(path_or_name, revision), lambda path: load_encoder(path, dtype))


def encoder_around(folder: Path, load: Callable[[Path], Bert | GPT | GPTVectors]) -> SentenceEncoder:
    """Return ``sentence_encoder`` of a folder, using ``load`` to load its Transformer folder."""
    (_, transformer), (_, of_pooling), *more = _modules(folder)
    pooling, count_prompt = _pooling(PretrainedSettings(of_pooling / "config.json"))
    encoder = load(transformer)
    for path in [path for name, path in more if name == "Normalize"]:
        _settings(path / "config.json", (), **_OF_SENTENCES)
    layers = [_projection(path) if name == "Dense" else Normalize() for name, path in more]
    model = SentenceModel(encoder, pooling, layers).eval()
    tokenizer = pretrained_tokenizer(transformer)
    settings = _settings(
        next((transformer / name for name in _FILES if (transformer / name).exists()), transformer / _FILES[0]), _READ, **_TEXTS
    )
    shared = _settings(folder / "config_sentence_transformers.json", _SHARED, model_type="SentenceTransformer")
    of_tokenizer = _settings(transformer / "tokenizer_config.json", truncation_side="right")
    longest = encoder.config.max_length if isinstance(encoder, Bert) else encoder.config.block_size
    usual = of_tokenizer.read(float, "model_max_length", float(longest))
    max_length = int(min(settings.read(int, "max_seq_length", 0) or usual, longest))
    if max_length <= len(tokenizer.before) + len(tokenizer.after):
        raise settings.error(f"max_seq_length must leave room for a text, got {max_length}")
    prompts = shared.read(dict[str, str | None], "prompts", {})
    default = shared.read(str, "default_prompt_name", "")
    if default and default not in _PROMPTS | prompts:
        raise shared.error(f"default_prompt_name must be one of the prompts, got {shortened(repr(default), 40)}")
    try:
        return SentenceEncoder(
            model,
            tokenizer,
            max_length=max_length,
            prompts={name: text or "" for name, text in prompts.items()},
            default_prompt=default or None,
            lowercase=settings.read(bool, "do_lower_case", False),
            count_prompt=count_prompt,
            truncate_dim=shared.read(int, "truncate_dim", 0) or None,
            similarity_fn_name=shared.read(str, "similarity_fn_name", "cosine"),
        )
    except SettingError as error:
        raise shared.error(str(error)) from None


def _settings(path: Path, known: Sequence[str] | None = None, **allowed: Any) -> PretrainedSettings:
    """Return the settings of a file, which may be missing. ``allowed`` settings must have their only value if present. If
    ``known`` is passed, all other settings must be off."""
    settings = PretrainedSettings(path, read_json(path) if path.exists() else {})
    settings.refuse(**allowed)
    if known is not None:
        settings.refuse_others(*known, *allowed)
    return settings


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the types and folders of the modules in modules.json: a Transformer, a Pooling, and others."""
    path = folder / MODULES
    if not path.exists():
        raise UserError(f"{folder} has no {MODULES}: pass a sentence-transformers folder, or build a SentenceModel")
    with damaged(path):
        modules = read_value(
            list[dict[str, Any]], parse_json(f'{{"modules": {read_utf8(path, "JSON")}}}')["modules"], "modules"
        )
        names = [read_value(str, module.get("type"), "type").rpartition(".")[2] for module in modules]
        paths = [folder / read_value(str, module.get("path"), "path") for module in modules]
    if names[:2] != ["Transformer", "Pooling"] or not set(names[2:]) <= {"Dense", "Normalize"}:
        shown = shortened(", ".join(names), 80) or "nothing"
        raise UserError(f"{path} must list Transformer and Pooling, then Dense and Normalize in any order, got {shown}")
    if outside := [inner for inner in paths if not inner.resolve().is_relative_to(folder.resolve())]:
        raise UserError(f"{path} is damaged: {outside[0]} is outside its folder")
    return list(zip(names, paths))


def _pooling(settings: PretrainedSettings) -> tuple[tuple[str, ...], bool]:
    """Return the pooling types, and whether prompt tokens are pooled. Older files have one switch per type."""
    named = settings.values.get("pooling_mode")
    endings = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}
    switches = {name: f"pooling_mode_{endings.get(name, name)}" for name in POOLINGS}
    sizes = ("embedding_dimension", "word_embedding_dimension")
    settings.refuse_others("pooling_mode", "include_prompt", *sizes, *switches.values())
    if named is None:
        named = [name for name, switch in switches.items() if settings.read(bool, switch, False)] or ["mean"]
    names = [named] if isinstance(named, str) else settings.read(list[str], "pooling_mode", named)
    for name in names or ("",):
        if name not in POOLINGS:
            raise settings.error(f"pooling_mode must be one of {', '.join(POOLINGS)}, got {shortened(repr(name), 40)}")
    return tuple(names), settings.read(bool, "include_prompt", True)


def _projection(folder: Path) -> Projection:
    """Return the layer of a Dense folder."""
    names = ("in_features", "out_features", "bias", "activation_function")
    settings = _settings(folder / "config.json", names, use_residual=False, **_OF_SENTENCES)
    path, _, function = settings.read(str, "activation_function", "torch.nn.Tanh").rpartition(".")
    if function not in Projection.FUNCTIONS or path.partition(".")[0] != "torch":
        known = ", ".join(Projection.FUNCTIONS)
        shown = shortened(repr(settings.values["activation_function"]), 60)
        raise settings.error(f"activation_function must be one of torch.nn's {known}, got {shown}")
    if not (folder / WHOLE).exists():
        remedy = "if you trust the folder, write it with SentenceTransformer(folder).save(folder) of sentence-transformers"
        raise UserError(f"{folder} has no {WHOLE}; {remedy}")
    sizes = [settings.read(int, name) for name in ("in_features", "out_features")]
    layer: Any = Projection(sizes[0], sizes[1], settings.read(bool, "bias", True), function)
    return layer_with_weights(layer, folder)


def layer_with_weights(layer: Any, folder: Path) -> Any:
    """Load a folder's weights into a module with the same names. Raises UserError if they do not fit."""
    tensors = read_weights(folder)
    expected = {name: tensor.shape for name, tensor in layer.state_dict().items()}
    if {name: array.shape for name, array in tensors.items()} != expected:
        raise UserError(f"the weights in {folder} do not fit its config.json: expected {expected}")
    layer.load_state_dict({name: numbers_of(array).astype(host.float32) for name, array in tensors.items()}, assign=True)
    return layer
