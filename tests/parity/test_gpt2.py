"""tinyformer's GPT beside Hugging Face's GPT-2, as benchmarks/generate.py pairs them: logits and greedy tokens."""

import dataclasses

import numpy
import pytest
import torch
from configurations import GPTConfiguration
from generate import HuggingFace, Task, Tinyformer
from parity.compare import assert_close

import tinytensor as tt

SMALL = GPTConfiguration(num_layers=2, num_heads=3, d_model=24, block_size=20, batch_size=1)
TASK = Task(SMALL, batch=3, prompt_length=4, new_tokens=16)


def twins(task, compiled=False):
    """Both sides with the same weights."""
    pytest.importorskip("transformers")
    ours, theirs = Tinyformer(task), HuggingFace(task, compiled)
    theirs.load(ours.weights())
    return ours, theirs


def test_no_weight_is_what_a_mistake_in_copying_could_pass_for():
    for name, array in Tinyformer(TASK).weights().items():
        assert numpy.unique(array).size > array.size // 2, name


def test_the_logits_agree():
    ours, theirs = twins(TASK)
    ids = numpy.random.default_rng(1).integers(0, 65, (2, SMALL.block_size))
    with tt.no_grad(), torch.no_grad():
        assert_close(ours.model(tt.tensor(ids)), theirs.model(torch.tensor(ids)).logits)


def test_the_greedy_tokens_agree_and_vary():
    ours, theirs = twins(TASK)
    written = ours.continuation()
    assert written == theirs.continuation()
    assert [len(row) for row in written] == [16, 16, 16]
    assert len({token for row in written for token in row}) > 3


def test_one_prompt_and_a_continuation_that_does_not_fill_the_context():
    ours, theirs = twins(dataclasses.replace(TASK, batch=1, new_tokens=5))
    assert ours.continuation() == theirs.continuation()
