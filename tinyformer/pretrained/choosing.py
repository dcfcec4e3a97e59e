"""The list of families, and the selection of one for a folder or a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tinyformer.common.errors import UserError, shortened
from tinyformer.models.bert import Bert, BertForMaskedLM, BertHead
from tinyformer.models.gpt import GPT, GPTVectors
from tinyformer.models.transformer import Transformer
from tinyformer.pretrained.decoders import GPT2, GPT2_VECTORS, LLAMAS, LLAMAS_VECTORS, MARIAN, MARIAN_SEPARATE
from tinyformer.pretrained.encoders import BERTS, DISTILBERTS, MPNETS, ROBERTAS
from tinyformer.pretrained.families import Family, PretrainedSettings
from tinytensor.common.wording import a_or_an

PretrainedModel = GPT | GPTVectors | Bert | BertForMaskedLM | BertHead | Transformer
# Within a ``model_type``, families with heads come first.
FAMILIES = (
    GPT2, GPT2_VECTORS, *LLAMAS, *LLAMAS_VECTORS, *BERTS, *DISTILBERTS, *ROBERTAS, *MPNETS, MARIAN, MARIAN_SEPARATE,
)  # fmt: skip


def families_of(settings: PretrainedSettings) -> list[Family]:
    """Return the families for a config.json's ``model_type``, with any head. Raises UserError if there are none."""
    model_type = settings.read(str, "model_type")
    if families := [family for family in FAMILIES if model_type in family.model_types]:
        return families
    known = ", ".join(dict.fromkeys(name for family in FAMILIES for name in family.model_types))
    raise settings.error(f"unknown model_type {shortened(repr(model_type), 40)}: only {known} can be loaded")


def family_among(families: Sequence[Family], settings: PretrainedSettings, names: Collection[str]) -> Family:
    """Return the family whose head config.json names, or else the family that matches the tensor ``names``."""
    named = set(settings.read(list[str], "architectures", []))
    likely = [family for family in families if named & set(family.architectures)]
    return next(family for family in likely or families if likely or family.matches(settings, names))


def family_for(model: PretrainedModel) -> Family:
    """Return the family in whose format to save a model. Raises UserError if there is none."""
    for family in FAMILIES:
        if type(model) is family.model_class and family.suits(model):
            return family
    name, known = type(model).__name__, list(dict.fromkeys(family.model_class.__name__ for family in FAMILIES))
    if name in known:
        raise UserError(f"{a_or_an(name)} with these settings fits no Hugging Face architecture: save its state_dict instead")
    raise UserError(f"{a_or_an(name)} cannot be saved in Hugging Face's layout: only {', '.join(known)} can")
