/*
 * What every command's table must keep: names that are unique, fallbacks that parse, help that is a
 * sentence. A mistake in a table is found here and not by a user.
 */
#include "cli/command.h"
#include "cli/help.h"

#include "tap.h"

struct names {
    const char *command;
    unsigned count;
    const struct option_spec *seen[OPTIONS_MAX];
};

static int check_option(void *arg, const struct option_spec *s, size_t offset)
{
    struct names *n = arg;
    size_t len = s->help ? strlen(s->help) : 0;

    (void)offset;
    bool fine = OK(len > 0 && s->help[len - 1] == '.') && OK(s->name[0] && s->name[0] != '-');
    for (unsigned i = 0; i < n->count; i++) {
        fine = OK(strcmp(n->seen[i]->name, s->name) != 0) && fine;
        fine = OK(!s->short_name || n->seen[i]->short_name != s->short_name) && fine;
    }
    bool takes = s->kind != OPTION_FLAG && s->kind != OPTION_COUNT && s->kind != OPTION_CALL;
    fine = (s->kind == OPTION_CALL || OK(takes == (s->argument != NULL))) && fine;
    fine = (s->kind != OPTION_CHOICE || OK(s->words != NULL)) && fine;
    fine = (s->kind != OPTION_CALL || OK(s->call != NULL)) && fine;
    if (!fine) {
        printf("# penstock %s --%s\n", n->command, s->name);
    }
    n->seen[n->count++] = s;
    return 0;
}

static void tables_are_sound(void)
{
    for (unsigned i = 0; cli_commands[i]; i++) {
        const struct command *c = cli_commands[i];
        struct names n = {.command = c->name};
        OK(cli_command_find(c->name) == c);
        OK(c->usage && c->usage[0] && c->summary && c->run);
        if (c->options) {
            options_walk(c->options, 0, check_option, &n);
        }
        options_walk(common_options, 0, check_option, &n);
    }
}

static void fallbacks_parse(void)
{
    for (unsigned i = 0; cli_commands[i]; i++) {
        const struct command *c = cli_commands[i];
        if (!c->options) {
            continue;
        }
        struct common_cli common = {};
        void *options = calloc(1, c->options_size);
        const struct option_spec *const tables[] = {c->options, common_options, NULL};
        void *const bases[] = {options, &common};
        struct option_parser p = {.tables = tables, .bases = bases};
        options_fallback(&p); /* asserts */
        OK(options != NULL);
        if (c->options_done) {
            c->options_done(options);
        }
        free(options);
    }
}

/* All options of a command are in each text that is made of its table. */
static void texts_agree(void)
{
    for (unsigned i = 0; cli_commands[i]; i++) {
        const struct command *c = cli_commands[i];
        char *texts[3] = {}, *names = NULL;
        size_t lens[3], names_len;
        FILE *f[3];
        FILE *nf = open_memstream(&names, &names_len);
        for (unsigned k = 0; k < 3; k++) {
            f[k] = open_memstream(&texts[k], &lens[k]);
        }
        help_names(nf, c);
        help_command(f[0], c);
        help_man(f[1], c, NULL);
        help_completion(f[2], "bash");
        fclose(nf);
        for (unsigned k = 0; k < 3; k++) {
            fclose(f[k]);
        }
        char *rest = names;
        for (char *name; !c->hidden && (name = strsep(&rest, "\n")) && *name;) {
            for (unsigned k = 0; k < 3; k++) {
                if (!OK(strstr(texts[k], name) != NULL)) {
                    printf("# penstock %s %s is not in text %u\n", c->name, name, k);
                }
            }
        }
        for (unsigned k = 0; k < 3; k++) {
            free(texts[k]);
        }
        free(names);
    }
}

int main(void)
{
    RUN(tables_are_sound);
    RUN(fallbacks_parse);
    RUN(texts_agree);
    return tap_done();
}
