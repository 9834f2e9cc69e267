/* bootstrap.c: how long it takes processes to find each other, and how many bytes: N processes of S ranks
 * each, as threads of this process or as processes forked from it, check in with one root, exchange their
 * peer info, agree, watch each other and leave. Prints one line: processes, ranks, and by phase the slowest
 * process's milliseconds, and bytes of all.
 *
 *   bootstrap threads|processes PROCESSES [RANKS [INFO_BYTES [ROOTS]]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/gather.h"
#include "core/bootstrap/root.h"

#define INFO_MOST 4096

struct process {
  struct gather_cost cost;
  uint64_t watch_ns, leave_ns;
  bool good;
};

static uint32_t process_count, ranks_each = 1, info_bytes = 256, root_count = 1;
static struct bootstrap_id ids[64];
static struct process *processes; /* shared with the processes */

static void nobody_lost(void *argument, uint32_t process, uint64_t key, ncclResult_t code, const char *text) {
  (void)key;
  (void)code;
  fprintf(stderr, "process %u heard of the loss of %u: %s\n", *(uint32_t *)argument, process, text);
}

static bool infos_good(const struct gather *gather) {
  for (uint32_t rank = 0; rank < process_count * ranks_each; rank++) {
    const struct gather_rank *found = &gather_ranks(gather)[rank];
    uint32_t value;
    if (found->info_bytes != info_bytes) return false;
    memcpy(&value, found->info, sizeof value);
    if (value != rank * 7 + 1) return false;
  }
  return gather_process_count(gather) == process_count;
}

static void fail(uint32_t index, const char *what, const char *reason) {
  fprintf(stderr, "process %u: %s: %s\n", index, what, reason);
}

static void process_run(uint32_t index) {
  struct gather_root roots[64];
  char reason[512] = "";
  uint8_t info[INFO_MOST] = {0};
  struct gather *gather = NULL;
  struct watch *watch = NULL;
  struct process *process = &processes[index];
  for (uint32_t i = 0; i < root_count; i++) roots[i] = (struct gather_root){ids[i].root, ids[i].secret};
  const struct gather_call call = {.call = "bench",
                                   .secret = ids[0].secret,
                                   .roots = roots,
                                   .root_count = root_count,
                                   .rank_count = process_count * ranks_each,
                                   .signature = 1};
  if (gather_open(&call, &gather) != ncclSuccess) {
    fail(index, "gather_open", "see the log");
    return;
  }
  for (uint32_t i = 0; i < ranks_each; i++) {
    const uint32_t rank = index * ranks_each + i, value = rank * 7 + 1;
    memcpy(info, &value, sizeof value);
    gather_check_in(gather, rank, info, info_bytes);
  }
  process->good = gather_wait(gather, reason, sizeof reason) == ncclSuccess;
  if (process->good) process->good = infos_good(gather);
  if (process->good) process->good = gather_agree(gather, ncclSuccess, reason, sizeof reason) == ncclSuccess;
  const uint64_t begin_ns = os_time_ns();
  if (process->good) process->good = gather_watch(gather, nobody_lost, &index, &watch) == ncclSuccess;
  process->cost = gather_costs(gather);
  gather_close(gather);
  process->watch_ns = os_time_ns() - begin_ns;
  if (!process->good) fail(index, "gather", reason);
  watch_leave(watch);
  process->leave_ns = os_time_ns() - begin_ns - process->watch_ns;
}

static void *process_body(void *argument) {
  process_run((uint32_t)((struct process *)argument - processes));
  return NULL;
}

static void run_threads(void) {
  os_thread *threads = (os_thread *)calloc(process_count, sizeof *threads);
  for (uint32_t i = 0; i < process_count; i++) {
    if (!os_thread_start(&threads[i], process_body, &processes[i])) {
      perror("thread");
      exit(1);
    }
  }
  for (uint32_t i = 0; i < process_count; i++) os_thread_join(threads[i]);
  free(threads);
}

static void run_processes(void) {
  pid_t *children = (pid_t *)calloc(process_count, sizeof *children);
  for (uint32_t i = 0; i < process_count; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      process_run(i);
      _exit(0);
    }
  }
  for (uint32_t i = 0; i < process_count; i++) waitpid(children[i], NULL, 0);
  free(children);
}

static bool report(const char *how, uint64_t wall_ns) {
  struct gather_cost most = {0};
  uint64_t sent = 0, watch_ns = 0, leave_ns = 0;
  bool good = true;
  most.root_bytes = root_bytes(ids[0].nonce);
  for (uint32_t i = 0; i < process_count; i++) {
    const struct gather_cost *cost = &processes[i].cost;
    good = good && processes[i].good;
    if (cost->check_in_ns > most.check_in_ns) most.check_in_ns = cost->check_in_ns;
    if (cost->allgather_ns > most.allgather_ns) most.allgather_ns = cost->allgather_ns;
    if (cost->agree_ns > most.agree_ns) most.agree_ns = cost->agree_ns;
    if (cost->root_bytes > most.root_bytes) most.root_bytes = cost->root_bytes;
    if (processes[i].watch_ns > watch_ns) watch_ns = processes[i].watch_ns;
    if (processes[i].leave_ns > leave_ns) leave_ns = processes[i].leave_ns;
    sent += cost->sent_bytes;
    most.rounds = cost->rounds;
  }
  printf(
      "%-9s %5u processes %u ranks %4u-byte peer info %2u rounds  wall %8.1f  check_in %8.1f  allgather "
      "%8.1f  "
      "agree %7.1f  watch %6.1f  leave %6.1f ms  root %9llu  processes %10llu bytes %s\n",
      how, process_count, ranks_each, info_bytes, most.rounds, wall_ns / 1e6, most.check_in_ns / 1e6,
      most.allgather_ns / 1e6, most.agree_ns / 1e6, watch_ns / 1e6, leave_ns / 1e6,
      (unsigned long long)most.root_bytes, (unsigned long long)sent, good ? "ok" : "FAILED");
  return good;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s threads|processes PROCESSES [RANKS [INFO_BYTES [ROOTS]]]\n", argv[0]);
    return 2;
  }
  process_count = (uint32_t)atoi(argv[2]);
  if (argc > 3) ranks_each = (uint32_t)atoi(argv[3]);
  if (argc > 4) info_bytes = (uint32_t)atoi(argv[4]);
  if (argc > 5) root_count = (uint32_t)atoi(argv[5]);
  processes = (struct process *)mmap(NULL, process_count * sizeof *processes, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (uint32_t i = 0; i < root_count; i++) {
    ncclUniqueId id;
    if (bootstrap_id_create(&id) != ncclSuccess) return 1;
    if (bootstrap_id_read(&id, "bench", 0, &ids[i]) != ncclSuccess) return 1;
  }
  const uint64_t begin_ns = os_time_ns();
  if (strcmp(argv[1], "threads") == 0) run_threads();
  else run_processes();
  const bool good = report(argv[1], os_time_ns() - begin_ns);
  for (uint32_t i = 0; i < root_count; i++) bootstrap_id_over(ids[i].nonce);
  return good ? 0 : 1;
}
