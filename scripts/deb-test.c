/* A program of `make deb`'s package: writes a file of a volume and reads it, through the installed library. */
#include <uext4.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct uext4_options options = {.size = sizeof options, .flags = UEXT4_OPEN_WRITE};
    struct uext4_volume *volume;
    struct uext4_file *file;
    char text[5] = "";

    if (argc != 2)
        return 2;
    if (uext4_open(argv[1], &options, &volume) ||
        uext4_file_open(volume, "/from-c", UEXT4_READ | UEXT4_WRITE | UEXT4_CREATE, 0644, NULL, &file) ||
        uext4_pwrite_any(file, "hello", 5, 0, UEXT4_DSYNC) != 5 || uext4_pread_any(file, text, 5, 0) != 5) {
        fprintf(stderr, "%s\n", uext4_last_error());
        return 1;
    }
    if (memcmp(text, "hello", 5) || uext4_file_close(file) || uext4_close(volume))
        return 1;
    printf("libuext4 %s\n", uext4_version());
    return 0;
}
