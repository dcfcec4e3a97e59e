"""Training only additions to the frozen weights of a pretrained model (LoRA): the settings, and the model that they make."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.files import open_file
from tinyformer.common.schema import check_fields
from tinyformer.common.settings import at_least, setting
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.pretrained.folders import find_folder, weight_files
from tinyformer.pretrained.loading import load_differentiable
from tinytensor.nn import Linear, add_lora

_ALL = {"lora_rank": [0]}


@dataclass(frozen=True)
class LoraConfig:
    """What is learned beside the weights of a pretrained model. Raises SettingError for a value that is not allowed.

    ``base_sha256`` is the SHA-256 of that model's files, which a run does not hold.
    """

    lora_rank: int = setting(0, "rank of the LoRA adapter; 0: train all weights")
    lora_alpha: float = setting(16.0, "LoRA scale, times the rank", unless=_ALL)
    lora_dropout: float = setting(0.0, "dropout probability of the adapter's inputs", unless=_ALL)
    lora_targets: str = setting("query_key_value,output,gate,up,down", "layers to adapt", unless=_ALL)
    base_sha256: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, lora_rank=0)
        if not self.lora_alpha > 0:
            raise SettingError(f"lora_alpha must be positive, not {self.lora_alpha}")
        if not 0.0 <= self.lora_dropout < 1.0:
            raise SettingError(f"lora_dropout must be at least 0 and less than 1, not {self.lora_dropout}")

    def added_to(self, model: GPT) -> GPT:
        """The model with its weights frozen, and additions to them. Raises SettingError for targets that it does not have,
        and a rank above its width."""
        if self.lora_rank > model.config.d_model:  # more could add nothing else
            message = f"lora_rank must be at most the model's width, {model.config.d_model}, not {self.lora_rank}"
            raise SettingError(message, "lora_rank")
        there = {name.rpartition(".")[2] for name, layer in model.blocks.named_modules() if isinstance(layer, Linear)}
        wanted = [name.strip() for name in self.lora_targets.split(",")]
        usual = LoraConfig.lora_targets.split(",")  # a model without gates lacks one of these
        unknown = [name for name in wanted if name not in there and not (name in usual and there & set(wanted))]
        if unknown:
            message = f"lora_targets: the blocks have no linear layer {unknown[0]!r}: there are {', '.join(sorted(there))}"
            raise SettingError(message, "lora_targets")
        names = "|".join(map(re.escape, wanted))
        return add_lora(model, self.lora_rank, self.lora_alpha, rf"blocks\..*\.({names})", self.lora_dropout)

    def base(self, path_or_name: str, config: GPTConfig) -> GPT:
        """The pretrained model with this configuration and additions. Raises UserError unless it is the one of before."""
        self.check_base(path_or_name)
        model = load_differentiable(path_or_name)
        assert isinstance(model, GPT)
        return self.added_to(model.adapted(config))

    def check_base(self, path_or_name: str) -> None:
        """Raise UserError unless the pretrained model is the one to which something was added."""
        if fingerprint_of(path_or_name) != self.base_sha256:
            raise UserError(f"{path_or_name} has changed since this run began, which needs it as it was: put that model back")


def fingerprint_of(path_or_name: str) -> str:
    """The SHA-256 of the settings and the weights of a pretrained model."""
    folder, digest = find_folder(path_or_name), hashlib.sha256()
    for path in (*folder.glob("config.json"), *weight_files(folder)):
        with open_file(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()
