"""Generate text with a pretrained GPT-2, Llama, SmolLM2 or Qwen. By default, train a small Llama first (a minute on two cores).

python examples/generate.py
python examples/generate.py --model FOLDER --prompt "Once upon a time"    # a folder in Hugging Face's format
python examples/generate.py --model gpt2 --prompt "Once upon a time"      # or a name on the hub: pip install "tinytensor[hub]"
"""

from pathlib import Path

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import GPT, BPETokenizer, GPTConfig, generate, open_text, plots, save_pretrained, save_pretrained_tokenizer
from tinyformer.training.opening import open_pretrained

flags = script.flags(__doc__, model=None, prompt="\n", steps=600)
folder = Path(flags.model or "runs/small_llama")
out = script.new_folder("runs/generate")  # for the picture
tt.seed(1337)  # the same seed repeats a run exactly

if not (flags.model or (folder / "config.json").exists()):
    # Data: byte pairs (frequent pieces of words). The last tenth is held out.
    text, source = open_text(None)
    tokenizer = BPETokenizer.train(text, 1024, special=["<|endoftext|>"])
    ids = tt.tensor(tokenizer.encode(text))
    training, held_out = tt.split(ids, [len(ids) * 9 // 10])

    # Model: a small Llama. Two query heads share each head of keys and values.
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size,
        block_size=128,
        num_layers=4,
        num_heads=4,
        num_key_value_heads=2,
        d_model=128,
        d_ff=344,
        positions="rotary",
        norm="rms",
        activation="swiglu",
    )
    model = GPT(config)
    print(f"A Llama with {model.num_parameters():,} parameters trains on {source.name}: {len(training):,} tokens")

    # Training loop: windows at random positions. Each core computes one shard of them, in its own thread.
    optimizer = tt.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = tt.optim.Cosine(warmup=100, steps=flags.steps, final=0.1)
    cores = tt.parallel.default_shards()
    steps = script.Steps(flags.steps)
    for step in steps:
        starts = tt.random.integers(0, len(training) - 128, (8, 1))
        windows = training[starts + tt.arange(129)]  # (8, 129)
        optimizer.zero_grad()
        loss = tt.parallel.backward(
            lambda shard: model.loss(shard[:, :-1], shard[:, 1:], reduction="sum") / (8 * 128), tt.array_split(windows, cores)
        )
        tt.optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step(schedule(step - 1), threads=cores)
        if step % 100 == 0 or step == flags.steps:
            windows = held_out[: 64 * 129].reshape(64, 129)
            with tt.no_grad():
                validation = model.loss(windows[:, :-1], windows[:, 1:]).item()
            steps.print(f"step {step:4d}: loss {loss.item():.4f}, held out {validation:.4f}")

    # Hugging Face's format: AutoModelForCausalLM of transformers loads it, too.
    save_pretrained_tokenizer(tokenizer, folder)
    save_pretrained(model, folder)  # writes config.json last: if it exists, everything does
    print(f"Saved it to {folder}")

# Load a model and its tokenizer, and sample each token from its distribution given the ones before.
opened = open_pretrained(flags.model or folder)
prompt = opened.tokenizer.encode(flags.prompt, allow_special=True).tolist()
ids = [*opened.before, *prompt] or list(opened.start)
new = list(generate(opened.model, ids, 200, end=opened.ends, forbidden=opened.forbidden, rules=opened.rules))
print(f"{flags.prompt}{opened.tokenizer.decode(new, skip_special=True)}\n")

# The probability of each token.
half = opened.longest // 2  # half its context window
read, shown = ids[-half:], new[: min(48, half)]
with tt.no_grad():
    probabilities = opened.model(tt.tensor([[*read, *shown]]))[0, len(read) - 1 :].softmax(axis=-1)
sure = [probabilities[place, i].item() for place, i in enumerate(shown)]
with plots.if_possible():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), layout="constrained")
    axes = figure.add_subplot(title="How likely was each token that it wrote?", ylim=(0, 1), ylabel="probability")
    axes.bar(range(len(shown)), sure, color="#2563eb")
    axes.set_xticks(range(len(shown)), [repr(opened.tokenizer.decode([i]))[1:-1] for i in shown], rotation=90, parse_math=False)
    plots.drawing.save(figure, out / "sure.png", dpi=120)
    print(f"Probability of each token: {out / 'sure.png'}")
print(f"Explore it: tinyformer explore {folder}")
print("Fine-tune it on your text: python examples/fine_tune.py --data FILE")
