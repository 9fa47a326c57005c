/*
 * `penstock info` as text and as JSON. Strings of servers are escaped: a terminal obeys some of
 * them.
 */
#include "cli/info.h"

#include "core/log.h"
#include "core/size.h"
#include "report/jsonout.h"
#include "report/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const struct info_bit info_caps[] = {
    {VOLUME_CAN_WRITE, "write"},
    {VOLUME_CAN_FLUSH, "flush"},
    {VOLUME_CAN_FUA, "fua"},
    {VOLUME_CAN_ZERO, "zero"},
    {VOLUME_CAN_FAST_ZERO, "fast-zero"},
    {VOLUME_CAN_DISCARD, "discard"},
    {VOLUME_CAN_CACHE, "cache"},
    {VOLUME_CAN_EXTENTS, "extents"},
    {VOLUME_CAN_RESIZE, "resize"},
    {VOLUME_IS_COHERENT, "coherent"},
    {VOLUME_IS_ROTATIONAL, "rotational"},
    {VOLUME_READS_ZERO, "reads-zero"},
    {VOLUME_NO_DATA, "no-data"},
    {},
};

/* NBD protocol, "Transmission flags": bit 0 says that the others mean something. */
const struct info_bit info_nbd_flags[] = {
    {1 << 1, "read-only"},
    {1 << 2, "flush"},
    {1 << 3, "fua"},
    {1 << 4, "rotational"},
    {1 << 5, "trim"},
    {1 << 6, "write-zeroes"},
    {1 << 7, "dont-fragment"},
    {1 << 8, "multi-conn"},
    {1 << 9, "resize"},
    {1 << 10, "cache"},
    {1 << 11, "fast-zero"},
    {1 << 12, "block-status-payload"},
    {},
};

static void row(struct table *t, const char *key, const char *value)
{
    char shown[512];

    table_cell(t, "%s", key);
    table_cell(t, "%s", log_escape(shown, sizeof(shown), value, strlen(value)));
}

/* Both in words and in bytes, where they differ. */
static void size_row(struct table *t, const char *key, uint64_t bytes)
{
    char text[SIZE_TEXT_MAX], both[SIZE_TEXT_MAX + 40];

    size_format(bytes, text);
    if (bytes < 1024) {
        row(t, key, text);
    } else {
        snprintf(both, sizeof(both), "%s (%" PRIu64 " bytes)", text, bytes);
        row(t, key, both);
    }
}

static void bits_row(struct table *t, const char *key, const struct info_bit *bits, unsigned set)
{
    char text[256] = "";
    size_t used = 0;

    for (; bits->name; bits++) {
        if ((set & bits->bit) && used < sizeof(text)) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", used ? ", " : "",
                                     bits->name);
        }
    }
    row(t, key, used ? text : "none");
}

static void blocks_row(struct table *t, const char *key, uint64_t min, uint64_t preferred,
                       uint64_t max)
{
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX], text[3 * SIZE_TEXT_MAX + 40];

    snprintf(text, sizeof(text), "minimum %s, preferred %s, maximum %s", size_format(min, a),
             size_format(preferred, b), size_format(max, c));
    row(t, key, text);
}

static void nbd_rows(struct table *t, const struct info *in)
{
    const struct nbd_client_info *n = &in->nbd;
    char text[2 * SIZE_TEXT_MAX + 40], a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];

    row(t, "protocol",
        n->extended     ? "NBD, extended headers"
        : n->structured ? "NBD, structured replies"
                        : "NBD, simple replies");
    row(t, "export", n->export_name ? n->export_name : "");
    if (n->description) {
        row(t, "description", n->description);
    }
    bits_row(t, "NBD flags", info_nbd_flags, n->flags);
    if (n->block_min) {
        blocks_row(t, "NBD block sizes", n->block_min, n->block_preferred, n->block_max);
    }
    for (unsigned i = 0; i < in->context_count; i++) {
        row(t, i ? "" : "contexts", in->contexts[i]);
    }
    if (in->contexts_cut) {
        row(t, "", "and more");
    }
    if (n->send_buffer_wanted) {
        snprintf(text, sizeof(text), "wanted %s, granted %s", size_format(n->send_buffer_wanted, a),
                 size_format(n->send_buffer_granted, b));
        row(t, "send buffer", text);
    } else {
        row(t, "send buffer", "left to the kernel");
    }
}

int info_print_text(const struct info *in)
{
    const struct volume *v = in->volume;
    struct table *t = table_new("ll", (const char *)NULL);

    row(t, "endpoint", in->endpoint);
    row(t, "driver", v->ops->name);
    size_row(t, "size", v->size);
    bits_row(t, "can", info_caps, v->caps);
    blocks_row(t, "block sizes", v->limits.min, v->limits.preferred, v->limits.max);
    if (in->is_nbd) {
        nbd_rows(t, in);
    } else {
        row(t, "file I/O", in->engine);
    }
    /* What the NBD driver says of itself is above, and more of it. */
    for (unsigned i = 0; i < in->pair_count && !in->is_nbd; i++) {
        row(t, in->pairs[i].key, in->pairs[i].value);
    }
    int r = table_print(t, stdout);
    table_free(t);
    return r;
}

static void json_bits(struct jsonout *j, const char *key, const struct info_bit *bits, unsigned set)
{
    jsonout_array(j, key);
    for (; bits->name; bits++) {
        if (set & bits->bit) {
            jsonout_string(j, NULL, bits->name);
        }
    }
    jsonout_end(j);
}

static void json_blocks(struct jsonout *j, const char *key, uint64_t min, uint64_t preferred,
                        uint64_t max)
{
    jsonout_row(j, key);
    jsonout_number(j, "minimum", min);
    jsonout_number(j, "preferred", preferred);
    jsonout_number(j, "maximum", max);
    jsonout_end(j);
}

static void json_nbd(struct jsonout *j, const struct info *in)
{
    const struct nbd_client_info *n = &in->nbd;

    jsonout_object(j, "nbd");
    jsonout_string(j, "replies",
                   n->extended     ? "extended"
                   : n->structured ? "structured"
                                   : "simple");
    jsonout_string(j, "export", n->export_name);
    jsonout_string(j, "description", n->description);
    json_bits(j, "flags", info_nbd_flags, n->flags);
    jsonout_bool(j, "base-allocation", n->base_allocation);
    if (n->block_min) {
        json_blocks(j, "block-sizes", n->block_min, n->block_preferred, n->block_max);
    }
    jsonout_array(j, "contexts");
    for (unsigned i = 0; i < in->context_count; i++) {
        jsonout_string(j, NULL, in->contexts[i]);
    }
    jsonout_end(j);
    jsonout_row(j, "send-buffer");
    jsonout_number(j, "wanted", n->send_buffer_wanted);
    jsonout_number(j, "granted", n->send_buffer_granted);
    jsonout_end(j);
    jsonout_end(j);
}

int info_print_json(const struct info *in)
{
    const struct volume *v = in->volume;
    struct jsonout j;

    jsonout_start(&j, stdout);
    jsonout_object(&j, NULL);
    jsonout_string(&j, "endpoint", in->endpoint);
    jsonout_string(&j, "driver", v->ops->name);
    jsonout_number(&j, "size", v->size);
    json_bits(&j, "can", info_caps, v->caps);
    json_blocks(&j, "block-sizes", v->limits.min, v->limits.preferred, v->limits.max);
    if (in->is_nbd) {
        json_nbd(&j, in);
    } else {
        jsonout_string(&j, "io-engine", in->engine);
    }
    jsonout_object(&j, "details");
    for (unsigned i = 0; i < in->pair_count; i++) {
        jsonout_string(&j, in->pairs[i].key, in->pairs[i].value);
    }
    jsonout_end(&j);
    jsonout_end(&j);
    return jsonout_finish(&j);
}
