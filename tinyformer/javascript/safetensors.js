/** Files of the safetensors format: eight bytes with the length of a header, the header in JSON, and then the numbers. */

/** What makes a file no file of weights. Its message is for people. */
export class DamagedFile extends Error {}

/** What reads the numbers of each dtype: how many bytes one takes, and how they become a Float32Array. */
const DTYPES = {
  F32: { size: 4, read: (buffer, start, count) => new Float32Array(buffer, start, count) },
  F16: { size: 2, read: (buffer, start, count) => fromHalves(new Uint16Array(buffer, start, count)) },
  BF16: { size: 2, read: (buffer, start, count) => fromBfloats(new Uint16Array(buffer, start, count)) },
  I8: { size: 1, read: (buffer, start, count) => new Float32Array(new Int8Array(buffer, start, count)) },
};

/**
 * The arrays of a file, by name. Those in float32 share the file's memory where they can.
 * @param {ArrayBuffer} file all of its bytes
 * @returns {{metadata: Object<string, string>, arrays: Map<string, {shape: number[], values: Float32Array}>}}
 *   Throws DamagedFile for anything else than a whole file whose numbers are F32, F16, BF16 or I8.
 */
export function readSafetensors(file) {
  const { header, start } = readHeader(file);
  const { __metadata__: metadata = {}, ...described } = header;
  const arrays = new Map(Object.entries(described).map(([name, about]) => [name, readArray(file, start, name, about)]));
  return { metadata, arrays };
}

function readHeader(file) {
  const length = file.byteLength < 8 ? Infinity : Number(new DataView(file).getBigUint64(0, true));
  if (length > file.byteLength - 8) throw new DamagedFile("this is not a whole safetensors file: its header is cut off");
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(file, 8, length)));
  } catch {
    throw new DamagedFile("this is not a safetensors file: its header is not JSON");
  }
  if (!isObject(header)) throw new DamagedFile("this is not a safetensors file: its header is not an object");
  return { header, start: 8 + length };
}

function readArray(file, start, name, about) {
  const { dtype, shape, data_offsets } = isObject(about) ? about : {};
  const known = Object.hasOwn(DTYPES, dtype) ? DTYPES[dtype] : null;
  if (!known) throw new DamagedFile(`${name} is of the dtype ${dtype}: only ${Object.keys(DTYPES).join(", ")} can be read`);
  const count = areSizes(shape) ? shape.reduce((product, size) => product * size, 1) : NaN;
  const [first, last] = areSizes(data_offsets) ? data_offsets : [];
  if (last - first !== count * known.size) throw new DamagedFile(`${name} has another number of bytes than its shape needs`);
  if (start + last > file.byteLength) throw new DamagedFile(`the file is cut off: ${name} is not all there`);
  const isAligned = (start + first) % known.size === 0; // otherwise the numbers need a place of their own
  const values = isAligned
    ? known.read(file, start + first, count)
    : known.read(file.slice(start + first, start + last), 0, count);
  return { shape, values };
}

function areSizes(value) {
  return Array.isArray(value) && value.every((size) => Number.isSafeInteger(size) && size >= 0);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A half has a sign, 5 bits of an exponent and 10 of a fraction. */
function fromHalves(halves) {
  const scales = Float64Array.from({ length: 32 }, (_, exponent) => 2 ** (Math.max(exponent, 1) - 25));
  const found = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) {
    const exponent = (halves[i] >> 10) & 31;
    const fraction = halves[i] & 1023;
    const size = exponent === 31 ? (fraction ? NaN : Infinity) : (exponent && 1024) + fraction;
    found[i] = (halves[i] & 0x8000 ? -size : size) * scales[exponent];
  }
  return found;
}

/** bfloat16 is the first half of a float32. */
function fromBfloats(halves) {
  return new Float32Array(Uint32Array.from(halves, (bits) => bits << 16).buffer);
}
