"""LoRA adapters in PEFT format: a folder with adapter_config.json and adapter_model.safetensors.

An adapter holds what ``tt.nn.add_lora`` adds to a model's weights, and other trained layers, such as a new head. PEFT uses
layer names from ``transformers``, which the families map. If several of those layers, such as q_proj and v_proj, are one layer
here, an adapter covers only some of its rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import tinytensor as tt
from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import write_json
from tinyformer.models.bert import Bert
from tinyformer.models.gpt import GPT, GPTVectors
from tinyformer.models.transformer import Transformer
from tinyformer.pretrained.adapter_settings import REMEDY, WEIGHTS, AdapterSettings, described
from tinyformer.pretrained.choosing import PretrainedModel, family_for
from tinyformer.pretrained.families import Family, Source
from tinyformer.pretrained.folders import ADAPTER, find_folder, read_tensors
from tinyformer.pretrained.weights import listed, misfits, put_together, weight_beside
from tinytensor import Tensor
from tinytensor.device.backend import Array, host
from tinytensor.device.disk import make_folder
from tinytensor.io import HALVES, as_numbers, save
from tinytensor.nn import Linear, Module, Parameter, init
from tinytensor.nn.lora import Addition, LoraWeight, attach, freeze_base
from tinytensor.nn.quantization import quantized_weights

_BEGIN = "base_model.model."  # prefix of all tensor names
_OF_A_LAYER = re.compile(r"(.*)\.lora_([AB])\.weight")
_TASKS = {GPT: "CAUSAL_LM", Transformer: "SEQ_2_SEQ_LM"}

AnyModule = TypeVar("AnyModule", bound=PretrainedModel)


@dataclass(frozen=True)
class _Rows:
    """A ``transformers`` linear layer: rows ``first`` to ``last`` - 1 of one of our layers."""

    layer: str
    first: int
    last: int


def load_adapter(model: AnyModule, path_or_name: str | Path, revision: str | None = None) -> AnyModule:
    """Load a LoRA adapter from a folder or the Hugging Face hub into its base model, in place. Return the model. The base
    weights are frozen, so the adapter can be trained further. Merge it with ``tt.nn.merge_lora(model)``. Base weights may be
    int8, int4 or bfloat16.

    Raises UserError for a damaged adapter, or an adapter of another type or model. In that case, the model is unchanged.
    """
    folder = find_folder(path_or_name, revision)
    settings = AdapterSettings(folder)
    if not (folder / WEIGHTS).exists():
        raise UserError(f"{folder} has no {WEIGHTS}: save the adapter with safe_serialization=True in PEFT")
    tensors = read_tensors(folder / WEIGHTS)
    arrays = {name.removeprefix(_BEGIN).replace(".base_layer.", "."): array for name, array in tensors.items()}
    if tables := [name.partition(".lora_embedding_")[0] for name in arrays if ".lora_embedding_" in name]:
        raise settings.refused(f"an addition to the embedding {shortened(tables[0], 80)}")
    family = family_for(model)
    layers = _places(model, family)
    factors, in_full = _sorted(arrays)
    if layers.keys().isdisjoint(factors) and not (headless := _without_prefix(layers, family)).keys().isdisjoint(factors):
        layers = headless
    problems = _missing(settings, family, layers, factors) + _unfit(model, settings, layers, factors)
    replaced, more_problems = _whole_weights(model, family, in_full, settings)
    if problems := problems + more_problems:
        raise UserError(f"{folder / WEIGHTS} does not fit this {type(model).__name__} and {ADAPTER}: {listed(problems, '; ')}")
    model.load_state_dict(replaced, strict=False)
    learned = [
        p for name, p in model.named_parameters() if name in replaced and all(map(settings.is_saved, family.source(name).names))
    ]
    for path, (down, up) in factors.items():
        rows, rank = layers[path], len(down)
        layer = cast(Linear, model.get_submodule(rows.layer))
        with init.skipped():
            added = Addition(
                layer.weight, rank, settings.alpha_of(path), settings.dropout, settings.rank_stabilized, (rows.first, rows.last)
            )
        added.load_state_dict({"down": _own(down), "up": _own(up)}, assign=True)
        attach(model, layer, added)
    freeze_base(model)
    for parameter in learned:
        parameter.requires_grad = True
    return model


def save_adapter(model: PretrainedModel, folder: str | Path, base: str = "") -> None:
    """Save a model's ``tt.nn.add_lora`` adapters and its other trainable parameters, for ``load_adapter`` and PEFT's
    ``PeftModel.from_pretrained``. Creates the folder if needed. ``base`` is the folder or name of the base model, for readers
    that look it up.

    Raises UserError if there is nothing to save or PEFT cannot express it: two adapters on the same rows, a trained layer that
    also has an adapter, or a trained output layer tied to the embedding. Raises OSError if the files cannot be written.
    """
    family = family_for(model)
    layers = _places(model, family)
    if isinstance(model, (Bert, GPTVectors)):  # these have no prefix in transformers
        layers = _without_prefix(layers, family)
    added = {path: _addition(model, path, rows) for path, rows in layers.items()}
    additions = {path: addition for path, addition in added.items() if addition is not None}
    if not additions:
        raise UserError("the model has no additions to save as an adapter: add them with tt.nn.add_lora(model) and train")
    for path in additions:
        layer = cast(Any, model.get_submodule(layers[path].layer))
        if any(isinstance(p, Parameter) and p.requires_grad for p in (layer.weight.base, layer.bias)):
            raise UserError(f"PEFT cannot train {path} beside its addition: freeze the layer, or merge the addition")
    saved = dict(_saved(model, family))
    tensors = {f"{_BEGIN}{name}": tensor for name, tensor in saved.items()}
    for path, addition in additions.items():
        rows, first = layers[path], addition.first
        up = host.zeros((rows.last - rows.first, len(addition.down)), addition.up.numpy().dtype)
        begin, end = max(rows.first, first), min(rows.last, addition.last)
        up[begin - rows.first : end - rows.first] = addition.up.numpy()[begin - first : end - first]
        tensors[f"{_BEGIN}{path}.lora_A.weight"] = addition.down.detach()
        tensors[f"{_BEGIN}{path}.lora_B.weight"] = tt.tensor(up)
    is_turned = any(family.source(f"{layers[path].layer}.weight").layout == "T" for path in additions)
    saved_layers = list(dict.fromkeys(name.rpartition(".")[0] for name in saved))
    folder = Path(folder)
    make_folder(folder)
    save(tensors, folder / WEIGHTS, {"format": "pt"})
    write_json(folder / ADAPTER, described(additions, layers, saved_layers, base, is_turned, _TASKS.get(type(model))))


def _places(model: Module, family: Family) -> dict[str, _Rows]:
    """Return the ``transformers`` linear layers in a model, by their paths there."""
    layers = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Linear):
            source = family.source(f"{name}.weight")
            ends = accumulate(source.lengths(model, layer.weight.shape[0]), initial=0)
            for theirs, (first, last) in zip(source.names, pairwise(ends)):
                layers[theirs.removesuffix(".weight")] = _Rows(name, first, last)
    return layers


def _without_prefix(layers: Mapping[str, _Rows], family: Family) -> dict[str, _Rows]:
    """Return the layers by their names in models without a head."""
    return {path.removeprefix(family.prefix): rows for path, rows in layers.items()}


# ------------------------------------------------------------------------------------------------------------- reading


def _sorted(tensors: Mapping[str, Array]) -> tuple[dict[str, list[Any]], dict[str, Array]]:
    """Return each layer's two low-rank factors by path (None if missing), and all other tensors."""
    factors, in_full = dict[str, list[Any]](), dict[str, Array]()
    for name, array in tensors.items():
        if match := _OF_A_LAYER.fullmatch(name):
            factors.setdefault(match[1], [None, None])["AB".index(match[2])] = array
        else:
            in_full[name] = array
    return factors, in_full


def _missing(settings: AdapterSettings, family: Family, layers: Mapping[str, _Rows], factors: Mapping[str, Any]) -> list[str]:
    """Return the layers listed in the settings but missing from the file."""
    outputs = [path for path, rows in layers.items() if rows.layer == "output"]
    needed = [path for path, rows in layers.items() if not re.fullmatch(family.optional, f"{rows.layer}.weight")]
    wanted = settings.targets(needed, outputs)
    return [f"{path}.lora_A.weight is missing" for path in wanted if path not in factors]


def _unfit(model: Module, settings: AdapterSettings, layers: Mapping[str, _Rows], factors: Mapping[str, Any]) -> list[str]:
    """Return the problems with the adapter's factors."""
    problems = []
    for path, parts in factors.items():
        if path not in layers:
            problems.append(f"the model has no linear layer {path}")
            continue
        rows, rank = layers[path], settings.rank_of(path)
        if rank < 1 or not 0 < settings.alpha_of(path) < math.inf:
            problems.append(f"rank and alpha of {path} must be positive, got {rank} and {settings.alpha_of(path)}")
        inputs = cast(Any, model.get_submodule(rows.layer)).weight.shape[1]
        for letter, array, shape in zip("AB", parts, ((rank, inputs), (rows.last - rows.first, rank))):
            name = f"{path}.lora_{letter}.weight"
            if array is None:
                problems.append(f"{name} is missing")
            elif array.shape != shape:
                problems.append(f"{name} must have shape {shape}, got {array.shape}")
            elif array.dtype.kind != "f" and array.dtype != HALVES:
                problems.append(f"{name} must be floating-point, got {array.dtype}")
            elif not host.isfinite(as_numbers(array)).all():
                problems.append(f"{name} has NaN or infinite values")
    return problems


def _whole_weights(
    model: Module, family: Family, in_full: dict[str, Array], settings: AdapterSettings
) -> tuple[dict[str, Array], list[str]]:
    """Return the weights that an adapter saves in full, by our names, and any problems with them."""
    state, used = dict[str, Array](), set[str]()
    in_full, tied = _without_copies(model, family, in_full)
    problems = tied + [
        f"{theirs} is a full weight, which cannot replace one in {weight.kind}: load the model in float32"
        for name, weight in quantized_weights(model)
        for theirs in family.source(name.removesuffix(".base")).names
        if not in_full.keys().isdisjoint(_spellings(theirs, family))
    ]
    for name, shape, source in _own_weights(model, family):
        arrays = {theirs: in_full[key] for theirs in source.names for key in _spellings(theirs, family) if key in in_full}
        saved = [settings.is_saved(theirs) for theirs in source.names]
        if arrays or all(saved):
            used |= {key for theirs in source.names for key in _spellings(theirs, family)}
            wrong = misfits(model, source, arrays, shape)
            if absent := [theirs for theirs, is_saved in zip(source.names, saved) if theirs not in arrays and not is_saved]:
                wrong = [f"{next(iter(arrays))} is a full weight and {absent[0]} is not, but they are one here: {REMEDY}"]
            problems += wrong
            if not wrong:
                state[name] = put_together(source, arrays)
    return state, problems + [f"{name} is not expected" for name in in_full if name not in used]


def _without_copies(model: Module, family: Family, in_full: dict[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """Drop weights that the model has under another name, such as an embedding tied to the output layer. Return the rest, and
    any problems: copies with different values or saved under only one name, which would untie them."""
    ours = {theirs for _, _, source in _own_weights(model, family) for theirs in source.names}
    problems, remaining = [], dict(in_full)
    for copy, original in family.copies.items():
        if copy in ours or original not in ours or weight_beside(copy):  # PEFT also ties biases
            continue
        keys = [next((key for key in _spellings(name, family) if key in in_full), None) for name in (copy, original)]
        if keys == [None, None]:
            continue
        if None in keys or not host.array_equal(*(as_numbers(in_full[cast(str, key)]) for key in keys)):
            problems.append(f"{original} and {copy} are tied, but the adapter changes only one: train with ensure_weight_tying")
        remaining.pop(cast(str, keys[0]), None)
    return remaining, problems


def _spellings(name: str, family: Family) -> tuple[str, str]:
    """Return the names of a tensor in adapters of models with and without a head."""
    return name, name.removeprefix(family.prefix)


def _own_weights(model: Module, family: Family) -> Iterator[tuple[str, tuple[int, ...], Source]]:
    """Yield the name, shape and source of each parameter outside the adapter."""
    for name, parameter in model.named_parameters():
        layer = model.get_submodule(name.rpartition(".")[0])
        if not isinstance(layer, (LoraWeight, Addition)):
            yield name, parameter.shape, family.source(name)


def _own(array: Array) -> Array:
    """Copy a file's tensor, in the parameter dtype."""
    return host.array(as_numbers(array), "float32", order="C")


# ------------------------------------------------------------------------------------------------------------- writing


def _addition(model: Module, path: str, rows: _Rows) -> Addition | None:
    """Return the adapter on the rows of a ``transformers`` layer, or None."""
    weight = cast(Any, model.get_submodule(rows.layer)).weight
    if not isinstance(weight, LoraWeight):
        return None
    additions = [one for one in cast("Iterator[Addition]", weight.additions) if one.first < rows.last and rows.first < one.last]
    if len(additions) > 1:
        raise UserError(f"PEFT allows one addition per layer, got {len(additions)} for {path}: merge the earlier ones first")
    return additions[0] if additions else None


def _saved(model: Any, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of layers with a trainable parameter outside the adapter, by their ``transformers`` names."""
    parameters = dict(model.named_parameters())
    learned = {name.rpartition(".")[0] for name, _, _ in _own_weights(model, family) if parameters[name].requires_grad}
    if hasattr(model, "output_weight") and model.output is None and getattr(model.output_weight(), "requires_grad", False):
        raise UserError("a trained embedding that is also the output layer does not fit an adapter: freeze it, or save all")
    for name, _, source in _own_weights(model, family):
        if name.rpartition(".")[0] in learned:
            values = parameters[name].numpy()
            ends = list(accumulate(source.lengths(model, len(values))))
            for theirs, part in zip(source.names, host.split(values, ends[:-1])):
                headless = isinstance(model, (Bert, GPTVectors))
                yield theirs.removeprefix(family.prefix) if headless else theirs, tt.tensor(source.as_theirs(part))
