/*
 * main() for a fuzz target built as an ordinary test: every file of the folders (and every file)
 * named in argv goes through LLVMFuzzerTestOneInput(), as it is and in mutations that are the same
 * on every run: cut short, bytes overwritten with values that parsers stumble over, bits flipped.
 *
 * Each input lies in a heap block of exactly its size, so that a sanitizer sees one byte too far.
 * PENSTOCK_FUZZ_MUTATIONS changes how many mutations each file gets.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_MAX (1u << 20)
#define CUTS_MAX 64u /* at most so many lengths that a file is cut to */
#define MUTATIONS 128ul

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned tests, failed;

static uint64_t next_random(uint64_t *state)
{
    /* SplitMix64: a good stream from any seed. */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void run_one(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) {
        abort();
    }
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void mutate(uint8_t *data, size_t size, uint64_t *seed)
{
    static const uint8_t nasty[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0xfe, '\n', ' '};
    for (uint64_t n = 1 + next_random(seed) % 4; n > 0; n--) {
        uint64_t r = next_random(seed);
        size_t at = (size_t)(r >> 16) % size;
        size_t run = 1;
        switch (r & 3) {
        case 0:
            data[at] ^= (uint8_t)(1u << ((r >> 2) & 7));
            break;
        case 1:
            data[at] = (uint8_t)(r >> 8);
            break;
        case 2: /* a whole 32-bit field where there is room */
            run = size - at < 4 ? size - at : 4;
            memset(data + at, nasty[(r >> 4) % sizeof(nasty)], run);
            break;
        default:
            data[at] = nasty[(r >> 4) % sizeof(nasty)];
            break;
        }
    }
}

static unsigned long mutations_wanted(void)
{
    const char *text = getenv("PENSTOCK_FUZZ_MUTATIONS");
    unsigned long n = 0;
    if (!text) {
        return MUTATIONS;
    }
    for (; *text >= '0' && *text <= '9' && n < 1000000000; text++) {
        n = n * 10 + (unsigned long)(*text - '0');
    }
    return n;
}

static void run_variants(const uint8_t *data, size_t size)
{
    uint64_t seed = size;
    size_t step = size / CUTS_MAX + 1;

    run_one(data, size);
    for (size_t cut = 0; cut < size; cut += step) {
        run_one(data, cut);
    }
    if (size == 0) {
        return;
    }
    uint8_t *copy = malloc(size);
    if (!copy) {
        abort();
    }
    for (unsigned long n = mutations_wanted(); n > 0; n--) {
        memcpy(copy, data, size);
        mutate(copy, size, &seed);
        run_one(copy, size);
    }
    free(copy);
}

static void result(int rc, const char *path)
{
    tests++;
    failed += rc != 0;
    printf("%sok %u - %s%s%s\n", rc ? "not " : "", tests, path, rc ? ": " : "",
           rc ? strerror(rc) : "");
    fflush(stdout);
}

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        return errno;
    }
    int rc = ENOMEM;
    uint8_t *data = malloc(INPUT_MAX);
    if (data) {
        size_t size = fread(data, 1, INPUT_MAX, f);
        rc = ferror(f) ? EIO : 0;
        if (rc == 0) {
            run_variants(data, size);
        }
    }
    free(data);
    fclose(f);
    return rc;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        result(errno, path);
        return;
    }
    if (!S_ISDIR(st.st_mode)) {
        result(replay_file(path), path);
        return;
    }
    struct dirent **entries;
    int n = scandir(path, &entries, visible, alphasort);
    if (n <= 0) {
        result(n < 0 ? errno : ENOENT, path);
        return;
    }
    for (int i = 0; i < n; i++) {
        char *name = NULL;
        if (asprintf(&name, "%s/%s", path, entries[i]->d_name) >= 0) {
            result(replay_file(name), name);
            free(name);
        }
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        replay(argv[i]);
    }
    printf("1..%u\n", tests);
    return failed || tests == 0;
}
