/*
 * SIGTERM and SIGINT as a wait, for main programs. sigwait_init() before any thread is started
 * (it blocks the signals and opens a signalfd); SIGPIPE and SIGXFSZ are ignored. Nothing is
 * lost that comes before somebody waits.
 */
#ifndef CORE_SIGWAIT_H
#define CORE_SIGWAIT_H

/* 0 or -errno. */
int sigwait_init(void);
/* Parks until a signal comes: its number, or -ECANCELED. A second signal that comes within 250 ms
 * of the first (timeout(1) and shells send one to the group as well) is the same one. */
int sigwait_next(void);
/* Children started by us get the signal mask and dispositions they would have had. For use in
 * the child between fork and exec; async-signal-safe. */
void sigwait_restore_for_child(void);

#endif
