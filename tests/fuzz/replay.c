/* replay.c: runs a fuzz target once over each file of the command line: what libFuzzer does with the files of
 * a corpus, for compilers that have no libFuzzer. A sanitizer ends the program at the first fault. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
  for (int index = 1; index < argc; index++) {
    size_t bytes = 0;
    char *data = os_file_read(argv[index], &bytes);
    if (data == NULL) {
      fprintf(stderr, "%s: cannot be read\n", argv[index]);
      return 2;
    }
    fprintf(stderr, "%s\n", argv[index]); /* the last name is the file that a fault belongs to */
    /* A block of just this size, so that reading one byte too many is seen. */
    uint8_t *exact = (uint8_t *)malloc(bytes > 0 ? bytes : 1);
    if (exact == NULL) return 3;
    memcpy(exact, data, bytes);
    os_free(data);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
  }
  return argc > 1 ? 0 : 2;
}
