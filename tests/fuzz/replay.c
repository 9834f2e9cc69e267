/* replay.c: runs a fuzz target once over each file of the command line, as libFuzzer does with the files of a
 * corpus, for compilers without libFuzzer. A sanitizer ends the program at the first error. */
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
    fprintf(stderr, "%s\n", argv[index]); /* on an error the last name printed is the file that caused it */
    /* A block of exactly this size, so that reading one byte too many is found. */
    uint8_t *exact = (uint8_t *)malloc(bytes > 0 ? bytes : 1);
    if (exact == NULL) return 3;
    memcpy(exact, data, bytes);
    os_free(data);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
  }
  return argc > 1 ? 0 : 2;
}
