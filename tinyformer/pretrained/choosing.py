"""All families, and which of them a folder or a model is of."""

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
# Of one ``model_type``, those with heads come first.
FAMILIES = (
    GPT2, GPT2_VECTORS, *LLAMAS, *LLAMAS_VECTORS, *BERTS, *DISTILBERTS, *ROBERTAS, *MPNETS, MARIAN, MARIAN_SEPARATE,
)  # fmt: skip


def families_of(settings: PretrainedSettings) -> list[Family]:
    """The families of a config.json's ``model_type``, with any head. Raises UserError if there are none."""
    kind = settings.read(str, "model_type")
    if families := [family for family in FAMILIES if kind in family.model_types]:
        return families
    known = ", ".join(dict.fromkeys(name for family in FAMILIES for name in family.model_types))
    raise settings.error(
        f"the architecture {shortened(repr(kind), 40)} is not known; there are {known}: take a model of one of these"
    )


def family_among(families: Sequence[Family], settings: PretrainedSettings, names: Collection[str]) -> Family:
    """That one of the families of a config.json whose head it has, or the file does, by the ``names`` of its tensors."""
    named = set(settings.read(list[str], "architectures", []))
    likely = [family for family in families if named & set(family.architectures)]
    return next(family for family in likely or families if likely or family.found(settings, names))


def family_for(model: PretrainedModel) -> Family:
    """The family as which a model is written. Raises UserError for a model of another kind."""
    for family in FAMILIES:
        if type(model) is family.kind and family.suits(model):
            return family
    name, known = type(model).__name__, list(dict.fromkeys(family.kind.__name__ for family in FAMILIES))
    if name in known:
        raise UserError(
            f"{a_or_an(name)} with these settings cannot be written in Hugging Face's layout: no family there has all of them"
        )
    raise UserError(f"{a_or_an(name)} cannot be written in Hugging Face's layout; there are {', '.join(known)}")
