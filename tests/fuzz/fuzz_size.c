/* Sizes, numbers and seconds as people write them: no crash, and what is accepted is in range. */
#include "core/size.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[256];
    char shown[SIZE_TEXT_MAX];
    uint64_t value;

    if (size >= sizeof(text)) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (size_parse(text, 1ull << 40, &value) == 0 && value > 1ull << 40) {
        abort();
    }
    if (size_parse(text, UINT64_MAX, &value) == 0) {
        if (strlen(size_format(value, shown)) >= sizeof(shown)) {
            abort();
        }
    }
    if (number_parse(text, 3, 1000, &value) == 0 && (value < 3 || value > 1000)) {
        abort();
    }
    if (seconds_parse(text, 10, &value) == 0 && value > 10000000000ull) {
        abort();
    }
    return 0;
}
