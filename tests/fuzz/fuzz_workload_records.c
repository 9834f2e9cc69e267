/* fuzz_workload_records.c: any bytes as a job's records, in each of the supported formats, and its calls. */
/* sources: sim/simulate/workload.c sim/simulate/workload_text.c sim/simulate/workload_match.c
 * sim/simulate/workload_records.c sim/files/records.c sim/files/job.c sim/files/archive.c sim/input.c
 * sim/files/digest.c sim/files/image.c sim/files/flight.c sim/files/nccl_log.c sim/files/pickle.c
 * trace/record_ explain/ core/plan/names.c sim/collective.c base/ */
#include <unistd.h>

#include "workload_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The reader takes file names, from which dumps get their rank: as rank 0's and as rank 1's. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct workload workload;
  char names[2][64];
  char *paths[] = {names[0], names[1]};
  const int count = size % 3 == 0 ? 1 : 2;
  for (int i = 0; i < 2; i++) {
    snprintf(names[i], sizeof names[i], "/tmp/tutti-fuzz-%d_%d", (int)getpid(), i);
    if (!os_file_write(names[i], (const char *)data, size)) return 0;
  }
  if (workload_records(count, paths, size % 2 == 1, &workload) == ncclSuccess) workload_check(&workload);
  workload_free(&workload);
  for (int i = 0; i < 2; i++) unlink(names[i]);
  return 0;
}
