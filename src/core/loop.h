/*
 * The loop of a worker (worker.c), for those who make and end workers (threads.c). Private to
 * src/core.
 */
#ifndef CORE_LOOP_H
#define CORE_LOOP_H

struct worker;

int loop_open(struct worker *w); /* epoll and the mailbox: 0 or -errno; any thread */
void loop_run(struct worker *w); /* until the worker is to stop and nothing is left */
void loop_end(struct worker *w); /* on the worker's thread, frees what belongs to it */
void loop_close(struct worker *w);

#endif
