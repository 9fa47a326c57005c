/* Programs of [ PROGRAM ... ]: how their ends are told, and that they do end. */
#include "nbd/program.h"

#include "../tap.h"

#include "core/worker.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEP "\x1f"

static struct error err;

static int start(const char *name, struct program **p, struct address *a)
{
    error_clear(&err);
    return program_start(name, p, a, &err);
}

static int names(void *arg)
{
    static const char *const bad[] = {
        "", "[", "[]", "[ true ]", "[" SEP "]", "[" SEP SEP "]", "[" SEP "true", "true" SEP "]"};
    struct program *p = NULL;
    struct address a;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (!EQ(start(bad[i], &p, &a), -EINVAL)) {
            printf("# %zu\n", i);
        }
    }
    EQ(start("[" SEP "no-such-program-anywhere" SEP "]", &p, &a), -ENOENT);
    OK(strstr(err.text, "no-such-program-anywhere"));
    EQ(start("[" SEP "/no/such/program" SEP "]", &p, &a), -ENOENT);
    EQ(start("[" SEP "/etc/passwd" SEP "]", &p, &a), -EACCES);
    OK(!p);
    return 0;
}

static void names_that_name_no_program(void)
{
    EQ(worker_main(names, NULL), 0);
}

static int folder(void *arg)
{
    struct program *p;
    struct address a;
    struct stat st;
    char path[sizeof(a.path)];
    if (!EQ(start("[" SEP "sleep" SEP "100" SEP "]", &p, &a), 0)) {
        return 0;
    }
    memcpy(path, a.path, sizeof(path));
    EQ(a.kind, ADDRESS_UNIX);
    OK(stat(path, &st) == 0 && S_ISSOCK(st.st_mode));
    *strrchr(path, '/') = '\0';
    OK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0700);
    OK(!program_ended(p, 0, &err));
    program_stop(p);
    OK(stat(path, &st) < 0 && errno == ENOENT);
    program_stop(NULL);
    return 0;
}

static void a_private_folder_that_goes_again(void)
{
    EQ(worker_main(folder, NULL), 0);
}

static int endings(void *arg)
{
    struct program *p;
    struct address a;
    if (EQ(start("[" SEP "sh" SEP "-c" SEP "exit 7" SEP "]", &p, &a), 0)) {
        error_set(&err, ECONNRESET, "first words");
        OK(program_ended(p, 60000000000ull, &err));
        STREQ(err.text, "sh exited with status 7: first words");
        program_stop(p);
    }
    if (EQ(start("[" SEP "sh" SEP "-c" SEP "kill -9 $$" SEP "]", &p, &a), 0)) {
        error_set(&err, ECONNRESET, "first words");
        OK(program_ended(p, 60000000000ull, &err));
        STREQ(err.text, "sh was killed by signal 9: first words");
        program_stop(p);
    }
    return 0;
}

static void endings_in_words(void)
{
    EQ(worker_main(endings, NULL), 0);
}

/*
 * It says through a file that it does not listen to SIGTERM any more. arg: it is one that has
 * greeted, so that it has what it may need to write back; the other wait must not be its.
 */
static int stubborn(void *arg)
{
    uint64_t for_ever = UINT64_MAX / 2;
    char ready[] = "/tmp/penstock-test-XXXXXX", name[256];
    struct program *p;
    struct address a;
    int fd = mkstemp(ready);
    OK(fd >= 0);
    snprintf(name, sizeof(name),
             "[" SEP "sh" SEP "-c" SEP "trap '' TERM; rm %s; exec sleep 100" SEP "]", ready);
    if (EQ(start(name, &p, &a), 0)) {
        for (int i = 0; access(ready, F_OK) == 0 && i < 60000; i++) {
            OK(!program_ended(p, 1000000, NULL));
        }
        program_term_wait_ns = arg ? 1000000 : for_ever;
        program_silent_wait_ns = arg ? for_ever : 1000000;
        if (arg) {
            program_greeted(p);
        }
        program_stop(p);
    }
    close(fd);
    return 0;
}

static void one_that_does_not_listen_is_killed(void)
{
    int yes = 1;
    EQ(worker_main(stubborn, &yes), 0);
    EQ(worker_main(stubborn, NULL), 0);
}

int main(void)
{
    RUN(names_that_name_no_program);
    RUN(a_private_folder_that_goes_again);
    RUN(endings_in_words);
    RUN(one_that_does_not_listen_is_killed);
    return tap_done();
}
