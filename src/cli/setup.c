/*
 * See setup.h. A room joins here when it lands.
 */
#include "cli/setup.h"

#include "nbd/client.h"
#include "volume/endpoint.h"

void command_setup(void)
{
    nbd_client_register();
}

int command_take(char *const *argv, int argc, char **ret, struct error *err)
{
    return endpoint_take_args(argv, argc, ret, err);
}
