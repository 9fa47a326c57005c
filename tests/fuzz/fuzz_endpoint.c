/*
 * Endpoint names as words of a command line, one a line: how many are taken, what comes of them,
 * and what slice: and streams make of each.
 */
#include "volume/drivers.h"

#include <stdlib.h>
#include <string.h>

#define WORDS 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_at(const char *name)
{
    char shown[40];
    uint64_t start = 0;
    uint64_t length = 0;
    bool sized = false;
    int fd = -1;
    if (endpoint_is_stream(name, true, &fd) && fd < 0) {
        abort();
    }
    if (strlen(endpoint_display(name, shown, sizeof(shown))) >= sizeof(shown)) {
        abort();
    }
    const char *rest = slice_parse(name, &start, &length, &sized);
    if (rest && (rest <= name || rest > name + strlen(name) || start > VOLUME_SIZE_MAX ||
                 length > VOLUME_SIZE_MAX)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    char *words[WORDS];
    int count = 0;
    if (!text) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    for (char *at = text; at && count < WORDS;) {
        char *end = strchr(at, '\n');
        words[count++] = at;
        if (end) {
            *end++ = '\0';
        }
        at = end;
    }
    for (int i = 0; i < count;) {
        char *name = NULL;
        int n = endpoint_take_args(words + i, count - i, &name, NULL);
        if (n > count - i || n == 0 || (n > 0) != (name != NULL)) {
            abort();
        }
        if (n < 0) {
            break;
        }
        look_at(name);
        free(name);
        i += n;
    }
    free(text);
    return 0;
}
