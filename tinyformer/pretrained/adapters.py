"""LoRA adapters in PEFT's layout: a folder with adapter_config.json and adapter_model.safetensors.

An adapter is what ``tt.nn.add_lora`` adds to the weights of a model, and what else was trained, such as a new head. PEFT names
layers as the models of ``transformers`` do, so the families know them. Where those have several layers for one of ours, such as
q_proj and v_proj, an adapter is to some of its rows.
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

_BEGIN = "base_model.model."  # of the names of all tensors
_OF_A_LAYER = re.compile(r"(.*)\.lora_([AB])\.weight")
_TASKS = {GPT: "CAUSAL_LM", Transformer: "SEQ_2_SEQ_LM"}

AnyModule = TypeVar("AnyModule", bound=PretrainedModel)


@dataclass(frozen=True)
class _Place:
    """A linear layer of theirs: the name of the layer here, and which of its rows it is."""

    layer: str
    first: int
    last: int


def load_adapter(model: AnyModule, path_or_name: str | Path, revision: str | None = None) -> AnyModule:
    """Put the LoRA adapter of a folder, or of this name on the Hugging Face hub, into the model that it was trained for, in
    place. Returns the model, whose own weights are frozen: the adapter can be trained further. ``tt.nn.merge_lora(model)``
    makes it a plain model. The weights may be in int8, int4 or bfloat16.

    Raises UserError for an adapter of another kind or of another model, and for a damaged one; the model is then unchanged.
    """
    folder = find_folder(path_or_name, revision)
    settings = AdapterSettings(folder)
    if not (folder / WEIGHTS).exists():
        raise UserError(f"{folder} has no {WEIGHTS}: save the adapter in this format, with safe_serialization=True in PEFT")
    tensors = read_tensors(folder / WEIGHTS)
    found = {name.removeprefix(_BEGIN).replace(".base_layer.", "."): array for name, array in tensors.items()}
    if tables := [name.partition(".lora_embedding_")[0] for name in found if ".lora_embedding_" in name]:
        raise settings.refused(f"an addition to the embedding {shortened(tables[0], 80)}")
    family = family_for(model)
    places = _places(model, family)
    factors, whole = _sorted(found)
    if places.keys().isdisjoint(factors) and not (headless := _without_prefix(places, family)).keys().isdisjoint(factors):
        places = headless
    problems = _missing(settings, family, places, factors) + _unfit(model, settings, places, factors)
    replaced, more = _whole_weights(model, family, whole, settings)
    if problems := problems + more:
        raise UserError(f"{folder / WEIGHTS} does not fit this {type(model).__name__} and {ADAPTER}: {listed(problems, '; ')}")
    model.load_state_dict(replaced, strict=False)
    learned = [
        p for name, p in model.named_parameters() if name in replaced and all(map(settings.is_saved, family.source(name).names))
    ]
    for path, (down, up) in factors.items():
        place, rank = places[path], len(down)
        layer = cast(Linear, model.get_submodule(place.layer))
        with init.skipped():
            added = Addition(
                layer.weight,
                rank,
                settings.alpha_of(path),
                settings.dropout,
                settings.rank_stabilized,
                (place.first, place.last),
            )
        added.load_state_dict({"down": _own(down), "up": _own(up)}, assign=True)
        attach(model, layer, added)
    freeze_base(model)
    for parameter in learned:
        parameter.requires_grad = True
    return model


def save_adapter(model: PretrainedModel, folder: str | Path, base: str = "") -> None:
    """Write what ``tt.nn.add_lora`` added to a model, and its other parameters that learn, as ``load_adapter`` reads it, and
    PEFT's ``PeftModel.from_pretrained``. The folder is made if it does not exist. ``base`` is the folder or the name of the
    model that the adapter belongs to, for readers that look for it.

    Raises UserError if there is nothing, or what PEFT cannot have: two additions to the same rows of a layer, a layer that
    learns beside them, and an output layer that learns and is also the embedding; and OSError if the files cannot be written.
    """
    family = family_for(model)
    places = _places(model, family)
    if isinstance(model, (Bert, GPTVectors)):  # which have no prefix in transformers
        places = _without_prefix(places, family)
    added = {path: _addition(model, path, place) for path, place in places.items()}
    additions = {path: addition for path, addition in added.items() if addition is not None}
    if not additions:
        raise UserError("the model has nothing to save as an adapter: tt.nn.add_lora(model) adds something that learns")
    for path in additions:
        layer = cast(Any, model.get_submodule(places[path].layer))
        if any(isinstance(p, Parameter) and p.requires_grad for p in (layer.weight.base, layer.bias)):
            raise UserError(f"PEFT trains a layer or adds to it, and {path} learns beside what is added: freeze it, or merge")
    saved = dict(_saved(model, family))
    tensors = {f"{_BEGIN}{name}": tensor for name, tensor in saved.items()}
    for path, addition in additions.items():
        place, first = places[path], addition.first
        up = host.zeros((place.last - place.first, len(addition.down)), addition.up.numpy().dtype)
        begin, end = max(place.first, first), min(place.last, addition.last)
        up[begin - place.first : end - place.first] = addition.up.numpy()[begin - first : end - first]
        tensors[f"{_BEGIN}{path}.lora_A.weight"] = addition.down.detach()
        tensors[f"{_BEGIN}{path}.lora_B.weight"] = tt.tensor(up)
    is_turned = any(family.source(f"{places[path].layer}.weight").layout == "T" for path in additions)
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in saved))
    folder = Path(folder)
    make_folder(folder)
    save(tensors, folder / WEIGHTS, {"format": "pt"})
    write_json(folder / ADAPTER, described(additions, places, layers, base, is_turned, _TASKS.get(type(model))))


def _places(model: Module, family: Family) -> dict[str, _Place]:
    """The linear layers of theirs that a model has, by their paths there."""
    places = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Linear):
            source = family.source(f"{name}.weight")
            ends = accumulate(source.lengths(model, layer.weight.shape[0]), initial=0)
            for theirs, (first, last) in zip(source.names, pairwise(ends)):
                places[theirs.removesuffix(".weight")] = _Place(name, first, last)
    return places


def _without_prefix(places: Mapping[str, _Place], family: Family) -> dict[str, _Place]:
    """The layers as models without a head name them."""
    return {path.removeprefix(family.prefix): place for path, place in places.items()}


# ------------------------------------------------------------------------------------------------------------- reading


def _sorted(found: Mapping[str, Array]) -> tuple[dict[str, list[Any]], dict[str, Array]]:
    """The two factors of each layer's product by its path, None where one is missing; and all other tensors."""
    factors, whole = dict[str, list[Any]](), dict[str, Array]()
    for name, array in found.items():
        if match := _OF_A_LAYER.fullmatch(name):
            factors.setdefault(match[1], [None, None])["AB".index(match[2])] = array
        else:
            whole[name] = array
    return factors, whole


def _missing(settings: AdapterSettings, family: Family, places: Mapping[str, _Place], factors: Mapping[str, Any]) -> list[str]:
    """The layers that the settings name and the file lacks."""
    outputs = [path for path, place in places.items() if place.layer == "output"]
    needed = [path for path, place in places.items() if not re.fullmatch(family.optional, f"{place.layer}.weight")]
    wanted = settings.targets(needed, outputs)
    return [f"{path}.lora_A.weight is missing" for path in wanted if path not in factors]


def _unfit(model: Module, settings: AdapterSettings, places: Mapping[str, _Place], factors: Mapping[str, Any]) -> list[str]:
    """What is wrong with the factors of an adapter."""
    problems = []
    for path, parts in factors.items():
        if path not in places:
            problems.append(f"the model has no linear layer {path}")
            continue
        place, rank = places[path], settings.rank_of(path)
        if rank < 1 or not 0 < settings.alpha_of(path) < math.inf:
            problems.append(f"rank and alpha of {path} are {rank} and {settings.alpha_of(path)}, and must be positive")
        inputs = cast(Any, model.get_submodule(place.layer)).weight.shape[1]
        for letter, array, shape in zip("AB", parts, ((rank, inputs), (place.last - place.first, rank))):
            name = f"{path}.lora_{letter}.weight"
            if array is None:
                problems.append(f"{name} is missing")
            elif array.shape != shape:
                problems.append(f"{name} has shape {array.shape} instead of {shape}")
            elif array.dtype.kind != "f" and array.dtype != HALVES:
                problems.append(f"{name} is of {array.dtype} instead of floating-point values")
            elif not host.isfinite(as_numbers(array)).all():
                problems.append(f"{name} has NaN or infinite numbers")
    return problems


def _whole_weights(
    model: Module, family: Family, whole: dict[str, Array], settings: AdapterSettings
) -> tuple[dict[str, Array], list[str]]:
    """The weights that an adapter has as a whole, by their names here; and what is wrong with them."""
    state, used = dict[str, Array](), set[str]()
    whole, tied = _without_copies(model, family, whole)
    problems = tied + [
        f"{theirs} is a whole weight, which cannot take the place of one in {weight.kind}: load the model in float32"
        for name, weight in quantized_weights(model)
        for theirs in family.source(name.removesuffix(".base")).names
        if not whole.keys().isdisjoint(_spellings(theirs, family))
    ]
    for name, shape, source in _own_weights(model, family):
        found = {theirs: whole[key] for theirs in source.names for key in _spellings(theirs, family) if key in whole}
        saved = [settings.is_saved(theirs) for theirs in source.names]
        if found or all(saved):
            used |= {key for theirs in source.names for key in _spellings(theirs, family)}
            wrong = misfits(model, source, found, shape)
            if absent := [theirs for theirs, is_saved in zip(source.names, saved) if theirs not in found and not is_saved]:
                wrong = [f"{next(iter(found))} is a whole weight and {absent[0]} is not, but they are one here: {REMEDY}"]
            problems += wrong
            if not wrong:
                state[name] = put_together(source, found)
    return state, problems + [f"{name} is not known" for name in whole if name not in used]


def _without_copies(model: Module, family: Family, whole: dict[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """The weights without those that the model has under another name, as an embedding that is also the output layer; and which
    of these an adapter has under one name only, or with other values: there they are two weights."""
    ours = {theirs for _, _, source in _own_weights(model, family) for theirs in source.names}
    problems, left = [], dict(whole)
    for copy, original in family.copies.items():
        if copy in ours or original not in ours or weight_beside(copy):  # the biases are one in PEFT, too
            continue
        found = [next((key for key in _spellings(name, family) if key in whole), None) for name in (copy, original)]
        if found == [None, None]:
            continue
        if None in found or not host.array_equal(*(as_numbers(whole[cast(str, key)]) for key in found)):
            problems.append(f"{original} is also {copy}, and the adapter changes one alone: train it with ensure_weight_tying")
        left.pop(cast(str, found[0]), None)
    return left, problems


def _spellings(name: str, family: Family) -> tuple[str, str]:
    """The names of a tensor in an adapter of a model with a head, and of one without."""
    return name, name.removeprefix(family.prefix)


def _own_weights(model: Module, family: Family) -> Iterator[tuple[str, tuple[int, ...], Source]]:
    """The parameters of a model that are no part of an adapter: their names, shapes, and sources."""
    for name, parameter in model.named_parameters():
        layer = model.get_submodule(name.rpartition(".")[0])
        if not isinstance(layer, (LoraWeight, Addition)):
            yield name, parameter.shape, family.source(name)


def _own(array: Array) -> Array:
    """A copy of a tensor of a file, in the dtype of parameters."""
    return host.array(as_numbers(array), "float32", order="C")


# ------------------------------------------------------------------------------------------------------------- writing


def _addition(model: Module, path: str, place: _Place) -> Addition | None:
    """What is added to the rows of a layer of theirs, if something is."""
    weight = cast(Any, model.get_submodule(place.layer)).weight
    if not isinstance(weight, LoraWeight):
        return None
    found = [one for one in cast("Iterator[Addition]", weight.additions) if one.first < place.last and place.first < one.last]
    if len(found) > 1:
        raise UserError(f"PEFT has one addition for each layer, and {path} has {len(found)} here: merge those of before first")
    return found[0] if found else None


def _saved(model: Any, family: Family) -> Iterator[tuple[str, Tensor]]:
    """The tensors of layers of which a parameter learns that is no part of an adapter, by their names there."""
    parameters = dict(model.named_parameters())
    learned = {name.rpartition(".")[0] for name, _, _ in _own_weights(model, family) if parameters[name].requires_grad}
    if hasattr(model, "output_weight") and model.output is None and getattr(model.output_weight(), "requires_grad", False):
        raise UserError("an embedding that is also the output layer cannot be a part of an adapter: freeze it, or save all")
    for name, _, source in _own_weights(model, family):
        if name.rpartition(".")[0] in learned:
            values = parameters[name].numpy()
            ends = list(accumulate(source.lengths(model, len(values))))
            for theirs, part in zip(source.names, host.split(values, ends[:-1])):
                headless = isinstance(model, (Bert, GPTVectors))
                yield theirs.removeprefix(family.prefix) if headless else theirs, tt.tensor(source.as_theirs(part))
