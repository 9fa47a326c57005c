/* NBD URIs: no crash; what is accepted has a name and an address within their bounds. */
#include "nbd/uri.h"
#include "nbd/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[2048];
    struct nbd_uri u;
    struct error err = {0};

    if (size >= sizeof(text)) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (nbd_uri_parse(text, &u, &err) < 0) {
        if (err.code == 0 || err.text[0] == '\0') {
            abort(); /* a refusal without words */
        }
        return 0;
    }
    if (strlen(u.export_name) > NBD_STRING_MAX || strlen(u.address.host) >= 256 ||
        (u.address.kind == ADDRESS_UNIX && u.address.path[0] == '\0')) {
        abort();
    }
    nbd_uri_done(&u);
    return 0;
}
