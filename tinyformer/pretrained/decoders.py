"""What the families of decoders share: with an output layer they are a ``GPT``, and without one a ``GPTVectors``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tinyformer.models.gpt import GPTConfig, GPTVectors
from tinyformer.pretrained.families import Family
from tinyformer.pretrained.settings import PretrainedSettings

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
