/*
 * See progress.h.
 *
 * Writing goes through the thread pool, because a stopped terminal or a pipe that nobody reads
 * blocks the writer, and the job shall go on. A write that fails ends the reporting, not the job.
 * The rate is an average over the last seconds (weight a quarter for each new tick), so that the
 * time left neither jumps nor lags.
 */
#include "report/progress.h"

#include "core/fiber.h"
#include "core/size.h"
#include "core/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TICK_NS UINT64_C(250000000)
#define LINE_MAX_COLUMNS 200

struct progress {
    struct progress_options o;
    struct fgroup group;
    bool broken;      /* the fd takes no more */
    unsigned shown;   /* PROGRESS_LINES: the last N, +1 so that 0 is "none yet" */
    uint64_t last_ns; /* the sample before */
    uint64_t last_done;
    double rate; /* bytes a second */
    char text[LINE_MAX_COLUMNS * 4 + 16];
    size_t len;
};

int progress_choose(const char *asked, bool quiet, struct progress_options *o)
{
    uint64_t fd;

    o->fd = STDERR_FILENO;
    o->mode = PROGRESS_NONE;
    if (!asked) {
        return 0;
    }
    if (!*asked || strcmp(asked, "auto") == 0) {
        o->mode = !quiet && isatty(STDERR_FILENO) ? PROGRESS_TERMINAL : PROGRESS_NONE;
        return 0;
    }
    if (number_parse(asked, 0, 1 << 20, &fd) < 0) {
        return -EINVAL;
    }
    if (fcntl((int)fd, F_GETFD) < 0) {
        return -EBADF;
    }
    o->fd = (int)fd;
    o->mode = PROGRESS_LINES;
    return 0;
}

unsigned progress_percent(const struct progress_sample *s)
{
    if (s->total == 0) {
        return 0;
    }
    if (s->done >= s->total) {
        return 100;
    }
    /* Rounded down, so that 99.9 is not done; the division keeps 64 bits enough. */
    unsigned percent = s->total >= 100 ? (unsigned)(s->done / (s->total / 100))
                                       : (unsigned)(s->done * 100 / s->total);
    return percent > 99 ? 99 : percent;
}

static void format_left(char *buf, size_t size, double seconds)
{
    if (seconds >= 360000) {
        snprintf(buf, size, "long");
        return;
    }
    unsigned s = (unsigned)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(buf, size, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(buf, size, "%u:%02u", s / 60, s % 60);
    }
}

char *progress_line(char *buf, size_t size, const char *label, const struct progress_sample *s,
                    double rate, unsigned columns)
{
    char done[SIZE_TEXT_MAX], total[SIZE_TEXT_MAX], speed[SIZE_TEXT_MAX + 16] = "", left[48] = "";
    char tail[256], bar[64] = "";
    unsigned percent = progress_percent(s);

    if (rate >= 1) {
        char text[SIZE_TEXT_MAX];
        snprintf(speed, sizeof(speed), ", %s/s", size_format((uint64_t)rate, text));
    }
    if (rate >= 1 && s->total > s->done) {
        char text[16];
        format_left(text, sizeof(text), (double)(s->total - s->done) / rate);
        snprintf(left, sizeof(left), ", %s left", text);
    }
    size_format(s->done, done);
    if (s->total == 0) {
        snprintf(tail, sizeof(tail), "%s%s", done, speed);
    } else {
        snprintf(tail, sizeof(tail), "%3u%% %s of %s%s%s", percent, done,
                 size_format(s->total, total), speed, left);
    }
    size_t used = strlen(label) + 1 + strlen(tail) + 3;
    if (s->total && used + 10 <= columns) {
        unsigned width = columns - (unsigned)used < 40 ? columns - (unsigned)used : 40;
        unsigned full = percent * width / 100;
        snprintf(bar, sizeof(bar), "[%.*s%*s] ", (int)full,
                 "########################################", (int)(width - full), "");
    }
    snprintf(buf, size, "%s %s%s", label, bar, tail);
    if (strlen(buf) > columns) {
        buf[columns] = '\0';
    }
    return buf;
}

static unsigned terminal_columns(int fd)
{
    struct winsize w;
    if (ioctl(fd, TIOCGWINSZ, &w) < 0 || w.ws_col < 20) {
        return 79;
    }
    return w.ws_col - 1 < LINE_MAX_COLUMNS ? w.ws_col - 1 : LINE_MAX_COLUMNS;
}

static int write_out(void *arg)
{
    struct progress *p = arg;
    size_t at = 0;

    while (at < p->len) {
        ssize_t n = write(p->o.fd, p->text + at, p->len - at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            /* A non-blocking fd that is full loses this line and gets the next. */
            return n < 0 && errno == EAGAIN ? 0 : -EIO;
        }
        at += (size_t)n;
    }
    return 0;
}

static void put(struct progress *p)
{
    p->len = strlen(p->text);
    if (!p->broken && offload(write_out, p) < 0) {
        p->broken = true;
    }
}

static void update_rate(struct progress *p, const struct progress_sample *s)
{
    uint64_t now = worker_now_ns(worker_self());

    if (now > p->last_ns && s->done >= p->last_done) {
        double latest = (double)(s->done - p->last_done) * 1e9 / (double)(now - p->last_ns);
        p->rate = p->rate > 0 ? p->rate + (latest - p->rate) / 4 : latest;
    }
    p->last_ns = now;
    p->last_done = s->done;
}

static void show(struct progress *p, bool last, bool all_done)
{
    struct progress_sample s = {};

    p->o.sample(p->o.arg, &s);
    if (p->o.mode == PROGRESS_LINES) {
        unsigned n = last && all_done ? 100 : progress_percent(&s);
        if (n == 100 && !(last && all_done)) {
            n = 99; /* what was written may not be flushed yet */
        }
        if (n + 1 != p->shown) {
            p->shown = n + 1;
            snprintf(p->text, sizeof(p->text), "%u/100\n", n);
            put(p);
        }
        return;
    }
    if (!last) {
        update_rate(p, &s);
    }
    char line[LINE_MAX_COLUMNS + 64];
    progress_line(line, sizeof(line), p->o.label, &s, p->rate, terminal_columns(p->o.fd));
    snprintf(p->text, sizeof(p->text), "\r%s\033[K%s", line, last ? "\n" : "");
    put(p);
}

static void tick(void *arg)
{
    struct progress *p = arg;

    do {
        show(p, false, false);
    } while (!p->broken && fiber_sleep_ns(TICK_NS) == 0);
}

int progress_start(const struct progress_options *o, struct progress **ret)
{
    *ret = NULL;
    if (o->mode == PROGRESS_NONE) {
        return 0;
    }
    struct progress *p = calloc(1, sizeof(*p));
    if (!p) {
        return -ENOMEM;
    }
    p->o = *o;
    p->last_ns = worker_now_ns(worker_self());
    fgroup_init(&p->group);
    int r = fgroup_spawn(&p->group, tick, p);
    if (r < 0) {
        free(p);
        return r;
    }
    *ret = p;
    return 0;
}

void progress_finish(struct progress *p, bool done)
{
    if (!p) {
        return;
    }
    fgroup_cancel(&p->group);
    fgroup_wait(&p->group, false);
    show(p, true, done);
    free(p);
}
