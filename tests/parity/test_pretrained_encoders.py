"""BERT and its relatives, with every head, beside Hugging Face's: outputs, gradients, and folders in both directions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity.compare import assert_close

import tinytensor as tt
from tinyformer import (
    Bert,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    BertForNextSentence,
    UserError,
    from_pretrained,
    save_pretrained,
)
from tinyformer.models.positions import RelativePositions
from tinyformer.pretrained.choosing import family_for

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

RNG = np.random.default_rng(0)
SMALL = {"vocab_size": 54, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"max_position_embeddings": 32}
DISTIL = {"vocab_size": 54, "dim": 24, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 32}
# The class at Hugging Face's, its settings, and the id of padding.
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert": ("Bert", SMALL, 0),
    "bert, one segment, relu": ("Bert", {**SMALL, "type_vocab_size": 1, "hidden_act": "relu"}, 0),
    "bert, wide, one layer": (
        "Bert",
        {**SMALL, "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 1, "hidden_act": "gelu_new"},
        0,
    ),
    "bert, other padding": ("Bert", {**SMALL, "pad_token_id": 5, "layer_norm_eps": 1e-3}, 5),
    "distilbert": ("DistilBert", DISTIL, 0),
    "distilbert, relu, padding": ("DistilBert", {**DISTIL, "activation": "relu", "pad_token_id": 3, "n_heads": 2}, 3),
    "distilbert, sines": ("DistilBert", {**DISTIL, "sinusoidal_pos_embds": True}, 0),
    "roberta": ("Roberta", {**SMALL, "type_vocab_size": 1}, 1),
    "roberta, padding 0": ("Roberta", {**SMALL, "pad_token_id": 0, "layer_norm_eps": 1e-5}, 0),
    "roberta, padding 4": ("Roberta", {**SMALL, "pad_token_id": 4, "bos_token_id": 6}, 4),
    "xlm-roberta": ("XLMRoberta", {**SMALL, "type_vocab_size": 1}, 1),
    "mpnet": ("MPNet", SMALL, 1),
    "mpnet, six heads": ("MPNet", {**SMALL, "max_position_embeddings": 200, "num_attention_heads": 6}, 1),
    "camembert": ("Camembert", {**SMALL, "type_vocab_size": 1}, 1),
}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
ALL = [(family, head) for family in FAMILIES for head in HEADS] + [("bert", "ForNextSentencePrediction")]


def theirs_of(family: str, head: str, **changes: Any) -> Any:
    name, settings, _ = FAMILIES[family]
    torch.manual_seed(0)
    labels = {"num_labels": 5} if "Classification" in head else {}
    config = getattr(transformers, f"{name}Config")(**{**settings, **labels, **changes})
    model = getattr(transformers, name + head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def ids_of(family: str) -> np.ndarray:
    """Ids with padding behind two texts, before another, and amid a fourth."""
    pad = FAMILIES[family][2]
    ids = RNG.integers(7, 54, (4, 17))
    ids[1, 12:], ids[2, :3], ids[3, [2, 9]] = pad, pad, pad
    return ids


def outputs_of(theirs: Any, head: str, ids: np.ndarray, segments: np.ndarray | None, pad: int) -> Any:
    given = {} if segments is None else {"token_type_ids": torch.tensor(segments)}
    out = theirs(torch.tensor(ids), torch.tensor(ids != pad), **given)
    if head == "Model":
        return out.last_hidden_state
    return torch.stack([out.start_logits, out.end_logits], -1) if head == "ForQuestionAnswering" else out.logits


def segments_of(family: str, ids: np.ndarray) -> np.ndarray | None:
    if FAMILIES[family][0] != "Bert" or FAMILIES[family][1].get("type_vocab_size") == 1:
        return None
    return RNG.integers(0, 2, ids.shape)


def is_seen(ids: np.ndarray, head: str, pad: int) -> np.ndarray:
    """Where outputs are compared: nothing is read at padding."""
    return ids[:, 0] != pad if head in ("ForSequenceClassification", "ForNextSentencePrediction") else ids != pad


@pytest.mark.parametrize(("family", "head"), ALL)
def test_outputs_gradients_and_folders(family: str, head: str, tmp_path: Path) -> None:
    theirs, pad, ids = theirs_of(family, head), FAMILIES[family][2], ids_of(family)
    segments = segments_of(family, ids)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_pretrained(tmp_path / "theirs")
    given = [tt.tensor(ids), *([] if segments is None else [tt.tensor(segments)])]
    ours_out, their_out = ours(*given), outputs_of(theirs, head, ids, segments, pad)
    seen = is_seen(ids, head, pad)
    assert_close(ours_out[tt.tensor(seen)], their_out[torch.tensor(seen)])

    weights = RNG.standard_normal(their_out.shape).astype("float32") * seen.reshape(
        *seen.shape, *[1] * (their_out.ndim - seen.ndim)
    )
    (ours_out * tt.tensor(weights)).sum().backward()
    (their_out * torch.tensor(weights)).sum().backward()
    assert_same_gradients(ours, theirs)

    save_pretrained(ours, tmp_path / "ours")
    name = type(theirs).__name__.replace("XLM", "").replace("Camembert", "Roberta")
    again, report = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"} if (name, head) == ("BertForMaskedLM", head) else set()
    assert {what: set(found) for what, found in report.items() if found} == ({"unexpected_keys": pooler} if pooler else {})
    assert_close(ours_out[tt.tensor(seen)], outputs_of(again.eval(), head, ids, segments, pad)[torch.tensor(seen)])
    ours_again = from_pretrained(tmp_path / "ours")
    assert type(ours_again) is type(ours)
    assert ours_again.config == ours.config
    np.testing.assert_array_equal(ours_again(*given).numpy(), ours_out.numpy())


def assert_same_gradients(ours: Any, theirs: Any) -> None:
    """Every gradient, by the names of the family's table. One without, such as a pooler's, has none in either."""
    family = family_for(ours)
    copy_of = {original: copy for copy, original in family.copies.items()}
    wanted = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    used = set()
    for name, parameter in ours.named_parameters():
        names = [one if one in wanted else one.removeprefix(family.prefix) for one in family.source(name).names]
        names = [one if one in wanted else copy_of.get(family.prefix + one, one) for one in names]
        if parameter.grad is None:
            assert not set(names) & set(wanted), name
            continue
        used.update(names)
        assert_close(parameter.grad, torch.cat([wanted[one] for one in names]), 1e-4, 1e-6, name)
    assert used == set(wanted)


def changed(folder: Path, **changes: Any) -> None:
    """Change a folder's settings; None removes one."""
    settings = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


@pytest.mark.parametrize(("family", "head"), [case for case in ALL if case[0] in ("bert", "distilbert", "roberta", "mpnet")])
def test_a_head_is_found_by_its_weights(family: str, head: str, tmp_path: Path) -> None:
    theirs_of(family, head).save_pretrained(tmp_path)
    named = type(from_pretrained(tmp_path))
    changed(tmp_path, architectures=None)
    assert type(from_pretrained(tmp_path)) is named


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "mpnet"])
def test_a_head_that_is_not_used_is_named(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = theirs_of(family, "ForMultipleChoice")
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path)
    assert type(ours) is Bert
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path} has layers that a Bert does not use: classifier")
    ids = ids_of(family)
    expected = theirs.base_model(torch.tensor(ids), torch.tensor(ids != FAMILIES[family][2])).last_hidden_state
    seen = ids != FAMILIES[family][2]
    assert_close(ours(tt.tensor(ids))[tt.tensor(seen)], expected[torch.tensor(seen)])


def test_both_heads_of_pretraining_are_there_and_one_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = theirs_of("bert", "ForPreTraining")
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path)
    assert caplog.messages == [f"{tmp_path} has layers that a BertForMaskedLM does not use: cls.seq_relationship"]
    ids = ids_of("bert")[:1]
    assert_close(ours(tt.tensor(ids)), theirs(torch.tensor(ids)).prediction_logits)
    changed(tmp_path, architectures=["BertForNextSentencePrediction"])
    other = from_pretrained(tmp_path)
    assert isinstance(other, BertForNextSentence)
    assert_close(other(tt.tensor(ids)), theirs(torch.tensor(ids)).seq_relationship_logits)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "xlm-roberta", "mpnet"])
def test_an_untied_output_layer(family: str, tmp_path: Path) -> None:
    theirs, ids = theirs_of(family, "ForMaskedLM", tie_word_embeddings=False), ids_of(family)[:1]
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_pretrained(tmp_path / "theirs")
    assert isinstance(ours, BertForMaskedLM)
    assert ours.output is not None
    assert_close(ours(tt.tensor(ids)), theirs(torch.tensor(ids)).logits)
    save_pretrained(ours, tmp_path / "ours")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert_close(ours(tt.tensor(ids)), again(torch.tensor(ids)).logits)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
def test_the_names_of_classes_stay(head: str, tmp_path: Path) -> None:
    names = {0: "O", 1: "B-PER", 2: "I-PER"}
    theirs_of("distilbert", head, num_labels=3, id2label=names, label2id={n: i for i, n in names.items()}).save_pretrained(
        tmp_path
    )
    ours: Any = from_pretrained(tmp_path)
    assert ours.labels == ("O", "B-PER", "I-PER")
    save_pretrained(ours, tmp_path / "ours")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").id2label == names


@pytest.mark.parametrize(("family", "settings"), [("roberta", {"hidden_act": "relu"}), ("mpnet", {"hidden_act": "gelu_new"})])
def test_an_activation_that_a_head_does_not_have(family: str, settings: dict[str, str], tmp_path: Path) -> None:
    theirs_of(family, "ForMaskedLM", **settings).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"masked-LM head of .*: it must be 'gelu'"):
        from_pretrained(tmp_path)
    changed(tmp_path, architectures=None if family == "none" else [f"{FAMILIES[family][0]}Model"])
    assert type(from_pretrained(tmp_path)) is Bert


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert"])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize(("given", "used"), [(0.25, 0.25), (0.0, 0.0), (None, 0.1)])
def test_dropout_before_the_classes(family: str, head: str, given: float | None, used: float, tmp_path: Path) -> None:
    theirs_of(family, head, classifier_dropout=given).save_pretrained(tmp_path)
    ours: Any = from_pretrained(tmp_path)
    assert (ours.dropout.p, ours.bert.config.dropout) == (used, 0.1)
    save_pretrained(ours, tmp_path / "ours")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").classifier_dropout == given
    assert from_pretrained(tmp_path / "ours").config == ours.config


def test_too_many_classes(tmp_path: Path) -> None:
    theirs_of("bert", "ForSequenceClassification").save_pretrained(tmp_path)
    changed(tmp_path, num_labels=10**12)
    with pytest.raises(UserError, match=r"config\.json: num_labels must be at most 1,000,000, got 1,000,000,000,000"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("family", "setting"),
    [("bert", "classifier_dropout"), ("roberta", "hidden_dropout_prob"), ("distilbert", "seq_classif_dropout")],
)
def test_dropout_that_is_none(family: str, setting: str, tmp_path: Path) -> None:
    theirs_of(family, "ForSequenceClassification").save_pretrained(tmp_path)
    changed(tmp_path, **{setting: 1.5})
    with pytest.raises(UserError, match=rf"config\.json: {setting} must be at least 0 and less than 1, got 1\.5"):
        from_pretrained(tmp_path)


def dropped(model: Any, monkeypatch: pytest.MonkeyPatch, ids: Any) -> list[float]:
    """The probabilities of the head's dropout, in the order in which it is used."""
    found = []
    forward = tt.nn.Dropout.forward

    def noted(self: Any, *given: Any, **named: Any) -> Any:
        if self is model.dropout:
            found.append(self.p)
        return forward(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(tt.nn.Dropout, "forward", noted)
        model(tt.tensor(ids))
    return found


SOME = {"classifier_dropout": 0.3, "qa_dropout": 0.25, "seq_classif_dropout": 0.35}


@pytest.mark.parametrize(
    ("family", "head"), [pair for pair in ALL if "," not in pair[0] and pair[1] not in ("Model", "ForMaskedLM")]
)
@pytest.mark.parametrize("settings", [{}, SOME])
def test_dropout_of_a_head(family: str, head: str, settings: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """As often as Hugging Face's, and with its probability. One of 0 drops nothing, and counts as none."""
    theirs = theirs_of(family, head, **settings)
    theirs.save_pretrained(tmp_path)
    ours: Any = from_pretrained(tmp_path)
    used: list[float] = []
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Dropout) and name in ("dropout", "classifier.dropout"):
            module.register_forward_hook(lambda module, *_: used.append(module.p))
    ids = np.array([[2, 3, 4]])
    theirs(torch.tensor(ids))
    assert [p for p in dropped(ours, monkeypatch, ids) if p] == used
    assert bool(used) or head in ("ForQuestionAnswering", "ForNextSentencePrediction")


@pytest.mark.parametrize("head", ["ForMaskedLM", "Model"])
def test_dropout_of_a_head_that_is_put_on_later(head: str, tmp_path: Path) -> None:
    theirs_of("roberta", head, classifier_dropout=0.3).save_pretrained(tmp_path)
    model: Any = from_pretrained(tmp_path)
    config = dataclasses.replace(model.config, pooler="tanh")
    assert (config.head_dropout, config.pooler_dropout) == (0.3, True)
    save_pretrained(BertForClassification(config, 3), tmp_path / "later")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "later").classifier_dropout == 0.3


def test_both_dropouts_of_roberta_drop_what_they_say() -> None:
    """One probability before the pooler, and the same after it: the mean of many passes is that of Hugging Face's head."""
    from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

    config = BertConfig(20, num_layers=1, num_heads=2, d_model=16, d_ff=8, dropout=0.0, head_dropout=0.4, pooler_dropout=True)
    ours = BertForClassification(config, 3)
    settings = {"hidden_size": 16, "classifier_dropout": 0.4, "num_labels": 3}
    theirs = RobertaClassificationHead(transformers.RobertaConfig(**settings))
    for to, layer in ((theirs.dense, ours.bert.pooler), (theirs.out_proj, ours.output)):
        layer.weight.data[...] *= 5.0
        to.weight.data, to.bias.data = (torch.tensor(part.numpy()) for part in (layer.weight, layer.bias))
    ids = np.full((4000, 4), 3)
    ours.eval()
    encoded = torch.tensor(ours.bert(tt.tensor(ids)).numpy())
    torch.manual_seed(0)
    tt.seed(0)
    expected = theirs.train()(encoded).detach().numpy()
    found = ours.train()(tt.tensor(ids)).numpy()
    np.testing.assert_allclose(found.mean(0), expected.mean(0), atol=4 * (expected.std(0) / 4000**0.5).max() * 2**0.5)
    np.testing.assert_allclose(found.std(0), expected.std(0), rtol=0.06)


def test_ranges_of_distances_are_those_of_mpnet() -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(-700, 701)
    theirs = MPNetEncoder.relative_position_bucket(torch.tensor(distances)).numpy()
    np.testing.assert_array_equal(RelativePositions(32, 4).ranges(distances), theirs)
