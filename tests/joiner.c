/* joiner.c: see joiner.h. */
#include "joiner.h"

#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"

void joiner_environment(const char *name, ...) {
  va_list arguments;
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv("NCCL_SOCKET_RETRY_CNT", "2", 1);
  setenv("TUTTI_INIT_TIMEOUT_SECONDS", "20", 1);
  unsetenv("TUTTI_PEER_TIMEOUT_SECONDS");
  unsetenv("TUTTI_SECRET");
  unsetenv("NCCL_COMM_ID");
  va_start(arguments, name);
  for (; name; name = va_arg(arguments, const char *)) setenv(name, va_arg(arguments, const char *), 1);
  va_end(arguments);
  param_reset();
  log_reset();
}

struct bootstrap_id joiner_id(void) {
  ncclUniqueId id;
  struct bootstrap_id content;
  memset(&content, 0, sizeof content);
  if (bootstrap_id_create(&id) != ncclSuccess) return content;
  bootstrap_id_read(&id, "test", 0, &content);
  return content;
}

void joiner_fill(struct joiner *processes, uint32_t count, uint32_t each, const struct bootstrap_id *id) {
  for (uint32_t i = 0; i < count; i++) {
    struct joiner *process = &processes[i];
    memset(process, 0, sizeof *process);
    process->call.call = "test";
    process->call.secret = id->secret;
    process->call.root_count = 1;
    process->call.rank_count = count * each;
    process->call.signature = 77;
    process->call.fixed = id->fixed;
    process->call.lasting = id->lasting;
    process->roots[0] = (struct gather_root){id->root, id->secret};
    process->rank_count = each;
    for (uint32_t rank = 0; rank < each; rank++) process->ranks[rank] = i * each + rank;
    process->result = ncclInProgress;
  }
}

static void step(const struct joiner *process, uint32_t number) {
  if (process->die_at == number) kill(getpid(), SIGKILL);
}

/* Peer info contains its rank, and its length differs by rank. */
static uint32_t info_fill(uint8_t *info, uint32_t rank) {
  const uint32_t bytes = 4 + rank * 13 % 300;
  memset(info, (int)(rank + 1), bytes);
  memcpy(info, &rank, sizeof rank);
  return bytes;
}

static bool infos_check(const struct gather *gather, uint32_t rank_count) {
  uint8_t expected[512];
  const struct gather_rank *ranks = gather_ranks(gather);
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    if (ranks[rank].info_bytes != info_fill(expected, rank)) return false;
    if (memcmp(ranks[rank].info, expected, ranks[rank].info_bytes) != 0) return false;
    if ((uintptr_t)ranks[rank].info % 8 != 0 || ranks[rank].process_index >= gather_process_count(gather))
      return false;
    if (gather_address(gather, ranks[rank].process_index)->port == 0) return false;
  }
  return true;
}

static void process_lost(void *argument, uint32_t lost, uint64_t key, ncclResult_t code, const char *text) {
  struct joiner *process = (struct joiner *)argument;
  process->lost_key = key;
  process->lost_process = lost;
  process->lost_code = code;
  snprintf(process->lost_text, sizeof process->lost_text, "%s", text);
  __atomic_add_fetch(&process->lost_count, 1, __ATOMIC_RELEASE);
}

static ncclResult_t process_finish(struct joiner *process, struct gather *gather) {
  char reason[sizeof process->reason] = "";
  if (process->own_result != ncclSuccess)
    snprintf(reason, sizeof reason, "rank %u failed", process->ranks[0]);
  ncclResult_t result = gather_agree(gather, process->own_result, reason, sizeof reason);
  step(process, 5);
  if (result == ncclSuccess) result = gather_agree(gather, ncclSuccess, reason, sizeof reason);
  snprintf(process->reason, sizeof process->reason, "%s", reason);
  step(process, 6);
  if (result == ncclSuccess) result = gather_watch(gather, process_lost, process, &process->watch);
  return result;
}

static ncclResult_t ranks_check_in(struct gather *gather, const struct joiner *process, uint32_t first,
                                   uint32_t end) {
  uint8_t info[512];
  for (uint32_t i = first; i < end; i++)
    TRY(gather_check_in(gather, process->ranks[i], info, info_fill(info, process->ranks[i])));
  return ncclSuccess;
}

struct latecomer {
  struct gather *gather;
  const struct joiner *process;
  os_thread thread;
};

static void *latecomer_body(void *argument) {
  const struct latecomer *late = (const struct latecomer *)argument;
  os_sleep_ms(late->process->late_ms);
  ranks_check_in(late->gather, late->process, late->process->rank_count - 1, late->process->rank_count);
  return NULL;
}

void joiner_run(struct joiner *process) {
  struct gather *gather = NULL;
  struct gather_call call = process->call;
  call.roots = process->roots;
  os_sleep_ms(process->delay_ms);
  step(process, 1);
  ncclResult_t result = gather_open(&call, &gather);
  const bool late = result == ncclSuccess && process->late_ms > 0;
  struct latecomer latecomer = {gather, process, 0};
  if (result == ncclSuccess) result = ranks_check_in(gather, process, 0, process->rank_count - late);
  if (late && !os_thread_start(&latecomer.thread, latecomer_body, &latecomer)) abort();
  step(process, 2);
  if (result == ncclSuccess) result = gather_wait(gather, process->reason, sizeof process->reason);
  if (late) os_thread_join(latecomer.thread);
  step(process, 3);
  if (result == ncclSuccess) {
    process->infos_good = infos_check(gather, call.rank_count);
    process->process_count = gather_process_count(gather);
    process->process_index = gather_own_process(gather);
    step(process, 4);
    result = process_finish(process, gather);
  }
  gather_close(gather);
  if (!process->stays) {
    watch_leave(process->watch);
    process->watch = NULL;
  }
  __atomic_store_n(&process->result, result, __ATOMIC_RELEASE);
}

static void *process_body(void *argument) {
  joiner_run((struct joiner *)argument);
  return NULL;
}

void joiner_threads_start(struct joiner *processes, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (!os_thread_start(&processes[i].thread, process_body, &processes[i])) abort();
  }
}

void joiner_threads_join(struct joiner *processes, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) os_thread_join(processes[i].thread);
}

struct joiner *joiner_shared(uint32_t count) {
  return (struct joiner *)mmap(NULL, count * sizeof(struct joiner), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void joiner_fork(struct joiner *process) {
  const pid_t pid = fork(); /* not into the memory that both share */
  if (pid != 0) {
    process->pid = pid;
    return;
  }
  joiner_run(process);
  while (process->stays && __atomic_load_n(&process->die_at, __ATOMIC_ACQUIRE) != UINT32_MAX) os_sleep_ms(5);
  watch_leave(process->watch);
  _exit(0);
}

bool joiner_wait_lost(struct joiner *process, uint32_t timeout_ms) {
  for (uint32_t waited = 0; waited < timeout_ms; waited += 5) {
    if (__atomic_load_n(&process->lost_count, __ATOMIC_ACQUIRE) > 0) return true;
    os_sleep_ms(5);
  }
  return false;
}

uint32_t joiner_descriptors(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (folder && readdir(folder)) count++;
  if (folder) closedir(folder);
  return count;
}
