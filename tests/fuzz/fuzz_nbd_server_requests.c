/*
 * The server's transmission phase: the first byte of the input chooses how replies are framed, the
 * rest is a stream of requests.
 */
#include "nbd_server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t put_option(uint8_t *p, uint32_t option, const void *data, size_t len)
{
    nbd_option_encode(p, option, (uint32_t)len);
    if (len > 0) {
        memcpy(p + NBD_OPTION_SIZE, data, len);
    }
    return NBD_OPTION_SIZE + len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const base[] = {NBD_CONTEXT_BASE_ALLOCATION};
    uint8_t head[256], option[128];
    size_t len = 4;
    nbd_put32(head, 3);
    unsigned mode = size > 0 ? data[0] % 3u : 0;
    if (mode > 0) {
        len += put_option(head + len,
                          mode == 1 ? NBD_OPT_STRUCTURED_REPLY : NBD_OPT_EXTENDED_HEADERS, NULL, 0);
        len += put_option(head + len, NBD_OPT_SET_META_CONTEXT, option,
                          nbd_meta_request_encode(option, "x", base, 1));
    }
    len += put_option(head + len, NBD_OPT_GO, option,
                      nbd_info_request_encode(option, "x", NULL, 0));
    fuzz_server(head, len, data + (size > 0), size - (size > 0));
    return 0;
}
