/* parties.c: see parties.h. */
#include "parties.h"

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

#define LINKS_MAX 512 /* connections that one party tells another of at once */

/* ---- processes ---- */

static const char *say(struct party *party, const char *what, ncclResult_t code) {
  snprintf(party->text, sizeof party->text, "%s: %s (%s)", what, err_text(code), log_last_error());
  return party->text;
}

static void party_begin(uint32_t index, uint32_t count, uint32_t ranks_each, int sockets[][PARTIES_MAX],
                        party_body *body, void *argument) {
  struct party party;
  memset(&party, 0, sizeof party);
  party.index = index;
  party.count = count;
  party.ranks_each = ranks_each;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < count; k++) {
      if (i == index) party.to[k] = i == k ? -1 : sockets[i][k];
      else if (i != k) close(sockets[i][k]);
    }
  const char *text = body(&party, argument);
  if (text != NULL) fprintf(stderr, "party %u: %s\n", index, text);
  fflush(NULL);
  _exit(text == NULL ? 0 : 1);
}

/* Those that are late are ended. */
static uint32_t parties_collect(uint32_t count, pid_t *pids, uint32_t seconds) {
  const uint64_t deadline_ns = os_time_ns() + seconds * UINT64_C(1000000000);
  uint32_t failed = 0;
  for (uint32_t i = 0; i < count; i++) {
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(pids[i], &status, WNOHANG)) == 0 && os_time_ns() < deadline_ns) os_sleep_ms(1);
    if (ended == 0) {
      fprintf(stderr, "party %u is late\n", i);
      kill(pids[i], SIGKILL);
      waitpid(pids[i], &status, 0);
    }
    failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  return failed;
}

uint32_t parties_run(uint32_t count, uint32_t ranks_each, uint32_t seconds, party_body *body, void *argument,
                     void (*between)(const pid_t *pids, void *argument)) {
  int sockets[PARTIES_MAX][PARTIES_MAX], pair[2];
  pid_t pids[PARTIES_MAX];
  fflush(NULL);
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = i + 1; k < count; k++) {
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) abort();
      sockets[i][k] = pair[0];
      sockets[k][i] = pair[1];
    }
  for (uint32_t i = 0; i < count; i++) {
    pids[i] = fork();
    if (pids[i] == 0) party_begin(i, count, ranks_each, sockets, body, argument);
  }
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < count; k++)
      if (i != k) close(sockets[i][k]);
  if (between != NULL) between(pids, argument);
  return parties_collect(count, pids, seconds);
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

bool party_meet(struct party *party) {
  uint8_t byte = 1;
  for (uint32_t i = 0; i < party->count; i++)
    if (i != party->index && !tell(party->to[i], &byte, 1)) return false;
  for (uint32_t i = 0; i < party->count; i++)
    if (i != party->index && !hear(party->to[i], &byte, 1)) return false;
  return true;
}

/* ---- opening ---- */

uint32_t party_rank_count(const struct party *party) { return party->count * party->ranks_each; }

static bool is_own(const struct party *party, uint32_t rank) {
  return rank / party->ranks_each == party->index;
}

const char *party_configure(struct party *party, const char *emu, uint64_t seed) {
  setenv("TUTTI_EMU", emu, 1);
  param_reset();
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed};
  ncclResult_t result = tutti_emu_configure(&config);
  for (int tries = 0; tries < 1000 && result == ncclInvalidUsage; tries++) {
    os_sleep_ms(1);
    result = tutti_emu_configure(&config);
  }
  party->ops = emu_device_ops();
  return result == ncclSuccess ? NULL : say(party, "tutti_emu_configure", result);
}

static ncclResult_t cards_make(struct party *party, struct device_card *cards) {
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++)
    if (is_own(party, rank)) TRY(party->ops->comm_card(party->comms[rank], &cards[rank]));
  return ncclSuccess;
}

/* Every rank's card to everybody; each must be in reach of all. */
static const char *cards_exchange(struct party *party) {
  struct device_card cards[PARTY_RANKS_MAX];
  const size_t own_bytes = party->ranks_each * sizeof cards[0];
  ncclResult_t result = cards_make(party, cards);
  if (result != ncclSuccess) return say(party, "comm_card", result);
  for (uint32_t i = 0; i < party->count; i++)
    if (i != party->index && !tell(party->to[i], &cards[party->index * party->ranks_each], own_bytes))
      return "cannot tell cards";
  for (uint32_t i = 0; i < party->count; i++)
    if (i != party->index && !hear(party->to[i], &cards[i * party->ranks_each], own_bytes))
      return "hears no cards";
  for (uint32_t own = 0; own < party_rank_count(party); own++)
    for (uint32_t peer = 0; peer < party_rank_count(party); peer++) {
      bool reach = false;
      if (!is_own(party, own)) continue;
      result = party->ops->comm_reach(party->comms[own], peer, &cards[peer], &reach);
      if (result != ncclSuccess) return say(party, "comm_reach", result);
      if (!reach) return say(party, "comm_reach: out of reach", result);
    }
  return NULL;
}

const char *party_open(struct party *party) {
  ncclResult_t result = party->ops->device_limits(&party->limits);
  for (uint32_t rank = 0; rank < party_rank_count(party) && result == ncclSuccess; rank++) {
    const struct device_comm_config config = {1,         rank, party_rank_count(party), rank, party->limits,
                                              "parties", NULL};
    if (is_own(party, rank)) result = party->ops->comm_open(&config, &party->comms[rank]);
  }
  if (result == ncclSuccess) result = graph_flat(party_rank_count(party), &party->graph);
  return result == ncclSuccess ? cards_exchange(party) : say(party, "comm_open", result);
}

void party_close(struct party *party) {
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++) {
    party->ops->comm_close(party->comms[rank]);
    party->comms[rank] = NULL;
  }
  graph_free(&party->graph);
}

/* ---- memory ---- */

static size_t blocks_in(const struct party *party, const struct party_call *call) {
  return call->func == FUNC_REDUCE_SCATTER || call->func == FUNC_ALL_TO_ALL ? party_rank_count(party) : 1;
}

static size_t blocks_out(const struct party *party, const struct party_call *call) {
  return call->func == FUNC_ALL_GATHER || call->func == FUNC_ALL_TO_ALL ? party_rank_count(party) : 1;
}

static bool rank_prepare(struct party *party, struct party_call *call, uint32_t rank) {
  const size_t unit = kernel_type_bytes(call->dtype), block_bytes = call->count * unit;
  const size_t in_bytes = blocks_in(party, call) * block_bytes;
  const size_t out_bytes = blocks_out(party, call) * block_bytes;
  const size_t bytes = in_bytes + out_bytes + 3 * GUARD_BYTES;
  void *memory = NULL;
  if (party->heap) memory = malloc(bytes);
  else if (party->ops->memory_alloc(rank, bytes, &memory) != ncclSuccess) return false;
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

bool party_prepare(struct party *party, struct party_call *call) {
  call->sequence = party->sequence++;
  memset(call->memory, 0, sizeof call->memory);
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++)
    if (is_own(party, rank) && !rank_prepare(party, call, rank)) return false;
  return true;
}

void party_free(struct party *party, struct party_call *call) {
  for (uint32_t rank = 0; rank < PARTY_RANKS_MAX; rank++) {
    if (party->heap) free(call->memory[rank]);
    else if (call->memory[rank] != NULL) party->ops->memory_free(call->memory[rank]);
    call->memory[rank] = NULL;
  }
}

/* ---- connections ---- */

/* What a receiver tells a sender: who of its ranks is meant, the connection's name there, and the card. */
struct invitation {
  uint32_t sender;
  struct device_conn_name name;
  struct device_conn_card card;
};

struct invitations {
  uint32_t count;
  struct invitation list[LINKS_MAX];
};

static ncclResult_t invite(struct party *party, const struct work *work, uint32_t peer,
                           struct invitations *all) {
  const uint32_t conn_index = work_link_conn(work, peer, false);
  if (is_own(party, peer))
    return party->ops->comm_connect(party->comms[peer], party->comms[work->rank], work->channel_index,
                                    conn_index, work->proto);
  struct invitations *to = &all[peer / party->ranks_each];
  if (to->count == LINKS_MAX) return ncclInternalError;
  struct invitation *fresh = &to->list[to->count++];
  const struct device_conn_name name = {peer, work->channel_index, conn_index, work->proto, false};
  fresh->sender = peer;
  fresh->name = name;
  fresh->name.peer = work->rank;
  fresh->name.sends = true;
  return party->ops->conn_export(party->comms[work->rank], &name, &fresh->card);
}

static ncclResult_t invite_all(struct party *party, const struct plan *plan, struct invitations *all) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    for (uint32_t k = 0; k < work->recv_count; k++) TRY(invite(party, work, work->recv_peer[k], all));
    for (uint32_t k = 0; k < work->send_count; k++) /* to another rank here, which may have no work yet */
      if (is_own(party, work->send_peer[k]))
        TRY(party->ops->comm_connect(party->comms[work->rank], party->comms[work->send_peer[k]],
                                     work->channel_index, work_link_conn(work, work->send_peer[k], true),
                                     work->proto));
  }
  return ncclSuccess;
}

static const char *invitations_exchange(struct party *party, struct invitations *all) {
  static struct invitation heard[LINKS_MAX];
  uint32_t count;
  for (uint32_t i = 0; i < party->count; i++)
    if (i != party->index && (!tell(party->to[i], &all[i].count, sizeof all[i].count) ||
                              !tell(party->to[i], all[i].list, all[i].count * sizeof all[i].list[0])))
      return "cannot tell connections";
  for (uint32_t i = 0; i < party->count; i++) {
    if (i == party->index) continue;
    if (!hear(party->to[i], &count, sizeof count) || count > LINKS_MAX ||
        !hear(party->to[i], heard, count * sizeof heard[0]))
      return "hears no connections";
    for (uint32_t k = 0; k < count; k++) {
      const ncclResult_t result =
          party->ops->conn_import(party->comms[heard[k].sender], &heard[k].name, &heard[k].card);
      if (result != ncclSuccess) return say(party, "conn_import", result);
    }
  }
  return NULL;
}

/* ---- launching ---- */

static uint32_t ops_of_call(const struct party *party, uint32_t rank, const struct party_call *call,
                            struct plan_op ops[2]) {
  const uint32_t rank_count = party_rank_count(party);
  const struct plan_op op = {call->func,     call->dtype,     OP_SUM, call->root,    call->count,
                             call->in[rank], call->out[rank], 0,      call->sequence};
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

static ncclResult_t plan_of(struct party *party, uint32_t rank, const struct party_call *call,
                            struct plan *plan) {
  struct plan_op ops[2];
  struct plan_request request;
  memset(&request, 0, sizeof request);
  request.rank = rank;
  request.rank_count = party_rank_count(party);
  request.graph = &party->graph;
  request.limits = party->limits;
  request.ops = ops;
  request.op_count = ops_of_call(party, rank, call, ops);
  request.p2p_ll_threshold = call->proto == PROTO_LL ? 1 << 30 : 0;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request.algo_mask[func] = party->algo_mask != 0 ? party->algo_mask : 1u << ALGO_RING;
    request.proto_mask[func] = 1u << call->proto;
  }
  return plan_build(&request, plan);
}

const char *party_launch(struct party *party, struct party_call *call) {
  static struct invitations all[PARTIES_MAX];
  struct plan plans[PARTY_RANKS_MAX];
  const device_stream stream = NULL;
  ncclResult_t result = ncclSuccess;
  memset(plans, 0, sizeof plans);
  for (uint32_t i = 0; i < PARTIES_MAX; i++) all[i].count = 0;
  for (uint32_t rank = 0; rank < party_rank_count(party) && result == ncclSuccess; rank++) {
    if (!is_own(party, rank)) continue;
    result = plan_of(party, rank, call, &plans[rank]);
    if (result == ncclSuccess) result = invite_all(party, &plans[rank], all);
  }
  if (result != ncclSuccess) return say(party, "planning and exporting", result);
  const char *text = invitations_exchange(party, all);
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++) {
    if (!is_own(party, rank)) continue;
    if (text == NULL && result == ncclSuccess)
      result = party->ops->launch(party->comms[rank], &plans[rank], &stream, 1);
    plan_free(&plans[rank]);
  }
  return text == NULL && result != ncclSuccess ? say(party, "launch", result) : text;
}

static bool party_idle(void *argument) {
  const struct party *party = (const struct party *)argument;
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++)
    if (is_own(party, rank) && party->comms[rank]->ended != party->comms[rank]->launches) return false;
  return true;
}

ncclResult_t party_wait(struct party *party, uint64_t deadline_ms) {
  TRY(party->ops->wait_until(party_idle, party, deadline_ms));
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++)
    if (is_own(party, rank)) TRY(party->ops->comm_error(party->comms[rank]));
  return ncclSuccess;
}

/* ---- what must come out ---- */

static double sum_of(const struct party *party, const struct party_call *call, size_t index) {
  double sum = 0;
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++)
    sum += value_input(call->sequence, rank, index);
  return sum;
}

static double expected_of(const struct party *party, const struct party_call *call, uint32_t rank,
                          size_t index) {
  const uint32_t rank_count = party_rank_count(party), block = (uint32_t)(index / call->count);
  switch (call->func) {
    case FUNC_BROADCAST: return value_input(call->sequence, call->root, index);
    case FUNC_ALL_GATHER: return value_input(call->sequence, block, index % call->count);
    case FUNC_ALL_TO_ALL: return value_input(call->sequence, block, rank * call->count + index % call->count);
    case FUNC_REDUCE_SCATTER: return sum_of(party, call, rank * call->count + index);
    case FUNC_SEND_RECV: return value_input(call->sequence, (rank + rank_count - 1) % rank_count, index);
    default: return sum_of(party, call, index);
  }
}

static const char *rank_check(struct party *party, const struct party_call *call, uint32_t rank) {
  const size_t unit = kernel_type_bytes(call->dtype), count = blocks_out(party, call) * call->count;
  const bool has_result = call->func != FUNC_REDUCE || rank == call->root;
  for (size_t i = 0; i < count && has_result; i++) {
    const double found = value_load(call->dtype, call->out[rank] + i * unit);
    const double wanted = expected_of(party, call, rank, i);
    if (found == wanted) continue;
    snprintf(party->text, sizeof party->text,
             "call %u (%s, protocol %u, %s, count %zu): rank %u element %zu is %g, not %g",
             (unsigned)call->sequence, emu_func_name(call->func), call->proto, kernel_type_name(call->dtype),
             call->count, rank, i, found, wanted);
    return party->text;
  }
  if (guard_stands(call->memory[rank]) && guard_stands(call->out[rank] - GUARD_BYTES) &&
      guard_stands(call->out[rank] + count * unit))
    return NULL;
  snprintf(party->text, sizeof party->text, "call %u (%s): rank %u has bytes outside of its buffers",
           (unsigned)call->sequence, emu_func_name(call->func), rank);
  return party->text;
}

const char *party_check(struct party *party, const struct party_call *call) {
  for (uint32_t rank = 0; rank < party_rank_count(party); rank++) {
    const char *text = is_own(party, rank) ? rank_check(party, call, rank) : NULL;
    if (text != NULL) return text;
  }
  return NULL;
}

/* The last meeting: nobody frees an output that another may still store to. */
const char *party_do(struct party *party, struct party_call *call) {
  if (!party_prepare(party, call)) return "out of memory";
  const char *text = party_launch(party, call);
  if (text != NULL) return text;
  const ncclResult_t result = party_wait(party, 0);
  if (result != ncclSuccess) return say(party, "waiting", result);
  text = party_check(party, call);
  if (text == NULL && !party_meet(party)) return "a party has gone";
  party_free(party, call);
  return text;
}

/* ---- what a process holds ---- */

uint32_t party_descriptors(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
    count += entry->d_name[0] != '.';
  if (folder != NULL) closedir(folder);
  return count;
}

uint32_t party_mappings(void) {
  uint32_t count = 0;
  char *text = os_file_read("/proc/self/maps", NULL);
  for (const char *at = text; at != NULL && (at = strstr(at, "memfd:tutti")) != NULL; at++) count += 1;
  os_free(text);
  return count;
}
