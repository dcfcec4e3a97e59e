"""adapter_config.json: what PEFT says of a LoRA adapter, read and written."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

import regex

from tinyformer.common.errors import UserError, shortened
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.folders import ADAPTER
from tinytensor.nn.lora import Addition

WEIGHTS = "adapter_model.safetensors"
# Settings that are read here, and those that say how it was made. With any other an adapter is more than products of matrices.
_KNOWN = {
    "peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "bias",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights", "revision", "task_type",
    "base_model_name_or_path", "inference_mode", "fan_in_fan_out", "auto_mapping", "peft_version", "ensure_weight_tying",
    "megatron_core", "qalora_group_size", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "runtime_config",
}  # fmt: skip
_CHANGE_THE_BASE = re.compile(r"(pissa|olora|corda|lora_ga|loftq).*")  # ways to begin that leave other weights in the base
_MOST_LETTERS, _SECONDS = 2000, 1.0  # of a regular expression, and that it may take
_SECONDS_OF_ALL = 10.0
REMEDY = "merge it with PEFT (model.merge_and_unload().save_pretrained(FOLDER)), and load FOLDER with from_pretrained"

Value = TypeVar("Value")


class AdapterSettings:
    """What an adapter_config.json says. Raises UserError for an adapter of another kind than LoRA, and for what LoRA can be in
    PEFT and not here."""

    def __init__(self, folder: Path):
        path = folder / ADAPTER
        if not path.exists():
            raise UserError(f"{folder} has no {ADAPTER}: pass the folder of a LoRA adapter in PEFT's layout")
        self._settings = settings = PretrainedSettings(path)
        self._known, self._left = dict[str, Any](), _SECONDS_OF_ALL
        kind = settings.read(str, "peft_type")
        if kind != "LORA":
            raise self.refused(f"adapters of the type {shortened(repr(kind), 40)}", ", only 'LORA'")
        others = [name for name, value in settings.values.items() if value and name not in _KNOWN]
        others += ["bias"] if settings.values.get("bias", "none") not in ("none", None) else []
        begun = settings.values.get("init_lora_weights")
        if others or (isinstance(begun, str) and _CHANGE_THE_BASE.fullmatch(begun)):
            name = others[0] if others else "init_lora_weights"
            raise self.refused(f"{name} {shortened(repr(settings.values[name]), 40)}")
        self.rank = settings.read(int, "r", 8)
        self.alpha = settings.read(float, "lora_alpha", 8.0)
        self.dropout = settings.probability("lora_dropout", 0.0)
        self.rank_stabilized = settings.read(bool, "use_rslora", False)
        self._ranks = settings.read(dict[str, int], "rank_pattern", {})
        self._alphas = settings.read(dict[str, float], "alpha_pattern", {})
        self._saved = settings.read(list[str], "modules_to_save", [])
        self._targets = settings.read(list[str] | str, "target_modules", [])
        self._excluded = settings.read(list[str] | str, "exclude_modules", [])
        numbers = settings.read(list[int] | int, "layers_to_transform", [])
        lists = settings.read(list[str] | str, "layers_pattern", [])
        self._numbers, self._lists = (one if isinstance(one, list) else [one] for one in (numbers, lists))

    def error(self, problem: str) -> UserError:
        """An error about these settings."""
        return self._settings.error(problem)

    def refused(self, what: str, but: str = "") -> UserError:
        """The error for what an adapter can be in PEFT and not here."""
        return self.error(f"{what} cannot be used here{but}: {REMEDY}")

    def rank_of(self, path: str) -> int:
        """The rank of a layer."""
        return self._of(path, self._ranks, self.rank)

    def alpha_of(self, path: str) -> float:
        """The alpha of a layer."""
        return self._of(path, self._alphas, self.alpha)

    def is_saved(self, name: str) -> bool:
        """Whether the tensor of this name is of a layer that was trained as a whole. PEFT compares ends of names, not words."""
        above = list(accumulate(name.split(".")[:-1], lambda path, word: f"{path}.{word}"))
        return any(path.endswith(saved) for path in above for saved in self._saved)

    def targets(self, paths: Collection[str], outputs: Collection[str]) -> list[str]:
        """The layers among these ``paths`` that must have an adapter. "all-linear" leaves out ``outputs``, the output layers.
        Empty where nothing is said."""
        if self._targets == "all-linear":
            found = [path for path in paths if path not in outputs]
        else:
            found = [path for path in paths if self._is_among(path, self._targets)]
        whole = [rf"(|.*\.){name}(|\..*)" for name in self._saved]  # with all that is in it; these have no adapter
        found = [path for path in found if not self._is_among(path, self._excluded)]
        found = [path for path in found if not any(self._matches(pattern, path) for pattern in whole)]
        if not self._numbers or isinstance(self._targets, str):
            return found
        return [path for path in found if path in self._targets or self._number_of(path) in self._numbers]

    def _number_of(self, path: str) -> int | None:
        """The number of the block that a layer is in: the first, or that behind the name of one of the lists of blocks."""
        pairs = enumerate(pairwise(path.split(".")[:-1]))
        return next((int(n) for i, (name, n) in pairs if n.isdigit() and (name in self._lists if self._lists else i)), None)

    def _is_among(self, path: str, names: str | Sequence[str]) -> bool:
        """Whether one of these names is the end of a path, or the whole path matches the regular expression."""
        if isinstance(names, str):
            return self._matches(names, path)
        return any(path == name or path.endswith(f".{name}") for name in names)

    def _of(self, path: str, by_pattern: Mapping[str, Value], usual: Value) -> Value:
        """The value for a path, of the first pattern that matches its end."""
        return next((value for key, value in by_pattern.items() if self._matches(rf"(.*\.)?({key})", path)), usual)

    def _matches(self, pattern: str, path: str) -> bool:
        """Whether a regular expression, which is a program by others, matches a whole path. It gets little room and time, and
        so do all of them together."""
        begun = time.monotonic()
        try:
            if pattern not in self._known:
                self._known[pattern] = self._compiled(pattern)
            return self._known[pattern].fullmatch(path, timeout=max(min(_SECONDS, self._left), 1e-6)) is not None
        except TimeoutError:
            raise self._bad(pattern, "takes too long") from None
        except (re.error, regex.error, RecursionError) as error:
            raise self._bad(pattern, f"is wrong ({error})") from None
        finally:
            self._left -= time.monotonic() - begun

    def _compiled(self, pattern: str) -> Any:
        if len(pattern) > _MOST_LETTERS or "{" in pattern:
            raise self._bad(pattern, "cannot be used here")
        re.compile(pattern)  # as in PEFT: without regex's recursion, which takes memory without end
        return regex.compile(pattern)

    def _bad(self, pattern: str, why: str) -> UserError:
        return self.error(f"the regular expression {shortened(repr(pattern), 60)} {why}: list the names of the layers")


def described(
    additions: Mapping[str, Addition],
    paths: Collection[str],
    saved: Sequence[str],
    base: str,
    fan_in_fan_out: bool,
    task: str | None,
) -> dict[str, Any]:
    """The adapter_config.json of what is added to the layers of a model, by their paths. ``paths`` are those of all its linear
    layers, and ``saved`` of layers that are saved as a whole."""
    stabilized = all(addition.rank_stabilized for addition in additions.values())
    ranks = {path: len(addition.down) for path, addition in additions.items()}
    alphas = {
        path: addition.alpha if addition.rank_stabilized == stabilized else addition.scale * ranks[path]
        for path, addition in additions.items()
    }
    numbers = {path: int(alpha) if float(alpha).is_integer() else alpha for path, alpha in alphas.items()}
    rank, alpha = (Counter(values.values()).most_common(1)[0][0] for values in (ranks, numbers))
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base or None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": max(addition.dropout.p for addition in additions.values()),
        "use_rslora": stabilized,
        "rank_pattern": {path: one for path, one in ranks.items() if one != rank},
        "alpha_pattern": {path: one for path, one in numbers.items() if one != alpha},
        "target_modules": _shortest(list(additions), paths),
        "modules_to_save": list(saved) or None,
        "fan_in_fan_out": fan_in_fan_out,
        "bias": "none",
    }


def _shortest(chosen: Sequence[str], paths: Collection[str]) -> list[str]:
    """The ends of names by which these are chosen among all ``paths``, or their whole names."""
    in_block: Callable[[str], str] = lambda path: re.sub(r".*\.\d+\.", "", path)  # noqa: E731
    last: Callable[[str], str] = lambda path: path.rpartition(".")[2]  # noqa: E731
    found = dict[str, None]()
    for path in chosen:
        alike = {in_block(other) for other in paths if last(other) == last(path)}
        end = last(path) if len(alike) == 1 else in_block(path)
        meant = [other for other in paths if other == end or other.endswith(f".{end}")]
        found[end if set(meant) <= set(chosen) else path] = None
    return list(found)
