// The dropout mask of a random key, as kernels/numpy/dropout.py defines it.
#pragma once

using Word = unsigned long long;

struct RandomKey {
    Word first, second;
};

// The random key with these words. For a captured step they are in memory at `words`, which is null otherwise.
__device__ inline RandomKey key_of(const Word* words, Word first, Word second) {
    return words ? RandomKey{words[0], words[1]} : RandomKey{first, second};
}

// An element is kept if its byte is below `limit`, or if it equals `limit` and the 64 further bits are below `part`.
struct Keep {
    RandomKey random_key;
    Word part;
    unsigned int limit;
};

struct Words {
    Word values[4];
};

// A block of the random key's stream: Philox 4x64-10 (Salmon et al. 2011, section 3.3).
__device__ inline Words philox(RandomKey random_key, Word block) {
    constexpr Word left = 0xd2e7470ee14c6c93, right = 0xca5a826395121157;
    Word a = block + 1, b = 0, c = 0, d = 0;
    for (int round = 0; round < 10; round++) {
        Word next_a = __umul64hi(right, c) ^ b ^ random_key.first, next_c = __umul64hi(left, a) ^ d ^ random_key.second;
        b = right * c;
        d = left * a;
        a = next_a;
        c = next_c;
        random_key.first += 0x9e3779b97f4a7c15;
        random_key.second += 0xbb67ae8584caa73b;
    }
    return {a, b, c, d};
}

// The output of SplitMix64 at this index, counted from 0 (Steele, Lea and Flood 2014, figure 17).
__device__ inline Word split_mix(Word seed, Word index) {
    Word z = seed + (index + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

constexpr int block_elements = 32;  // elements in a block of the stream: a byte each
constexpr int bit_tile = 32;  // queries that share a word of the mask of attention's weights, as in dropout.py

// Bit i is set if element 32 * block + i is kept.
__device__ inline unsigned int keep_bits(const Keep& keep, Word block) {
    Words words = philox(keep.random_key, block);
    unsigned int kept = 0, undecided = 0;
#pragma unroll
    for (int i = 0; i < block_elements; i++) {
        unsigned int byte = static_cast<unsigned int>(words.values[i / 8] >> (8 * (i % 8))) & 255u;
        kept |= static_cast<unsigned int>(byte < keep.limit) << i;
        undecided |= static_cast<unsigned int>(byte == keep.limit) << i;
    }
    if (keep.part == 0) return kept;
    for (; undecided; undecided &= undecided - 1) {
        int i = __ffs(undecided) - 1;
        kept |= static_cast<unsigned int>(split_mix(keep.random_key.second, block_elements * block + i) < keep.part) << i;
    }
    return kept;
}
