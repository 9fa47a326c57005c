/*
 * The published tables that penstock started from (figures only), for printing beside what is
 * measured here. Only shapes carry over: the machines were others.
 */
#ifndef BENCH_PUBLISHED_H
#define BENCH_PUBLISHED_H

#include <stddef.h>
#include <stdint.h>

/* QEMU 2025, "io: Increase unix stream socket buffer size": a Fedora 42 VM on an M2 Max. */
struct published_nbd {
    const char *title;
    struct {
        double time_s, user_s, sys_s;
    } rows[5]; /* send buffer: default, 512 KiB, 1, 2, 4 MiB */
};
#define PUBLISHED_NBD 4u
extern const struct published_nbd published_nbd[PUBLISHED_NBD];
enum { PUBLISHED_READ, PUBLISHED_WRITE, PUBLISHED_NBDCOPY_SUM, PUBLISHED_BLKSUM };

/* QEMU's NFS driver, 2017: six drives, 4K random, IOPS at depths 1, 2, 4, 8, 16, 32. */
struct published_nfs {
    const char *name;
    double iops[6];
};
#define PUBLISHED_NFS 4u
extern const struct published_nfs published_nfs[PUBLISHED_NFS];

/* libvirt 2022, virsh save of a 60 GiB VM to /dev/null, Gbit/s by pipe size. */
struct published_pipe {
    uint64_t size;
    double gbit_s;
};
#define PUBLISHED_PIPE 5u
extern const struct published_pipe published_pipe[PUBLISHED_PIPE];

#endif
