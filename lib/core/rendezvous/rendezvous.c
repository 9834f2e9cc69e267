/* rendezvous.c: the table of rendezvous, the ranks in each, and what happens when the last rank arrives or
 * cannot. Every rank that joined gets the outcome, with a message that names the rank at fault, and a
 * rendezvous leaves nothing behind. All state changes under the backend's lock. Knows neither groups nor
 * operations. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/bootstrap/bootstrap.h"
#include "core/remote/remote.h"
#include "core/rendezvous/rendezvous_impl.h"
#include "core/stall/stall.h"

#define REMIND_MS 5000
#define LOOK_MS 50 /* between looks whether a communicator that waits for its ranks has failed */
#define NS_PER_MS 1000000ull
#define PATHS_LOGGED_RANKS 64
#define RENDEZVOUS_OVER \
  64 /* ended rendezvous that are remembered, so that late ranks get an answer at once */

/* Guarded by the backend's lock. */
static struct rendezvous *rendezvous_list;
static struct rendezvous *ended; /* not in the list any more; their roots are still to be closed */
static struct {
  enum rendezvous_kind kind;
  uint64_t key[2];
  char why[COMM_REASON_BYTES]; /* it failed; "": not known, or it did not */
} over[RENDEZVOUS_OVER];
static uint32_t over_count;

/* Why it failed; NULL: there was none. */
static const char *rendezvous_was(const struct rendezvous_call *call) {
  if (call->id.lasting) return NULL;
  for (uint32_t i = 0; i < RENDEZVOUS_OVER; i++) {
    if (over[i].kind == call->kind && over[i].key[0] == call->key[0] && over[i].key[1] == call->key[1])
      return over[i].why;
  }
  return NULL;
}

static void rendezvous_note_over(const struct rendezvous_call *call, const char *why) {
  over[over_count % RENDEZVOUS_OVER].kind = call->kind;
  over[over_count % RENDEZVOUS_OVER].key[0] = call->key[0];
  over[over_count % RENDEZVOUS_OVER].key[1] = call->key[1];
  snprintf(over[over_count % RENDEZVOUS_OVER].why, sizeof over->why, "%s", why);
  over_count += 1;
}

bool rendezvous_any(void) { return rendezvous_list != NULL; }

/* ---- Rendezvous; up to "Waiting" the lock is held unless said otherwise ---- */

static struct rendezvous *rendezvous_find(const struct rendezvous_call *call) {
  for (struct rendezvous *rendezvous = rendezvous_list; rendezvous; rendezvous = rendezvous->next) {
    const struct rendezvous_call *first = &rendezvous->first;
    if (first->kind == call->kind && first->key[0] == call->key[0] && first->key[1] == call->key[1])
      return rendezvous;
  }
  return NULL;
}

struct rendezvous *rendezvous_find_nonce(uint64_t nonce) {
  for (struct rendezvous *rendezvous = rendezvous_list; rendezvous; rendezvous = rendezvous->next)
    if (rendezvous->first.kind == RENDEZVOUS_INIT && rendezvous->first.key[1] == nonce) return rendezvous;
  return NULL;
}

/* An id that outlived the counter's restart may have a number in use; live communicators must differ. */
static uint64_t rendezvous_comm_id(uint64_t number) {
  for (bool taken = true; taken;) {
    taken = comm_shared_id_taken(number);
    for (const struct rendezvous *rendezvous = rendezvous_list; rendezvous; rendezvous = rendezvous->next) {
      taken = taken || (rendezvous->first.kind == RENDEZVOUS_INIT && rendezvous->first.comm_id == number);
    }
    if (taken) number += 1ull << 32;
  }
  return number;
}

static void rendezvous_free(struct rendezvous *rendezvous) {
  remote_free_shared(rendezvous->shared);
  for (uint32_t i = 0; rendezvous->slots && i < rendezvous->first.rank_count; i++)
    os_free(rendezvous->slots[i].info);
  os_free(rendezvous->roots);
  os_free(rendezvous->comms);
  os_free(rendezvous->device_ranks);
  os_free(rendezvous->slots);
  os_free(rendezvous);
}

static bool rendezvous_fill(struct rendezvous *rendezvous, const struct backend *ops, uint32_t device_count) {
  const struct rendezvous_call *first = &rendezvous->first;
  rendezvous->slots = (struct rank_slot *)os_alloc(first->rank_count * sizeof *rendezvous->slots);
  rendezvous->roots = (struct gather_root *)os_alloc(first->root_count * sizeof *rendezvous->roots);
  if (!rendezvous->slots || !rendezvous->roots) return false;
  for (uint32_t i = 0; i < first->root_count; i++) rendezvous->roots[i] = first->roots[i];
  rendezvous->first.roots = rendezvous->roots;
  if (first->kind == RENDEZVOUS_SPLIT) return true;
  rendezvous->device_count = device_count;
  rendezvous->device_ranks = (uint32_t *)os_alloc(device_count * sizeof *rendezvous->device_ranks);
  rendezvous->comms = (struct ncclComm **)os_alloc(first->rank_count * sizeof *rendezvous->comms);
  rendezvous->shared = comm_shared_create(ops, first->comm_id, first->rank_count);
  return rendezvous->device_ranks && rendezvous->comms && rendezvous->shared;
}

/* Ranks of other processes may be missing: the process that made a unique id cannot know which others have
 * it. */
static bool rendezvous_may_be_remote(const struct rendezvous *rendezvous) { return rendezvous->has_secret; }

static struct rendezvous *rendezvous_create(const struct rendezvous_call *call, const struct backend *ops,
                                            uint32_t device_count) {
  struct rendezvous *rendezvous = (struct rendezvous *)os_alloc(sizeof *rendezvous);
  if (!rendezvous) return NULL;
  rendezvous->first = *call;
  rendezvous->first.comm = rendezvous->first.parent = NULL;
  if (call->kind == RENDEZVOUS_INIT) rendezvous->first.comm_id = rendezvous_comm_id(call->comm_id);
  rendezvous->has_secret = call->kind == RENDEZVOUS_INIT || call->parent->shared->remote;
  if (call->kind == RENDEZVOUS_INIT) rendezvous->secret = call->id.secret;
  else if (rendezvous->has_secret)
    rendezvous_child_secret(&call->parent->shared->remote->secret, call->key[1], &rendezvous->secret);
  if (!rendezvous_fill(rendezvous, ops, device_count)) {
    rendezvous_free(rendezvous);
    return NULL;
  }
  rendezvous->begin_ns = os_time_ns();
  rendezvous->next_reminder_ns = rendezvous->begin_ns + REMIND_MS * NS_PER_MS;
  rendezvous->next = rendezvous_list;
  rendezvous_list = rendezvous;
  if (rendezvous_may_be_remote(rendezvous)) ops->device->outside_wait(1);
  return rendezvous;
}

/* The same in all processes; 0: it has none of its own, because others have the same id. */
static uint64_t rendezvous_name(const struct rendezvous *rendezvous) {
  const bool only = rendezvous_may_be_remote(rendezvous) && !rendezvous->first.id.lasting;
  return only ? secret_name(&rendezvous->secret) : 0;
}

static void rendezvous_unlink(struct rendezvous *rendezvous, const char *why) {
  const uint64_t name = rendezvous_name(rendezvous);
  struct rendezvous **link = &rendezvous_list;
  while (*link != rendezvous) link = &(*link)->next;
  *link = rendezvous->next;
  if (rendezvous_may_be_remote(rendezvous)) backend_ops()->device->outside_wait(-1);
  if (name != 0) backend_ops()->process->order_met(name);
  rendezvous_note_over(&rendezvous->first, why);
}

/* Closes the root and frees the rendezvous. If a thread conducted it, that thread has closed the root
 * already. Otherwise this happens later, unlocked, because the server's thread may be waiting for the lock.
 */
static void rendezvous_drop(struct rendezvous *rendezvous, const char *why) {
  rendezvous_unlink(rendezvous, why);
  if (rendezvous->first.kind == RENDEZVOUS_SPLIT || rendezvous->conducted) {
    rendezvous_free(rendezvous);
    return;
  }
  rendezvous->next = ended;
  ended = rendezvous;
}

void rendezvous_unlock(const struct backend *ops) {
  struct rendezvous *rendezvous = ended;
  ended = NULL;
  ops->device->unlock();
  for (struct rendezvous *next; rendezvous; rendezvous = next) {
    next = rendezvous->next;
    rendezvous_root_end(&rendezvous->first);
    rendezvous_free(rendezvous);
  }
}

/* A rank leaves the rendezvous, after success or failure. */
static void slot_leave(struct rank_slot *slot, enum comm_state state) {
  struct ncclComm *comm = slot->comm;
  if (!comm) return;
  if (comm->parent) __atomic_sub_fetch(&comm->parent->children_rendezvous, 1, __ATOMIC_ACQ_REL);
  comm->parent = NULL;
  comm->rendezvous = NULL;
  __atomic_store_n(&comm->state, state, __ATOMIC_RELEASE);
}

/* The rendezvous's thread will end it, and report the reason to the other processes. */
static void rendezvous_cancel(struct rendezvous *rendezvous, ncclResult_t code, const char *reason) {
  if (rendezvous->cancel_code != ncclSuccess) return;
  rendezvous->cancel_code = code;
  snprintf(rendezvous->cancel_reason, sizeof rendezvous->cancel_reason, "%s", reason);
  if (rendezvous->gather) gather_cancel(rendezvous->gather, code, reason);
}

void rendezvous_end(struct rendezvous *rendezvous, ncclResult_t code, const char *reason) {
  for (uint32_t i = 0; i < rendezvous->first.rank_count; i++) {
    struct rank_slot *slot = &rendezvous->slots[i];
    if (!slot->comm) continue;
    snprintf(slot->comm->reason, sizeof slot->comm->reason, "%s", reason);
    __atomic_store_n(&slot->comm->async_error, code, __ATOMIC_RELEASE);
    slot_leave(slot, COMM_FAILED);
  }
  rendezvous_drop(rendezvous, reason);
}

/* Ends the rendezvous for all ranks with one code and one message. */
static void rendezvous_fail(struct rendezvous *rendezvous, ncclResult_t code, const char *reason) {
  if (rendezvous->conducted) rendezvous_cancel(rendezvous, code, reason);
  else rendezvous_end(rendezvous, code, reason);
}

static void rendezvous_fail_with(struct rendezvous *rendezvous, ncclResult_t code, const char *format, ...)
    LOG_FORMAT(3, 4);
static void rendezvous_fail_with(struct rendezvous *rendezvous, ncclResult_t code, const char *format, ...) {
  char reason[COMM_REASON_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  log_warn("%s: %s", rendezvous->first.call, reason);
  rendezvous_fail(rendezvous, code, reason);
}

/* A rank that contradicts the others ends the rendezvous. */
static ncclResult_t rendezvous_agree(struct rendezvous *rendezvous, const struct rendezvous_call *call) {
  const struct rendezvous_call *first = &rendezvous->first;
  if (first->rank_count != call->rank_count) {
    rendezvous_fail_with(rendezvous, ncclInvalidArgument,
                         "rank %u says %u ranks, rank %u says %u; pass the same number on "
                         "every rank",
                         call->rank, call->rank_count, first->rank, first->rank_count);
    return ncclInvalidArgument;
  }
  if (call->kind == RENDEZVOUS_SPLIT && strcmp(first->call, call->call) != 0) {
    rendezvous_fail_with(rendezvous, ncclInvalidUsage,
                         "rank %u calls %s, rank %u %s; make the same calls on every rank", call->rank,
                         call->call, first->rank, first->call);
    return ncclInvalidUsage;
  }
  if (first->signature != call->signature) {
    rendezvous_fail_with(rendezvous, ncclInvalidArgument,
                         "rank %u and rank %u pass different lists (of ids, or of ranks to "
                         "exclude); pass the same on every rank",
                         call->rank, first->rank);
    return ncclInvalidArgument;
  }
  if (rendezvous->slots[call->rank].taken) {
    rendezvous_fail_with(rendezvous, ncclInvalidUsage,
                         "rank %u came twice; give every rank a number of its own", call->rank);
    return ncclInvalidUsage;
  }
  return ncclSuccess;
}

static ncclResult_t rendezvous_take_device(struct rendezvous *rendezvous,
                                           const struct rendezvous_call *call) {
  const uint32_t device = call->comm->device_index;
  if (device >= rendezvous->device_count) {
    rendezvous_fail_with(rendezvous, ncclInvalidArgument, "rank %u is on device %u of %u", call->rank, device,
                         rendezvous->device_count);
    return ncclInvalidArgument;
  }
  if (rendezvous->device_ranks[device] != 0 && param_int(PARAM_MULTI_RANK_GPU_ENABLE) == 0) {
    rendezvous_fail_with(
        rendezvous, ncclInvalidUsage,
        "Duplicate GPU detected : rank %u and rank %u both on CUDA device %u; select another "
        "device before the call, or set NCCL_MULTI_RANK_GPU_ENABLE=1",
        rendezvous->device_ranks[device] - 1, call->rank, device);
    return ncclInvalidUsage;
  }
  rendezvous->device_ranks[device] = call->rank + 1;
  return ncclSuccess;
}

static void slot_take(struct rendezvous *rendezvous, const struct rendezvous_call *call) {
  struct rank_slot *slot = &rendezvous->slots[call->rank];
  struct ncclComm *comm = call->comm;
  slot->taken = true;
  slot->color = call->color;
  slot->key_order = call->key_order;
  slot->comm = comm;
  rendezvous->joined_count += 1;
  if (!comm) return;
  comm->rendezvous = rendezvous;
  comm->met_ns = os_time_ns();
  comm->parent = call->parent;
  if (call->parent) __atomic_add_fetch(&call->parent->children_rendezvous, 1, __ATOMIC_ACQ_REL);
  if (call->kind == RENDEZVOUS_SPLIT) return;
  comm->comm_id = rendezvous->first.comm_id;
  comm->rank = call->rank;
  comm->rank_count = call->rank_count;
  rendezvous->comms[call->rank] = comm;
}

static ncclResult_t join_locked(const struct rendezvous_call *call, const struct backend *ops,
                                uint32_t device_count) {
  struct rendezvous *rendezvous = rendezvous_find(call);
  const char *why = rendezvous ? NULL : rendezvous_was(call);
  if (why) {
    if (call->kind != RENDEZVOUS_INIT && *why)
      return log_fail(ncclInvalidUsage, "%s: rank %u: it failed on another rank before: %s", call->call,
                      call->rank, why);
    return log_fail(ncclInvalidUsage, "%s: rank %u: %s", call->call, call->rank,
                    call->id.grown > 0
                        ? "this unique id has made a communicator, or failed to, before; get a new one with "
                          "ncclCommGetUniqueId"
                    : call->kind == RENDEZVOUS_INIT
                        ? "this unique id has made a communicator, or failed to, before; get a new one with "
                          "ncclGetUniqueId"
                        : "it failed on another rank before; see the warnings before this one");
  }
  if (!rendezvous) {
    rendezvous = rendezvous_create(call, ops, device_count);
    const bool called = call->kind == RENDEZVOUS_INIT && call->id.own && bootstrap_id_called(call->key[1]);
    if (rendezvous && (called || rendezvous_is_remote(call))) TRY(rendezvous_conduct(rendezvous));
  }
  if (!rendezvous) {
    rendezvous_note_over(call, ""); /* ranks that come later need not wait for this rank */
    return log_no_memory("%s: rank %u: rendezvous %u ranks", call->call, call->rank, call->rank_count);
  }
  TRY(rendezvous_agree(rendezvous, call));
  if (call->kind == RENDEZVOUS_INIT) TRY(rendezvous_take_device(rendezvous, call));
  slot_take(rendezvous, call);
  return ncclSuccess;
}

ncclResult_t rendezvous_join(const struct rendezvous_call *call) {
  const struct backend *ops = backend_ops();
  if (!ops) return ncclInvalidUsage;
  uint32_t device_count = 0;
  TRY(ops->device->count(&device_count));
  if (call->kind == RENDEZVOUS_INIT && call->rank == 0) TRY(bootstrap_root_open(&call->id));
  ops->device->lock();
  const ncclResult_t result = join_locked(call, ops, device_count);
  rendezvous_unlock(ops);
  if (result != ncclSuccess && call->rank == 0 && call->id.fixed) rendezvous_root_end(call);
  return result;
}

void rendezvous_refuse(const struct rendezvous_call *call, const char *why) {
  const struct backend *ops = backend_ops();
  char reason[COMM_REASON_BYTES];
  snprintf(reason, sizeof reason, "rank %u %s", call->rank, why);
  ops->device->lock();
  struct rendezvous *rendezvous = rendezvous_find(call);
  if (rendezvous) rendezvous_fail(rendezvous, ncclRemoteError, reason);
  else rendezvous_note_over(call, reason);
  rendezvous_unlock(ops);
  if (!rendezvous) rendezvous_root_end(call);
}

/* ---- Completion ---- */

/* "GPU 0 (0000:18:00.0) <-> GPU 1 (0000:2a:00.0): NVL, 18 links, 478 GB/s". */
static void path_log(const struct backend *ops, uint32_t from, uint32_t to) {
  struct device_path_info path;
  struct device_info from_info, to_info;
  char links[32] = "", rate[32] = "";
  if (ops->device->info(from, &from_info) != ncclSuccess || ops->device->info(to, &to_info) != ncclSuccess ||
      ops->device->path(from, to, &path) != ncclSuccess)
    return;
  if (path.link_count > 0) snprintf(links, sizeof links, ", %u links", path.link_count);
  if (path.gbps > 0) snprintf(rate, sizeof rate, ", %.0f GB/s", path.gbps);
  log_info(LOG_GRAPH, "GPU %u (%s) <-> GPU %u (%s): %s%s%s%s", from, from_info.bus_id, to, to_info.bus_id,
           path.name, links, rate, path.peer_access ? "" : ", no peer access: through memory of the host");
}

static void paths_log(struct ncclComm *const *comms, uint32_t count) {
  if (count > PATHS_LOGGED_RANKS || !log_enabled(LOG_INFO, LOG_GRAPH)) return;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t j = i + 1; j < count; j++)
      path_log(comms[0]->ops, comms[i]->device_index, comms[j]->device_index);
}

static void ll128_warn(uint32_t rank_count) {
  static bool said;
  if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED)) return;
  log_warn(
      "NCCL_PROTO asks for LL128, but not all of a communicator's %u GPUs are joined by NVLink, and "
      "elsewhere stores of 128 bytes may arrive in pieces: results may be wrong; take LL128 out of "
      "NCCL_PROTO",
      rank_count);
}

static void devices_add(struct ncclComm *const *comms, uint32_t count, struct settings_ranks *ranks) {
  for (uint32_t i = 0; i < count; i++) {
    const struct backend *ops = comms[i]->ops;
    const uint32_t index = comms[i]->device_index;
    struct device_info info;
    struct settings_device device;
    memset(&info, 0, sizeof info);
    memset(&device, 0, sizeof device);
    for (uint32_t j = 0; j < count; j++) device.rank_count += comms[j]->device_index == index;
    if (ops->device->use(index, &device.use) != ncclSuccess || ops->device->info(index, &info) != ncclSuccess)
      continue;
    device.own_count = device.rank_count;
    device.blocks = info.blocks;
    settings_add_device(ranks, &device);
  }
}

/* All ranks see the same paths, so all choose the same protocols. */
static ncclResult_t paths_settle(struct ncclComm *const *comms, uint32_t count) {
  struct settings_ranks ranks = {.rank_count = count, .paths = {true, true}};
  bool torn = false;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t j = 0; j < count; j++)
      if (i != j)
        TRY(settings_add_path(comms[0]->ops, comms[i]->device_index, comms[j]->device_index, &ranks.paths));
  devices_add(comms, count, &ranks);
  TRY(settings_check_devices(&ranks));
  for (uint32_t i = 0; i < count; i++) torn = settings_settle(&comms[i]->settings, &ranks).torn || torn;
  if (torn) ll128_warn(count);
  paths_log(comms, count);
  return ncclSuccess;
}

/* The ranks' channel counts may be configured differently; all use the smallest. */
static ncclResult_t ranks_settle(struct ncclComm *const *comms, uint32_t count) {
  struct settings agreed = comms[0]->settings;
  for (uint32_t i = 1; i < count; i++) settings_agree(&agreed, &comms[i]->settings);
  for (uint32_t i = 0; i < count; i++) settings_agree(&comms[i]->settings, &agreed);
  return paths_settle(comms, count);
}

void comm_join_shared(struct ncclComm *comm, struct comm_shared *shared) {
  shared->device_comms[comm->rank] = comm->device_comm;
  shared->live_count += 1;
  comm->shared = shared;
  match_join(comm);
}

void rendezvous_publish(struct rendezvous *rendezvous) {
  for (uint32_t i = 0; i < rendezvous->first.rank_count; i++) slot_leave(&rendezvous->slots[i], COMM_READY);
  rendezvous_drop(rendezvous, "");
}

/* For ranks of this process on nodes connected by a network; their device-side halves are open. */
static ncclResult_t shared_open_here(struct comm_shared *shared, struct ncclComm *const *comms) {
  for (uint32_t i = 0; i < shared->rank_count; i++) {
    shared->device_comms[i] = comms[i]->device_comm;
    comms[i]->ops->device->comm_settle(comms[i]->device_comm, &comms[i]->settings.plan.limits);
  }
  if (!shared->remote) return ncclSuccess;
  return remote_open(shared->remote, comms, &stall_watcher);
}

/* Makes the communicator's graph, and the settings that all of its ranks agree on. */
static ncclResult_t shared_settle_here(struct comm_shared *shared, struct ncclComm *const *comms) {
  TRY(ranks_settle(comms, shared->rank_count));
  TRY(remote_create_here(shared, comms, &shared->remote));
  for (uint32_t i = 0; shared->remote && i < shared->rank_count; i++)
    TRY(remote_settle(shared->remote, &comms[i]->settings));
  return comm_shared_lay_out(shared, comms);
}

static void complete_init(struct rendezvous *rendezvous) {
  const uint32_t count = rendezvous->first.rank_count;
  ncclResult_t result = shared_settle_here(rendezvous->shared, rendezvous->comms);
  if (result == ncclSuccess) result = shared_open_here(rendezvous->shared, rendezvous->comms);
  if (result != ncclSuccess) {
    rendezvous_fail(rendezvous, result, log_own_error());
    return;
  }
  comm_shared_enlist(rendezvous->shared);
  for (uint32_t i = 0; i < count; i++) comm_join_shared(rendezvous->slots[i].comm, rendezvous->shared);
  rendezvous->shared = NULL;
  rendezvous_publish(rendezvous);
}

/* State of the last rank to arrive at a split, while it works unlocked. */
struct split_work {
  const struct backend *ops;
  struct ncclComm **comms;            /* those with a color, by (color, key, parent rank) */
  const struct rank_slot **slots;     /* in the same order */
  struct comm_shared **shared_states; /* one per color, ordered by color */
  uint32_t comm_count, shared_count, opened_count;
};

uint64_t rendezvous_child_id(const struct rendezvous_call *call, int color) {
  const uint64_t mixed = hash_mix(hash_mix(3, call->comm_id), call->key[1]);
  return hash_mix(mixed, (uint32_t)color) | 1ull << 63;
}

static int slot_compare(const void *left, const void *right) {
  const struct rank_slot *a = *(const struct rank_slot *const *)left,
                         *b = *(const struct rank_slot *const *)right;
  if (a->color != b->color) return a->color < b->color ? -1 : 1;
  if (a->key_order != b->key_order) return a->key_order < b->key_order ? -1 : 1;
  return a < b ? -1 : a > b; /* slots are in the order of parent ranks */
}

static bool split_sort(struct split_work *split, const struct rendezvous *rendezvous) {
  const uint32_t rank_count = rendezvous->first.rank_count;
  split->comms = (struct ncclComm **)os_alloc(rank_count * sizeof *split->comms);
  split->slots = (const struct rank_slot **)os_alloc(rank_count * sizeof *split->slots);
  split->shared_states = (struct comm_shared **)os_alloc(rank_count * sizeof *split->shared_states);
  if (!split->comms || !split->slots || !split->shared_states) return false;
  for (uint32_t i = 0; i < rank_count; i++) {
    const struct rank_slot *slot = &rendezvous->slots[i];
    if (slot->comm && !slot->comm->stands_in) split->slots[split->comm_count++] = slot;
  }
  qsort(split->slots, split->comm_count, sizeof *split->slots, slot_compare);
  for (uint32_t i = 0; i < split->comm_count; i++) split->comms[i] = split->slots[i]->comm;
  return true;
}

/* Opens the ranks of one color, comms[begin, end). */
static ncclResult_t split_open_shared(struct split_work *split, const struct rendezvous_call *first,
                                      uint32_t begin, uint32_t end) {
  const uint64_t comm_id = rendezvous_child_id(first, split->slots[begin]->color);
  struct comm_shared *shared = comm_shared_create(split->ops, comm_id, end - begin);
  if (!shared) return log_no_memory("%s: %u ranks", first->call, end - begin);
  split->shared_states[split->shared_count++] = shared;
  TRY(shared_settle_here(shared, split->comms + begin));
  for (uint32_t i = begin; i < end; i++) {
    struct ncclComm *comm = split->comms[i];
    comm->comm_id = comm_id;
    comm->rank = i - begin;
    comm->rank_count = end - begin;
    TRY(comm_open(comm));
    split->opened_count += 1;
  }
  return shared_open_here(shared, split->comms + begin);
}

static ncclResult_t split_open(struct split_work *split, struct rendezvous *rendezvous) {
  if (!split_sort(split, rendezvous)) {
    return log_no_memory("%s: sorting %u ranks", rendezvous->first.call, rendezvous->first.rank_count);
  }
  for (uint32_t begin = 0, end; begin < split->comm_count; begin = end) {
    end = begin + 1;
    while (end < split->comm_count && split->slots[end]->color == split->slots[begin]->color) end += 1;
    TRY(split_open_shared(split, &rendezvous->first, begin, end));
  }
  return ncclSuccess;
}

static void split_publish(struct split_work *split, struct rendezvous *rendezvous) {
  uint32_t shared_index = 0;
  for (uint32_t i = 0; i < split->comm_count; i++) {
    struct ncclComm *comm = split->comms[i];
    if (i > 0 && comm->rank == 0) shared_index += 1;
    if (comm->rank == 0) comm_shared_enlist(split->shared_states[shared_index]);
    comm_join_shared(comm, split->shared_states[shared_index]);
  }
  rendezvous_publish(rendezvous);
}

/* Not locked. */
static void complete_split(struct rendezvous *rendezvous, const struct backend *ops) {
  struct split_work split = {ops, NULL, NULL, NULL, 0, 0, 0};
  const ncclResult_t result = split_open(&split, rendezvous);
  for (uint32_t i = 0; result != ncclSuccess && i < split.opened_count; i++) {
    ops->device->comm_close(split.comms[i]->device_comm);
    split.comms[i]->device_comm = NULL;
  }
  ops->device->lock();
  if (result == ncclSuccess) split_publish(&split, rendezvous);
  else rendezvous_fail(rendezvous, result, log_own_error());
  rendezvous_unlock(ops);
  for (uint32_t i = 0; result != ncclSuccess && i < split.shared_count; i++)
    remote_free_shared(split.shared_states[i]);
  os_free(split.comms);
  os_free(split.slots);
  os_free(split.shared_states);
}

/* Locked. Decides who continues once this rank has arrived: no one yet, this thread (*split), or the root,
 * which must be notified (*remote). */
static void arrive_locked(const struct rendezvous_call *call, struct peer_info **info,
                          struct rendezvous **split, struct rendezvous **remote) {
  struct rendezvous *rendezvous = rendezvous_find(call);
  if (!rendezvous) return;
  struct rank_slot *slot = &rendezvous->slots[call->rank];
  slot->arrived = true;
  slot->info = *info;
  *info = NULL;
  rendezvous->arrived_count += 1;
  const uint64_t name = rendezvous_name(rendezvous);
  if (name != 0) backend_ops()->process->order_arrive(name, call->rank_count);
  if (rendezvous->conducted) {
    if (!rendezvous->gather) return; /* the rendezvous's thread checks it in */
    slot->checked_in = true;
    rendezvous->checking_in += 1;
    *remote = rendezvous;
  } else if (rendezvous->arrived_count == call->rank_count) {
    if (call->kind == RENDEZVOUS_INIT) complete_init(rendezvous);
    else *split = rendezvous;
  }
  if (*split) (*split)->resolving = true;
}

ncclResult_t rendezvous_arrive(const struct rendezvous_call *call) {
  const struct backend *ops = backend_ops();
  struct rendezvous *split = NULL, *remote = NULL;
  struct peer_info *info = NULL;
  if (rendezvous_is_remote(call)) {
    const ncclResult_t filled = rendezvous_fill_info(call, &info);
    if (filled != ncclSuccess) rendezvous_refuse(call, "cannot describe itself");
    TRY(filled);
  }
  ops->device->lock();
  arrive_locked(call, &info, &split, &remote);
  rendezvous_unlock(ops);
  if (remote) {
    ops->process->order_hold(1);
    rendezvous_check_in(call, remote);
    ops->process->order_hold(-1);
  }
  if (split) complete_split(split, ops);
  os_free(info);
  return ncclSuccess;
}

/* ---- Waiting ---- */

/* "2, 5-7 and 12 more": the ranks that have not joined. */
static void missing_describe(const struct rendezvous *rendezvous, char *text, size_t text_bytes) {
  uint32_t shown = 0, left = 0;
  size_t used = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < rendezvous->first.rank_count; i++) {
    const uint32_t begin = i;
    if (rendezvous->slots[i].arrived) continue;
    while (i + 1 < rendezvous->first.rank_count && !rendezvous->slots[i + 1].arrived) i += 1;
    if (shown == 6 || used + 32 > text_bytes) {
      left += i - begin + 1;
      continue;
    }
    used += (size_t)snprintf(text + used, text_bytes - used, "%s%u", shown > 0 ? ", " : "", begin);
    if (i > begin) used += (size_t)snprintf(text + used, text_bytes - used, "-%u", i);
    shown += 1;
  }
  if (left > 0) snprintf(text + used, text_bytes - used, " and %u more", left);
}

/* Logs absent ranks from time to time; ends the rendezvous after its timeout. */
static void rendezvous_check_time(struct rendezvous *rendezvous) {
  const uint64_t now = os_time_ns();
  const uint64_t limit_seconds = (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS);
  const uint64_t waited_seconds = (now - rendezvous->begin_ns) / 1000000000u;
  char missing[96];
  if (rendezvous->conducted) return; /* the root has the timeout */
  if (rendezvous->resolving || now < rendezvous->next_reminder_ns) {
    if (rendezvous->resolving || waited_seconds < limit_seconds) return;
  }
  missing_describe(rendezvous, missing, sizeof missing);
  if (waited_seconds >= limit_seconds) {
    rendezvous_fail_with(rendezvous, ncclRemoteError,
                         "%u of %u ranks came within %llu seconds; missing: rank %s; look there "
                         "first, or raise TUTTI_INIT_TIMEOUT_SECONDS",
                         rendezvous->arrived_count, rendezvous->first.rank_count,
                         (unsigned long long)limit_seconds, missing);
    return;
  }
  rendezvous->next_reminder_ns = now + REMIND_MS * NS_PER_MS;
  log_warn("%s: for %llu seconds %u of %u ranks have come; missing: rank %s", rendezvous->first.call,
           (unsigned long long)waited_seconds, rendezvous->arrived_count, rendezvous->first.rank_count,
           missing);
}

void rendezvous_poll(struct ncclComm *comm) {
  comm->ops->device->lock();
  if (comm->rendezvous) rendezvous_check_time(comm->rendezvous);
  rendezvous_unlock(comm->ops);
}

/* All ranks of a split are here, and in a world that moves only while its threads wait none can come when all
 * of them do: the wait itself finds out. Ranks of a unique id may come from other processes. */
static bool wait_ends_itself(const struct ncclComm *comm) {
  const struct rendezvous *rendezvous = comm->rendezvous;
  return rendezvous && !rendezvous->conducted && rendezvous->first.kind == RENDEZVOUS_SPLIT &&
         !comm->ops->device->keeps_time();
}

/* Milliseconds until the time must be checked again; 0: never. */
static uint64_t wait_slice_ms(struct ncclComm *comm) {
  const uint64_t limit_ns = (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000 * NS_PER_MS;
  uint64_t slice_ms = 1;
  comm->ops->device->lock();
  const bool never = wait_ends_itself(comm);
  if (comm->rendezvous) {
    const uint64_t now = os_time_ns(), end = comm->rendezvous->begin_ns + limit_ns;
    slice_ms = end > now ? (end - now) / NS_PER_MS + 1 : 1;
  }
  comm->ops->device->unlock();
  if (never) return 0;
  const uint64_t most_ms = comm->stands_in ? LOOK_MS : REMIND_MS;
  return slice_ms < most_ms ? slice_ms : most_ms;
}

/* done() of wait_until: runs under the lock. */
static bool comm_has_met(void *argument) {
  return comm_state((const struct ncclComm *)argument) != COMM_RENDEZVOUS;
}

/* A rank that stands in for its parent need not wait if that has failed, or another thread has aborted it,
 * which waits for this one. */
static const char *parent_ended(const struct ncclComm *comm) {
  const struct ncclComm *parent = __atomic_load_n(&comm->parent, __ATOMIC_ACQUIRE);
  if (!comm->stands_in || !parent) return NULL;
  if (__atomic_load_n(&parent->aborted, __ATOMIC_ACQUIRE) != 0) return "was aborted";
  return __atomic_load_n(&parent->async_error, __ATOMIC_ACQUIRE) != ncclSuccess ? "has failed" : NULL;
}

/* The same. */
static bool comm_need_not_wait(void *argument) {
  return comm_has_met(argument) || parent_ended((const struct ncclComm *)argument) != NULL;
}

ncclResult_t rendezvous_wait(struct ncclComm *comm, const char *call) {
  while (comm_state(comm) == COMM_RENDEZVOUS) {
    const ncclResult_t result = comm->ops->device->wait_until(comm_need_not_wait, comm, wait_slice_ms(comm));
    const char *ended_why = parent_ended(comm);
    if (ended_why) rendezvous_withdraw(comm, ended_why);
    else if (result == ncclInProgress) rendezvous_poll(comm);
    else if (result != ncclSuccess) {
      rendezvous_withdraw(comm, "cannot wait any longer: nothing in the process can move");
      break;
    }
  }
  if (comm_state(comm) != COMM_FAILED) return ncclSuccess;
  comm->ops->device->lock();
  rendezvous_unlock(comm->ops); /* the server's thread may have left a root to close */
  return log_fail(comm_async_error(comm), "%s: rank on device %u: %s", call, comm->device_index,
                  comm->reason);
}

/* Not locked. False if the rendezvous is too far to withdraw from: the caller waits for its outcome. */
static bool withdraw_try(struct ncclComm *comm, const char *why) {
  comm->ops->device->lock();
  struct rendezvous *rendezvous = comm->rendezvous;
  const bool wait = rendezvous && (rendezvous->resolving || rendezvous->conducted);
  if (rendezvous && !rendezvous->resolving) {
    uint32_t rank = 0;
    while (rendezvous->slots[rank].comm != comm) rank += 1;
    char reason[COMM_REASON_BYTES], missing[96];
    missing_describe(rendezvous, missing, sizeof missing);
    snprintf(reason, sizeof reason, "rank %u %s before all %u ranks had come%s%s", rank, why,
             rendezvous->first.rank_count, missing[0] != '\0' ? "; missing: rank " : "", missing);
    rendezvous_fail(rendezvous, ncclRemoteError, reason);
  }
  rendezvous_unlock(comm->ops);
  return !wait;
}

void rendezvous_withdraw(struct ncclComm *comm, const char *why) {
  while (!withdraw_try(comm, why)) comm->ops->device->wait_until(comm_has_met, comm, REMIND_MS);
}

void rendezvous_forget_parent(struct ncclComm *parent) {
  if (__atomic_load_n(&parent->children_rendezvous, __ATOMIC_ACQUIRE) == 0) return;
  parent->ops->device->lock();
  for (struct rendezvous *rendezvous = rendezvous_list; rendezvous; rendezvous = rendezvous->next) {
    for (uint32_t i = 0; i < rendezvous->first.rank_count; i++) {
      struct ncclComm *comm = rendezvous->slots[i].comm;
      if (comm && comm->parent == parent) comm->parent = NULL;
    }
  }
  parent->ops->device->unlock();
}
