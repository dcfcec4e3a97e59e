"""Fine-tune a pretrained model on your own text with LoRA, in a minute on two cores.

python examples/fine_tune.py                              # the small Llama of generate.py, on Python code
python examples/fine_tune.py --data my.txt
python examples/fine_tune.py --data my.txt --model MODEL  # a folder in Hugging Face's format, or a GGUF file
"""

import subprocess
import sys
from pathlib import Path

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import UserError, generate, open_text, plots, save_adapter, save_pretrained_tokenizer
from tinyformer.training.opening import open_pretrained

flags = script.flags(__doc__, steps=300, data=None, model=None)
text, source = open_text(flags.data or str(Path(subprocess.__file__).with_name("argparse.py")))  # by default, Python itself
folder = Path("runs/small_llama")
if not (flags.model or (folder / "config.json").exists()):
    print("No --model: training a small one with generate.py first\n", flush=True)
    if status := subprocess.call([sys.executable, Path(__file__).with_name("generate.py")]):
        sys.exit(status)
out = script.new_folder("runs/fine_tuned")  # or runs/fine_tuned-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# The model and the data (the text as tokens). The last tenth is held out.
opened = open_pretrained(flags.model or folder)
model, tokenizer = opened.model, opened.tokenizer
if opened.kind != "language":
    raise UserError(f"{flags.model} does not continue texts: take GPT-2, Llama or Qwen")
ids = tt.tensor(tokenizer.encode(text))
length = min(128, opened.longest - 1, len(ids) // 20)
if length < 1:
    raise UserError(f"the text needs at least 20 tokens, and has {len(ids)}: use a longer one")
training, held_out = tt.split(ids, [len(ids) * 9 // 10])
asked = held_out[: min(32, length)].tolist()  # the start of the held-out text
tt.nn.add_lora(model, rank=8, targets=r"blocks\..*")  # adds up @ down, two narrow matrices, to each weight in the blocks
learned = [p for p in model.parameters() if p.requires_grad]
numbers = f"{sum(p.size for p in learned):,} of {model.num_parameters():,} parameters"
print(f"{numbers} train on {source.name}: {len(training):,} tokens")


def loss_of_held_out():
    count = min(len(held_out) // (length + 1), 32)
    windows = held_out[: count * (length + 1)].reshape(count, length + 1)
    with tt.no_grad():
        return model.loss(windows[:, :-1], windows[:, 1:]).item()


def written():
    """Return the model's continuation. The same seed draws the same random numbers before and after."""
    tt.seed(1337)
    new = generate(model.eval(), asked, 120, end=opened.ends, forbidden=opened.forbidden, rules=opened.rules)
    return tokenizer.decode([*asked, *new], skip_special=True)


first, before = written(), loss_of_held_out()
rows = [{"step": 0, "train_loss": None, "validation_loss": before}]
print(f"step    0: held out {before:.4f}")

# Training loop: as for a new model, but only the small matrices are trained.
model.train()
optimizer = tt.optim.AdamW(learned, lr=5e-3)
schedule = tt.optim.Cosine(warmup=20, steps=flags.steps, final=0.1)
cores = tt.parallel.default_shards()
steps = script.Steps(flags.steps)
for step in steps:
    starts = tt.random.integers(0, len(training) - length, (8, 1))
    windows = training[starts + tt.arange(length + 1)]  # (8, length + 1)
    optimizer.zero_grad()
    loss = tt.parallel.backward(
        lambda shard: model.loss(shard[:, :-1], shard[:, 1:], reduction="sum") / (8 * length), tt.array_split(windows, cores)
    )
    tt.optim.clip_grad_norm(learned, 1.0)
    optimizer.step(schedule(step - 1), threads=cores)
    if step % min(10, flags.steps // 20 or 1) == 0 or step == flags.steps:  # short runs get a curve, too
        rows.append({"step": step, "train_loss": loss.item(), "validation_loss": None})
    if step % 50 == 0 or step == flags.steps:
        rows[-1]["validation_loss"] = loss_of_held_out()
        steps.print(f"step {step:4d}: loss {loss.item():.4f}, held out {rows[-1]['validation_loss']:.4f}")

# Results: losses and samples before and after, and the adapter in PEFT's format.
print(f"\nBefore, with a loss of {before:.4f}:\n\n{first}\n")
print(f"After, with a loss of {rows[-1]['validation_loss']:.4f}:\n\n{written()}\n")
save_pretrained_tokenizer(tokenizer, out)
save_adapter(model, out, base=str(flags.model or folder.resolve()))
with plots.if_possible():
    plots.loss_curve(rows, out / "loss.png", title="Fine-tuning a pretrained model")
    print(f"Losses: {out / 'loss.png'}")
print(f"Write more: python examples/generate.py --model {out}")
print(f"Compare both: tinyformer explore {flags.model or folder} {out}")
