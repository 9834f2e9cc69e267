/* input.h: input files of verbs; `-` is standard input. */
#ifndef TUTTI_SIM_INPUT_H
#define TUTTI_SIM_INPUT_H

#include <stddef.h>
#include <stdio.h>

/* The path to open: /dev/stdin for `-`. */
const char *input_path(const char *path);
/* Opens a file in which the reader can seek; standard input is copied first. NULL with errno set. */
FILE *input_open(const char *path);
/* As os_file_read_most; standard input may be read again, with the same result. */
char *input_read(const char *path, size_t bytes_most, size_t *bytes);

#endif
