/* fault: specifications: whatever comes in, what comes out is within its bounds. */
#include "volume/fault.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fault_spec spec;
    if (fault_parse((const char *)data, size, &spec, NULL) < 0) {
        return 0;
    }
    if (spec.count > FAULT_RULES_MAX || (spec.limits.min & (spec.limits.min - 1)) != 0) {
        abort();
    }
    for (unsigned i = 0; i < spec.count; i++) {
        const struct fault_rule *r = &spec.rules[i];
        if (r->op > FAULT_ANY || r->percent > 100 || r->count == 0 ||
            memchr(r->path, '\0', sizeof(r->path)) == NULL) {
            abort();
        }
    }
    return 0;
}
