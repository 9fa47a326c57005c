/* memory, null and pattern at sizes and offsets that no file has. */
#include "core/fiber.h"
#include "volume_test.h"

#include <endian.h>

FIBER_TEST(memory_of_8_eib)
{
    static const uint64_t places[] = {
        0, 65535, 1ull << 32, (1ull << 47) - 3, (1ull << 62) + 17, VOLUME_SIZE_MAX - 9};
    struct volume *v = open_writable("memory:9223372036854775807");
    char got[9];
    for (size_t i = 0; i < 6; i++) {
        EQ(volume_write(v, "123456789", 9, places[i], 0, NULL), 0);
    }
    for (size_t i = 0; i < 6; i++) {
        EQ(volume_read(v, got, 9, places[i], NULL), 0);
        OK(memcmp(got, "123456789", 9) == 0);
    }
    struct extent e[16];
    int n = volume_extents(v, 0, v->size, e, 16, NULL);
    EQ(n, 9);
    EQ(e[0].length, 2 * 65536);
    EQ(e[0].flags, 0);
    EQ(e[1].flags, EXTENT_HOLE | EXTENT_ZERO);
    EQ(e[1].length, (1ull << 32) - 2 * 65536);
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += e[i].length;
    }
    EQ(sum, VOLUME_SIZE_MAX);
    /* All of it at once, which must not walk 8 EiB. */
    EQ(volume_zero(v, 0, v->size, ZERO_MAY_UNMAP | ZERO_NO_FALLBACK, NULL), 0);
    EQ(volume_extents(v, 0, v->size, e, 16, NULL), 1);
    EQ(e[0].length, VOLUME_SIZE_MAX);
    EQ(e[0].flags, EXTENT_HOLE | EXTENT_ZERO);
    EQ(volume_read(v, got, 9, VOLUME_SIZE_MAX - 9, NULL), 0);
    OK(memcmp(got, "\0\0\0\0\0\0\0\0\0", 9) == 0);
    volume_close(v);
}

FIBER_TEST(null_is_any_size)
{
    struct endpoint_options o;
    endpoint_options_init(&o);
    o.writable = true;
    o.create = true;
    o.create_size = VOLUME_SIZE_MAX;
    struct volume *v = NULL;
    EQ(endpoint_open("null:", &o, &v, NULL), 0);
    EQ(v->size, VOLUME_SIZE_MAX);
    OK(volume_can(v, VOLUME_TAKES_ANY_SIZE));
    EQ(volume_write(v, "x", 1, VOLUME_SIZE_MAX - 1, WRITE_FUA, NULL), 0);
    struct extent e;
    EQ(volume_extents(v, 5, VOLUME_SIZE_MAX - 5, &e, 1, NULL), 1);
    EQ(e.length, VOLUME_SIZE_MAX - 5);
    char got[3] = "ab";
    EQ(volume_read(v, got, 2, 77, NULL), 0);
    OK(got[0] == 0 && got[1] == 0);
    EQ(volume_resize(v, 10, NULL), 0);
    EQ(volume_write(v, "x", 1, 10, 0, NULL), -ENOSPC);
    volume_close(v);
    EQ(endpoint_open("null:4K", NULL, &v, NULL), 0);
    EQ(volume_write(v, "x", 1, 0, 0, NULL), -EPERM);
    EQ(volume_zero(v, 0, 1, 0, NULL), -EPERM);
    EQ(volume_discard(v, 0, 1, 0, NULL), -EPERM);
    volume_close(v);
}

FIBER_TEST(pattern_says_where)
{
    struct endpoint_options o;
    struct volume *v = NULL;
    struct error err = {0};
    endpoint_options_init(&o);
    o.writable = true;
    EQ(endpoint_open("pattern:1M", &o, &v, &err), -EROFS);
    EQ(endpoint_open("pattern:9223372036854775296", NULL, &v, NULL), 0);
    uint64_t seed = 5;
    uint8_t got[200];
    for (int i = 0; i < 300; i++) {
        size_t len = (size_t)below(&seed, sizeof(got) + 1);
        uint64_t off = below(&seed, v->size - len);
        off = i == 0 ? v->size - len : off >> below(&seed, 62);
        EQ(volume_read(v, got, len, off, NULL), 0);
        for (size_t j = 0; j < len; j++) {
            uint64_t word = htobe64((off + j) & ~7ull);
            if (!OK(got[j] == ((uint8_t *)&word)[(off + j) & 7])) {
                break;
            }
        }
    }
    volume_close(v);
}

static struct volume *shared;

static void write_there(void *arg)
{
    for (unsigned i = 0; i < 200; i++) {
        uint64_t off = (i * 2 + 1) * 1000ull;
        OK(volume_write(shared, "there", 5, off, 0, NULL) == 0);
    }
}

/* Both make chunks of the same nodes. */
FIBER_TEST(two_workers_one_memory)
{
    struct worker *other;
    shared = open_writable("memory:1G");
    EQ(worker_start("other", &other), 0);
    EQ(worker_post(other, write_there, NULL), 0);
    for (unsigned i = 0; i < 200; i++) {
        OK(volume_write(shared, "here.", 5, i * 2 * 1000ull, 0, NULL) == 0);
    }
    worker_stop(other);
    char got[5];
    for (unsigned i = 0; i < 400; i++) {
        OK(volume_read(shared, got, 5, i * 1000ull, NULL) == 0);
        OK(memcmp(got, i & 1 ? "there" : "here.", 5) == 0);
    }
    volume_close(shared);
}

int main(void)
{
    RUN(memory_of_8_eib);
    RUN(null_is_any_size);
    RUN(pattern_says_where);
    RUN(two_workers_one_memory);
    bufpool_trim();
    return tap_done();
}
