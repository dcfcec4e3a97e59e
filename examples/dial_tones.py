"""A Transformer listens to a telephone: it hears which keys were pressed, in some noise, in about three minutes on two cores.

python examples/dial_tones.py
python examples/dial_tones.py --steps 4000     # the longer it learns, the more it gets right
"""

import tinyformer.scripting.short as script  # first: from here on, a mistake is told in a line
import tinytensor as tt
from tinyformer import Transcriber, Transformer, TransformerConfig, evaluate, log_mel, muon_for, plots, write_wav
from tinyformer.tasks import dial_tones

flags = script.flags(__doc__, steps=1200)
out = script.new_folder("runs/dial_tones")  # or runs/dial_tones-2, if that is taken
tt.seed(1337)  # the same seed repeats a run exactly

# The data: recordings that are made as training goes. Each key sounds as two tones, with up to as much noise as tone; and some
# recordings have other sounds, in which there is nothing to write. What is read are vectors: how loud each of 40 bands of
# frequencies is, every 10 ms.
task = dial_tones.DialTask(fewest=3, most=6)
batches = dial_tones.DialBatches(task, batch_size=32, seed=1337)
specials = dial_tones.SPECIALS

# The model: the encoder reads vectors instead of tokens, and makes one position of four of them; the decoder writes the keys.
config = TransformerConfig(
    source_vocab_size=0,
    source_features=dial_tones.MEL.num_mels,
    source_stride=4,
    target_vocab_size=dial_tones.VOCAB_SIZE,
    encoder_layers=2,
    decoder_layers=3,
    num_heads=4,
    d_model=64,
    d_ff=256,
    norm_first=True,
    dropout=0.0,
)
model = Transformer(config)
transcriber = Transcriber(model, task)
print(f"Transformer with {model.num_parameters():,} parameters")


def recordings(count, noise):
    """Keys and samples of new recordings, with tones that are so many decibels louder than the noise."""
    rng = tt.random.generator()
    drawn = [dial_tones.random_keys(task, rng) for _ in range(count)]
    return drawn, [dial_tones.dial(keys, rng, noise) for keys in drawn]


def loss_of(model, batch):
    """The mean cross-entropy of the keys, in nats. A shard of a batch has its part of that mean."""
    sides = batch.source, batch.target_inputs, batch.target_outputs  # the outputs are the inputs, one key later
    return model.loss(*sides, specials.pad, reduction="sum") / batch.num_targets


# The loop. Each core takes a shard of the batch, whose loss and gradients it computes in a thread of its own.
optimizer = muon_for(model, lr=0.02, adamw_lr=0.003)  # Muon for the matrices of the blocks, AdamW for all else
schedule = tt.optim.LinearDecay(warmup=100, steps=flags.steps)
cores = tt.parallel.default_shards()
steps = script.Steps(flags.steps)
for step in steps:
    batch = batches.sample()
    optimizer.zero_grad()
    loss = tt.parallel.backward(lambda shard: loss_of(model, shard), batch.split(cores))  # forward and backward, all shards
    tt.optim.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step(schedule(step - 1), threads=cores)
    if step % 200 == 0 or step == flags.steps:
        validation = evaluate(model, batches, loss_of, cores)
        steps.print(f"step {step:5d}: loss {loss.item():.4f}, validation {validation:.4f}")

# The result: how many numbers are exactly right, by the noise; and what the model listened to while it wrote one down.
print("\nNumbers that are right to the last key, of 100 new recordings each:\n")
for name, noise in {"clean": None, "10 dB above the noise": 10.0, "as loud as the noise": 0.0}.items():
    keys, samples = recordings(100, noise)
    heard = transcriber.transcribe(samples)
    right = sum(ours == theirs for ours, theirs in zip(heard, keys))
    print(f"    {name:22s} {right:3d} %   such as {keys[0]}, heard as {heard[0]}")
write_wav(out / "call.wav", samples[0], dial_tones.RATE)
heard = transcriber.hear(samples[0])
with plots.if_possible():
    picture = out / "listening.png"
    vectors = log_mel(samples[0], dial_tones.MEL)
    title = f"The keys {keys[0]}, with as much noise as tone"
    plots.listening(vectors, dial_tones.MEL, heard.weights, config.source_stride, [*heard.keys, "end"], title, picture)
    print(f"\nWhat it listened to: {picture}")
print(f"Listen yourself: {out / 'call.wav'}")
print("Train it for longer: --steps 4000")
