"""A program as a user may write it: strict type checkers find nothing in it, and take each value for what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from typing_extensions import assert_type

import tinytensor as tt
from tinyformer import GPT, CharTokenizer, GPTConfig, Sampling, generate
from tinytensor import Tensor, nn, optim
from tinytensor.nn import Module, Parameter


class Net(Module):
    mask: Tensor

    def __init__(self, width: int) -> None:
        self.register_buffer("mask", tt.ones(4))
        self.hidden = nn.Linear(4, width)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: tt.Tensor, scale: float = 1.0) -> tt.Tensor:
        return self.rest(self.hidden(x * self.mask)) * scale


x = tt.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True)
assert_type(x, Tensor)
assert_type(x + 1, Tensor)
assert_type(1 / x, Tensor)
assert_type(-x, Tensor)
assert_type(x @ x.T, Tensor)
assert_type(x > 1, Tensor)
assert_type(x[0, ..., None], Tensor)
assert_type(x.sum(), Tensor)
assert_type(x.mean(axis=0, keepdims=True), Tensor)
assert_type(x.reshape(2, 2), Tensor)
assert_type(x.shape, tuple[int, ...])
assert_type(x.size, int)
assert_type(x.grad, Tensor | None)
assert_type(x.detach().numpy(), np.ndarray[Any, Any])
assert_type(tt.softmax(x, axis=-1), Tensor)
assert_type(tt.where(x > 0, x, 0.0), Tensor)
assert_type(tt.concatenate([x, x], axis=0), Tensor)
assert_type(tt.split(x, 2, axis=1), list[Tensor])
assert_type(tt.topk(x, 2), tuple[Tensor, Tensor])
assert_type(tt.einsum("ij,kj->ik", x, x), Tensor)
assert_type(tt.linalg.inv(tt.eye(2)), Tensor)
assert_type(tt.random.normal((2, 3)), Tensor)
assert_type(tt.cross_entropy(x, tt.tensor([1])), Tensor)
assert_type(tt.grad(x.sum(), x), Tensor)
assert_type(tt.grad(x.sum(), [x]), list[Tensor])
assert_type(tt.backend_name, str)

net = Net(8)
assert_type(net(x), Tensor)
assert_type(net.hidden, nn.Linear)
assert_type(net.hidden(x), Tensor)
assert_type(net.hidden.weight, Parameter)
assert_type(net.eval(), Net)
assert_type(nn.Sequential(net)[:1], nn.Sequential)
lstm = nn.LSTM(4, 8)
assert_type(lstm(x), tuple[Tensor, tuple[Tensor, Tensor]])
assert_type(lstm(x, lstm(x)[1])[0], Tensor)
assert_type(lstm.weight_ih_l0, Parameter)
assert_type(nn.GRU(4, 8)(x), tuple[Tensor, Tensor])
assert_type(nn.LSTMCell(4, 8)(x), tuple[Tensor, Tensor])
assert_type(nn.GRUCell(4, 8)(x, tt.zeros((1, 8))), Tensor)
assert_type(net.state_dict(), dict[str, Tensor])
for name, parameter in net.named_parameters():
    assert_type(name, str)
    assert_type(parameter, Parameter)
with net.register_forward_hook(lambda module, inputs, output: None), nn.recording_outputs(net, nn.Linear) as recorded:
    net(x)
assert_type(recorded, dict[str, list[Any]])

optimizer = optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.99))
groups = optim.AdamW([{"params": net.hidden.parameters(), "lr": 1e-4}, {"params": net.rest.parameters()}], lr=1e-3)
plain = optim.SGD([x], lr=0.1)
schedule = optim.Cosine(steps=100, warmup=10)
optimizer.zero_grad()
net(x).sum().backward()
assert_type(optim.clip_grad_norm(net.parameters(), 1.0), Tensor)
optimizer.step(schedule(1))
with tt.no_grad():
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter -= 0.1 * parameter.grad
    net.hidden.weight *= 0.5
    x -= 0.1


@tt.no_grad()
def evaluate(model: Net) -> float:
    return float(model(x, scale=2.0).sum())


@tt.no_grad
def doubled(values: Tensor) -> Tensor:
    return values * 2


def product(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


assert_type(evaluate(net), float)
assert_type(doubled(x), Tensor)
assert_type(tt.trace(net)(x), Tensor)
assert_type(tt.checkpoint(net, x), Tensor)
assert_type(tt.jacobian(net, x), Tensor)
assert_type(tt.hessian(product, [x, x])[0][1], Tensor)
assert_type(tt.hvp(Tensor.sum, x, x), tuple[Tensor, Tensor])
assert_type(tt.parallel.backward(lambda shard: x.sum() * shard, [1.0, 2.0]), Tensor)
tt.seed(0)
tt.save(net.state_dict(), "weights.safetensors")
net.load_state_dict(tt.load("weights.safetensors"))

gpt = GPT(GPTConfig(vocab_size=65, num_layers=2, d_model=32))
ids = tt.zeros((1, 4), dtype=int)
assert_type(gpt(ids), Tensor)
assert_type(gpt.loss(ids, ids), Tensor)
assert_type(gpt.config.vocab_size, int)
tokenizer = CharTokenizer.train("hello")
assert_type(tokenizer.decode([0, 1]), str)
assert_type(generate(gpt, tokenizer.encode("he"), 5, Sampling(temperature=0.8)), Iterator[int])
