/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * sqlite-uext4 [-x] VOLUME DB [SQL...]: runs SQL on a database inside a volume and prints the rows, with `|` between
 * columns. Without SQL it reads standard input, and runs each statement when its last line is there. Exit status: 0
 * done, 1 a statement failed (the rest is not run), 2 wrong usage.
 *
 * -x: exclusive locking, which WAL needs.
 */
#include "uext4_vfs.h"

#include <sqlite3.h>
#include <uext4.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(sqlite3 *db, const char *what)
{
    fprintf(stderr, "sqlite-uext4: %s: %s\n", what, sqlite3_errmsg(db));
    return 1;
}

static void print_row(sqlite3_stmt *statement)
{
    int columns = sqlite3_column_count(statement);

    for (int column = 0; column < columns; column++) {
        const char *text = (const char *)sqlite3_column_text(statement, column);

        printf("%s%s", column ? "|" : "", text ? text : "");
    }
    putchar('\n');
    /* Who reads a row may take what came before it as done. */
    fflush(stdout);
}

/* Runs all statements of a text. */
static int run(sqlite3 *db, const char *sql)
{
    while (*sql) {
        sqlite3_stmt *statement;
        int answer;

        if (sqlite3_prepare_v2(db, sql, -1, &statement, &sql) != SQLITE_OK)
            return failed(db, "in the SQL");
        while (statement && (answer = sqlite3_step(statement)) != SQLITE_DONE) {
            if (answer == SQLITE_ROW) {
                print_row(statement);
                continue;
            }
            failed(db, sqlite3_sql(statement));
            sqlite3_finalize(statement);
            return 1;
        }
        sqlite3_finalize(statement);
    }
    return 0;
}

static int run_input(sqlite3 *db)
{
    char *sql = NULL, *line = NULL;
    size_t length = 0, room = 0;
    ssize_t got;
    int status = 0;

    while (status == 0 && (got = getline(&line, &room, stdin)) > 0) {
        char *longer = realloc(sql, length + (size_t)got + 1);

        if (!longer) {
            status = 1;
            break;
        }
        sql = longer;
        memcpy(sql + length, line, (size_t)got + 1);
        length += (size_t)got;
        if (sqlite3_complete(sql)) {
            status = run(db, sql);
            length = 0;
        }
    }
    if (status == 0 && length > 0)
        status = run(db, sql);
    free(sql);
    free(line);
    return status;
}

static int use(const char *path, int exclusive, int count, char **sql)
{
    sqlite3 *db = NULL;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
    int status = 0;

    if (sqlite3_open_v2(path, &db, flags, "uext4") != SQLITE_OK)
        status = failed(db, path);
    /* First of all: even reading the schema of a database in WAL mode takes it. */
    if (status == 0 && exclusive)
        status = sqlite3_exec(db, "PRAGMA locking_mode=EXCLUSIVE", NULL, NULL, NULL) ? failed(db, "locking") : 0;
    /* So that the end of this process never takes a commit back, not even with journal_mode=DELETE. */
    if (status == 0)
        status = run(db, "PRAGMA synchronous=EXTRA");
    if (status == 0 && count == 0)
        status = run_input(db);
    for (int index = 0; status == 0 && index < count; index++)
        status = run(db, sql[index]);
    if (sqlite3_close(db) != SQLITE_OK && status == 0)
        status = failed(db, "close");
    return status;
}

int main(int count, char **words)
{
    /* A thread of the library commits what nobody syncs. */
    struct uext4_options options = {.size = sizeof options, .flags = UEXT4_OPEN_WRITE | UEXT4_OPEN_BACKGROUND};
    struct uext4_volume *volume;
    int status, option, exclusive = 0;

    while ((option = getopt(count, words, "+dx")) == 'd' || option == 'x') {
        if (option == 'x')
            exclusive = 1;
        else /* No pages in memory: the volume gets every write at once. */
            options.page_budget = UINT64_MAX;
    }
    if (option != -1 || count - optind < 2) {
        fputs("usage: sqlite-uext4 [-dx] VOLUME DB [SQL...]\n", stderr);
        return 2;
    }
    words += optind - 1;
    count -= optind - 1;
    if (uext4_open(words[1], &options, &volume)) {
        fprintf(stderr, "sqlite-uext4: %s\n", uext4_last_error());
        return 1;
    }
    status = 1;
    if (sqlite3_uext4_register("uext4", volume, 0) == SQLITE_OK)
        status = use(words[2], exclusive, count - 3, words + 3);
    sqlite3_uext4_unregister("uext4");
    if (uext4_close(volume) && status == 0) {
        fprintf(stderr, "sqlite-uext4: %s\n", uext4_last_error());
        status = 1;
    }
    return status;
}
