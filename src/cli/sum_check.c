/*
 * penstock sum --check: a list of checksums against the disks.
 *
 * Exit code 0 means that every line was understood and every checksum was right. A line that makes
 * no sense fails the whole as much as a wrong checksum: a list that was cut or mangled must not
 * pass. For sizes that are no multiple of 512 a line may hold what blksum prints for such a file,
 * the checksum of the disk padded to a sector; that is right too, and said.
 *
 * A list may come from anywhere, so its names never start a program ("[ PROGRAM ... ]").
 */
#include "cli/sum_cli.h"

#include "core/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    uint64_t lines, wrong, unread, senseless;
};

enum verdict { RIGHT, RIGHT_PADDED, WRONG, UNREAD };

static const struct {
    const char *text, *json;
} verdicts[] = {
    [RIGHT] = {"OK", "ok"},
    [RIGHT_PADDED] = {"OK (padded with zeros to a multiple of 512 bytes)", "ok-padded"},
    [WRONG] = {"FAILED", "failed"},
    [UNREAD] = {"FAILED to open or read", "unreadable"},
};

static void report(struct sum_job *job, const char *name, enum verdict verdict)
{
    if (job->cli->json) {
        jsonout_row(&job->json, NULL);
        jsonout_string(&job->json, "endpoint", name);
        jsonout_string(&job->json, "result", verdicts[verdict].json);
        jsonout_end(&job->json);
    } else if (verdict >= WRONG || !job->run->quiet) {
        char shown[512];
        printf("%s: %s\n", log_escape(shown, sizeof(shown), name, strlen(name)),
               verdicts[verdict].text);
        fflush(stdout);
    }
}

static enum verdict judge(const struct sum_line *line, const struct sum_result *result)
{
    if (line->length != result->length) {
        return WRONG;
    }
    if (memcmp(line->want, result->digest, result->length) == 0) {
        return RIGHT;
    }
    bool padded = result->odd && memcmp(line->want, result->sector, result->length) == 0;
    return padded ? RIGHT_PADDED : WRONG;
}

static int compute(struct sum_job *job, const struct sum_line *line, struct sum_result *ret,
                   struct error *err)
{
    if (line->name[0] == '[') {
        error_set(err, EINVAL, "a list does not start programs (./%s is a file)", line->name);
        return -EINVAL;
    }
    int r = line->tagged ? sum_job_use(job, line->digest, line->block_size, err)
                         : sum_job_use(job, job->cli->digest, (uint32_t)job->cli->block_size, err);
    if (r < 0) {
        return r;
    }
    return sum_job_one(job, line->name, ret, err);
}

static int check_line(struct sum_job *job, struct tally *tally)
{
    struct sum_result result;
    struct error err = {};
    enum verdict verdict = UNREAD;

    tally->lines++;
    int r = compute(job, &job->line, &result, &err);
    if (job->interrupted) {
        return -ECANCELED;
    }
    if (r < 0) {
        command_failed(&err);
        tally->unread++;
    } else {
        verdict = judge(&job->line, &result);
        tally->wrong += verdict == WRONG;
    }
    report(job, job->line.name, verdict);
    return 0;
}

static int check_lines(struct sum_job *job, const char *text, size_t len, const char *path,
                       struct tally *tally)
{
    uint64_t number = 0;
    int r = 0;

    while (r == 0 && len > 0) {
        const char *newline = memchr(text, '\n', len);
        size_t line = newline ? (size_t)(newline - text) : len;
        size_t used = line + (newline != NULL);
        number++;
        int parsed = sum_line_parse(text, line, &job->line);
        if (parsed < 0) {
            tally->senseless++;
            fprintf(stderr, "penstock: %s: line %llu is no checksum\n", path,
                    (unsigned long long)number);
        } else if (parsed == 0) {
            r = check_line(job, tally);
        }
        text += used;
        len -= used;
    }
    return r;
}

static int sum_up(const struct tally *tally, const char *path)
{
    if (tally->lines == 0) {
        fprintf(stderr, "penstock: %s: no checksums in it\n", path);
        return EXIT_FAILED;
    }
    if (tally->wrong > 0) {
        fprintf(stderr, "penstock: %llu of %llu checksums did not match\n",
                (unsigned long long)tally->wrong, (unsigned long long)tally->lines);
    }
    return tally->wrong + tally->unread + tally->senseless > 0 ? EXIT_FAILED : EXIT_DONE;
}

int sum_check(struct sum_job *job)
{
    const char *path = job->cli->check;
    struct error err = {};
    struct tally tally = {};
    char *text;

    ssize_t len = sum_read_list(path, &text);
    if (len < 0) {
        error_set(&err, (int)-len, "the list of checksums");
        error_endpoint(&err, path);
        return command_failed(&err);
    }
    int r = check_lines(job, text, (size_t)len, path, &tally);
    free(text);
    return r < 0 ? EXIT_FAILED : sum_up(&tally, path);
}
