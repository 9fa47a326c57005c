/*
 * The same binary under the name libvirt_iohelper: libvirt's helper of virFileWrapperFd.
 */
#ifndef CLI_IOHELPER_H
#define CLI_IOHELPER_H

#include <stdbool.h>

/* Whether argv[0] is that name. */
bool iohelper_is_asked(const char *argv0);
/* Does what libvirt's does; the exit code. */
int iohelper_main(int argc, char **argv);

#endif
