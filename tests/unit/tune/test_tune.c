/*
 * What `tune` says of hosts that are not this one: /proc and /sys of a folder.
 */
#include "tune/tune.h"

#include "tap.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/ps.XXXXXX";

static void put(const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof(name), "%s%s", root, path);
    for (char *slash = strchr(name + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(name, 0700);
        *slash = '/';
    }
    FILE *f = fopen(name, "we");
    if (OK(f != NULL)) {
        fputs(text, f);
        fclose(f);
    }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    return remove(path);
}

static void remove_all(void)
{
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static const struct tune_item *find(const struct tune_item *items, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(items[i].name, name) == 0) {
            return &items[i];
        }
    }
    static const struct tune_item none = {.state = TUNE_UNKNOWN};
    return &none;
}

static void small_host(void)
{
    struct tune_item items[TUNE_ITEMS_MAX];
    put("/proc/sys/net/core/wmem_max", "212992\n");
    put("/proc/sys/fs/pipe-max-size", "65536\n");
    put("/proc/sys/fs/pipe-user-pages-soft", "256\n");
    size_t n = tune_look(root, items);
    const struct tune_item *item = find(items, n, "net.core.wmem_max");
    EQ(item->state, TUNE_CLIPPED);
    STREQ(item->setting, "sysctl -w net.core.wmem_max=2097152");
    OK(strstr(item->effect, "208 KiB of the 2 MiB") != NULL);
    item = find(items, n, "fs.pipe-max-size");
    EQ(item->state, TUNE_CLIPPED);
    STREQ(item->sysctl, "fs.pipe-max-size = 1048576");
    EQ(find(items, n, "fs.pipe-user-pages-soft")->state, TUNE_CLIPPED);
    EQ(find(items, n, "net.core.rmem_max")->state, TUNE_UNKNOWN);

    char text[2048] = "";
    FILE *f = fmemopen(text, sizeof(text), "w");
    EQ(tune_write_sysctl(f, items, n), 0);
    fclose(f);
    OK(strstr(text, "\nnet.core.wmem_max = 2097152\n") != NULL);
    OK(strstr(text, "\nfs.pipe-max-size = 1048576\n") != NULL);
}

static void large_host(void)
{
    struct tune_item items[TUNE_ITEMS_MAX];
    put("/proc/sys/net/core/wmem_max", "4194304\n");
    put("/proc/sys/fs/pipe-max-size", "1048576\n");
    put("/proc/sys/fs/pipe-user-pages-soft", "0\n");
    size_t n = tune_look(root, items);
    EQ(find(items, n, "net.core.wmem_max")->state, TUNE_FINE);
    EQ(find(items, n, "fs.pipe-max-size")->state, TUNE_FINE);
    EQ(find(items, n, "fs.pipe-user-pages-soft")->state, TUNE_FINE);
}

static void nonsense(void)
{
    struct tune_item items[TUNE_ITEMS_MAX];
    put("/proc/sys/net/core/wmem_max", "a lot\n");
    put("/proc/sys/fs/pipe-max-size", "");
    size_t n = tune_look(root, items);
    EQ(find(items, n, "net.core.wmem_max")->state, TUNE_UNKNOWN);
    EQ(find(items, n, "fs.pipe-max-size")->state, TUNE_UNKNOWN);
}

static void this_host(void)
{
    struct tune_item items[TUNE_ITEMS_MAX];
    size_t n = tune_look("", items);
    OK(n > 8);
    for (size_t i = 0; i < n; i++) {
        OK(items[i].value[0] != '\0');
        OK(items[i].effect[0] != '\0');
        OK(items[i].state != TUNE_CLIPPED || items[i].setting[0] != '\0');
    }
}

int main(void)
{
    if (!mkdtemp(root)) {
        return 1;
    }
    RUN(small_host);
    RUN(large_host);
    RUN(nonsense);
    RUN(this_host);
    remove_all();
    return tap_done();
}
