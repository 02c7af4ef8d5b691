/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* SQLite's own tests, on databases inside a volume: what the parts of their program share. */
#ifndef SUITE_H
#define SUITE_H

#include <uext4.h>

/* The directory of the volume that the tests work in. Paths of Tcl below it are paths of the volume. The host has none
 * of that name. */
#define SUITE_ROOT "/uext4"

/* NULL: no volume, the tests run on files of the host. */
extern struct uext4_volume *suite_volume;

/* suite_tcl.c: makes Tcl's file commands and channels act on the volume. 0 if it worked. */
int suite_tcl_register(void);
/* The directory of the volume that Tcl is in. Stays as it is until the next call. */
const char *suite_tcl_directory(void);

#endif
