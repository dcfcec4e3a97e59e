"""Read and write adapter_config.json, PEFT's description of a LoRA adapter."""

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
# Settings that are read here or only document the training. Any other setting changes more than low-rank products.
_KNOWN = {
    "peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "bias",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights", "revision", "task_type",
    "base_model_name_or_path", "inference_mode", "fan_in_fan_out", "auto_mapping", "peft_version", "ensure_weight_tying",
    "megatron_core", "qalora_group_size", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "runtime_config",
}  # fmt: skip
_CHANGE_THE_BASE = re.compile(r"(pissa|olora|corda|lora_ga|loftq).*")  # initializations that change the base weights
_MOST_LETTERS, _SECONDS = 2000, 1.0  # limits of a regular expression: length and time
_SECONDS_OF_ALL = 10.0
REMEDY = "merge it with PEFT (model.merge_and_unload().save_pretrained(FOLDER)), then load FOLDER with from_pretrained"

Value = TypeVar("Value")


class AdapterSettings:
    """The settings in an adapter_config.json. Raises UserError for adapters other than LoRA, and for LoRA features that only
    PEFT supports."""

    def __init__(self, folder: Path):
        path = folder / ADAPTER
        if not path.exists():
            raise UserError(f"{folder} has no {ADAPTER}: pass the folder of a LoRA adapter in PEFT's layout")
        self._settings = settings = PretrainedSettings(path)
        self._known, self._left = dict[str, Any](), _SECONDS_OF_ALL
        peft_type = settings.read(str, "peft_type")
        if peft_type != "LORA":
            raise self.refused(f"peft_type {shortened(repr(peft_type), 40)}")
        unsupported = [name for name, value in settings.values.items() if value and name not in _KNOWN]
        unsupported += ["bias"] if settings.values.get("bias", "none") not in ("none", None) else []
        init = settings.values.get("init_lora_weights")
        if unsupported or (isinstance(init, str) and _CHANGE_THE_BASE.fullmatch(init)):
            name = unsupported[0] if unsupported else "init_lora_weights"
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
        """Return an error about these settings."""
        return self._settings.error(problem)

    def refused(self, feature: str) -> UserError:
        """Return the error for a feature that only PEFT supports."""
        return self.error(f"{feature} is not supported: {REMEDY}")

    def rank_of(self, path: str) -> int:
        """Return the rank of a layer."""
        return self._of(path, self._ranks, self.rank)

    def alpha_of(self, path: str) -> float:
        """Return the alpha of a layer."""
        return self._of(path, self._alphas, self.alpha)

    def is_saved(self, name: str) -> bool:
        """Return True if a tensor belongs to a fully trained layer. Like PEFT, compare name endings as strings."""
        above = list(accumulate(name.split(".")[:-1], lambda path, word: f"{path}.{word}"))
        return any(path.endswith(saved) for path in above for saved in self._saved)

    def targets(self, paths: Collection[str], outputs: Collection[str]) -> list[str]:
        """Return the layers among ``paths`` that must have an adapter, or none if the settings list none. "all-linear" excludes
        the output layers (``outputs``)."""
        if self._targets == "all-linear":
            targets = [path for path in paths if path not in outputs]
        else:
            targets = [path for path in paths if self._is_among(path, self._targets)]
        in_full = [rf"(|.*\.){name}(|\..*)" for name in self._saved]  # fully trained, so without adapter
        targets = [path for path in targets if not self._is_among(path, self._excluded)]
        targets = [path for path in targets if not any(self._matches(pattern, path) for pattern in in_full)]
        if not self._numbers or isinstance(self._targets, str):
            return targets
        return [path for path in targets if path in self._targets or self._number_of(path) in self._numbers]

    def _number_of(self, path: str) -> int | None:
        """Return the block number of a layer: the first number in its path, or the one after a block list's name."""
        pairs = enumerate(pairwise(path.split(".")[:-1]))
        return next((int(n) for i, (name, n) in pairs if n.isdigit() and (name in self._lists if self._lists else i)), None)

    def _is_among(self, path: str, names: str | Sequence[str]) -> bool:
        """Return True if a path ends with one of these names or fully matches the regular expression."""
        if isinstance(names, str):
            return self._matches(names, path)
        return any(path == name or path.endswith(f".{name}") for name in names)

    def _of(self, path: str, by_pattern: Mapping[str, Value], usual: Value) -> Value:
        """Return the value of the first pattern that matches the end of a path."""
        return next((value for key, value in by_pattern.items() if self._matches(rf"(.*\.)?({key})", path)), usual)

    def _matches(self, pattern: str, path: str) -> bool:
        """Return True if an untrusted regular expression fully matches a path. Limits the time of each expression and of all
        together."""
        start = time.monotonic()
        try:
            if pattern not in self._known:
                self._known[pattern] = self._compiled(pattern)
            return self._known[pattern].fullmatch(path, timeout=max(min(_SECONDS, self._left), 1e-6)) is not None
        except TimeoutError:
            raise self._bad(pattern, "takes too long") from None
        except (re.error, regex.error, RecursionError) as error:
            raise self._bad(pattern, f"is wrong ({error})") from None
        finally:
            self._left -= time.monotonic() - start

    def _compiled(self, pattern: str) -> Any:
        if len(pattern) > _MOST_LETTERS or "{" in pattern:
            raise self._bad(pattern, "is not supported")
        re.compile(pattern)  # like PEFT, use re: it rejects regex's recursion, which may use unlimited memory
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
    """Return the adapter_config.json for a model's LoRA adapters, by layer path. ``paths`` lists all linear layers, and
    ``saved`` the layers saved in full."""
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
    """Return the shortest name endings that select the chosen layers among all ``paths``, or else their full names."""
    in_block: Callable[[str], str] = lambda path: re.sub(r".*\.\d+\.", "", path)  # noqa: E731
    last: Callable[[str], str] = lambda path: path.rpartition(".")[2]  # noqa: E731
    names = dict[str, None]()
    for path in chosen:
        alike = {in_block(other) for other in paths if last(other) == last(path)}
        end = last(path) if len(alike) == 1 else in_block(path)
        meant = [other for other in paths if other == end or other.endswith(f".{end}")]
        names[end if set(meant) <= set(chosen) else path] = None
    return list(names)
