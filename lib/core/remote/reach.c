/* reach.c: see reach.h. Every process tries the others of its host, says how that went, and hears of one
 * failure a turn, the same as all; turns follow until nothing fails. */
#include "core/remote/reach.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/remote/remote.h"

#define ALL_TRIED_MOST 16 /* so many other processes of the host are all tried; of more, some */
#define TURNS_MOST 4      /* of one process each; then nobody on the host of the next one shares memory */

/* What a turn looks at: of each process the first rank that others may map. */
struct view {
  const struct backend *ops;
  struct device_comm *model;
  const struct gather_rank *ranks;
  uint32_t *first_rank; /* by process: + 1; 0 where there is none */
  uint32_t process_count, own_process;
};

static const struct peer_info *info_of(const struct view *view, uint32_t process_index) {
  return (const struct peer_info *)view->ranks[view->first_rank[process_index] - 1].info;
}

static bool same_host(const struct view *view, uint32_t a, uint32_t b) {
  return view->first_rank[a] && view->first_rank[b] && info_of(view, a)->host == info_of(view, b)->host;
}

static ncclResult_t view_fill(struct view *view, const struct gather *gather, uint32_t rank_count) {
  view->ranks = gather_ranks(gather);
  view->process_count = gather_process_count(gather);
  view->own_process = gather_own_process(gather);
  view->first_rank = (uint32_t *)os_alloc(view->process_count * sizeof *view->first_rank);
  if (!view->first_rank) return log_no_memory("looking for %u processes on this host", view->process_count);
  for (uint32_t rank = rank_count; rank-- > 0;) {
    const struct peer_info *info = (const struct peer_info *)view->ranks[rank].info;
    if (view->ranks[rank].info_bytes == sizeof *info && info->present && info->shareable)
      view->first_rank[view->ranks[rank].process_index] = rank + 1;
  }
  return ncclSuccess;
}

/* All processes answer alike. */
static bool anybody_shares(const struct view *view) {
  for (uint32_t a = 0; a < view->process_count; a++)
    for (uint32_t b = a + 1; b < view->process_count; b++)
      if (same_host(view, a, b)) return true;
  return false;
}

static void process_text(const struct view *view, uint32_t process_index, char *text, size_t bytes) {
  snprintf(text, bytes, "rank %u (process %d)", view->first_rank[process_index] - 1,
           info_of(view, process_index)->process);
}

/* Whether the process `distance` places away in the row of its host's is one of those that are tried: all of
 * a few; of many the neighbours, and more at distances that double. */
static bool is_tried(uint32_t distance, uint32_t count) {
  if (distance == 0) return false;
  return count <= ALL_TRIED_MOST + 1 || distance == count - 1 || (distance & (distance - 1)) == 0;
}

/* The processes of this one's host that share memory, in order; *own is this one's place among them. */
static uint32_t neighbours(const struct view *view, const uint8_t *apart, uint32_t *processes,
                           uint32_t *own) {
  uint32_t count = 0;
  if (apart[view->own_process]) return 0;
  for (uint32_t process_index = 0; process_index < view->process_count; process_index++) {
    if (apart[process_index] || !same_host(view, view->own_process, process_index)) continue;
    if (process_index == view->own_process) *own = count;
    processes[count++] = process_index;
  }
  return count;
}

/* Where one of several cannot be mapped, it is apart; else this process is. */
static ncclResult_t try_neighbours(const struct view *view, const uint32_t *processes, uint32_t count,
                                   uint32_t own, uint32_t *about, char *reason, size_t reason_bytes) {
  uint32_t tried = 0, failed = 0, last = 0;
  char why[COMM_REASON_BYTES] = "", self[64], other[64];
  for (uint32_t i = 0; i < count; i++) {
    bool reached = false;
    if (!is_tried((i + count - own) % count, count)) continue;
    tried += 1;
    const struct peer_info *info = info_of(view, processes[i]);
    const uint32_t rank = view->first_rank[processes[i]] - 1;
    if (view->ops->process->comm_reach(view->model, rank, &info->device, &reached) == ncclSuccess && reached)
      continue;
    snprintf(why, sizeof why, "%s", log_own_error());
    failed += 1;
    last = processes[i];
  }
  if (failed == 0) return ncclSuccess;
  *about = failed == 1 && tried > 1 ? last : view->own_process;
  process_text(view, view->own_process, self, sizeof self);
  process_text(view, last, other, sizeof other);
  snprintf(reason, reason_bytes, "%s cannot map memory of %s on its host: %.340s", self, other, why);
  return ncclSystemError;
}

static ncclResult_t try_all(const struct view *view, const uint8_t *apart, uint32_t *about, char *reason,
                            size_t reason_bytes) {
  uint32_t own = 0;
  reason[0] = '\0';
  uint32_t *processes = (uint32_t *)os_alloc(view->process_count * sizeof *processes);
  *about = view->own_process;
  if (!processes) {
    snprintf(reason, reason_bytes, "looking for processes of this host" LOG_OUT_OF_MEMORY);
    return ncclSystemError;
  }
  ncclResult_t result = ncclSuccess;
  const uint32_t count = neighbours(view, apart, processes, &own);
  if (count > 1) result = try_neighbours(view, processes, count, own, about, reason, reason_bytes);
  os_free(processes);
  return result;
}

static void set_apart(const struct view *view, struct reach *reach, uint32_t about, bool whole_host) {
  for (uint32_t process_index = 0; process_index < view->process_count; process_index++)
    if (process_index == about || (whole_host && same_host(view, process_index, about)))
      reach->apart[process_index] = 1;
}

/* Whose sentence it is warns; the others note it. */
static void turn_log(const struct view *view, const char *call, uint32_t about, bool whole_host, bool ours,
                     const char *reason) {
  char who[64] = "", text[COMM_REASON_BYTES + 160];
  if (view->first_rank[about]) process_text(view, about, who, sizeof who);
  snprintf(text, sizeof text, "%s; %s%s exchange%s data with others of the host over the network", reason,
           whole_host ? "all processes of the host of " : "", who, whole_host ? "" : "s");
  if (ours) log_warn("%s: %s", call, text);
  else log_info(LOG_INIT | LOG_SHM, "%s: %s", call, text);
}

static ncclResult_t try_turns(struct gather *gather, const char *call, const struct view *view,
                              struct reach *reach, char *reason, size_t reason_bytes) {
  char own_reason[COMM_REASON_BYTES];
  for (uint32_t turn = 0; turn <= TURNS_MOST + view->process_count; turn++) {
    const bool whole_host = turn >= TURNS_MOST;
    uint32_t about;
    const ncclResult_t own = try_all(view, reach->apart, &about, own_reason, sizeof own_reason);
    snprintf(reason, reason_bytes, "%s", own_reason);
    const ncclResult_t all = gather_agree_about(gather, own, &about, reason, reason_bytes);
    if (all == ncclSuccess || about == GATHER_NO_PROCESS) return all;
    if (reach->apart[about]) break;
    set_apart(view, reach, about, whole_host);
    snprintf(reach->why, sizeof reach->why, "%s", reason);
    turn_log(view, call, about, whole_host, strcmp(own_reason, reason) == 0, reason);
  }
  snprintf(reason, reason_bytes, "processes do not agree on whose memory can be mapped");
  return ncclInternalError;
}

ncclResult_t reach_try(struct gather *gather, const char *call, const struct backend *ops,
                       struct device_comm *model, uint32_t rank_count, struct reach *reach, char *reason,
                       size_t reason_bytes) {
  struct view view = {.ops = ops, .model = model};
  ncclResult_t result = view_fill(&view, gather, rank_count);
  reach->apart = result == ncclSuccess ? (uint8_t *)os_alloc(view.process_count) : NULL;
  if (result == ncclSuccess && !reach->apart)
    result = log_no_memory("looking for %u processes on this host", view.process_count);
  if (result != ncclSuccess) {
    snprintf(reason, reason_bytes, "%s", log_own_error());
    gather_cancel(gather, result, reason);
  } else if (anybody_shares(&view)) {
    result = try_turns(gather, call, &view, reach, reason, reason_bytes);
  }
  os_free(view.first_rank);
  return result;
}
