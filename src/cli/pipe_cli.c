/*
 * See pipe_cli.h.
 */
#include "cli/pipe_cli.h"

#include <sys/stat.h>

const struct option_word pipe_size_words[] = {
    {"auto", SOCKET_BUFFER_AUTO},
    {"default", SOCKET_BUFFER_DEFAULT},
    {},
};

void pipe_cli_size(int fd, uint64_t asked, struct sizing *ret)
{
    struct stat st;

    *ret = (struct sizing){0};
    if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode)) {
        sizing_pipe(fd, asked, ret);
    }
}
