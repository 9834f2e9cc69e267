/* plan_fused.c: broadcasts of a group with different roots, executed by one lane per channel like an
 * all-gather (schedule/fused.h). */
#include "core/plan/plan_draft.h"
#include "core/plan/tune.h"
#include "core/topology/links.h"
#include "schedule/fused.h"
#include "schedule/ring.h"

/* Minimum bytes per channel, and the granularity of parts. */
#define FUSED_PART_BYTES_MIN 32768u
#define FUSED_PART_ALIGN_BYTES 256u

/* The k-th broadcasts of all roots form a set; a set of one is not fused. If all ranks send before any
 * receives, one slot would not suffice. */
void tasks_fuse(const struct plan_request *request, struct task *tasks, uint32_t count) {
  const uint32_t ring = 1u << ALGO_RING;
  uint32_t set_count = 0;
  if ((request->settings.limits.algos & PLAN_FUSES) == 0 || request->settings.limits.slots < 2) return;
  if ((request->settings.algo_mask[FUNC_BROADCAST] & ring) == 0) return;
  if ((request->settings.proto_mask[FUNC_BROADCAST] & ~(1u << PROTO_LL128)) == 0) return;
  for (uint32_t i = 0; i < count; i++) {
    if (tasks[i].op->func != FUNC_BROADCAST) continue;
    tasks[i].fused = 1;
    for (uint32_t k = 0; k < i; k++)
      tasks[i].fused += tasks[k].op->func == FUNC_BROADCAST && tasks[k].op->peer == tasks[i].op->peer;
  }
  for (bool full = true; full; set_count += full) {
    uint32_t members = 0;
    for (uint32_t i = 0; i < count; i++) {
      if (tasks[i].fused != set_count + 1) continue;
      members += 1;
      if (members > FUSED_PARTS_MAX) tasks[i].fused = 0;
    }
    full = members >= 2;
  }
  for (uint32_t i = 0; i < count; i++)
    if (tasks[i].fused > set_count) tasks[i].fused = 0;
}

/* As for an all-gather of the largest broadcast, but fused lanes do not support LL128. */
static ncclResult_t fused_choose(const struct plan_request *request, size_t bytes, uint8_t *proto) {
  struct plan_request like = *request;
  struct tune_choice choice;
  like.settings.algo_mask[FUNC_ALL_GATHER] = 1u << ALGO_RING;
  like.settings.proto_mask[FUNC_ALL_GATHER] =
      request->settings.proto_mask[FUNC_BROADCAST] & ~(1u << PROTO_LL128);
  TRY(tune_choose(&like, FUNC_ALL_GATHER, bytes * request->rank_count, &choice));
  *proto = choice.proto;
  return ncclSuccess;
}

/* Hops from the task's root to this rank. */
static uint32_t fused_distance(const struct draft *draft, const struct task *task, uint32_t channel) {
  const struct plan_request *request = draft->request;
  const uint32_t own = links_ring_index(request->graph, channel, request->rank);
  const uint32_t root = links_ring_index(request->graph, channel, task->op->peer);
  return (own + request->rank_count - root) % request->rank_count;
}

static void tasks_sort_by_distance(const struct draft *draft, struct task *tasks, uint32_t count,
                                   uint32_t channel) {
  for (uint32_t i = 1; i < count; i++) {
    const struct task task = tasks[i];
    const uint32_t distance = fused_distance(draft, &task, channel);
    uint32_t at = i;
    for (; at > 0 && fused_distance(draft, &tasks[at - 1], channel) > distance; at--)
      tasks[at] = tasks[at - 1];
    tasks[at] = task;
  }
}

/* The set's parts on one channel: the first row is the lane's, with both neighbours; if only one part has
 * data, it is not fused. */
static ncclResult_t draft_fused_channel(struct draft *draft, const struct task *tasks, uint32_t count,
                                        uint32_t channel, uint32_t channel_count) {
  const struct graph *graph = draft->request->graph;
  const uint64_t batch_id = draft->next_batch_id++;
  const uint32_t first = draft->count;
  size_t chunk_count = SIZE_MAX;
  for (uint32_t i = 0; i < count; i++) {
    const size_t share =
        size_round_up(size_div_up(tasks[i].op->count, channel_count), FUSED_PART_ALIGN_BYTES);
    struct work work = work_of_task(draft->request, &tasks[i]);
    work.channel_index = (uint16_t)channel;
    work.part_offset = size_min(tasks[i].op->count, channel * share);
    work.part_count = size_min(tasks[i].op->count - work.part_offset, share);
    if (work.part_count == 0) continue;
    work.ring_index = links_ring_index(graph, channel, work.rank);
    links_set(graph, &work);
    work_shorten_chain(&draft->request->settings.limits, &work);
    chunk_count = size_min(chunk_count, work.chunk_count);
    if (draft->count > first) work.flags |= WORK_PART;
    TRY(draft_add(draft, &work, tasks[i].op->in, tasks[i].op->out, batch_id));
  }
  if (draft->count == first) return ncclSuccess;
  struct work *head = &draft->rows[first].work;
  ring_cut(head);
  if (draft->count == first + 1) return ncclSuccess;
  head->flags |= WORK_FUSED;
  head->recv_count = head->send_count = 1;
  head->fused_count = draft->count - first;
  head->chunk_count = chunk_count;
  return ncclSuccess;
}

/* Drafts one set; its tasks are adjacent. */
static ncclResult_t draft_fused(struct draft *draft, struct task *tasks, uint32_t count) {
  const struct plan_request *request = draft->request;
  size_t largest = 0, sum = 0;
  uint8_t proto;
  for (uint32_t i = 0; i < count; i++) {
    largest = size_max(largest, tasks[i].op->count * tasks[i].element_bytes);
    sum += tasks[i].op->count * tasks[i].element_bytes;
  }
  TRY(fused_choose(request, largest, &proto));
  for (uint32_t i = 0; i < count; i++) tasks[i].proto = proto;
  const uint32_t channel_count =
      (uint32_t)size_min(request->settings.limits.channel_count, size_div_up(sum, FUSED_PART_BYTES_MIN));
  for (uint32_t channel = 0; channel < channel_count; channel++) {
    tasks_sort_by_distance(draft, tasks, count, channel);
    TRY(draft_fused_channel(draft, tasks, count, channel, channel_count));
  }
  return ncclSuccess;
}

/* Drafts one set after another; groups the tasks of each set. */
ncclResult_t draft_fused_sets(struct draft *draft, struct task *tasks, uint32_t count) {
  for (uint32_t first = 0, end; first < count; first = end) {
    const uint32_t set = tasks[first].fused;
    for (end = first + 1; end < count && tasks[end].fused == set;) end += 1;
    TRY(draft_fused(draft, tasks + first, end - first));
  }
  return ncclSuccess;
}
