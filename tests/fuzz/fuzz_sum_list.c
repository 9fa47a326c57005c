/* Lines of checksums: what is accepted and printed again is accepted again, and is the same. */
#include "jobs/sum_list.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sum_line first, again;
    static char text[SUM_LINE_MAX];

    if (sum_line_parse((const char *)data, size, &first) != 0) {
        return 0;
    }
    sum_line_format(&first, text);
    size_t len = strlen(text);
    if (len == 0 || text[len - 1] != '\n') {
        abort();
    }
    if (sum_line_parse(text, len - 1, &again) != 0 || again.tagged != first.tagged ||
        again.length != first.length || memcmp(again.want, first.want, first.length) != 0 ||
        strcmp(again.name, first.name) != 0 || strcmp(again.digest, first.digest) != 0 ||
        again.block_size != first.block_size) {
        abort();
    }
    return 0;
}
