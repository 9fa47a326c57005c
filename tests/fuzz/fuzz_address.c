/* Addresses as people write them: what is accepted is terminated, in range, and survives a second
 * parse of its own text. */
#include "channel/socket.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_tcp(const char *text)
{
    struct address a, again;
    char shown[sizeof(a.host) + 16];
    if (address_parse_tcp(text, 10809, &a, NULL) < 0) {
        return;
    }
    if (!memchr(a.host, '\0', sizeof(a.host))) {
        abort();
    }
    address_format(&a, shown, sizeof(shown));
    if (address_parse_tcp(shown, 1, &again, NULL) < 0 || strcmp(a.host, again.host) != 0 ||
        a.port != again.port) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[400];
    struct address a;
    if (size >= sizeof(text)) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    check_tcp(text);
    if (address_unix(text, &a, NULL) == 0 &&
        (strcmp(a.path, text) != 0 || a.abstract != (text[0] == '@'))) {
        abort();
    }
    if (address_parse_vsock(text, &a, NULL) == 0 && a.kind != ADDRESS_VSOCK) {
        abort();
    }
    return 0;
}
