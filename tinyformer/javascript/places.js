/** What tells a GPT the place of a token: tables and angles that nothing is learned for. See tinyformer/models/positions.py. */

/** The table of sinusoidal positions, (length, width): sines, each beside the cosine of the same angle. */
export function sinusoidal(length, width) {
  return Float64Array.from({ length: length * width }, (_, at) => {
    const [place, i] = [Math.floor(at / width), at % width];
    const angle = place / 10000 ** ((i - (i % 2)) / width);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/**
 * By how much rotary positions turn each pair of a head's numbers, i and i + width / 2, from one token to the next, in radians.
 * @param {object} config the settings of a GPTConfig
 * @param {number} width of a head
 * @returns {number[]} (width / 2)
 */
export function frequencies({ rotary_base: base, rotary_scaling: scaling }, width) {
  const plain = Array.from({ length: width / 2 }, (_, i) => base ** ((-2 * i) / width));
  return scaling ? plain.map((frequency) => scaled(frequency, scaling)) : plain;
}

/** A frequency that is smaller, for a longer context. */
function scaled(frequency, { kind, factor, low_frequency_factor: low, high_frequency_factor: high, original_length: original }) {
  if (kind === "linear") return frequency / factor;
  const turns = (original * frequency) / (2 * Math.PI);
  const kept = Math.min(1, Math.max(0, (turns - low) / (high - low)));
  return kept * frequency + ((1 - kept) * frequency) / factor;
}
