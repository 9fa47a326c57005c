/*
 * Shell completions: each shell gets the commands, and for each command its options, what their
 * arguments can be, and files elsewhere.
 */
#include "cli/help.h"

#include <errno.h>
#include <string.h>

struct writer {
    FILE *f;
    const struct command *command;
};

static void each_option(const struct command *c, struct writer *w,
                        int (*fn)(void *arg, const struct option_spec *spec, size_t offset))
{
    w->command = c;
    if (c->options) {
        options_walk(c->options, 0, fn, w);
    }
    options_walk(common_options, 0, fn, w);
}

/* The first sentence is enough beside a completion; quotes would end the shell's own. */
static void short_help(FILE *f, const char *text)
{
    for (const char *c = text; *c && !(c[0] == '.' && (c[1] == ' ' || c[1] == '\0')); c++) {
        fputc(strchr("'\"`$\\[]:", *c) ? ' ' : *c, f);
    }
}

static int bash_name(void *arg, const struct option_spec *s, size_t offset)
{
    struct writer *w = arg;
    (void)offset;
    if (!s->hidden) {
        fprintf(w->f, " --%s", s->name);
        if (s->short_name) {
            fprintf(w->f, " -%c", s->short_name);
        }
    }
    return 0;
}

static int bash_argument(void *arg, const struct option_spec *s, size_t offset)
{
    struct writer *w = arg;

    (void)offset;
    if (s->hidden || !s->argument || s->bare) {
        return 0;
    }
    fprintf(w->f, "    %s:--%s", w->command->name, s->name);
    if (s->short_name) {
        fprintf(w->f, "|%s:-%c", w->command->name, s->short_name);
    }
    fputs(") COMPREPLY=(", w->f);
    if (s->complete == COMPLETE_FILE) {
        fputs("$(compgen -f -- \"$cur\")", w->f);
    } else if (s->complete == COMPLETE_DIRECTORY) {
        fputs("$(compgen -d -- \"$cur\")", w->f);
    } else if (s->words) {
        fputs("$(compgen -W '", w->f);
        for (const struct option_word *word = s->words; word->word; word++) {
            fprintf(w->f, "%s%s", word == s->words ? "" : " ", word->word);
        }
        fputs("' -- \"$cur\")", w->f);
    }
    fputs("); return ;;\n", w->f);
    return 0;
}

static void completion_bash(FILE *f)
{
    struct writer w = {.f = f};

    fputs("# bash completion for penstock; made of its option tables\n"
          "# shellcheck shell=bash disable=SC2207\n_penstock()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local command=${COMP_WORDS[1]} options=\n    COMPREPLY=()\n"
          "    if ((COMP_CWORD == 1)); then\n        COMPREPLY=($(compgen -W '--help --version",
          f);
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, " %s", cli_commands[i]->name);
        }
    }
    fputs("' -- \"$cur\"))\n        return\n    fi\n    case $command:$prev in\n", f);
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            each_option(cli_commands[i], &w, bash_argument);
        }
    }
    fputs("    esac\n    case $command in\n", f);
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, "    %s) options='", cli_commands[i]->name);
            each_option(cli_commands[i], &w, bash_name);
            fputs("' ;;\n", f);
        }
    }
    fputs("    esac\n    if [[ $cur == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
          "    else\n        COMPREPLY=($(compgen -f -- \"$cur\"))\n    fi\n}\n"
          "complete -o filenames -F _penstock penstock\n",
          f);
}

static void zsh_spec(struct writer *w, const char *dashes, const char *name,
                     const struct option_spec *s)
{
    bool many = s->kind == OPTION_LIST || s->kind == OPTION_COUNT || s->kind == OPTION_CALL;

    fprintf(w->f, " \\\n            '%s%s%s%s[", many ? "*" : "", dashes, name,
            !s->argument        ? ""
            : s->bare           ? "=-"
            : dashes[1] == '\0' ? "+"
                                : "=");
    short_help(w->f, s->help);
    fputc(']', w->f);
    if (s->argument) {
        fprintf(w->f, "%s:%s:", s->bare ? ":" : "", s->argument);
        if (s->complete == COMPLETE_FILE) {
            fputs("_files", w->f);
        } else if (s->complete == COMPLETE_DIRECTORY) {
            fputs("_files -/", w->f);
        } else if (s->words) {
            fputc('(', w->f);
            for (const struct option_word *word = s->words; word->word; word++) {
                fprintf(w->f, "%s%s", word == s->words ? "" : " ", word->word);
            }
            fputc(')', w->f);
        }
    }
    fputc('\'', w->f);
}

static int zsh_option(void *arg, const struct option_spec *s, size_t offset)
{
    (void)offset;
    if (!s->hidden) {
        zsh_spec(arg, "--", s->name, s);
        if (s->short_name) {
            zsh_spec(arg, "-", (char[]){s->short_name, '\0'}, s);
        }
    }
    return 0;
}

static void completion_zsh(FILE *f)
{
    struct writer w = {.f = f};

    fputs("#compdef penstock\n# made of penstock's option tables\n"
          "if ((CURRENT == 2)); then\n    _values command",
          f);
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, " \\\n        '%s[", cli_commands[i]->name);
            short_help(f, cli_commands[i]->summary);
            fputs("]'", f);
        }
    }
    fputs(" \\\n        '--help[Show the commands]' \\\n        '--version[Show the version]'\n"
          "    return\nfi\nlocal command=$words[2]\nshift words\n((CURRENT--))\n"
          "case $command in\n",
          f);
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, "    %s)\n        _arguments -s", cli_commands[i]->name);
            each_option(cli_commands[i], &w, zsh_option);
            fputs(" \\\n            '*:operand:_files' ;;\n", f);
        }
    }
    fputs("esac\n", f);
}

static int fish_option(void *arg, const struct option_spec *s, size_t offset)
{
    struct writer *w = arg;

    (void)offset;
    if (s->hidden) {
        return 0;
    }
    fprintf(w->f, "complete -c penstock -n '__fish_seen_subcommand_from %s' -l %s",
            w->command->name, s->name);
    if (s->short_name) {
        fprintf(w->f, " -s %c", s->short_name);
    }
    if (s->argument && !s->bare) {
        fputs(s->complete == COMPLETE_NOTHING ? " -x" : " -r", w->f);
    }
    if (s->words) {
        fputs(" -a '", w->f);
        for (const struct option_word *word = s->words; word->word; word++) {
            fprintf(w->f, "%s%s", word == s->words ? "" : " ", word->word);
        }
        fputc('\'', w->f);
    }
    fputs(" -d '", w->f);
    short_help(w->f, s->help);
    fputs("'\n", w->f);
    return 0;
}

static void completion_fish(FILE *f)
{
    struct writer w = {.f = f};

    fputs("# fish completion for penstock; made of its option tables\n"
          "complete -c penstock -n __fish_use_subcommand -l help -d 'Show the commands'\n"
          "complete -c penstock -n __fish_use_subcommand -l version -d 'Show the version'\n",
          f);
    for (unsigned i = 0; cli_commands[i]; i++) {
        if (!cli_commands[i]->hidden) {
            fprintf(f, "complete -c penstock -f -n __fish_use_subcommand -a %s -d '",
                    cli_commands[i]->name);
            short_help(f, cli_commands[i]->summary);
            fputs("'\n", f);
            each_option(cli_commands[i], &w, fish_option);
        }
    }
}

int help_completion(FILE *f, const char *shell)
{
    static const struct {
        const char *shell;
        void (*write)(FILE *f);
    } shells[] = {{"bash", completion_bash}, {"zsh", completion_zsh}, {"fish", completion_fish}};

    for (unsigned i = 0; i < sizeof(shells) / sizeof(shells[0]); i++) {
        if (strcmp(shells[i].shell, shell) == 0) {
            shells[i].write(f);
            return 0;
        }
    }
    return -EINVAL;
}
