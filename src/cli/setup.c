/*
 * See setup.h. A room joins here when it lands.
 */
#include "cli/setup.h"

#include <errno.h>
#include <string.h>

void command_setup(void)
{
}

int command_take(char *const *argv, int argc, char **ret, struct error *err)
{
    *ret = strdup(argv[0]);
    return *ret ? 1 : error_set(err, ENOMEM, "no memory");
}
