/* folder.c: see folder.h. */
#include "base/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/os.h"

static int names_compare(const void *a, const void *b) {
  return strverscmp((const char *)a, (const char *)b);
}

void folder_read(const char *path, struct folder *folder) {
  uint32_t capacity = 0;
  memset(folder, 0, sizeof *folder);
  DIR *open = opendir(path);
  if (open == NULL) return;
  for (const struct dirent *entry; (entry = readdir(open)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    if (!array_grow(&folder->names, &capacity, (uint64_t)folder->count + 1, sizeof *folder->names)) break;
    snprintf(folder->names[folder->count++], FOLDER_NAME_BYTES, "%s", entry->d_name);
  }
  closedir(open);
  if (folder->count > 0) qsort(folder->names, folder->count, sizeof *folder->names, names_compare);
}

void folder_free(struct folder *folder) {
  os_free(folder->names);
  memset(folder, 0, sizeof *folder);
}
