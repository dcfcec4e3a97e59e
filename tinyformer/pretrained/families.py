"""A family: how models of one architecture, in Hugging Face's layout, correspond to models here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tinyformer.models.gpt import GPT, GPTConfig, GPTVectors
from tinyformer.pretrained.settings import PretrainedSettings
from tinytensor.device.backend import Array, default_dtype
from tinytensor.nn import Module

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a block, in the name of a layer


@dataclass(frozen=True)
class Family:
    """What is known of one architecture, with one head or without.

    ``names`` maps the name of a layer here to theirs, or of a tensor that belongs to no layer. In it:

    - ``*`` stands for the number of a block.
    - ``[q,k,v]`` stands for several layers, which here are one: their outputs lie side by side.
    - ``^T`` at the end says that their weight is stored as (inputs, outputs), ``^1`` that a vector is stored as (1, n), and
      ``^-1`` that a weight is stored less 1.

    ``make`` builds the model for the settings of a config.json. ``describe`` gives those settings for a model of the class
    ``kind`` for which ``suits`` is true, or raises UserError if the architecture cannot be that model.

    A config.json is of this family if its ``model_type`` and one of its ``architectures`` are here. Where no family has these
    architectures, it is the first for which ``found`` is true, of the settings and the names of the file's tensors.

    ``prefix`` begins the names of all layers but heads, and some files leave it out. ``copies`` maps the name of a tensor to
    that of another which it shares its values with: files have both, or either.

    Four are regular expressions: ``ignored`` of names in files that say nothing new, ``unused`` of those whose layers are left
    out, which is told, ``optional`` of names here that a file may lack, and ``biases`` of the names that biases have here and
    that files must have, even where a model has none.
    """

    name: str
    model_types: tuple[str, ...]
    names: Mapping[str, str]
    make: Callable[[PretrainedSettings], Module]
    describe: Callable[[Any], dict[str, Any]]
    kind: type[Module]
    suits: Callable[[Any], bool] = lambda model: True
    architectures: tuple[str, ...] = ()
    found: Callable[[PretrainedSettings, Collection[str]], bool] = lambda settings, names: True
    prefix: str = ""
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: str = r"(?!)"
    unused: str = r"(?!)"
    optional: str = r"(?!)"
    biases: str = r"(?!)"

    def ignores(self, name: str, pattern: str) -> bool:
        """Whether the name of a tensor in a file, with the prefix or without, is one of those of a pattern."""
        return any(re.fullmatch(pattern, whole) for whole in (name, self.prefix + name))

    def source(self, name: str) -> Source:
        """Where the tensor ``name`` of a model here comes from."""
        layer, _, kind = name.rpartition(".")
        if name in self.names:
            layer, kind = name, ""
        theirs, _, layout = self.names[_NUMBER.sub("*", layer)].partition("^")
        for number in _NUMBER.findall(layer):
            theirs = theirs.replace("*", number, 1)
        ending = f".{kind}" if kind else ""
        return Source(tuple(part + ending for part in _expanded(theirs)), "" if kind == "bias" else layout)


# Of each layout: from ours to theirs, and back.
_LAYOUTS: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "": (lambda x: x, lambda x: x),
    "T": (lambda x: x.T, lambda x: x.T),
    "1": (lambda x: x[None], lambda x: x[0]),
    "-1": (lambda x: x - 1, lambda x: x.astype(default_dtype) + 1),
}


@dataclass(frozen=True)
class Source:
    """The tensors of a file that are one tensor here, one after the other along its first axis. ``layout`` says how the file
    has each: "T" transposed, "1" with a first axis of 1, "-1" less 1, "" as it is here."""

    names: tuple[str, ...]
    layout: str = ""

    def as_theirs(self, part: Array) -> Array:
        """A part of the tensor here, as the file has it."""
        return _LAYOUTS[self.layout][0](part)

    def as_ours(self, part: Array) -> Array:
        """A tensor of the file, as it is here."""
        return _LAYOUTS[self.layout][1](part)

    def lengths(self, model: Module, length: int) -> list[int]:
        """How long each part is of a tensor of ``model`` whose first axis has this length."""
        parts = len(self.names)
        if isinstance(model, (GPT, GPTVectors)) and parts == 3:  # queries, and fewer keys and values
            key_value_heads, d_head = model.config.block.head_sizes
            return [length - 2 * key_value_heads * d_head, key_value_heads * d_head, key_value_heads * d_head]
        return [length // parts] * parts


def _expanded(name: str) -> list[str]:
    """The names that a name with a list in brackets stands for."""
    found = re.fullmatch(r"(.*)\[(.*)\](.*)", name)
    return [name] if found is None else [f"{found[1]}{choice}{found[3]}" for choice in found[2].split(",")]


# ------------------------------------------------------------------------------------------------------------- language models

# With an output layer they are a ``GPT``, and without one a ``GPTVectors``.
OTHER_HEADS = r"(score|classifier|qa_outputs|multiple_choice_head|v_head)\..*"
_WITH_OUTPUT = ("ForCausalLM", "LMHeadModel")


def has_output(name: str, is_tied: bool) -> Callable[[PretrainedSettings, Collection[str]], bool]:
    """A function that tells by the settings of a folder, and by the names of its tensors, whether the model has an output
    layer. ``name`` is that of the layer's weight, and ``is_tied`` says if it is the token embedding where nothing is said."""

    def is_there(settings: PretrainedSettings, names: Collection[str]) -> bool:
        if settings.read(bool, "tie_word_embeddings", is_tied) or name in names:
            return True
        return any(named.endswith(_WITH_OUTPUT) for named in settings.read(list[str], "architectures", []))

    return is_there


def without_output(family: Family, config_of: Callable[[PretrainedSettings], GPTConfig]) -> Family:
    """The same family for models without output layer."""
    return replace(
        family,
        names={f"gpt.{name}": theirs for name, theirs in family.names.items()},
        make=lambda settings: GPTVectors(config_of(settings)),
        kind=GPTVectors,
        found=lambda settings, names: True,
        copies={},
        biases=r"gpt\.(" + family.biases + ")",
    )
