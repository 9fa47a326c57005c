/*
 * penstock save FILE: a VM's state from standard input onto a disk.
 */
#include "cli/command.h"
#include "cli/pipe_cli.h"
#include "cli/run.h"
#include "core/size.h"
#include "jobs/save.h"
#include "jobs/sidecar.h"
#include "report/jsonout.h"
#include "report/progress.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct save_cli {
    uint64_t fd;
    bool direct, in_place, sparse, digest, json;
    uint64_t offset, preallocate, rate, threads, pipe_size;
    const char *compress;
    const char *progress;
};

static const struct option_word none_is_zero[] = {{"none", 0}, {}};
static const struct option_word auto_is_zero[] = {{"auto", 0}, {}};

/* clang-format off */
static const struct option_spec options[] = {
    {"direct", 0, OPT_FLAG(struct save_cli, direct),
        .help = "Bypass the page cache: writes that leave nothing in it where the kernel has them, "
        "else O_DIRECT, else plain writes with a note."},
    {"offset", 0, OPT_SIZE(struct save_cli, offset), "SIZE",
        "Start at this byte of FILE and keep what is before it. Implies --in-place.",
        .fallback = "0"},
    {"in-place", 0, OPT_FLAG(struct save_cli, in_place),
        .help = "Write FILE itself, not a temporary beside it that is renamed at the end."},
    {"preallocate", 0, OPT_SIZE(struct save_cli, preallocate), "SIZE",
        "Reserve space for so many bytes first: a full disk is an error at once.",
        .fallback = "none", .words = none_is_zero},
    {"compress", 'c', OPT_STRING(struct save_cli, compress), "CODEC[:LEVEL]",
        "zstd, lz4 or gzip, on several threads. The file is also readable by zstd -dc, lz4 -dc, "
        "gzip -dc."},
    {"threads", 0, OPT_NUMBER(struct save_cli, threads), "N",
        "Threads that compress.", .fallback = "auto", .words = auto_is_zero, .min = 1, .max = 64},
    {"sparse", 0, OPT_FLAG(struct save_cli, sparse),
        .help = "Leave holes for blocks of zeros."},
    {"digest", 0, OPT_FLAG(struct save_cli, digest),
        .help = "Digest the stream on its way (blkhash of SHA-256). Compressed files hold it; "
        "beside other regular files FILE.blkhash is written. restore --digest checks it."},
    {"rate", 0, OPT_SIZE(struct save_cli, rate), "SIZE",
        "Take no more than so many bytes a second.", .fallback = "none", .words = none_is_zero},
    {"fd", 0, OPT_NUMBER(struct save_cli, fd), "N",
        "Read the stream from this descriptor instead of standard input.",
        .fallback = "0", .max = INT32_MAX},
    {"pipe-size", 0, OPT_SIZE(struct save_cli, pipe_size), "SIZE",
        "Size of the pipe that the stream comes from. auto: 1M, halved while the kernel refuses.",
        .fallback = "auto", .words = pipe_size_words, .min = 4096, .max = 1 << 30},
    {"progress", 0, OPT_STRING(struct save_cli, progress), "FD",
        "Show how far it is: a bar on a terminal, lines on a descriptor.", .bare = "auto"},
    {"json", 0, OPT_FLAG(struct save_cli, json),
        .help = "Say on standard output how it went, as JSON."},
    {},
};
/* clang-format on */

struct saving {
    struct save_options o;
    struct save_result result;
    struct error err;
    _Atomic uint64_t done;
};

static int run_save(void *arg)
{
    struct saving *s = arg;
    return save_run(&s->o, &s->result, &s->err);
}

static void sample(void *arg, struct progress_sample *ret)
{
    struct saving *s = arg;
    *ret = (struct progress_sample){.done = atomic_load(&s->done)};
}

/* CODEC[:LEVEL]. 0 or -EINVAL with err. */
static int parse_codec(const char *text, struct save_options *o, struct error *err)
{
    char name[16];
    const char *colon = strchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : strlen(text);
    if (len < sizeof(name)) {
        memcpy(name, text, len);
        name[len] = '\0';
        o->codec = codec_by_name(name);
    }
    if (!o->codec) {
        return error_set(err, EINVAL, "--compress: no codec \"%.40s\" is built in", text);
    }
    o->level = o->codec->level_default;
    uint64_t level;
    if (!colon) {
        return 0;
    }
    if (number_parse(colon + 1, (uint64_t)o->codec->level_min, (uint64_t)o->codec->level_max,
                     &level) < 0) {
        return error_set(err, EINVAL, "--compress: %s has levels %d to %d", o->codec->name,
                         o->codec->level_min, o->codec->level_max);
    }
    o->level = (int)level;
    return 0;
}

static void put_digest(struct jsonout *j, const struct save_result *r)
{
    char hex[2 * SAVE_DIGEST_MAX + 1];
    for (size_t i = 0; i < r->digest_len; i++) {
        snprintf(hex + 2 * i, 3, "%02x", r->digest[i]);
    }
    if (r->digest_len) {
        jsonout_string(j, "blkhash_sha256", hex);
    }
}

static int print_json(const struct saving *s, const struct sizing *pipe)
{
    struct jsonout j;
    const struct save_result *r = &s->result;
    jsonout_start(&j, stdout);
    jsonout_object(&j, NULL);
    jsonout_string(&j, "file", s->o.store.name);
    jsonout_number(&j, "bytes", r->bytes);
    jsonout_number(&j, "stored_bytes", r->stored_bytes);
    jsonout_number(&j, "zero_bytes", r->zero_bytes);
    jsonout_real(&j, "seconds", (double)r->elapsed_ns / 1e9);
    jsonout_string(&j, "way", store_way_name(r->way));
    jsonout_string(&j, "compress", s->o.codec ? s->o.codec->name : NULL);
    jsonout_number(&j, "pipe_wanted", pipe->wanted);
    jsonout_number(&j, "pipe_granted", pipe->granted);
    jsonout_real(&j, "waited_for_producer", (double)r->producer_wait_ns / 1e9);
    jsonout_real(&j, "waited_for_disk", (double)r->store_wait_ns / 1e9);
    put_digest(&j, r);
    jsonout_end(&j);
    return command_flush(jsonout_finish(&j) < 0 ? EXIT_FAILED : EXIT_DONE);
}

static void fill_options(const struct save_cli *c, const char *name, struct saving *s)
{
    s->o = (struct save_options){
        .store = {.name = name,
                  .fd = -1,
                  .direct = c->direct,
                  .in_place = c->in_place,
                  .offset = c->offset,
                  .preallocate = c->preallocate},
        .in_fd = (int)c->fd,
        .digest = c->digest,
        .sparse = c->sparse,
        .rate = c->rate,
        .threads = (unsigned)c->threads,
        .progress = &s->done,
    };
}

/* A device, a FIFO or a server has no place for a digest beside it; --json tells it. */
static bool is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int save(struct command_run *r)
{
    const struct save_cli *c = r->options;
    struct saving s = {.err.code = 0};
    struct progress_options po = {.label = "save", .sample = sample, .arg = &s};
    struct progress *progress = NULL;
    struct sizing pipe;
    bool interrupted = false;

    error_clear(&s.err);
    fill_options(c, r->operands->items[0], &s);
    if (c->compress && parse_codec(c->compress, &s.o, &s.err) < 0) {
        return command_misused(r, "%s", s.err.text);
    }
    if (c->compress && c->sparse) {
        return command_misused(r, "--sparse and --compress exclude each other");
    }
    if (progress_choose(c->progress, r->quiet, &po) < 0) {
        return command_misused(r, "--progress: \"%s\" is no open descriptor", c->progress);
    }
    pipe_cli_size(s.o.in_fd, c->pipe_size, &pipe);
    progress_start(&po, &progress);
    int result = run_interruptible(run_save, &s, &interrupted);
    progress_finish(progress, result == 0);
    if (result == 0 && c->digest && !c->compress && is_regular(s.o.store.name)) {
        result = sidecar_write(s.o.store.name, s.result.digest, s.result.digest_len, &s.err);
    }
    if (result < 0) {
        error_set(&s.err, -result, "it can't be saved");
        return command_failed(&s.err);
    }
    return c->json ? print_json(&s, &pipe) : EXIT_DONE;
}

const struct command cmd_save = {
    .name = "save",
    .summary = "write a VM's state from standard input onto a disk",
    .usage = (const char *const[]){"[OPTION]... FILE", NULL},
    .options = options,
    .options_size = sizeof(struct save_cli),
    .operands = "FILE",
    .operands_min = 1,
    .operands_max = 1,
    .endpoints = true,
    .in_worker = true,
    .run = save,
    .examples =
        (const struct command_example[]){
            {"virsh qemu-monitor-command vm '{\"execute\": \"migrate\", \"arguments\": {\"uri\": "
             "\"exec:penstock save /var/lib/vm.state\"}}'",
             "QEMU writes its state through penstock."},
            {"penstock save --direct --compress zstd --digest vm.state < /tmp/fifo",
             "Compressed on all CPUs, past the page cache, with a digest inside."},
            {NULL, NULL}},
};
