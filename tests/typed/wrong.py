"""Mistakes, one per line: strict type checkers report exactly the marked lines."""

import tinytensor as tt
from tinyformer import GPT, GPTConfig
from tinytensor import nn, optim

x = tt.tensor([1.0])
layer = nn.Linear(3, 4)
gpt = GPT(GPTConfig(vocab_size=3))

tt.sofmax(x)  # wrong
tt.softmax(x, axes=-1)  # wrong
tt.softmax("text")  # wrong
tt.zeros((2, 3), dtyp="float32")  # wrong
tt.concatenate(x, x)  # wrong
tt.layer_norm(x, (3,))  # wrong
tt.mean(x, axis="rows")  # wrong
tt.cross_entropy(x)  # wrong
tt.exp(x, 3)  # wrong
tt.linalg.inverse(x)  # wrong
tt.random.norml((2,))  # wrong
print(x + "text")  # wrong
print(x.view(2))  # wrong
print(x.sum(dim=1))  # wrong
print(x.shape.foo)  # wrong
print(x.grad.shape)  # wrong
nn.Linear(3)  # wrong
nn.Linear("3", 4)  # wrong
nn.Linear(3, 4, biass=False)  # wrong
nn.Lineer(3, 4)  # wrong
layer("text")  # wrong
layer(x, x)  # wrong
nn.LSTM(3, 4)(x, x)  # wrong
nn.LSTMCell(3, 4)(x, x)  # wrong
layer.weight += "text"  # wrong
print(layer.weigth)  # wrong
nn.Dropout(p="half")  # wrong
optim.AdamV(layer.parameters())  # wrong
optim.AdamW(layer.parameters(), learning_rate=1e-3)  # wrong
optim.clip_grad_norm(layer.parameters())  # wrong
optim.AdamW([3.0])  # wrong
GPTConfig(vocab=65)  # wrong
GPTConfig(vocab_size="65")  # wrong
GPT(3)  # wrong
gpt("text")  # wrong
gpt.losss(x, x)  # wrong
layer(x).backwards()  # wrong
layer(x).sum().backward()
