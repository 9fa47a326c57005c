/*
 * SHA-256 of two messages of the same length, side by side, with the CPU's SHA instructions.
 *
 * sha256rnds2 does two rounds and the next one waits for its result: four cycles, while the CPU
 * could start one every cycle or two. A second message that is independent of the first fills
 * those gaps, at 1.8 times the speed of one. Three or four lanes gain nothing more and run out of
 * registers.
 *
 * The instructions keep the state as ABEF and CDGH (Intel SDM, SHA256RNDS2); the shuffles in
 * load_state() and store_state() convert. Chosen at run time: sha256_ni_supported().
 */
#include "digest/engine.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define TARGET __attribute__((target("sha,sse4.1,ssse3")))
#define INLINE_TARGET static inline __attribute__((target("sha,sse4.1,ssse3"), always_inline))

#define CPUID1_ECX_SSSE3 (1u << 9)
#define CPUID1_ECX_SSE41 (1u << 19)
#define CPUID7_EBX_SHA (1u << 29)

bool sha256_ni_supported(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & CPUID1_ECX_SSSE3) || !(c & CPUID1_ECX_SSE41)) {
        return false;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & CPUID7_EBX_SHA);
}

struct lane {
    __m128i abef, cdgh;
};

INLINE_TARGET void load_state(struct lane *lane)
{
    /* FIPS 180-4, 5.3.3: A..H, highest word first. */
    lane->abef = _mm_set_epi32((int)0x6a09e667, (int)0xbb67ae85, (int)0x510e527f, (int)0x9b05688c);
    lane->cdgh = _mm_set_epi32((int)0x3c6ef372, (int)0xa54ff53a, (int)0x1f83d9ab, (int)0x5be0cd19);
}

INLINE_TARGET void store_state(const struct lane *lane, uint8_t *out)
{
    const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    __m128i feba = _mm_shuffle_epi32(lane->abef, 0x1b);
    __m128i dchg = _mm_shuffle_epi32(lane->cdgh, 0xb1);
    __m128i dcba = _mm_blend_epi16(feba, dchg, 0xf0);
    __m128i hgfe = _mm_alignr_epi8(dchg, feba, 8);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_shuffle_epi8(dcba, swap));
    _mm_storeu_si128((__m128i *)(void *)(out + 16), _mm_shuffle_epi8(hgfe, swap));
}

INLINE_TARGET __m128i load_words(const uint8_t *p)
{
    const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p), swap);
}

/* Four rounds of one lane with the words w. */
INLINE_TARGET void four_rounds(struct lane *lane, __m128i w, unsigned round)
{
    __m128i wk = _mm_add_epi32(w, _mm_load_si128((const __m128i *)(const void *)&sha256_k[round]));
    lane->cdgh = _mm_sha256rnds2_epu32(lane->cdgh, lane->abef, wk);
    lane->abef = _mm_sha256rnds2_epu32(lane->abef, lane->cdgh, _mm_shuffle_epi32(wk, 0x0e));
}

/* Words 16 to 19 after those in w0..w3 (FIPS 180-4, 6.2.2, step 1). */
INLINE_TARGET __m128i next_words(__m128i w0, __m128i w1, __m128i w2, __m128i w3)
{
    __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
    return _mm_sha256msg2_epu32(sum, w3);
}

/* Four rounds of both lanes with the oldest words, which then become the newest. */
#define STEP(round, w0, w1, w2, w3)                     \
    do {                                                \
        four_rounds(&a, a##w0, round);                  \
        four_rounds(&b, b##w0, round);                  \
        a##w0 = next_words(a##w0, a##w1, a##w2, a##w3); \
        b##w0 = next_words(b##w0, b##w1, b##w2, b##w3); \
    } while (0)

/* Four rounds of both lanes near the end, where no more words are needed. */
#define LAST(round, w0)                \
    do {                               \
        four_rounds(&a, a##w0, round); \
        four_rounds(&b, b##w0, round); \
    } while (0)

TARGET static void compress(struct lane *la, struct lane *lb, const uint8_t *pa, const uint8_t *pb,
                            size_t blocks)
{
    struct lane a = *la;
    struct lane b = *lb;
    for (; blocks > 0; blocks--, pa += 64, pb += 64) {
        const struct lane a_before = a;
        const struct lane b_before = b;
        __m128i aw0 = load_words(pa), aw1 = load_words(pa + 16);
        __m128i aw2 = load_words(pa + 32), aw3 = load_words(pa + 48);
        __m128i bw0 = load_words(pb), bw1 = load_words(pb + 16);
        __m128i bw2 = load_words(pb + 32), bw3 = load_words(pb + 48);

        STEP(0, w0, w1, w2, w3);
        STEP(4, w1, w2, w3, w0);
        STEP(8, w2, w3, w0, w1);
        STEP(12, w3, w0, w1, w2);
        STEP(16, w0, w1, w2, w3);
        STEP(20, w1, w2, w3, w0);
        STEP(24, w2, w3, w0, w1);
        STEP(28, w3, w0, w1, w2);
        STEP(32, w0, w1, w2, w3);
        STEP(36, w1, w2, w3, w0);
        STEP(40, w2, w3, w0, w1);
        STEP(44, w3, w0, w1, w2);
        LAST(48, w0);
        LAST(52, w1);
        LAST(56, w2);
        LAST(60, w3);

        a.abef = _mm_add_epi32(a.abef, a_before.abef);
        a.cdgh = _mm_add_epi32(a.cdgh, a_before.cdgh);
        b.abef = _mm_add_epi32(b.abef, b_before.abef);
        b.cdgh = _mm_add_epi32(b.cdgh, b_before.cdgh);
    }
    *la = a;
    *lb = b;
}

TARGET void sha256_ni_x2(const uint8_t *const data[2], size_t len, uint8_t *const out[2])
{
    struct lane a, b;
    uint8_t tail_a[128], tail_b[128];

    load_state(&a);
    load_state(&b);
    compress(&a, &b, data[0], data[1], len / 64);
    size_t blocks = sha256_pad(data[0], len, tail_a);
    sha256_pad(data[1], len, tail_b);
    compress(&a, &b, tail_a, tail_b, blocks);
    store_state(&a, out[0]);
    store_state(&b, out[1]);
}

#else

bool sha256_ni_supported(void)
{
    return false;
}

void sha256_ni_x2(const uint8_t *const data[2], size_t len, uint8_t *const out[2])
{
    __builtin_trap(); /* nobody calls what is not supported */
}

#endif
