/*
 * A server's replies, as the client takes them: the first byte chooses the mode, the second the
 * size of the pieces they come in. Nothing may be written outside of the buffers of the calls in
 * flight, extents are within the request, and a failure has words.
 */
#include "../unit/nbd/reply_script.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_extents(const struct script_run *t)
{
    const struct nbd_call *call = &t->calls[C_STATUS];
    uint64_t sum = 0;
    if (call->extents_count > SCRIPT_EXTENTS) {
        abort();
    }
    for (size_t i = 0; i < call->extents_count; i++) {
        if (t->extents[i].length == 0 ||
            (i > 0 && t->extents[i].flags == t->extents[i - 1].flags)) {
            abort();
        }
        sum += t->extents[i].length;
    }
    if (sum > SCRIPT_LENGTH) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct script s;
    static struct script_run t;

    if (size < 2) {
        return 0;
    }
    script_init(&s, data + 2, size - 2, data[1]);
    int r = script_go(&t, &s, data[0] % 3);
    if (r < 0 && (t.err.code != -r || t.err.text[0] == '\0')) {
        abort();
    }
    for (int cookie = C_READ; cookie < C_COUNT; cookie++) {
        if (t.buffer[cookie][0] != 0xee || t.buffer[cookie][SCRIPT_LENGTH + 1] != 0xee) {
            abort();
        }
        if (t.calls[cookie].done && t.calls[cookie].result < 0 && t.errors[cookie].code == 0) {
            abort();
        }
    }
    check_extents(&t);
    return 0;
}
