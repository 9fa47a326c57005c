/* A server's half of the handshake: no crash, and what is believed makes sense. */
#include "nbd/client_handshake.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct tape {
    struct channel ch; /* first */
    const uint8_t *data;
    size_t left;
};

static ssize_t tape_read(struct channel *ch, void *buf, size_t len)
{
    struct tape *t = (struct tape *)ch;
    size_t n = t->left < len ? t->left : len;
    if (n > 0) {
        memcpy(buf, t->data, n);
    }
    t->data += n;
    t->left -= n;
    return (ssize_t)n;
}

static int tape_write(struct channel *ch, struct iovec *iov, int n, bool more)
{
    return 0;
}

static const struct channel_ops tape_ops = {.read_some = tape_read, .write = tape_write};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct nbd_handshake h;
    struct tape tape = {.ch = {.ops = &tape_ops}, .data = data, .left = size};
    struct nbd_facts facts = {0};
    struct error err = {0};

    int r = nbd_handshake_start(&h, &tape.ch, &err);
    if (r == 0) {
        r = nbd_handshake_go(&h, "disk", &facts, &err);
    }
    if (r < 0) {
        if (err.code != -r || err.text[0] == '\0') {
            abort();
        }
        return 0;
    }
    if (facts.size > INT64_MAX || facts.block_min > 65536 ||
        (facts.block_min > 0 && facts.block_max < facts.block_min) ||
        (facts.base_allocation && !facts.structured)) {
        abort();
    }
    nbd_facts_done(&facts);
    return 0;
}
