/*
 * [ PROGRAM ARG ... ]: an NBD server of our own, for as long as the volume is open.
 */
#ifndef NBD_PROGRAM_H
#define NBD_PROGRAM_H

#include "channel/socket.h"
#include "core/error.h"

struct program;

#define PROGRAM_WORD_SEPARATOR '\x1f'

/*
 * Starts "[\x1fPROGRAM\x1fARG ...\x1f]" with a listening Unix socket as descriptor 3 (systemd's
 * socket activation) and says where it listens. From a fiber; the program ends with the thread that
 * started it. 0 or -errno with err.
 */
int program_start(const char *name, struct program **ret, struct address *address,
                  struct error *err);

/* Has it ended? Waits up to wait_ns. True, with err saying how it ended ("nbdkit exited with
 * status 1") before what it says already. */
bool program_ended(struct program *p, uint64_t wait_ns, struct error *err);

/* It has greeted a client: from now on it may hold what has to be written back. Any thread. */
void program_greeted(struct program *p);

/* From SIGTERM to SIGKILL, and that for a program that has greeted nobody; variables for tests. */
extern uint64_t program_term_wait_ns, program_silent_wait_ns;

/* Asks it to end, waits, kills it when it does not listen; removes its socket and folder. From a
 * fiber. NULL is fine. */
void program_stop(struct program *p);

/* Removes the sockets and folders of all of them, for a process that leaves at once; the programs
 * end with it. Any thread. */
void programs_abandon(void);

#endif
