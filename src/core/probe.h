/*
 * USDT probes, provider "penstock": no cost but a nop where nobody traces. Without <sys/sdt.h>
 * they are nothing at all.
 *
 *   request__start(connection, command, offset, length)
 *   request__end(connection, command, offset, length, errno)
 *   connection__open(connection, fd)
 *   connection__close(connection, errno)
 *   buffer__clipped(fd, wanted, granted)
 */
#ifndef CORE_PROBE_H
#define CORE_PROBE_H

#include "config.h"

#if HAVE_SDT
#include <sys/sdt.h>
#define PROBE2(name, a, b) DTRACE_PROBE2(penstock, name, a, b)
#define PROBE3(name, a, b, c) DTRACE_PROBE3(penstock, name, a, b, c)
#define PROBE4(name, a, b, c, d) DTRACE_PROBE4(penstock, name, a, b, c, d)
#define PROBE5(name, a, b, c, d, e) DTRACE_PROBE5(penstock, name, a, b, c, d, e)
#else
#define PROBE2(name, a, b) ((void)(a), (void)(b))
#define PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#define PROBE4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#define PROBE5(name, a, b, c, d, e) ((void)(a), (void)(b), (void)(c), (void)(d), (void)(e))
#endif

#endif
