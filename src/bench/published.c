/*
 * See published.h.
 */
#include "bench/published.h"

const struct published_nbd published_nbd[PUBLISHED_NBD] = {
    {"reading from qemu-nbd with qemu-img convert",
     {{4.292, 0.243, 1.604},
      {2.167, 0.058, 1.288},
      {2.041, 0.060, 1.238},
      {1.884, 0.060, 1.191},
      {1.881, 0.054, 1.196}}},
    {"writing to qemu-nbd with qemu-img convert",
     {{3.113, 0.334, 1.094},
      {1.173, 0.179, 0.654},
      {1.164, 0.164, 0.670},
      {1.227, 0.197, 0.663},
      {1.227, 0.198, 0.666}}},
    {"computing a blkhash with nbdcopy",
     {{2.140, 4.483, 2.681},
      {1.794, 4.467, 2.572},
      {1.807, 4.447, 2.644},
      {1.822, 4.461, 2.698},
      {1.827, 4.465, 2.700}}},
    {"computing a blkhash with blksum",
     {{3.582, 4.595, 2.392},
      {1.499, 4.384, 1.482},
      {1.377, 4.381, 1.345},
      {1.388, 4.389, 1.354},
      {1.352, 4.395, 1.302}}},
};

const struct published_nfs published_nfs[PUBLISHED_NFS] = {
    {"randread, one thread", {16659, 28387, 42932, 46868, 52108, 55760}},
    {"randread, a thread a drive", {17661, 33115, 57138, 82016, 99369, 109410}},
    {"randwrite, one thread", {12212, 19456, 30447, 30574, 35788, 39015}},
    {"randwrite, a thread a drive", {12669, 21492, 36017, 51532, 61475, 65577}},
};

const struct published_pipe published_pipe[PUBLISHED_PIPE] = {
    {64u << 10, 5.2}, {128u << 10, 5.8}, {256u << 10, 20.9}, {512u << 10, 21.6}, {1u << 20, 22.8},
};
