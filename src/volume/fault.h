/*
 * fault:SPEC:ENDPOINT: another volume with errors, delays and limits on purpose, for tests.
 *
 * SPEC is a list of settings with commas between them, and no colon:
 *
 *   OP-error=ERRNO[@OFFSET[+LENGTH]]    the call fails, with nothing done; ERRNO is EIO, ENOSPC,
 * ... short-OP=ERRNO[@OFFSET[+LENGTH]]    read, write, zero: its first half is done, then it fails
 *   delay[-OP]=TIME[@OFFSET[+LENGTH]]   50ms, 2s, 100us
 *   hold[-OP][=PATH][@OFFSET[+LENGTH]]  does not answer until it is canceled, or fault_release() is
 *                                       called, or the file PATH exists; PATH.held is made
 *                                       when the first call is held
 *   flip-OP[@OFFSET[+LENGTH]]           read, write: the first byte that is in the range is changed
 *
 *   OP is read, write, flush, zero, discard, cache, extents, or any. OFFSET alone means that byte;
 *   with LENGTH any call that touches the range; without both, every call. These belong to the
 *   setting before them:
 *
 *   after=N     leave the first N calls that match alone
 *   count=N     do it N times, then never again
 *   percent=N   do it to N of a hundred, by chance
 *
 *   seed=N      for that chance; the default is 1, so that every run is the same
 *   no-CAP      CAP is fua, flush, zero, fast-zero, discard, cache, extents, lend: as if it had
 * none min=SIZE, preferred=SIZE, max=SIZE, max-zero=SIZE   the limits that it says it has
 *
 * Example: fault:read-error=EIO@1M+64K,count=2,delay=50ms:disk.raw
 *
 * Errors come before anything is passed on; a call that several settings match takes all delays
 * and holds, and the first error. A volume with any setting for reads lends nothing.
 */
#ifndef VOLUME_FAULT_H
#define VOLUME_FAULT_H

#include "volume/volume.h"

#define FAULT_RULES_MAX 32

enum fault_op {
    FAULT_READ,
    FAULT_WRITE,
    FAULT_FLUSH,
    FAULT_ZERO,
    FAULT_DISCARD,
    FAULT_CACHE,
    FAULT_EXTENTS,
    FAULT_ANY,
};

enum fault_kind { FAULT_ERROR, FAULT_SHORT, FAULT_DELAY, FAULT_HOLD, FAULT_FLIP };

struct fault_rule {
    enum fault_kind kind;
    enum fault_op op;
    int code; /* errno, positive */
    uint64_t delay_ns;
    uint64_t off; /* the range; all when len is 0 */
    uint64_t len;
    uint64_t after;
    uint64_t count; /* UINT64_MAX: for ever */
    unsigned percent;
    char path[256]; /* hold: until it exists; "" none */
};

struct fault_spec {
    struct fault_rule rules[FAULT_RULES_MAX];
    unsigned count;
    uint64_t seed;
    unsigned caps_off; /* enum volume_cap */
    bool no_lend;
    struct volume_limits limits; /* 0: as below */
};

/* Text up to (not including) a ':' or its end, of len bytes. 0 or -EINVAL with err. Pure. */
int fault_parse(const char *text, size_t len, struct fault_spec *ret, struct error *err);

/* For tests, on a volume that endpoint_open() made of a fault: endpoint; any thread. How many calls
 * are held now; lets all held calls and every later one go on. */
unsigned fault_held(struct volume *v);
void fault_release(struct volume *v);

#endif
