/*
 * Log lines on stderr: "penstock: LEVEL: text". One write a line, any thread. What a peer said is
 * escaped by the caller with log_escape() first.
 */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

/* What is more talkative than level is dropped. The default is LOG_WARNING. */
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);

void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * Copies len bytes of src into dst of size bytes, printable and terminated: control characters,
 * DEL and bytes that are no UTF-8 become \xNN. Cuts what does not fit and ends it in "...".
 * Returns dst.
 */
char *log_escape(char *dst, size_t size, const void *src, size_t len);

#endif
