/* joiner.h: processes that take part in a gather, for tests: as threads of this process, or forked from it.
 */
#ifndef TUTTI_TESTS_JOINER_H
#define TUTTI_TESTS_JOINER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/os.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/gather.h"

#define PROCESSES_MOST 64

struct joiner {
  struct gather_call call;
  struct gather_root roots[8];
  uint32_t ranks[16], rank_count;
  uint32_t delay_ms;       /* before it opens */
  uint32_t late_ms;        /* its last rank checks in this long after the others */
  ncclResult_t own_result; /* its outcome in gather_agree */
  bool stays;              /* keeps its watch; otherwise it leaves */
  uint32_t die_at;         /* a process kills itself at the n-th of its steps; 0: never */
  /* results */
  ncclResult_t result;
  char reason[512];
  bool infos_good;
  uint32_t process_count, process_index;
  struct watch *watch;
  uint32_t lost_count, lost_process; /* read atomically */
  uint64_t lost_key;
  ncclResult_t lost_code;
  char lost_text[512];
  os_thread thread;
  pid_t pid;
};

/* Sets the environment of these tests: loopback, short deadlines; then the name and value pairs up to NULL.
 */
void joiner_environment(const char *name, ...);
struct bootstrap_id joiner_id(void);
/* `count` processes of `each` ranks in order, for this id. */
void joiner_fill(struct joiner *processes, uint32_t count, uint32_t each, const struct bootstrap_id *id);
/* open, check in, wait, agree, watch, close; and leave unless `stays`. */
void joiner_run(struct joiner *process);
void joiner_threads_start(struct joiner *processes, uint32_t count);
void joiner_threads_join(struct joiner *processes, uint32_t count);
/* Memory that forked processes share with the test. */
struct joiner *joiner_shared(uint32_t count);
/* A process that runs the participant, then lives until it is killed if it stays. */
void joiner_fork(struct joiner *process);
bool joiner_wait_lost(struct joiner *process, uint32_t timeout_ms);
/* Number of descriptors that this process has open. */
uint32_t joiner_descriptors(void);

#endif
