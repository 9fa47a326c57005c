/* Names: which driver gets them, which are refused, and how argv becomes names. */
#include "volume_test.h"

static char asked[64];

static int spy_open(const char *name, const struct endpoint_options *o, struct volume **ret,
                    struct error *err)
{
    snprintf(asked, sizeof(asked), "%s", name);
    return error_set(err, ECONNREFUSED, "spied");
}

static const char *const spy_schemes[] = {"spy", "spy+unix", "[", NULL};
static const struct endpoint_driver spy = {spy_schemes, spy_open};

static int try_open(const char *name, struct error *err)
{
    struct volume *v = NULL;
    error_clear(err);
    err->text[0] = err->endpoint[0] = '\0';
    int r = endpoint_open(name, NULL, &v, err);
    if (r == 0) {
        volume_close(v);
    }
    return r;
}

FIBER_TEST(names)
{
    static const struct {
        const char *name;
        int result;
        const char *text; /* somewhere in the error */
    } rows[] = {
        {"", -EINVAL, "empty"},
        {"-", -EINVAL, "stream"},
        {"fd:7", -EINVAL, "stream"},
        {"fd:seven", -ENOENT, "cannot open"},
        {"foo://host/disk", -EINVAL, "unknown scheme \"foo\""},
        {"a.b+c-d://x", -EINVAL, "unknown scheme"},
        {"no:such:file", -ENOENT, "cannot open"},
        {"file:", -EINVAL, "empty path"},
        {"file:spy:1", -ENOENT, "cannot open"},
        {"./spy:1", -ENOENT, "cannot open"},
        {"/no/such://file", -ENOENT, "cannot open"},
        {"spy://host/disk", -ECONNREFUSED, "spied"},
        {"spy+unix:///x?socket=y", -ECONNREFUSED, "spied"},
        {"spy:odd", -ECONNREFUSED, "spied"},
        {"[\x1fprogram\x1f]", -ECONNREFUSED, "spied"},
        {"[ x ]", -ENOENT, "cannot open"},
        {"null:", 0, ""},
        {"null:8E", -EINVAL, "null:SIZE"},
        {"null:9223372036854775807", 0, ""},
        {"memory:", -EINVAL, "memory:SIZE"},
        {"memory:x", -EINVAL, "memory:SIZE"},
        {"pattern:9223372036854775807", -EINVAL, "pattern:SIZE"},
        {"pattern:9223372036854775296", 0, ""},
        {"slice:0", -EINVAL, "slice:OFFSET"},
        {"slice:0:", -EINVAL, "empty"},
        {"slice::memory:1M", -EINVAL, "slice:OFFSET"},
        {"slice:1M:memory:1M", 0, ""},
        {"slice:1025K:memory:1M", -EINVAL, "beyond"},
        {"slice:512K+513K:memory:1M", -EINVAL, "beyond"},
        {"slice:1+18446744073709551615:memory:1M", -EINVAL, "slice:OFFSET"},
        {"slice:0:slice:0:slice:0:slice:0:slice:0:slice:0:slice:0:slice:0:slice:0:slice:0:null:1",
         -ELOOP, "layers"},
        {"fault:", -EINVAL, "fault:SPEC"},
        {"fault::memory:1M", 0, ""},
        {"fault:bogus:memory:1M", -EINVAL, "bogus"},
    };
    struct error err = {0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int r = try_open(rows[i].name, &err);
        if (!EQ(r, rows[i].result) || !OK(strstr(err.text, rows[i].text) != NULL) ||
            (r < 0 && !OK(err.endpoint[0] != '\0' || rows[i].name[0] == '\0'))) {
            printf("# %s: %s\n", rows[i].name, err.text);
        }
    }
    STREQ(asked, "[\x1fprogram\x1f]");
    OK(try_open("[\x1fprogram\x1f]", &err) < 0);
    STREQ(err.endpoint, "[ program ]");
}

static void streams(void)
{
    int fd = -1;
    OK(endpoint_is_stream("-", false, &fd));
    EQ(fd, 0);
    OK(endpoint_is_stream("-", true, &fd));
    EQ(fd, 1);
    OK(endpoint_is_stream("fd:12", true, &fd));
    EQ(fd, 12);
    fd = -1;
    OK(!endpoint_is_stream("fd:", true, &fd) && !endpoint_is_stream("fd:-1", true, &fd));
    OK(!endpoint_is_stream("fd:99999999999", true, &fd) && !endpoint_is_stream("x", true, &fd));
    EQ(fd, -1);
}

static void arguments(void)
{
    static char word_disk[] = "disk";
    static char open[] = "[";
    static char close[] = "]";
    static char program[] = "nbdkit";
    static char argument[] = "-U -";
    static char odd[] = "a\x1f"
                        "b";
    static char nothing[] = "";
    struct error err = {0};
    char *name = NULL;

    EQ(endpoint_take_args((char *[]){word_disk, open}, 2, &name, &err), 1);
    STREQ(name, "disk");
    free(name);
    EQ(endpoint_take_args((char *[]){open, program, argument, close, word_disk}, 5, &name, &err),
       4);
    STREQ(name, "[\x1fnbdkit\x1f-U -\x1f]");
    free(name);
    name = NULL;
    EQ(endpoint_take_args((char *[]){open, program}, 2, &name, &err), -EINVAL);
    EQ(endpoint_take_args((char *[]){open, close}, 2, &name, &err), -EINVAL);
    EQ(endpoint_take_args((char *[]){open, nothing, close}, 3, &name, &err), -EINVAL);
    EQ(endpoint_take_args((char *[]){open, odd, close}, 3, &name, &err), -EINVAL);
    EQ(endpoint_take_args((char *[]){NULL}, 0, &name, &err), -EINVAL);
    OK(name == NULL);
}

int main(void)
{
    endpoint_register(&spy);
    endpoint_register(&spy);
    RUN(names);
    RUN(streams);
    RUN(arguments);
    bufpool_trim();
    return tap_done();
}
