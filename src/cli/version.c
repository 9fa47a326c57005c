/*
 * See version.h.
 */
#include "cli/version.h"

#include "config.h"
#include "core/fileio.h"

#include <stdbool.h>
#include <string.h>

static void part(FILE *f, const char *name, bool built, const char *note)
{
    fprintf(f, "  %-10s %s%s%s\n", name, built ? "yes" : "not built in", built && *note ? ", " : "",
            built ? note : "");
}

void version_print(FILE *f)
{
    char uring[128] = "";

    if (HAVE_LIBURING) {
        int r = fileio_uring_probe();
        snprintf(uring, sizeof(uring),
                 r == 0 ? "works here" : "refused here (%s): threads are used", strerror(-r));
    }
    fprintf(f, "penstock %s\n", PENSTOCK_VERSION);
    part(f, "io_uring", HAVE_LIBURING, uring);
    part(f, "nfs", HAVE_LIBNFS, "");
    part(f, "zstd", HAVE_ZSTD, "");
    part(f, "lz4", HAVE_LZ4, "");
    part(f, "probes", HAVE_SDT, "USDT");
}
