/* NFS URLs: no crash; what is accepted is a host and a path within their bounds. */
#include "volume/nfs/url.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[4096];
    struct nfsc_url u;
    struct error err = {0};

    if (size >= sizeof(text)) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (nfsc_url_parse(text, &u, &err) < 0) {
        if (err.code == 0 || err.text[0] == '\0') {
            abort(); /* a refusal without words */
        }
        return 0;
    }
    size_t folder = strnlen(u.folder, sizeof(u.folder));
    if (u.host[0] == '\0' || !memchr(u.host, '\0', sizeof(u.host)) || u.file[0] == '\0' ||
        !memchr(u.file, '\0', sizeof(u.file)) || strchr(u.file, '/') ||
        folder == sizeof(u.folder) || u.folder[0] != '/' ||
        (folder > 1 && u.folder[folder - 1] == '/') || strstr(u.folder, "//") ||
        strstr(u.folder, "/../") || u.request_timeout_ns == 0) {
        abort();
    }
    return 0;
}
