/*
 * Leaves: the file proves itself, tells what differs, and saves reading what did not change.
 */
#include "core/bufpool.h"
#include "core/worker.h"
#include "jobs/leaves.h"
#include "jobs/sum.h"
#include "jobs/sum_list.h"
#include "tap.h"
#include "volume/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4096u

static char folder[] = "/tmp/penstock-leaves-XXXXXX";

static char *in_folder(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void headers(void)
{
    struct leaves_header h = {.digest = "sha256",
                              .digest_length = 32,
                              .block_size = 4096,
                              .size = 8193,
                              .count = 3,
                              .blkhash = {1, 2, 3}},
                         back;
    static const struct {
        size_t at;
        uint8_t value;
    } wrong[] = {
        {0, 'P'}, {16, 2},    {20, 1}, {25, 0}, {25, 17}, {27, 1},    {28, 0},
        {28, 65}, {39, 0x80}, {32, 0}, {40, 4}, {112, 0}, {159, 'x'},
    };
    uint8_t bytes[LEAVES_HEADER_BYTES];
    leaves_build(&h, bytes);
    EQ(leaves_parse(bytes, &back), 0);
    EQ(back.size, 8193);
    EQ(back.count, 3);
    EQ(back.block_size, 4096);
    STREQ(back.digest, "sha256");
    OK(memcmp(back.blkhash, h.blkhash, sizeof(h.blkhash)) == 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint8_t before = bytes[wrong[i].at];
        bytes[wrong[i].at] = wrong[i].value;
        if (!EQ(leaves_parse(bytes, &back), -EINVAL)) {
            printf("# byte %zu\n", wrong[i].at);
        }
        bytes[wrong[i].at] = before;
    }
}

static void ranges(void)
{
    struct sum_range r;
    static const char *const wrong[] = {"1",    "+1", "1+",   "x+1", "1+x",  "-1+1",
                                        "1++1", "1 ", "9E+1", "1,2", "1 + 1"};
    EQ(sum_range_parse("1G+64K", 6, &r), 0);
    EQ(r.offset, 1u << 30);
    EQ(r.length, 65536);
    EQ(sum_range_parse(" 4096\t512  data\r", 16, &r), 0);
    EQ(r.offset, 4096);
    EQ(r.length, 512);
    EQ(sum_range_parse("0+0", 3, &r), 0);
    EQ(sum_range_parse("", 0, &r), 1);
    EQ(sum_range_parse("# x", 3, &r), 1);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (!EQ(sum_range_parse(wrong[i], strlen(wrong[i]), &r), -EINVAL)) {
            printf("# %s\n", wrong[i]);
        }
    }
}

static struct volume *open_disk(const char *name)
{
    struct endpoint_options o;
    struct volume *v = NULL;
    endpoint_options_init(&o);
    o.writable = true;
    EQ(endpoint_open(name, &o, &v, NULL), 0);
    return v;
}

/* The sum of v, its leaves to path; with old_path only what changed is hashed. */
static int keep(struct sum *s, struct volume *v, const char *path, const char *old_path,
                const struct sum_range *changed, size_t count, struct sum_result *result)
{
    struct sum_leaves l = {.changed = changed, .count = count};
    struct leaves_header h = {.digest = "sha256", .digest_length = 32, .block_size = BLOCK};
    struct error err = {};
    int r = old_path ? leaves_open(old_path, &l.old, &err) : 0;
    if (r == 0) {
        r = leaves_create(path, 32, &l.keep, &err);
    }
    if (r == 0) {
        r = sum_volume(s, v, &l, result, &err);
    }
    if (r == 0) {
        h.size = result->size;
        memcpy(h.blkhash, result->digest, 32);
        r = leaves_commit(l.keep, &h, &err);
    }
    if (r < 0) {
        printf("# %s: %s\n", err.endpoint, err.text);
    }
    leaves_writer_free(l.keep);
    leaves_close(l.old);
    return r;
}

static void same_sums(struct sum *s, struct volume *v, const struct sum_result *got)
{
    struct sum_result want;
    EQ(sum_volume(s, v, NULL, &want, NULL), 0);
    EQ(got->size, want.size);
    OK(memcmp(got->digest, want.digest, 32) == 0);
    OK(memcmp(got->sector, want.sector, 32) == 0);
    EQ(got->odd, want.odd);
}

static char said[1024];

static int say(void *arg, uint64_t offset, uint64_t length)
{
    size_t used = strlen(said);
    snprintf(said + used, sizeof(said) - used, "%llu+%llu ", (unsigned long long)offset,
             (unsigned long long)length);
    return 0;
}

static const char *differences(const char *a, const char *b)
{
    struct leaves *la = NULL, *lb = NULL;
    said[0] = '\0';
    EQ(leaves_open(a, &la, NULL), 0);
    EQ(leaves_open(b, &lb, NULL), 0);
    if (la && lb) {
        EQ(leaves_compare(la, lb, say, NULL, NULL), 0);
    }
    leaves_close(la);
    leaves_close(lb);
    return said;
}

static int changes_fiber(void *arg)
{
    static uint8_t data[100000];
    struct sum_options o = {.digest = "sha256", .block_size = BLOCK, .workers = 2};
    struct sum_result result;
    struct sum *s;
    struct volume *v = open_disk("memory:1000001");
    const char *one = in_folder("one"), *two = in_folder("two");
    memset(data, 3, sizeof(data));
    if (!v || !EQ(sum_new(&o, &s, NULL), 0)) {
        return 0;
    }
    EQ(volume_write(v, data, sizeof(data), 200000, 0, NULL), 0);
    EQ(keep(s, v, one, NULL, NULL, 0, &result), 0);
    same_sums(s, v, &result);
    STREQ(differences(one, one), "");

    /* Three changes, in no order and overlapping; one range beyond the end. */
    memset(data, 4, sizeof(data));
    EQ(volume_write(v, data, 5000, 8191, 0, NULL), 0);
    EQ(volume_write(v, data, 1, 700000, 0, NULL), 0);
    EQ(volume_write(v, data, 1, 1000000, 0, NULL), 0);
    const struct sum_range changed[] = {{700000, 1},  {8191, 3000}, {9000, 4191},
                                        {5000000, 9}, {1000000, 1}, {4096, 0}};
    EQ(keep(s, v, two, one, changed, 6, &result), 0);
    same_sums(s, v, &result);
    STREQ(differences(one, two), "4096+12288 696320+4096 999424+577 ");

    /* Only what is said is read: a change that is not said is not seen. */
    EQ(volume_write(v, data, 1, 300000, 0, NULL), 0);
    EQ(keep(s, v, in_folder("three"), two, NULL, 0, &result), 0);
    STREQ(differences(two, in_folder("three")), "");
    volume_close(v);
    sum_free(s);
    return 0;
}

static void changes(void)
{
    EQ(worker_main(changes_fiber, NULL), 0);
}

static int sizes_fiber(void *arg)
{
    static const char *const disks[] = {"pattern:0",     "pattern:1",     "pattern:4096",
                                        "pattern:12288", "pattern:20481", "pattern:1000448"};
    struct sum_options o = {.digest = "sha256", .block_size = BLOCK, .workers = 1};
    const size_t n = sizeof(disks) / sizeof(disks[0]);
    struct sum_result result;
    struct sum *s;
    EQ(sum_new(&o, &s, NULL), 0);
    /* From every size to every other: nothing is said to be changed, and all is right. */
    for (size_t from = 0; from < n; from++) {
        for (size_t to = 0; to < n; to++) {
            struct endpoint_options eo;
            struct volume *a, *b;
            endpoint_options_init(&eo);
            EQ(endpoint_open(disks[from], &eo, &a, NULL), 0);
            EQ(endpoint_open(disks[to], &eo, &b, NULL), 0);
            EQ(keep(s, a, in_folder("old"), NULL, NULL, 0, &result), 0);
            EQ(keep(s, b, in_folder("new"), in_folder("old"), NULL, 0, &result), 0);
            same_sums(s, b, &result);
            volume_close(a);
            volume_close(b);
        }
    }
    sum_free(s);
    return 0;
}

static void disks_grow_and_shrink(void)
{
    EQ(worker_main(sizes_fiber, NULL), 0);
}

static void patch(const char *path, off_t at, const char *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    EQ(pwrite(fd, bytes, len, at), len);
    close(fd);
}

static int damage_fiber(void *arg)
{
    struct sum_options o = {.digest = "sha256", .block_size = BLOCK, .workers = 1};
    const char *path = in_folder("damaged");
    struct sum_result result;
    struct leaves *l;
    struct error err = {};
    struct sum *s;
    struct volume *v = open_disk("memory:100000");
    EQ(sum_new(&o, &s, NULL), 0);
    EQ(keep(s, v, path, NULL, NULL, 0, &result), 0);
    EQ(leaves_open(path, &l, NULL), 0);
    leaves_close(l);
    patch(path, LEAVES_HEADER_BYTES + 40, "x", 1);
    EQ(leaves_open(path, &l, &err), -EBADMSG);
    STREQ(err.endpoint, path);
    EQ(keep(s, v, path, NULL, NULL, 0, &result), 0);
    patch(path, LEAVES_HEADER_BYTES + 25 * 32, "x", 1);
    EQ(leaves_open(path, &l, NULL), -EBADMSG); /* longer */
    EQ(truncate(path, LEAVES_HEADER_BYTES + 24 * 32), 0);
    EQ(leaves_open(path, &l, NULL), -EBADMSG);
    EQ(truncate(path, 100), 0);
    EQ(leaves_open(path, &l, NULL), -EINVAL);
    EQ(keep(s, v, path, NULL, NULL, 0, &result), 0);
    patch(path, 112, "sha1\0\0", 6);
    EQ(leaves_open(path, &l, NULL), -EINVAL); /* its digests have 20 bytes */
    EQ(leaves_open(in_folder("missing"), &l, NULL), -ENOENT);
    EQ(leaves_open(folder, &l, NULL), -EINVAL);
    volume_close(v);
    sum_free(s);
    return 0;
}

static void damage_is_found(void)
{
    EQ(worker_main(damage_fiber, NULL), 0);
}

static int failure_fiber(void *arg)
{
    struct sum_options o = {.digest = "sha256", .block_size = BLOCK, .workers = 2};
    const char *path = in_folder("kept");
    struct sum_result result;
    struct stat before, after;
    struct sum *s;
    struct volume *good = open_disk("memory:100000");
    struct volume *bad = open_disk("fault:read-error=EIO,no-extents:memory:100000");
    EQ(sum_new(&o, &s, NULL), 0);
    EQ(keep(s, good, path, NULL, NULL, 0, &result), 0);
    EQ(stat(path, &before), 0);
    EQ(keep(s, bad, path, NULL, NULL, 0, &result), -EIO);
    EQ(stat(path, &after), 0);
    EQ(after.st_ino, before.st_ino);
    EQ(keep(s, good, in_folder("no/such/folder"), NULL, NULL, 0, &result), -ENOENT);
    volume_close(good);
    volume_close(bad);
    sum_free(s);
    return 0;
}

static void a_failure_leaves_the_old_file(void)
{
    EQ(worker_main(failure_fiber, NULL), 0);
}

int main(void)
{
    static const char *const names[] = {"one", "two", "three", "old", "new", "damaged", "kept"};
    if (!mkdtemp(folder)) {
        return 1;
    }
    RUN(headers);
    RUN(ranges);
    RUN(changes);
    RUN(disks_grow_and_shrink);
    RUN(damage_is_found);
    RUN(a_failure_leaves_the_old_file);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unlink(in_folder(names[i]));
    }
    if (rmdir(folder) < 0) {
        printf("Bail out! something was left in %s\n", folder);
        return 1;
    }
    bufpool_trim();
    return tap_done();
}
