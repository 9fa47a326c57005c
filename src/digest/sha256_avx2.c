/*
 * SHA-256 of eight messages of the same length, one in each 32-bit column of AVX2's registers: for
 * CPUs without SHA instructions (Skylake and Cascade Lake servers), where it is three times
 * libcrypto's speed. It is the plain algorithm of FIPS 180-4, section 6.2.2, with a vector where
 * the text has a word; only bringing sixteen words of eight messages into columns takes thought.
 */
#include "digest/engine.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE_TARGET static inline __attribute__((target("avx2"), always_inline))
#define LANES SHA256_AVX2_LANES

bool sha256_avx2_supported(void)
{
    return __builtin_cpu_supports("avx2");
}

#define ROTR(x, n) _mm256_or_si256(_mm256_srli_epi32(x, n), _mm256_slli_epi32(x, 32 - (n)))
#define XOR3(x, y, z) _mm256_xor_si256(_mm256_xor_si256(x, y), z)
#define ADD(x, y) _mm256_add_epi32(x, y)

/* The functions of FIPS 180-4, 4.1.2. */
INLINE_TARGET __m256i big_sigma0(__m256i x)
{
    return XOR3(ROTR(x, 2), ROTR(x, 13), ROTR(x, 22));
}

INLINE_TARGET __m256i big_sigma1(__m256i x)
{
    return XOR3(ROTR(x, 6), ROTR(x, 11), ROTR(x, 25));
}

INLINE_TARGET __m256i small_sigma0(__m256i x)
{
    return XOR3(ROTR(x, 7), ROTR(x, 18), _mm256_srli_epi32(x, 3));
}

INLINE_TARGET __m256i small_sigma1(__m256i x)
{
    return XOR3(ROTR(x, 17), ROTR(x, 19), _mm256_srli_epi32(x, 10));
}

INLINE_TARGET __m256i choose(__m256i x, __m256i y, __m256i z)
{
    return _mm256_xor_si256(z, _mm256_and_si256(x, _mm256_xor_si256(y, z)));
}

INLINE_TARGET __m256i majority(__m256i x, __m256i y, __m256i z)
{
    return _mm256_or_si256(_mm256_and_si256(x, y), _mm256_and_si256(z, _mm256_or_si256(x, y)));
}

/* An 8 by 8 matrix of words, rows to columns: pairs of words, pairs of pairs, halves. */
INLINE_TARGET void transpose(__m256i r[8])
{
    __m256i t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
    }
}

INLINE_TARGET __m256i swap_bytes(__m256i x)
{
    const __m256i order = _mm256_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3, 12,
                                          13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    return _mm256_shuffle_epi8(x, order);
}

INLINE_TARGET void load_words(const uint8_t *const p[LANES], size_t offset, __m256i w[16])
{
    for (int half = 0; half < 2; half++) {
        for (unsigned lane = 0; lane < LANES; lane++) {
            const void *from = p[lane] + offset + (size_t)half * 32;
            w[half * 8 + lane] = swap_bytes(_mm256_loadu_si256((const __m256i *)from));
        }
        transpose(w + (size_t)half * 8);
    }
}

/* One round; the caller renames the variables instead of moving them. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                          \
    do {                                                                          \
        __m256i t1 = ADD(ADD(h, big_sigma1(e)), ADD(choose(e, f, g), w[(i)&15])); \
        t1 = ADD(t1, _mm256_set1_epi32((int)sha256_k[i]));                        \
        d = ADD(d, t1);                                                           \
        h = ADD(t1, ADD(big_sigma0(a), majority(a, b, c)));                       \
    } while (0)

/* Words i to i + 15, in place of the sixteen before (6.2.2, step 1). */
INLINE_TARGET void next_words(__m256i w[16])
{
    for (unsigned i = 0; i < 16; i++) {
        __m256i s0 = small_sigma0(w[(i + 1) & 15]);
        __m256i s1 = small_sigma1(w[(i + 14) & 15]);
        w[i] = ADD(ADD(w[i], s0), ADD(w[(i + 9) & 15], s1));
    }
}

TARGET static void compress(__m256i s[8], const uint8_t *const p[LANES], size_t offset)
{
    __m256i w[16];
    __m256i a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];

    load_words(p, offset, w);
    for (unsigned i = 0; i < 64; i += 8) {
        if (i > 0 && i % 16 == 0) {
            next_words(w);
        }
        ROUND(a, b, c, d, e, f, g, h, i);
        ROUND(h, a, b, c, d, e, f, g, i + 1);
        ROUND(g, h, a, b, c, d, e, f, i + 2);
        ROUND(f, g, h, a, b, c, d, e, i + 3);
        ROUND(e, f, g, h, a, b, c, d, i + 4);
        ROUND(d, e, f, g, h, a, b, c, i + 5);
        ROUND(c, d, e, f, g, h, a, b, i + 6);
        ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    s[0] = ADD(s[0], a);
    s[1] = ADD(s[1], b);
    s[2] = ADD(s[2], c);
    s[3] = ADD(s[3], d);
    s[4] = ADD(s[4], e);
    s[5] = ADD(s[5], f);
    s[6] = ADD(s[6], g);
    s[7] = ADD(s[7], h);
}

TARGET void sha256_avx2_x8(const uint8_t *const data[LANES], size_t len, uint8_t *const out[LANES])
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    __m256i s[8];
    uint8_t tails[LANES][128];
    const uint8_t *tail[LANES];
    size_t tail_blocks = 1;

    for (int i = 0; i < 8; i++) {
        s[i] = _mm256_set1_epi32((int)start[i]);
    }
    for (size_t block = 0; block < len / 64; block++) {
        compress(s, data, block * 64);
    }
    for (unsigned lane = 0; lane < LANES; lane++) {
        tail_blocks = sha256_pad(data[lane], len, tails[lane]);
        tail[lane] = tails[lane];
    }
    for (size_t block = 0; block < tail_blocks; block++) {
        compress(s, tail, block * 64);
    }
    transpose(s);
    for (unsigned lane = 0; lane < LANES; lane++) {
        _mm256_storeu_si256((__m256i *)(void *)out[lane], swap_bytes(s[lane]));
    }
}

#else

bool sha256_avx2_supported(void)
{
    return false;
}

void sha256_avx2_x8(const uint8_t *const data[SHA256_AVX2_LANES], size_t len,
                    uint8_t *const out[SHA256_AVX2_LANES])
{
    __builtin_trap(); /* nobody calls what is not supported */
}

#endif
