// Which elements a dropout key keeps: see the top of kernels/numpy/dropout.py, which defines it.
#pragma once

using Word = unsigned long long;

struct RandomKey {
    Word first, second;
};

// An element is kept where its byte is below `whole`, or equal to it and its further 64 bits are below `part`.
struct Keep {
    RandomKey key;
    Word part;
    unsigned int whole;
};

struct Words {
    Word values[4];
};

// A block of the key's stream: Philox 4x64-10 (Salmon et al. 2011, section 3.3).
__device__ inline Words philox(RandomKey key, Word block) {
    constexpr Word left = 0xd2e7470ee14c6c93, right = 0xca5a826395121157;
    Word a = block + 1, b = 0, c = 0, d = 0;
    for (int round = 0; round < 10; round++) {
        Word next_a = __umul64hi(right, c) ^ b ^ key.first, next_c = __umul64hi(left, a) ^ d ^ key.second;
        b = right * c;
        d = left * a;
        a = next_a;
        c = next_c;
        key.first += 0x9e3779b97f4a7c15;
        key.second += 0xbb67ae8584caa73b;
    }
    return {a, b, c, d};
}

// The output of SplitMix64 with this number (Steele, Lea and Flood 2014, figure 17).
__device__ inline Word split_mix(Word seed, Word index) {
    Word z = seed + (index + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

constexpr int block_elements = 32;  // of the stream: each has a byte, and in what follows a bit

// Bit i says whether element 32 * block + i is kept.
__device__ inline unsigned int keep_bits(const Keep& keep, Word block) {
    Words words = philox(keep.key, block);
    unsigned int kept = 0, undecided = 0;
#pragma unroll
    for (int i = 0; i < block_elements; i++) {
        unsigned int byte = static_cast<unsigned int>(words.values[i / 8] >> (8 * (i % 8))) & 255u;
        kept |= static_cast<unsigned int>(byte < keep.whole) << i;
        undecided |= static_cast<unsigned int>(byte == keep.whole) << i;
    }
    if (keep.part == 0) return kept;
    for (; undecided; undecided &= undecided - 1) {
        int i = __ffs(undecided) - 1;
        kept |= static_cast<unsigned int>(split_mix(keep.key.second, block_elements * block + i) < keep.part) << i;
    }
    return kept;
}
