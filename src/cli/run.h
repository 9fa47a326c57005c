/*
 * How a command's work meets SIGTERM and SIGINT.
 */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "core/error.h"

#include <stdbool.h>

/*
 * Runs job(arg) in a fiber of the calling worker and returns what it returned. The first SIGTERM
 * or SIGINT cancels that fiber (its waits return -ECANCELED; what is shielded goes on) and sets
 * *interrupted; a second one leaves the process at once with exit code 1.
 */
int run_interruptible(int (*job)(void *arg), void *arg, bool *interrupted);

/*
 * Calls on_signal(arg) for the first signal, in a fiber of its own, instead of canceling; a second
 * signal calls last_words(arg) (may be NULL; async: only what is quick) and leaves at once.
 */
struct run_signals;
int run_signals_start(void (*on_signal)(void *arg, int signal), void (*last_words)(void *arg),
                      void *arg, struct run_signals **ret);
/* Ends the waiting. NULL is fine. */
void run_signals_stop(struct run_signals *s);

#endif
