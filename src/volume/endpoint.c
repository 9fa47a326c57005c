/*
 * From an endpoint's name to an open volume, and from argv to endpoint names.
 *
 * What a name is, is decided by its first characters alone, never by what exists on the disk: a
 * known scheme and ':' is that driver's; an unknown one with "://" is refused, since nobody calls
 * a file that and a mistyped scheme would quietly make one; all else is a path.
 */
#include "volume/endpoint.h"

#include "channel/sizing.h"
#include "core/fiber.h"
#include "core/size.h"
#include "volume/drivers.h"

#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define DRIVERS_MAX 16
#define NAME_MAX_BYTES 32768 /* a command line's worth */
#define WORD_SEPARATOR '\x1f'

static const char *const file_schemes[] = {"file", NULL};
static const char *const memory_schemes[] = {"memory", NULL};
static const char *const null_schemes[] = {"null", NULL};
static const char *const pattern_schemes[] = {"pattern", NULL};
static const char *const slice_schemes[] = {"slice", NULL};
static const char *const fault_schemes[] = {"fault", NULL};
#if HAVE_LIBNFS
static const char *const nfs_schemes[] = {"nfs", NULL};
#endif

static const struct endpoint_driver built_in[] = {
    {file_schemes, file_open},       {memory_schemes, memory_open}, {null_schemes, null_open},
    {pattern_schemes, pattern_open}, {slice_schemes, slice_open},   {fault_schemes, fault_open},
#if HAVE_LIBNFS
    {nfs_schemes, nfsc_open},
#endif
};

static const struct endpoint_driver *registered[DRIVERS_MAX];
static unsigned registered_count;

void endpoint_register(const struct endpoint_driver *driver)
{
    for (unsigned i = 0; i < registered_count; i++) {
        if (registered[i] == driver) {
            return;
        }
    }
    if (registered_count == DRIVERS_MAX) {
        abort(); /* more drivers than the program has: our own mistake */
    }
    registered[registered_count++] = driver;
}

void endpoint_options_init(struct endpoint_options *o)
{
    *o = (struct endpoint_options){
        .lock = true, .socket_buffer = SOCKET_BUFFER_AUTO, .connect_deadline_ns = DEADLINE_NONE};
}

/* Length of what may be a scheme before the first ':', 0 when there is none. */
static size_t scheme_length(const char *name)
{
    if (name[0] == '[' && name[1] == WORD_SEPARATOR) {
        return 1;
    }
    if (!isalpha((unsigned char)name[0])) {
        return 0;
    }
    size_t n = 1;
    while (isalnum((unsigned char)name[n]) || (name[n] != '\0' && strchr("+.-", name[n]))) {
        n++;
    }
    return name[n] == ':' ? n : 0;
}

static bool has_scheme(const struct endpoint_driver *d, const char *name, size_t len)
{
    for (const char *const *s = d->schemes; *s; s++) {
        if (strlen(*s) == len && memcmp(*s, name, len) == 0) {
            return true;
        }
    }
    return false;
}

static const struct endpoint_driver *driver_of(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(built_in) / sizeof(built_in[0]); i++) {
        if (has_scheme(&built_in[i], name, len)) {
            return &built_in[i];
        }
    }
    for (unsigned i = 0; i < registered_count; i++) {
        if (has_scheme(registered[i], name, len)) {
            return registered[i];
        }
    }
    return NULL;
}

const char *endpoint_rest(const char *name)
{
    return name + scheme_length(name) + 1;
}

char *endpoint_display(const char *name, char *buf, size_t size)
{
    size_t n = 0;
    for (; name[n] != '\0' && n + 1 < size; n++) {
        buf[n] = name[n] == WORD_SEPARATOR ? ' ' : name[n];
    }
    if (size > 0) {
        buf[n] = '\0';
    }
    return buf;
}

/* NULL with err when name is no endpoint. */
static const struct endpoint_driver *find_driver(const char *name, struct error *err)
{
    int fd;
    size_t len = scheme_length(name);
    if (name[0] == '\0') {
        error_set(err, EINVAL, "an empty endpoint name");
        return NULL;
    }
    if (strnlen(name, NAME_MAX_BYTES) == NAME_MAX_BYTES) {
        error_set(err, ENAMETOOLONG, "the endpoint's name is too long");
        return NULL;
    }
    if (endpoint_is_stream(name, false, &fd)) {
        error_set(err, EINVAL, "a stream cannot be used as a disk here");
        return NULL;
    }
    const struct endpoint_driver *driver = len > 0 ? driver_of(name, len) : NULL;
    if (driver) {
        return driver;
    }
    if (len > 0 && strncmp(name + len, "://", 3) == 0) {
        error_set(err, EINVAL, "unknown scheme \"%.*s\" (file:PATH makes it a path)",
                  (int)min_u64(len, 64), name);
        return NULL;
    }
    if (name[0] == '[' && len == 1) {
        error_set(err, EINVAL, "no driver here starts programs");
        return NULL;
    }
    return &built_in[0];
}

int endpoint_open(const char *name, const struct endpoint_options *o, struct volume **ret,
                  struct error *err)
{
    struct endpoint_options defaults;
    if (!o) {
        endpoint_options_init(&defaults);
        o = &defaults;
    }
    char shown[ERROR_ENDPOINT_MAX];
    const struct endpoint_driver *driver = find_driver(name, err);
    int r = driver ? driver->open(name, o, ret, err) : -EINVAL;
    if (r < 0) {
        error_set(err, -r, "cannot open it");
        error_endpoint(err, endpoint_display(name, shown, sizeof(shown)));
    }
    return r < 0 ? r : 0;
}

/* How many "slice:" and "fault:" stand in front of each other in name. */
static unsigned layers_below(const char *name)
{
    unsigned n = 0;
    while (strncmp(name, "slice:", 6) == 0 || strncmp(name, "fault:", 6) == 0) {
        const char *spec = endpoint_rest(name);
        const char *colon = strchr(spec, ':');
        if (!colon) {
            break;
        }
        name = colon + 1;
        n++;
    }
    return n;
}

int endpoint_open_below(const char *name, const struct endpoint_options *o, struct volume **ret,
                        struct error *err)
{
    struct endpoint_options below = *o;
    below.create = false;
    below.exclusive_create = false;
    below.set_size = false;
    if (layers_below(name) >= ENDPOINT_DEPTH_MAX) {
        return error_set(err, ELOOP, "more than %d layers", ENDPOINT_DEPTH_MAX);
    }
    return endpoint_open(name, &below, ret, err);
}

bool endpoint_is_stream(const char *name, bool writable, int *fd)
{
    uint64_t n;
    if (strcmp(name, "-") == 0) {
        *fd = writable ? 1 : 0;
        return true;
    }
    if (strncmp(name, "fd:", 3) == 0 && number_parse(name + 3, 0, INT_MAX, &n) == 0) {
        *fd = (int)n;
        return true;
    }
    return false;
}

/* argv[0] is "[": how many words up to and including "]", or -EINVAL. */
static int program_words(char *const *argv, int argc, size_t *bytes, struct error *err)
{
    *bytes = 0;
    for (int i = 0; i < argc; i++) {
        if (strchr(argv[i], WORD_SEPARATOR)) {
            return error_set(err, EINVAL, "an argument of [ PROGRAM ... ] has a \\x1f in it");
        }
        *bytes += strlen(argv[i]) + 1;
        if (strcmp(argv[i], "]") == 0) {
            if (i == 1 || argv[1][0] == '\0') {
                return error_set(err, EINVAL, "[ ... ] names no program");
            }
            return i + 1;
        }
    }
    return error_set(err, EINVAL, "\"[\" without its \"]\"");
}

int endpoint_take_args(char *const *argv, int argc, char **ret, struct error *err)
{
    if (argc < 1) {
        return error_set(err, EINVAL, "an endpoint is missing");
    }
    if (strcmp(argv[0], "[") != 0) {
        char *name = strdup(argv[0]);
        if (!name) {
            return error_set(err, ENOMEM, "no memory");
        }
        *ret = name;
        return 1;
    }
    size_t bytes;
    int words = program_words(argv, argc, &bytes, err);
    if (words < 0) {
        return words;
    }
    char *name = malloc(bytes + 1);
    if (!name) {
        return error_set(err, ENOMEM, "no memory");
    }
    char *to = name;
    for (int i = 0; i < words; i++) {
        size_t len = strlen(argv[i]);
        memcpy(to, argv[i], len);
        to += len;
        *to++ = i + 1 < words ? WORD_SEPARATOR : '\0';
    }
    *ret = name;
    return words;
}
