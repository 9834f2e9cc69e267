/* reach.c: see reach.h. Every process tries to map memory of the others on its host and reports the result.
 * In each turn all processes agree on one failure; turns repeat until nothing fails. */
#include "core/remote/reach.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/remote/remote.h"

#define ALL_TRIED_MOST 16 /* up to this many other processes of the host are all tried; of more, some */
#define TURNS_MOST 4      /* each sets one process apart; after that, the whole host of the next one */
#define PAIR_TURNS_MOST                                                               \
  16 /* the same where memory of the host replaces what fails: for pairs of processes \
      */
#define PLACE_LAST 63u
#define EVERYBODY UINT64_MAX

/* The input of a turn: of each process the first rank whose memory others may map. */
struct view {
  const struct backend *ops;
  struct device_comm *model;
  const struct gather_rank *ranks;
  uint32_t *first_rank; /* by process: rank + 1; 0 if there is none */
  uint32_t process_count, own_process;
  enum reach_memory memory; /* what is tried */
  uint8_t *failed;          /* by process: 1 if the last attempt to map its memory failed */
  uint32_t failed_last;
  char why[COMM_REASON_BYTES]; /* it failed for failed_last */
};

/* What failed in a turn, and what it means. */
struct failure {
  struct gather_about about; /* detail: the places of its peers, or EVERYBODY */
  uint32_t peer, more;       /* a process that failed, and how many others did */
};

bool reach_allows(const struct reach_process *one, const struct reach_process *other,
                  enum reach_memory memory) {
  return ((one->denied[memory] >> other->place | other->denied[memory] >> one->place) & 1) == 0;
}

static const struct peer_info *info_of(const struct view *view, uint32_t process_index) {
  return (const struct peer_info *)view->ranks[view->first_rank[process_index] - 1].info;
}

static bool same_host(const struct view *view, uint32_t a, uint32_t b) {
  return view->first_rank[a] && view->first_rank[b] && info_of(view, a)->host == info_of(view, b)->host;
}

static bool both_offer(const struct view *view, uint32_t a, uint32_t b, enum reach_memory memory) {
  return (info_of(view, a)->offers & info_of(view, b)->offers & 1u << memory) != 0;
}

static ncclResult_t view_fill(struct view *view, const struct gather *gather, uint32_t rank_count) {
  view->ranks = gather_ranks(gather);
  view->process_count = gather_process_count(gather);
  view->own_process = gather_own_process(gather);
  view->first_rank = (uint32_t *)os_alloc(view->process_count * sizeof *view->first_rank);
  view->failed = (uint8_t *)os_alloc(view->process_count);
  if (!view->first_rank || !view->failed)
    return log_no_memory("looking for %u processes on this host", view->process_count);
  for (uint32_t rank = rank_count; rank-- > 0;) {
    const struct peer_info *info = (const struct peer_info *)view->ranks[rank].info;
    if (view->ranks[rank].info_bytes == sizeof *info && info->present && info->offers)
      view->first_rank[view->ranks[rank].process_index] = rank + 1;
  }
  return ncclSuccess;
}

/* Each process asks for its own device and those of the other processes of its host. */
static ncclResult_t links_check(const struct view *view) {
  for (uint32_t process_index = 0; process_index < view->process_count; process_index++) {
    if (process_index == view->own_process || !same_host(view, process_index, view->own_process)) continue;
    TRY(view->ops->process->comm_check(view->model, view->first_rank[process_index] - 1,
                                       &info_of(view, process_index)->device));
  }
  return ncclSuccess;
}

static ncclResult_t places_fill(const struct view *view, struct reach *reach) {
  reach->processes = (struct reach_process *)os_alloc(view->process_count * sizeof *reach->processes);
  if (!reach->processes) return log_no_memory("looking for %u processes on this host", view->process_count);
  for (uint32_t a = 0; a < view->process_count; a++) {
    uint32_t place = 0;
    for (uint32_t b = 0; b < a && place < PLACE_LAST; b++) place += same_host(view, a, b);
    reach->processes[a].place = (uint8_t)place;
  }
  return ncclSuccess;
}

/* True if the two are to share the memory that is tried: not memory of the host where they share devices'. */
static bool pair_shares(const struct view *view, const struct reach *reach, uint32_t a, uint32_t b) {
  const struct reach_process *one = &reach->processes[a], *other = &reach->processes[b];
  if (!same_host(view, a, b) || !both_offer(view, a, b, view->memory)) return false;
  if (!reach_allows(one, other, view->memory)) return false;
  return view->memory == REACH_DEVICE || !both_offer(view, a, b, REACH_DEVICE) ||
         !reach_allows(one, other, REACH_DEVICE);
}

/* Equal on all processes. */
static bool anybody_shares(const struct view *view, const struct reach *reach) {
  for (uint32_t a = 0; a < view->process_count; a++)
    for (uint32_t b = a + 1; b < view->process_count; b++)
      if (pair_shares(view, reach, a, b)) return true;
  return false;
}

static void process_text(const struct view *view, uint32_t process_index, char *text, size_t bytes) {
  snprintf(text, bytes, "rank %u (process %d)", view->first_rank[process_index] - 1,
           info_of(view, process_index)->process);
}

/* True if the process at this distance in its host's list is tried: all of a few; of many, the neighbours and
 * those at distances that double. */
static bool is_tried(uint32_t distance, uint32_t count) {
  if (distance == 0) return false;
  return count <= ALL_TRIED_MOST + 1 || distance == count - 1 || (distance & (distance - 1)) == 0;
}

/* The processes of this host that offer this memory and are not set apart, in order; *own is this process's
 * index. */
static uint32_t neighbours(const struct view *view, const struct reach *reach, uint32_t *processes,
                           uint32_t *own) {
  const uint32_t self = view->own_process;
  uint32_t count = 0;
  for (uint32_t process_index = 0; process_index < view->process_count; process_index++) {
    if (!same_host(view, self, process_index) || !both_offer(view, self, process_index, view->memory) ||
        reach->processes[process_index].denied[view->memory] == EVERYBODY)
      continue;
    if (process_index == self) *own = count;
    processes[count++] = process_index;
  }
  return reach->processes[self].denied[view->memory] == EVERYBODY ? 0 : count;
}

/* What memory of the host replaces is tried once: the reason of a failure rarely goes away. */
static bool peer_reached(struct view *view, uint32_t process_index, bool replaced) {
  const struct process_ops *process = view->ops->process;
  const struct device_comm_handle *handle = &info_of(view, process_index)->device;
  const uint32_t rank = view->first_rank[process_index] - 1;
  bool reached = false;
  if (replaced && view->failed[process_index]) return false;
  const ncclResult_t result = view->memory == REACH_DEVICE
                                  ? process->comm_reach(view->model, rank, handle, &reached)
                                  : process->comm_reach_shm(view->model, rank, handle, &reached);
  reached = reached && result == ncclSuccess;
  view->failed[process_index] = !reached;
  if (reached) return true;
  view->failed_last = process_index;
  snprintf(view->why, sizeof view->why, "%s", log_own_error());
  return false;
}

/* Memory of the host replaces that of devices, for the pairs that fail. Otherwise, if one of several
 * processes cannot be mapped, that process is set apart; if none can, this process is. */
static ncclResult_t try_neighbours(struct view *view, const struct reach *reach, const uint32_t *processes,
                                   uint32_t count, uint32_t own, struct failure *failure) {
  uint32_t tried = 0, failed = 0;
  bool replaced = true;
  uint64_t places = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!is_tried((i + count - own) % count, count)) continue;
    if (!pair_shares(view, reach, view->own_process, processes[i])) continue;
    tried += 1;
    const bool by_host =
        view->memory == REACH_DEVICE && both_offer(view, view->own_process, processes[i], REACH_HOST);
    if (peer_reached(view, processes[i], by_host)) continue;
    failed += 1;
    places |= UINT64_C(1) << reach->processes[processes[i]].place;
    replaced = replaced && by_host;
    failure->peer = processes[i];
  }
  if (failed == 0) return ncclSuccess;
  if (view->failed_last != failure->peer) peer_reached(view, failure->peer, false); /* for its sentence */
  failure->more = failed - 1;
  failure->about.process_index = !replaced && failed == 1 && tried > 1 ? failure->peer : view->own_process;
  failure->about.detail = replaced ? places : EVERYBODY;
  return ncclSystemError;
}

static void failure_text(const struct view *view, const struct failure *failure, char *reason,
                         size_t reason_bytes) {
  char self[64], other[64], more[24] = "";
  process_text(view, view->own_process, self, sizeof self);
  process_text(view, failure->peer, other, sizeof other);
  if (failure->about.detail != EVERYBODY && failure->more > 0)
    snprintf(more, sizeof more, " and %u more", failure->more);
  snprintf(reason, reason_bytes, "%s cannot map memory of %s%s on its host: %.300s", self, other, more,
           view->why);
}

static ncclResult_t try_all(struct view *view, const struct reach *reach, struct failure *failure,
                            char *reason, size_t reason_bytes) {
  uint32_t own = 0;
  reason[0] = '\0';
  memset(failure, 0, sizeof *failure);
  uint32_t *processes = (uint32_t *)os_alloc(view->process_count * sizeof *processes);
  failure->about = (struct gather_about){view->own_process, EVERYBODY};
  if (!processes) {
    snprintf(reason, reason_bytes, "looking for processes of this host" LOG_OUT_OF_MEMORY);
    return ncclSystemError;
  }
  ncclResult_t result = ncclSuccess;
  const uint32_t count = view->first_rank[view->own_process] ? neighbours(view, reach, processes, &own) : 0;
  if (count > 1) result = try_neighbours(view, reach, processes, count, own, failure);
  os_free(processes);
  if (result != ncclSuccess) failure_text(view, failure, reason, reason_bytes);
  return result;
}

/* False if that was known. */
static bool deny(const struct view *view, struct reach *reach, const struct gather_about *about,
                 bool whole_host) {
  bool news = false;
  for (uint32_t process_index = 0; process_index < view->process_count; process_index++) {
    uint64_t *denied = &reach->processes[process_index].denied[view->memory];
    const bool host = whole_host && same_host(view, process_index, about->process_index);
    if (!host && process_index != about->process_index) continue;
    const uint64_t after = *denied | (host ? EVERYBODY : about->detail);
    news = news || after != *denied;
    *denied = after;
  }
  return news;
}

/* The process that had the failure logs a warning; the others log it at INFO. */
static void turn_log(const struct view *view, const char *call, const struct gather_about *about,
                     bool whole_host, bool ours, const char *reason) {
  char who[64] = "", text[COMM_REASON_BYTES + 160];
  if (view->first_rank[about->process_index]) process_text(view, about->process_index, who, sizeof who);
  if (about->detail != EVERYBODY && !whole_host)
    snprintf(text, sizeof text, "%s; they exchange data through memory of the host", reason);
  else
    snprintf(text, sizeof text, "%s; %s%s exchange%s data with others of the host over the network", reason,
             whole_host ? "all processes of the host of " : "", who, whole_host ? "" : "s");
  if (ours) log_warn("%s: %s", call, text);
  else log_info(LOG_INIT | LOG_SHM, "%s: %s", call, text);
}

static ncclResult_t try_turns(struct gather *gather, const char *call, struct view *view, struct reach *reach,
                              char *reason, size_t reason_bytes) {
  char own_reason[COMM_REASON_BYTES];
  uint32_t turns = 0, pair_turns = 0;
  for (;;) {
    struct failure failure;
    const ncclResult_t own = try_all(view, reach, &failure, own_reason, sizeof own_reason);
    snprintf(reason, reason_bytes, "%s", own_reason);
    struct gather_about about = failure.about;
    const ncclResult_t all = gather_agree_about(gather, own, &about, reason, reason_bytes);
    if (all == ncclSuccess || about.process_index == GATHER_NO_PROCESS) return all;
    const bool pairs = about.detail != EVERYBODY;
    const bool whole_host = pairs ? pair_turns >= PAIR_TURNS_MOST : turns >= TURNS_MOST;
    *(pairs ? &pair_turns : &turns) += 1;
    if (!deny(view, reach, &about, whole_host)) break;
    if (!pairs) snprintf(reach->why, sizeof reach->why, "%s", reason);
    turn_log(view, call, &about, whole_host, strcmp(own_reason, reason) == 0, reason);
  }
  snprintf(reason, reason_bytes, "processes do not agree on whose memory can be mapped");
  return ncclInternalError;
}

ncclResult_t reach_try(struct gather *gather, const char *call, const struct backend *ops,
                       struct device_comm *model, uint32_t rank_count, struct reach *reach, char *reason,
                       size_t reason_bytes) {
  static const enum reach_memory order[REACH_MEMORIES] = {REACH_DEVICE, REACH_HOST};
  struct view view = {.ops = ops, .model = model};
  ncclResult_t result = view_fill(&view, gather, rank_count);
  if (result == ncclSuccess) result = places_fill(&view, reach);
  if (result == ncclSuccess) result = links_check(&view);
  if (result != ncclSuccess) {
    snprintf(reason, reason_bytes, "%s", log_own_error());
    gather_cancel(gather, result, reason);
  }
  for (uint32_t i = 0; result == ncclSuccess && i < REACH_MEMORIES; i++) {
    view.memory = order[i];
    memset(view.failed, 0, view.process_count);
    if (anybody_shares(&view, reach)) result = try_turns(gather, call, &view, reach, reason, reason_bytes);
  }
  os_free(view.first_rank);
  os_free(view.failed);
  return result;
}
