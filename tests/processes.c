/* processes.c: see processes.h. */
#include "processes.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/emu/block.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/plan/plan.h"
#include "kernels/kernels.h"
#include "values.h"

#define LINKS_MAX 512 /* connections in one message between two processes */

/* ---- processes ---- */

static const char *say(struct process *process, const char *what, ncclResult_t code) {
  snprintf(process->text, sizeof process->text, "%s: %s (%s)", what, err_text(code), log_last_error());
  return process->text;
}

static void process_begin(uint32_t index, uint32_t count, uint32_t ranks_each, int sockets[][PROCESSES_MAX],
                          process_body *body, void *argument) {
  struct process process;
  memset(&process, 0, sizeof process);
  process.index = index;
  process.count = count;
  process.ranks_each = ranks_each;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < count; k++) {
      if (i == index) process.to[k] = i == k ? -1 : sockets[i][k];
      else if (i != k) close(sockets[i][k]);
    }
  const char *text = body(&process, argument);
  if (text != NULL) fprintf(stderr, "process %u: %s\n", index, text);
  fflush(NULL);
  _exit(text == NULL ? 0 : 1);
}

/* Processes that exceed the deadline are killed. */
static uint32_t processes_collect(uint32_t count, pid_t *pids, uint32_t seconds) {
  const uint64_t deadline_ns = os_time_ns() + seconds * UINT64_C(1000000000);
  uint32_t failed = 0;
  for (uint32_t i = 0; i < count; i++) {
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(pids[i], &status, WNOHANG)) == 0 && os_time_ns() < deadline_ns) os_sleep_ms(1);
    if (ended == 0) {
      fprintf(stderr, "process %u is late\n", i);
      kill(pids[i], SIGKILL);
      waitpid(pids[i], &status, 0);
    }
    failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  return failed;
}

uint32_t processes_run(uint32_t count, uint32_t ranks_each, uint32_t seconds, process_body *body,
                       void *argument, void (*between)(const pid_t *pids, void *argument)) {
  int sockets[PROCESSES_MAX][PROCESSES_MAX], pair[2];
  pid_t pids[PROCESSES_MAX];
  fflush(NULL);
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = i + 1; k < count; k++) {
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) abort();
      sockets[i][k] = pair[0];
      sockets[k][i] = pair[1];
    }
  for (uint32_t i = 0; i < count; i++) {
    pids[i] = fork();
    if (pids[i] == 0) process_begin(i, count, ranks_each, sockets, body, argument);
  }
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < count; k++)
      if (i != k) close(sockets[i][k]);
  if (between != NULL) between(pids, argument);
  return processes_collect(count, pids, seconds);
}

static bool tell(int fd, const void *data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t sent = send(fd, (const uint8_t *)data + at, bytes - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += (size_t)sent;
  }
  return true;
}

static bool hear(int fd, void *data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    struct pollfd ready = {fd, POLLIN, 0};
    if (poll(&ready, 1, 20000) <= 0) return false;
    const ssize_t came = recv(fd, (uint8_t *)data + at, bytes - at, 0);
    if (came <= 0) return false;
    at += (size_t)came;
  }
  return true;
}

bool process_meet(struct process *process) {
  uint8_t byte = 1;
  for (uint32_t i = 0; i < process->count; i++)
    if (i != process->index && !tell(process->to[i], &byte, 1)) return false;
  for (uint32_t i = 0; i < process->count; i++)
    if (i != process->index && !hear(process->to[i], &byte, 1)) return false;
  return true;
}

/* ---- opening ---- */

uint32_t process_rank_count(const struct process *process) { return process->count * process->ranks_each; }

static bool is_own(const struct process *process, uint32_t rank) {
  return rank / process->ranks_each == process->index;
}

const char *process_configure(struct process *process, const char *emu, uint64_t seed) {
  setenv("TUTTI_EMU", emu, 1);
  param_reset();
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed};
  ncclResult_t result = tutti_emu_configure(&config);
  for (int tries = 0; tries < 1000 && result == ncclInvalidUsage; tries++) {
    os_sleep_ms(1);
    result = tutti_emu_configure(&config);
  }
  process->ops = emu_backend();
  return result == ncclSuccess ? NULL : say(process, "tutti_emu_configure", result);
}

static ncclResult_t handles_make(struct process *process, struct device_comm_handle *handles) {
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++)
    if (is_own(process, rank)) TRY(process->ops->process->comm_handle(process->comms[rank], &handles[rank]));
  return ncclSuccess;
}

/* Passes every rank's handle to all ranks; each must be reachable by all. */
static const char *handles_send_all(struct process *process) {
  struct device_comm_handle handles[PROCESS_RANKS_MAX];
  const size_t own_bytes = process->ranks_each * sizeof handles[0];
  ncclResult_t result = handles_make(process, handles);
  if (result != ncclSuccess) return say(process, "comm_handle", result);
  for (uint32_t i = 0; i < process->count; i++)
    if (i != process->index &&
        !tell(process->to[i], &handles[process->index * process->ranks_each], own_bytes))
      return "cannot tell handles";
  for (uint32_t i = 0; i < process->count; i++)
    if (i != process->index && !hear(process->to[i], &handles[i * process->ranks_each], own_bytes))
      return "hears no handles";
  for (uint32_t own = 0; own < process_rank_count(process); own++)
    for (uint32_t peer = 0; peer < process_rank_count(process); peer++) {
      bool reach = false;
      if (!is_own(process, own)) continue;
      result = process->ops->process->comm_reach(process->comms[own], peer, &handles[peer], &reach);
      if (result != ncclSuccess) return say(process, "comm_reach", result);
      if (!reach) return say(process, "comm_reach: out of reach", result);
    }
  return NULL;
}

const char *process_open(struct process *process) {
  ncclResult_t result = process->ops->device->limits(&process->limits);
  for (uint32_t rank = 0; rank < process_rank_count(process) && result == ncclSuccess; rank++) {
    const struct device_comm_config config = {
        1, rank, process_rank_count(process), rank, process->limits, "processes", NULL};
    if (is_own(process, rank)) result = process->ops->device->comm_open(&config, &process->comms[rank]);
  }
  if (result == ncclSuccess) result = graph_flat(process_rank_count(process), &process->graph);
  return result == ncclSuccess ? handles_send_all(process) : say(process, "comm_open", result);
}

void process_close(struct process *process) {
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++) {
    process->ops->device->comm_close(process->comms[rank]);
    process->comms[rank] = NULL;
  }
  graph_free(&process->graph);
}

/* ---- memory ---- */

static size_t blocks_in(const struct process *process, const struct process_call *call) {
  return call->func == FUNC_REDUCE_SCATTER || call->func == FUNC_ALL_TO_ALL ? process_rank_count(process) : 1;
}

static size_t blocks_out(const struct process *process, const struct process_call *call) {
  return call->func == FUNC_ALL_GATHER || call->func == FUNC_ALL_TO_ALL ? process_rank_count(process) : 1;
}

static bool rank_prepare(struct process *process, struct process_call *call, uint32_t rank) {
  const size_t unit = kernel_type_bytes(call->dtype), block_bytes = call->count * unit;
  const size_t in_bytes = blocks_in(process, call) * block_bytes;
  const size_t out_bytes = blocks_out(process, call) * block_bytes;
  const size_t bytes = in_bytes + out_bytes + 3 * GUARD_BYTES;
  void *memory = NULL;
  if (process->heap) memory = malloc(bytes);
  else if (process->ops->memory->alloc(rank, bytes, &memory) != ncclSuccess) return false;
  call->memory[rank] = (uint8_t *)memory;
  if (memory == NULL) return false;
  memset(memory, GUARD_BYTE, bytes);
  call->in[rank] = call->memory[rank] + GUARD_BYTES;
  call->out[rank] = call->in[rank] + in_bytes + GUARD_BYTES;
  memset(call->out[rank], STALE_BYTE, out_bytes);
  for (size_t i = 0; i < in_bytes / unit; i++)
    value_store(call->dtype, call->in[rank] + i * unit, value_input(call->sequence, rank, i));
  return true;
}

bool process_prepare(struct process *process, struct process_call *call) {
  call->sequence = process->sequence++;
  memset(call->memory, 0, sizeof call->memory);
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++)
    if (is_own(process, rank) && !rank_prepare(process, call, rank)) return false;
  return true;
}

void process_free(struct process *process, struct process_call *call) {
  for (uint32_t rank = 0; rank < PROCESS_RANKS_MAX; rank++) {
    if (process->heap) free(call->memory[rank]);
    else if (call->memory[rank] != NULL) process->ops->memory->free(call->memory[rank]);
    call->memory[rank] = NULL;
  }
}

/* ---- connections ---- */

/* A receiver's message to a sender: the sending rank, the connection's name there, and the handle. */
struct invitation {
  uint32_t sender;
  struct device_conn_name name;
  struct device_conn_handle handle;
};

struct invitations {
  uint32_t count;
  struct invitation list[LINKS_MAX];
};

static ncclResult_t invite(struct process *process, const struct work *work, uint32_t peer,
                           struct invitations *all) {
  const uint32_t conn_index = work_link_conn(work, peer, false);
  if (is_own(process, peer))
    return process->ops->device->comm_connect(process->comms[peer], process->comms[work->rank],
                                              work->channel_index, conn_index, work->proto);
  struct invitations *to = &all[peer / process->ranks_each];
  if (to->count == LINKS_MAX) return ncclInternalError;
  struct invitation *fresh = &to->list[to->count++];
  const struct device_conn_name name = {peer, work->channel_index, conn_index, work->proto, false, false};
  fresh->sender = peer;
  fresh->name = name;
  fresh->name.peer = work->rank;
  fresh->name.sends = true;
  return process->ops->process->conn_export(process->comms[work->rank], &name, &fresh->handle);
}

static ncclResult_t invite_all(struct process *process, const struct plan *plan, struct invitations *all) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    for (uint32_t k = 0; k < work->recv_count; k++) TRY(invite(process, work, work->recv_peer[k], all));
    for (uint32_t k = 0; k < work->send_count; k++) /* to another rank here, which may have no work yet */
      if (is_own(process, work->send_peer[k]))
        TRY(process->ops->device->comm_connect(process->comms[work->rank], process->comms[work->send_peer[k]],
                                               work->channel_index,
                                               work_link_conn(work, work->send_peer[k], true), work->proto));
  }
  return ncclSuccess;
}

static const char *invitations_exchange(struct process *process, struct invitations *all) {
  static struct invitation heard[LINKS_MAX];
  uint32_t count;
  for (uint32_t i = 0; i < process->count; i++)
    if (i != process->index && (!tell(process->to[i], &all[i].count, sizeof all[i].count) ||
                                !tell(process->to[i], all[i].list, all[i].count * sizeof all[i].list[0])))
      return "cannot tell connections";
  for (uint32_t i = 0; i < process->count; i++) {
    if (i == process->index) continue;
    if (!hear(process->to[i], &count, sizeof count) || count > LINKS_MAX ||
        !hear(process->to[i], heard, count * sizeof heard[0]))
      return "hears no connections";
    for (uint32_t k = 0; k < count; k++) {
      const ncclResult_t result = process->ops->process->conn_import(process->comms[heard[k].sender],
                                                                     &heard[k].name, &heard[k].handle);
      if (result != ncclSuccess) return say(process, "conn_import", result);
    }
  }
  return NULL;
}

/* ---- launching ---- */

static uint32_t ops_of_call(const struct process *process, uint32_t rank, const struct process_call *call,
                            struct plan_op ops[2]) {
  const uint32_t rank_count = process_rank_count(process);
  const struct plan_op op = {.func = call->func,
                             .dtype = call->dtype,
                             .op = OP_SUM,
                             .peer = call->root,
                             .count = call->count,
                             .in = call->in[rank],
                             .out = call->out[rank],
                             .sequence = call->sequence};
  ops[0] = ops[1] = op;
  if (call->func != FUNC_SEND_RECV) return 1;
  ops[0].func = FUNC_SEND;
  ops[0].peer = (rank + 1) % rank_count;
  ops[0].out = NULL;
  ops[1].func = FUNC_RECV;
  ops[1].peer = (rank + rank_count - 1) % rank_count;
  ops[1].in = NULL;
  return 2;
}

static ncclResult_t plan_of(struct process *process, uint32_t rank, const struct process_call *call,
                            struct plan *plan) {
  struct plan_op ops[2];
  struct plan_request request;
  memset(&request, 0, sizeof request);
  request.rank = rank;
  request.rank_count = process_rank_count(process);
  request.graph = &process->graph;
  request.settings.limits = process->limits;
  request.ops = ops;
  request.op_count = ops_of_call(process, rank, call, ops);
  request.settings.p2p_ll_threshold = call->proto == PROTO_LL ? 1 << 30 : 0;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request.settings.algo_mask[func] = process->algo_mask != 0 ? process->algo_mask : 1u << ALGO_RING;
    request.settings.proto_mask[func] = 1u << call->proto;
  }
  return plan_build(&request, plan);
}

const char *process_launch(struct process *process, struct process_call *call) {
  static struct invitations all[PROCESSES_MAX];
  struct plan plans[PROCESS_RANKS_MAX];
  const device_stream stream = NULL;
  ncclResult_t result = ncclSuccess;
  memset(plans, 0, sizeof plans);
  for (uint32_t i = 0; i < PROCESSES_MAX; i++) all[i].count = 0;
  for (uint32_t rank = 0; rank < process_rank_count(process) && result == ncclSuccess; rank++) {
    if (!is_own(process, rank)) continue;
    result = plan_of(process, rank, call, &plans[rank]);
    if (result == ncclSuccess) result = invite_all(process, &plans[rank], all);
  }
  if (result != ncclSuccess) return say(process, "planning and exporting", result);
  const char *text = invitations_exchange(process, all);
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++) {
    if (!is_own(process, rank)) continue;
    if (text == NULL && result == ncclSuccess)
      result = process->ops->device->launch(process->comms[rank], &plans[rank], &stream, 1);
    plan_free(&plans[rank]);
  }
  return text == NULL && result != ncclSuccess ? say(process, "launch", result) : text;
}

static bool process_idle(void *argument) {
  const struct process *process = (const struct process *)argument;
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++)
    if (is_own(process, rank) && process->comms[rank]->ended != process->comms[rank]->launches) return false;
  return true;
}

ncclResult_t process_wait(struct process *process, uint64_t deadline_ms) {
  TRY(process->ops->device->wait_until(process_idle, process, deadline_ms));
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++)
    if (is_own(process, rank)) TRY(process->ops->device->comm_error(process->comms[rank]));
  return ncclSuccess;
}

/* ---- expected results ---- */

static double sum_of(const struct process *process, const struct process_call *call, size_t index) {
  double sum = 0;
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++)
    sum += value_input(call->sequence, rank, index);
  return sum;
}

static double expected_of(const struct process *process, const struct process_call *call, uint32_t rank,
                          size_t index) {
  const uint32_t rank_count = process_rank_count(process), block = (uint32_t)(index / call->count);
  switch (call->func) {
    case FUNC_BROADCAST: return value_input(call->sequence, call->root, index);
    case FUNC_ALL_GATHER: return value_input(call->sequence, block, index % call->count);
    case FUNC_ALL_TO_ALL: return value_input(call->sequence, block, rank * call->count + index % call->count);
    case FUNC_REDUCE_SCATTER: return sum_of(process, call, rank * call->count + index);
    case FUNC_SEND_RECV: return value_input(call->sequence, (rank + rank_count - 1) % rank_count, index);
    default: return sum_of(process, call, index);
  }
}

static const char *rank_check(struct process *process, const struct process_call *call, uint32_t rank) {
  const size_t unit = kernel_type_bytes(call->dtype), count = blocks_out(process, call) * call->count;
  const bool has_result = call->func != FUNC_REDUCE || rank == call->root;
  for (size_t i = 0; i < count && has_result; i++) {
    const double found = value_load(call->dtype, call->out[rank] + i * unit);
    const double wanted = expected_of(process, call, rank, i);
    if (found == wanted) continue;
    snprintf(process->text, sizeof process->text,
             "call %u (%s, protocol %u, %s, count %zu): rank %u element %zu is %g, not %g",
             (unsigned)call->sequence, emu_func_name(call->func), call->proto, kernel_type_name(call->dtype),
             call->count, rank, i, found, wanted);
    return process->text;
  }
  if (guard_is_intact(call->memory[rank]) && guard_is_intact(call->out[rank] - GUARD_BYTES) &&
      guard_is_intact(call->out[rank] + count * unit))
    return NULL;
  snprintf(process->text, sizeof process->text, "call %u (%s): rank %u has bytes outside of its buffers",
           (unsigned)call->sequence, emu_func_name(call->func), rank);
  return process->text;
}

const char *process_check(struct process *process, const struct process_call *call) {
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++) {
    const char *text = is_own(process, rank) ? rank_check(process, call, rank) : NULL;
    if (text != NULL) return text;
  }
  return NULL;
}

/* The last barrier: no process frees an output that another may still store to. */
const char *process_do(struct process *process, struct process_call *call) {
  if (!process_prepare(process, call)) return "out of memory";
  const char *text = process_launch(process, call);
  if (text != NULL) return text;
  const ncclResult_t result = process_wait(process, 0);
  if (result != ncclSuccess) return say(process, "waiting", result);
  text = process_check(process, call);
  if (text == NULL && !process_meet(process)) return "a process has gone";
  process_free(process, call);
  return text;
}

/* ---- resources of a process ---- */

uint32_t process_descriptors(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
    count += entry->d_name[0] != '.';
  if (folder != NULL) closedir(folder);
  return count;
}

uint32_t process_mappings(void) {
  uint32_t count = 0;
  char *text = os_file_read("/proc/self/maps", NULL);
  for (const char *at = text; at != NULL && (at = strstr(at, "memfd:tutti")) != NULL; at++) count += 1;
  os_free(text);
  return count;
}
