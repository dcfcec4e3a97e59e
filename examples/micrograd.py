"""Build an autograd engine in twenty lines, check it against tinytensor, and train a small network on two moons. Takes seconds.

python examples/micrograd.py
python examples/micrograd.py --steps 20        # a shorter run
"""

import math

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import plots

flags = script.flags(__doc__, steps=300)
out = script.new_folder("runs/micrograd")  # or runs/micrograd-2, if that exists


# 1. The engine. A value stores its parents, and its derivative with respect to each of them.
class Value:
    def __init__(self, data, parents=()):
        self.data, self.parents, self.grad = data, parents, 0.0

    def __add__(self, other):
        return Value(self.data + other.data, [(self, 1.0), (other, 1.0)])

    def __mul__(self, other):
        return Value(self.data * other.data, [(self, other.data), (other, self.data)])

    def tanh(self):
        t = math.tanh(self.data)
        return Value(t, [(self, 1 - t * t)])

    def backward(self):
        order = {}  # topological order: parents first

        def visit(value):
            if value not in order:
                [visit(parent) for parent, _ in value.parents]
                order[value] = True

        visit(self)
        self.grad = 1.0
        for value in reversed(order):  # the chain rule: pass the gradient on to the parents
            for parent, derivative in value.parents:
                parent.grad += derivative * value.grad


# A neuron, tanh(x w + b), whose output is used twice. It runs on both engines.
def neuron(x, w, b):
    y = (x * w + b).tanh()
    return y * y + y * w


numbers = (0.5, -3.0, 1.0)
ours = [Value(number) for number in numbers]
theirs = [tt.tensor(number, requires_grad=True) for number in numbers]
neuron(*ours).backward()
neuron(*theirs).backward()
print("Gradients of a neuron with respect to x, w and b:")
print("    these twenty lines ", "  ".join(f"{value.grad:.6f}" for value in ours))
print("    tinytensor         ", "  ".join(f"{tensor.grad.item():.6f}" for tensor in theirs))

# 2. tinytensor does the same with arrays. Data: 200 points on two interleaved moons.
tt.seed(1337)  # the same seed repeats a run exactly
angles = tt.random.uniform((200,), 0, math.pi)
moon = tt.arange(200) % 2  # which moon a point is on
x = tt.where(moon == 0, tt.cos(angles), 1 - tt.cos(angles))
y = tt.where(moon == 0, tt.sin(angles), 0.5 - tt.sin(angles))
points = tt.stack([x, y], axis=1) + tt.random.normal((200, 2)) * 0.1

# Network: two inputs, two scores.
model = tt.nn.Sequential(tt.nn.Linear(2, 16), tt.nn.Tanh(), tt.nn.Linear(16, 16), tt.nn.Tanh(), tt.nn.Linear(16, 2))
optimizer = tt.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for step in range(1, flags.steps + 1):
    loss = tt.cross_entropy(model(points), moon)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (1, 10, 30, 100, 300, flags.steps):
        right = (model(points).argmax(axis=1) == moon).sum().item()
        print(f"step {step:4d}: loss {loss.item():.4f}, {right} of 200 points right")

# Picture: the predicted probability of the second moon at each point of the plane.
across, down = tt.meshgrid(tt.linspace(-1.5, 2.5, 160), tt.linspace(-1.2, 1.7, 120), indexing="xy")
sure = model(tt.stack([across, down], axis=-1)).softmax(axis=-1)[..., 1]
with plots.if_possible():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot(title="Predicted probability of the second moon", aspect="equal")
    levels = [i / 20 for i in range(21)]
    shades = axes.contourf(across.numpy(), down.numpy(), sure.numpy(), levels, cmap="RdBu_r", alpha=0.5)
    axes.scatter(*points.numpy().T, c=moon.numpy(), cmap="RdBu_r", edgecolors="white", s=30)
    figure.colorbar(shades, label="probability", ticks=[0, 0.5, 1])
    plots.drawing.save(figure, out / "moons.png", dpi=120)
    print(f"Decision boundary: {out / 'moons.png'}")
print("Next: tinytensor/autograd/engine.py is this engine for arrays, with derivatives of every order")
