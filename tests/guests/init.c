/*
 * The only program of the tests' guest, its process 1: fills memory, and then reads all of it for
 * ever, with a line for each time:
 *
 *     PASS 12 0123456789abcdef
 *
 * which is a number that grows and the memory's digest. The memory does not change, so neither may
 * the digest, whatever is done to the machine meanwhile; what it is hangs on the time stamp counter
 * at the start, so that a guest that booted again gives itself away.
 *
 * How much, in MiB, is the kernel parameter dirty_mib, which the kernel passes on as a variable of
 * the environment.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_WORDS 512u
#define PAUSE_MS 20 /* leaves the host's processors to the others */

static void say(const char *text)
{
    size_t len = strlen(text), done = 0;
    while (done < len) {
        ssize_t n = write(STDOUT_FILENO, text + done, len - done);
        if (n <= 0) {
            return;
        }
        done += (size_t)n;
    }
}

static size_t wanted_mib(void)
{
    const char *text = getenv("dirty_mib");
    size_t n = 0;
    while (text && *text >= '0' && *text <= '9' && n < 4096) {
        n = n * 10 + (size_t)(*text++ - '0');
    }
    return n ? n : 32;
}

/* Three pages of noise, which no one compresses, and one that says the same word all along. */
static void fill(uint64_t *memory, size_t pages, uint64_t seed)
{
    uint64_t x = seed | 1;
    for (size_t page = 0; page < pages; page++) {
        for (size_t i = 0; i < PAGE_WORDS; i++) {
            if (page % 4 != 3 || i == 0) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            memory[page * PAGE_WORDS + i] = x;
        }
    }
}

/* Every word and its place count. */
static uint64_t digest(const uint64_t *memory, size_t words)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < words; i++) {
        h = (h ^ memory[i]) * 0x100000001b3u;
        h ^= h >> 29;
    }
    return h;
}

int main(void)
{
    size_t bytes = wanted_mib() << 20;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                            0);
    if (memory == MAP_FAILED) {
        say("NO MEMORY\n");
        return 1;
    }
    fill(memory, bytes / (PAGE_WORDS * sizeof(*memory)), __builtin_ia32_rdtsc());
    for (unsigned long pass = 1;; pass++) {
        char line[64];
        uint64_t h = digest(memory, bytes / sizeof(*memory));
        snprintf(line, sizeof(line), "PASS %lu %016llx\n", pass, (unsigned long long)h);
        say(line);
        poll(NULL, 0, PAUSE_MS);
    }
}
