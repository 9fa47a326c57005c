/*
 * The server's handshake: the input is what a client says after the greeting, its flags included.
 * Whatever it says, the server ends with the stream.
 */
#include "nbd_server.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t flags[4] = {0, 0, 0, 3};
    /* An input that starts with a byte of 0xff brings its own flags. */
    if (size > 0 && data[0] == 0xff) {
        fuzz_server(data + 1, size > 4 ? 4 : size - 1, data + (size > 4 ? 5 : size),
                    size > 4 ? size - 5 : 0);
    } else {
        fuzz_server(flags, sizeof(flags), data, size);
    }
    return 0;
}
