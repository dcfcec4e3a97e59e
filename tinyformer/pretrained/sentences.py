"""Models of sentence-transformers: sentences as vectors, such that those of like meaning lie close together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.files import damaged, parse_json, read_json, read_utf8
from tinyformer.common.schema import read_value
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
_PROMPTS = {"query": "", "document": ""}  # where a model has no others
_FILES = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")]
# The settings of a Transformer that are read or change nothing, and its values: it reads texts, and gives tokens vectors.
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
_TOKENS_AT_ONCE = 1024  # of a batch, padding included: what one core computes while its values stay close by


@dataclass
class SentenceEncoder:
    """A model of sentences with its tokenizer.

    ``max_length`` is how many tokens of a text are read, those around it included. ``prompts`` are texts to be put before a
    sentence, by their names, such as "query"; ``default_prompt`` is the name of one that is used where nothing is said. With
    ``lowercase`` texts are lowercased first, and without ``count_prompt`` pooling leaves a prompt's tokens out. Vectors are cut
    to ``truncate_dim`` values, if that is given. ``similarity_fn_name`` is "cosine", "dot", "euclidean" or "manhattan"; another
    one raises SettingError.
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
            raise SettingError(f"similarity_fn_name {shown} is not known; there are {known}")

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
    ) -> Array:
        """The vectors of sentences, a NumPy array (number of sentences, width) in float32; of a single one, (width,).

        ``prompt_name`` names one of the ``prompts``, or ``prompt`` is itself put before each sentence. The name of a special
        token in a text is that token, as in "Title[SEP]Abstract". Vectors are cut to their first ``truncate_dim`` values.
        Sentences of about the same length are computed together, on several cores. Raises UserError for anything but texts, for
        a prompt's name that is not known, and for a ``truncate_dim`` below 1.
        """
        if isinstance(sentences, str):
            return self.encode([sentences], prompt_name, prompt, truncate_dim)[0]
        if not isinstance(sentences, Iterable) or isinstance(sentences, (bytes, Mapping)):
            raise UserError(f"sentences are a text or a list of texts, not {shortened(repr(sentences), 40)}")
        size = self.truncate_dim if truncate_dim is None else truncate_dim
        if size is not None and size < 1:
            raise UserError(f"truncate_dim must be at least 1, not {size}")
        before = self._prompt(prompt_name) if prompt is None else prompt
        texts = [self.ids_of(before, sentence) for sentence in sentences]
        skipped = 0
        if before and not self.count_prompt:
            ids = self.ids_of("", before)
            skipped = len(ids) - (ids[-1] in self.tokenizer.special.values())
        batches = _batches([len(ids) for ids in texts])
        shards = [batches[i :: default_shards()] for i in range(default_shards())]
        work = functools.partial(self._vectors, texts, skipped)
        found = call_together([functools.partial(work, shard) for shard in shards if shard])
        rows = host.concatenate([row for part in found for row in part] or [host.empty((0, self.width), host.float32)])
        order = [i for shard in shards for batch in shard for i in batch]
        result = host.empty(rows.shape, rows.dtype)
        result[order] = rows
        return result[:, :size]

    def encode_query(self, sentences: str | Iterable[str], prompt_name: str | None = None, **settings: Any) -> Array:
        """The vectors of questions: ``encode``, with the prompt "query" where none is given."""
        return self.encode(sentences, prompt_name or "query", **settings)

    def encode_document(self, sentences: str | Iterable[str], prompt_name: str | None = None, **settings: Any) -> Array:
        """The vectors of texts that questions are about: ``encode``, with the prompt "document" where none is given."""
        return self.encode(sentences, prompt_name or "document", **settings)

    def similarity(self, vectors: Any, others: Any) -> Array:
        """How alike vectors are, (n, width) and (m, width) -> (n, m) in float32: their cosine or dot product, or their distance
        below zero, as ``similarity_fn_name`` says."""
        x, y = (host.atleast_2d(host.asarray(rows, host.float32)) for rows in (vectors, others))
        return SIMILARITIES[self.similarity_fn_name](x, y)

    @property
    def width(self) -> int:
        """The number of values in a sentence's vector."""
        projections = [layer.linear.weight.shape[0] for layer in self.model.layers if isinstance(layer, Projection)]
        width = projections[-1] if projections else self.model.encoder.config.d_model * len(self.model.pooling.kinds)
        return int(min(width, self.truncate_dim or width))

    def ids_of(self, prompt: str, sentence: str) -> list[int]:
        """The ids of a sentence behind a prompt, with those that the model expects around it."""
        if not isinstance(sentence, str):
            raise UserError(f"a sentence is a text, not {shortened(repr(sentence), 40)}: pass a list of texts")
        text = prompt + sentence
        around = self.tokenizer.before, self.tokenizer.after
        room = max(self.max_length - sum(map(len, around)), 0)
        if self.lowercase:
            parts = cut_at_special(text, self.tokenizer.special)
            text = "".join(part if special is not None else "".join(map(str.lower, part)) for part, special in parts)
        ids = self.tokenizer.encode(text, allow_special=True)[:room].tolist()
        return [*around[0], *ids, *around[1]] or [self.pad]  # no model reads nothing

    @property
    def pad(self) -> int:
        """The id that fills up shorter texts. A GPT has none, and no token of it sees those behind it."""
        return self.model.encoder.config.pad if isinstance(self.model.encoder, Bert) else 0

    def padded(self, texts: Sequence[str], prompt: str = "") -> tuple[Tensor, Tensor]:
        """The ids of texts behind a prompt, and the mask of their tokens, (number of texts, length) each, for the model."""
        rows = [self.ids_of(prompt, text) for text in texts]
        return tt.tensor(padded(rows, self.pad)), tt.tensor(_is_token(rows))

    def _prompt(self, name: str | None) -> str:
        name = self.default_prompt if name is None else name
        prompts = {**_PROMPTS, **self.prompts}
        if name is not None and name not in prompts:
            shown, known = shortened(repr(name), 40), ", ".join(prompts)
            raise UserError(f"there is no prompt {shown}; there are {known}. prompt= takes any text")
        return "" if name is None else prompts[name]

    def _vectors(self, texts: Sequence[Sequence[int]], skipped: int, batches: Sequence[Sequence[int]]) -> list[Array]:
        """The vectors of the texts in each batch, which are given by their places."""
        found = []
        with tt.no_grad(), evaluating(self.model):
            for batch in batches:
                rows = [texts[i] for i in batch]
                is_token = _is_token(rows)
                counted = is_token & (host.arange(is_token.shape[1]) >= skipped)
                given = tt.tensor(padded(rows, self.pad)), tt.tensor(is_token), tt.tensor(counted) if skipped else None
                found.append(self.model(*given).numpy())
        return found


def _is_token(rows: Sequence[Sequence[int]]) -> Array:
    """Where padded rows have ids of their own: booleans (number of rows, length of the longest)."""
    lengths = host.array([len(row) for row in rows])
    return host.arange(lengths.max()) < lengths[:, None]


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """The places of texts, the longest first, in batches of about as many tokens, padding included."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > _TOKENS_AT_ONCE:
            batches.append([])
        batches[-1].append(i)
    return batches


def sentence_encoder(path_or_name: str | Path, revision: str | None = None, dtype: str | None = None) -> SentenceEncoder:
    """The model of sentence-transformers in a folder, or of this name on the Hugging Face hub, with its tokenizer.

    The folder has a modules.json, which names a Transformer (of a family that ``from_pretrained`` reads, without its head),
    Pooling, and then Dense and Normalize in any order. ``dtype`` is that of ``from_pretrained``.

    Raises UserError for other modules and settings, and as ``from_pretrained`` and ``pretrained_tokenizer`` do.
    """
    return encoder_around(find_folder(path_or_name, revision), lambda place: load_encoder(place, dtype))


def encoder_around(folder: Path, load: Callable[[Path], Bert | GPT | GPTVectors]) -> SentenceEncoder:
    """What ``sentence_encoder`` gives for a folder, with the encoder that ``load`` has for the Transformer's own."""
    (_, place), (_, of_pooling), *others = _modules(folder)
    pooling, count_prompt = _pooling(PretrainedSettings(of_pooling / "config.json"))
    encoder = load(place)
    for path in [path for kind, path in others if kind == "Normalize"]:
        _settings(path / "config.json", (), **_OF_SENTENCES)
    layers = [_projection(path) if kind == "Dense" else Normalize() for kind, path in others]
    model = SentenceModel(encoder, pooling, layers).eval()
    tokenizer = pretrained_tokenizer(place)
    own = _settings(next((place / name for name in _FILES if (place / name).exists()), place / _FILES[0]), _READ, **_TEXTS)
    shared = _settings(folder / "config_sentence_transformers.json", _SHARED, model_type="SentenceTransformer")
    of_tokenizer = _settings(place / "tokenizer_config.json", truncation_side="right")
    longest = encoder.config.max_length if isinstance(encoder, Bert) else encoder.config.block_size
    usual = of_tokenizer.read(float, "model_max_length", float(longest))
    max_length = int(min(own.read(int, "max_seq_length", 0) or usual, longest))
    if max_length <= len(tokenizer.before) + len(tokenizer.after):
        raise own.error(f"max_seq_length {max_length} leaves no room for a text")
    prompts = shared.read(dict[str, str | None], "prompts", {})
    default = shared.read(str, "default_prompt_name", "")
    if default and default not in _PROMPTS | prompts:
        raise shared.error(f"default_prompt_name {shortened(repr(default), 40)} is not one of the prompts")
    try:
        return SentenceEncoder(
            model,
            tokenizer,
            max_length=max_length,
            prompts={name: text or "" for name, text in prompts.items()},
            default_prompt=default or None,
            lowercase=own.read(bool, "do_lower_case", False),
            count_prompt=count_prompt,
            truncate_dim=shared.read(int, "truncate_dim", 0) or None,
            similarity_fn_name=shared.read(str, "similarity_fn_name", "cosine"),
        )
    except SettingError as error:
        raise shared.error(str(error)) from None


def _settings(path: Path, known: Sequence[str] | None = None, **allowed: Any) -> PretrainedSettings:
    """The settings of a file that may be missing: with ``known`` no others, and these, if they are there, with one value."""
    settings = PretrainedSettings(path, read_json(path) if path.exists() else {})
    settings.refuse(**allowed)
    if known is not None:
        settings.refuse_others(*known, *allowed)
    return settings


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """The kinds and the folders of the modules that modules.json names: a Transformer, a Pooling, and others."""
    path = folder / MODULES
    if not path.exists():
        raise UserError(
            f"{folder} has no {MODULES}: pass a folder of sentence-transformers. Of another model, SentenceModel makes vectors"
        )
    with damaged(path):
        found = read_value(list[dict[str, Any]], parse_json(f'{{"modules": {read_utf8(path, "JSON")}}}')["modules"], "modules")
        kinds = [read_value(str, module.get("type"), "type").rpartition(".")[2] for module in found]
        places = [folder / read_value(str, module.get("path"), "path") for module in found]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= {"Dense", "Normalize"}:
        shown = shortened(", ".join(kinds), 80) or "nothing"
        raise UserError(f"{path} names {shown}; here it can be Transformer and Pooling, then Dense and Normalize in any order")
    if outside := [place for place in places if not place.resolve().is_relative_to(folder.resolve())]:
        raise UserError(f"{path} is damaged: {outside[0]} is not in its folder")
    return list(zip(kinds, places))


def _pooling(settings: PretrainedSettings) -> tuple[tuple[str, ...], bool]:
    """The kinds of pooling, and whether it counts the tokens of a prompt. Older files have a switch for each kind."""
    named = settings.values.get("pooling_mode")
    endings = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}
    switches = {kind: f"pooling_mode_{endings.get(kind, kind)}" for kind in POOLINGS}
    sizes = ("embedding_dimension", "word_embedding_dimension")
    settings.refuse_others("pooling_mode", "include_prompt", *sizes, *switches.values())
    if named is None:
        named = [kind for kind, switch in switches.items() if settings.read(bool, switch, False)] or ["mean"]
    kinds = [named] if isinstance(named, str) else settings.read(list[str], "pooling_mode", named)
    if not kinds:
        raise settings.error(f"pooling_mode names no pooling; there are {', '.join(POOLINGS)}")
    if unknown := [kind for kind in kinds if kind not in POOLINGS]:
        raise settings.error(f"pooling_mode {shortened(repr(unknown[0]), 40)} is not known; there are {', '.join(POOLINGS)}")
    return tuple(kinds), settings.read(bool, "include_prompt", True)


def _projection(folder: Path) -> Projection:
    """The layer of a folder of Dense."""
    names = ("in_features", "out_features", "bias", "activation_function")
    settings = _settings(folder / "config.json", names, use_residual=False, **_OF_SENTENCES)
    path, _, function = settings.read(str, "activation_function", "torch.nn.Tanh").rpartition(".")
    if function not in Projection.FUNCTIONS or path.partition(".")[0] != "torch":
        known = ", ".join(Projection.FUNCTIONS)
        shown = shortened(repr(settings.values["activation_function"]), 60)
        raise settings.error(f"activation_function {shown} is not known; there are torch.nn's {known}")
    if not (folder / WHOLE).exists():
        remedy = "SentenceTransformer(folder).save(folder) of sentence-transformers writes one, if you trust the folder"
        raise UserError(f"{folder} has no {WHOLE}; {remedy}")
    sizes = [settings.read(int, name) for name in ("in_features", "out_features")]
    layer: Any = Projection(sizes[0], sizes[1], settings.read(bool, "bias", True), function)
    return layer_with_weights(layer, folder)


def layer_with_weights(layer: Any, folder: Path) -> Any:
    """A module with the weights of a folder, which has them by the same names. Raises UserError if they do not fit."""
    found = read_weights(folder)
    expected = {name: tensor.shape for name, tensor in layer.state_dict().items()}
    if {name: array.shape for name, array in found.items()} != expected:
        raise UserError(f"the weights in {folder} are not those of its settings: they are not {expected}")
    layer.load_state_dict({name: numbers_of(array).astype(host.float32) for name, array in found.items()}, assign=True)
    return layer
