/*
 * Which ranges of two disks differ, by the leaves that `sum --leaves` kept of them.
 */
#include "cli/compare_leaves.h"

#include "cli/command.h"
#include "cli/run.h"
#include "jobs/leaves.h"
#include "report/jsonout.h"

#include <inttypes.h>
#include <stdio.h>

struct compare {
    const char *const *names;
    bool json, quiet;
    struct leaves *leaves[2];
    struct jsonout out;
    uint64_t ranges, bytes;
    struct error err;
};

static int say(void *arg, uint64_t offset, uint64_t length)
{
    struct compare *c = arg;
    c->ranges++;
    c->bytes += length;
    if (c->json) {
        jsonout_row(&c->out, NULL);
        jsonout_number(&c->out, "offset", offset);
        jsonout_number(&c->out, "length", length);
        jsonout_end(&c->out);
    } else if (!c->quiet) {
        printf("%" PRIu64 "+%" PRIu64 "\n", offset, length);
    }
    return 0;
}

static int compare_opened(struct compare *c)
{
    if (!c->json) {
        return leaves_compare(c->leaves[0], c->leaves[1], say, c, &c->err);
    }
    jsonout_start(&c->out, stdout);
    jsonout_object(&c->out, NULL);
    jsonout_array(&c->out, "ranges");
    int r = leaves_compare(c->leaves[0], c->leaves[1], say, c, &c->err);
    jsonout_end(&c->out);
    jsonout_string(&c->out, "result", r < 0 ? "unknown" : c->ranges ? "different" : "same");
    jsonout_number(&c->out, "bytes", c->bytes);
    jsonout_end(&c->out);
    jsonout_finish(&c->out); /* command_flush() sees what went wrong */
    return r;
}

static int job(void *arg)
{
    struct compare *c = arg;
    int r = 0;
    for (int i = 0; r == 0 && i < 2; i++) {
        r = leaves_open(c->names[i], &c->leaves[i], &c->err);
    }
    if (r == 0) {
        r = compare_opened(c);
    }
    leaves_close(c->leaves[0]);
    leaves_close(c->leaves[1]);
    return r;
}

int compare_leaves(const char *const names[2], bool json, bool quiet)
{
    struct compare c = {.names = names, .json = json, .quiet = quiet};
    bool interrupted;
    int r = run_interruptible(job, &c, &interrupted);
    if (r < 0) {
        error_set(&c.err, -r, "the comparison could not be done");
        return command_flush(command_failed(&c.err));
    }
    if (!json && !quiet && c.ranges == 0) {
        printf("The disks are the same\n");
    }
    return command_flush(c.ranges ? EXIT_DIFFER : EXIT_DONE);
}
