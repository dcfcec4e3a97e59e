"""Train a Transformer to recognize telephone keys by their tones, with noise, in about three minutes on two cores.

python examples/dial_tones.py
python examples/dial_tones.py --steps 4000     # more steps, better results
"""

import tinyformer.commands.script as script  # first, so that mistakes print one line
import tinytensor as tt
from tinyformer import Transcriber, Transformer, TransformerConfig, evaluate, log_mel, muon_for, plots, write_wav
from tinyformer.audio import dial_tones

flags = script.flags(__doc__, steps=1200)
out = script.new_folder("runs/dial_tones")  # or runs/dial_tones-2, if that exists
tt.seed(1337)  # the same seed repeats a run exactly

# Data: recordings generated during training. Each key sounds as two tones, with noise at most as loud as the tones. Some
# recordings have only other sounds, without any keys. The input is a vector every 10 ms: the log energy of 40 frequency bands.
task = dial_tones.DialTask(fewest=3, most=6)
batches = dial_tones.DialBatches(task, batch_size=32, seed=1337)
specials = dial_tones.SPECIALS

# Model: the encoder reads vectors instead of tokens, four per position; the decoder writes the keys.
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
    sides = batch.source, batch.target_inputs, batch.target_outputs  # the outputs are the inputs shifted by one key
    return model.loss(*sides, specials.pad, reduction="sum") / batch.num_targets


# Training loop. Each core computes the loss and gradients of one shard of the batch, in its own thread.
optimizer = muon_for(model, lr=0.02, adamw_lr=0.003)  # Muon for the matrices of the blocks, AdamW for the rest
schedule = tt.optim.LinearDecay(warmup=100, steps=flags.steps)
cores = tt.parallel.default_shards()
steps = script.Steps(flags.steps)
for step in steps:
    batch = batches.sample()
    optimizer.zero_grad()
    loss = tt.parallel.backward(lambda shard: loss_of(model, shard), batch.split(cores))  # forward and backward pass
    tt.optim.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step(schedule(step - 1), threads=cores)
    if step % 200 == 0 or step == flags.steps:
        validation = evaluate(model, batches, loss_of, cores)
        steps.print(f"step {step:5d}: loss {loss.item():.4f}, validation {validation:.4f}")

# Results: exact matches by noise level, and the attention weights for one recording.
print("\nExact matches on 100 new recordings each:\n")
for name, noise in {"clean": None, "10 dB above the noise": 10.0, "as loud as the noise": 0.0}.items():
    keys, samples = recordings(100, noise)
    heard = transcriber.transcribe(samples)
    right = sum(ours == theirs for ours, theirs in zip(heard, keys))
    print(f"    {name:22s} {right:3d} %   for example {keys[0]}, predicted {heard[0]}")
write_wav(out / "call.wav", samples[0], dial_tones.RATE)
heard = transcriber.hear(samples[0])
with plots.if_possible():
    picture = out / "listening.png"
    vectors = log_mel(samples[0], dial_tones.MEL)
    title = f"The keys {keys[0]}, with as much noise as tone"
    plots.listening(vectors, dial_tones.MEL, heard.weights, config.source_stride, [*heard.keys, "end"], title, picture)
    print(f"\nAttention: {picture}")
print(f"Listen to it: {out / 'call.wav'}")
print("Train it for longer: --steps 4000")
