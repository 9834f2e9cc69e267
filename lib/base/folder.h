/* folder.h: the names in a folder. */
#ifndef TUTTI_BASE_FOLDER_H
#define TUTTI_BASE_FOLDER_H

#include <stdint.h>

#define FOLDER_NAME_BYTES 256

struct folder {
  uint32_t count;
  char (*names)[FOLDER_NAME_BYTES]; /* numbers in them are ordered by value: "mlx5_2" before "mlx5_10" */
};

/* Empty if the folder cannot be read, or memory is out. Names that begin with a dot are left out. Free with
 * folder_free(). */
void folder_read(const char *path, struct folder *folder);
void folder_free(struct folder *folder);

#endif
