/* lists.c: the lists of blocks and their helpers (onesided.h): adds steps with the waits on their rank, and
 * assigns the channels on which blocks and helpers are connected. */
#include "schedules/lists.h"

#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

#define LISTS_MAX 32768

static ncclResult_t out_of_memory(const struct lists *lists) {
  return log_no_memory("%s: %u lists", lists->plan->build->name, lists->count);
}

/* ---- making them ---- */

static ncclResult_t list_add(struct lists *lists, uint32_t block, uint32_t rank, uint32_t line) {
  struct rank_lists *own = &lists->ranks[rank];
  if (own->count == LIST_LANES_MAX || lists->count == LISTS_MAX)
    return custom_fail(lists->plan->build, line,
                       "rank %u has more than %d blocks and blocks of others that touch its memory", rank,
                       LIST_LANES_MAX);
  if (!array_grow(&own->lists, &own->capacity, (uint64_t)own->count + 1, sizeof *own->lists) ||
      !array_grow(&lists->lists, &lists->capacity, (uint64_t)lists->count + 1, sizeof *lists->lists))
    return out_of_memory(lists);
  struct one_list *list = &lists->lists[lists->count];
  memset(list, 0, sizeof *list);
  list->block = block;
  list->rank = rank;
  own->lists[own->count++] = lists->count++;
  return ncclSuccess;
}

uint32_t lists_helper(const struct lists *lists, uint32_t block, uint32_t rank) {
  uint32_t index = lists->lists[block].next_helper;
  while (index != 0 && lists->lists[index].rank != rank) index = lists->lists[index].next_helper;
  return index;
}

static ncclResult_t hands_add(struct lists *lists, uint32_t block) {
  const struct onesided_plan *plan = lists->plan;
  const struct onesided_block *own = &plan->blocks[block];
  for (uint32_t i = 0; i < own->op_count; i++) {
    const struct onesided_op *op = &plan->ops[own->first_op + i];
    for (uint32_t k = 0; k < op->source_count + op->target_count; k++) {
      const uint32_t rank = plan->places[op->first_place + k].rank;
      if (rank == own->rank || lists_helper(lists, block, rank) != 0) continue;
      TRY(list_add(lists, block, rank, op->line));
      lists->lists[lists->count - 1].next_helper = lists->lists[block].next_helper;
      lists->lists[block].next_helper = lists->count - 1;
    }
  }
  return ncclSuccess;
}

static ncclResult_t lists_make(struct lists *lists) {
  const struct onesided_plan *plan = lists->plan;
  for (uint32_t i = 0; i < plan->block_count; i++)
    TRY(list_add(lists, i, plan->blocks[i].rank, plan->blocks[i].line));
  for (uint32_t i = 0; i < plan->block_count; i++) TRY(hands_add(lists, i));
  for (uint32_t i = 0; i < lists->count; i++) {
    struct one_list *list = &lists->lists[i];
    list->awaited = (uint32_t *)os_alloc(lists->ranks[list->rank].count * sizeof *list->awaited);
    if (list->awaited == NULL) return out_of_memory(lists);
  }
  return ncclSuccess;
}

ncclResult_t lists_begin(const struct onesided_plan *plan, struct lists **result) {
  struct lists *lists = (struct lists *)os_alloc(sizeof *lists);
  *result = lists;
  if (lists == NULL) return log_no_memory("%s: lists", plan->build->name);
  lists->plan = plan;
  lists->ranks = (struct rank_lists *)os_alloc(plan->build->schedule->rank_count * sizeof *lists->ranks);
  lists->spare = (uint32_t *)os_alloc(plan->block_count * sizeof *lists->spare);
  return lists->ranks == NULL || lists->spare == NULL ? out_of_memory(lists) : lists_make(lists);
}

void lists_free(struct lists *lists) {
  if (lists == NULL) return;
  for (uint32_t i = 0; i < lists->count; i++) {
    os_free(lists->lists[i].steps);
    os_free(lists->lists[i].marks);
    os_free(lists->lists[i].awaited);
  }
  for (uint32_t i = 0; lists->ranks != NULL && i < lists->plan->build->schedule->rank_count; i++)
    os_free(lists->ranks[i].lists);
  os_free(lists->lists);
  os_free(lists->ranks);
  os_free(lists->spare);
  os_free(lists);
}

/* ---- steps ---- */

ncclResult_t lists_push(struct lists *lists, struct one_list *list, const struct list_step *step,
                        uint32_t line) {
  if (list->step_count == CUSTOM_STEPS_MAX)
    return custom_fail(lists->plan->build, line, "a block has at most %d steps of one chunk",
                       CUSTOM_STEPS_MAX);
  if (!array_grow(&list->steps, &list->step_capacity, (uint64_t)list->step_count + 1, sizeof *list->steps))
    return out_of_memory(lists);
  struct listed_step *row = &list->steps[list->step_count++];
  row->step = *step;
  row->line = line;
  if (list->before.flags == 0) return ncclSuccess;
  row->step.flags |= STEP_AWAIT_LIST;
  row->step.wait_lane = list->before.wait_lane;
  row->step.wait_steps = list->before.wait_steps;
  list->before.flags = 0;
  return ncclSuccess;
}

/* Steps of a list that come from the first op_count operations of its block. */
static uint32_t steps_behind(const struct one_list *list, uint32_t op_count) {
  uint32_t low = 0, high = list->mark_count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (list->marks[middle].op_count <= op_count) low = middle + 1;
    else high = middle;
  }
  return low == 0 ? 0 : list->marks[low - 1].step_count;
}

/* Makes the list wait until the other lists of its rank have done what its block knows to be done. */
static ncclResult_t wait_for_known(struct lists *lists, struct one_list *list, const uint32_t *known,
                                   uint32_t version, uint32_t line) {
  const struct rank_lists *beside = &lists->ranks[list->rank];
  const struct list_step nothing = {.flags = 0};
  if (list->version == version) return ncclSuccess;
  list->version = version;
  for (uint32_t i = 0; i < beside->count; i++) {
    const struct one_list *other = &lists->lists[beside->lists[i]];
    if (other->block == list->block) continue;
    const uint32_t steps = steps_behind(other, known[other->block]);
    if (steps <= list->awaited[i]) continue;
    if (list->before.flags != 0) TRY(lists_push(lists, list, &nothing, line));
    list->awaited[i] = steps;
    list->before.flags = STEP_AWAIT_LIST;
    list->before.wait_lane = (uint16_t)i;
    list->before.wait_steps = steps - 1;
  }
  return ncclSuccess;
}

static ncclResult_t mark_push(struct lists *lists, struct one_list *list, uint32_t op_count) {
  const uint32_t before = list->mark_count == 0 ? 0 : list->marks[list->mark_count - 1].step_count;
  if (list->step_count == before) return ncclSuccess;
  if (!array_grow(&list->marks, &list->mark_capacity, (uint64_t)list->mark_count + 1, sizeof *list->marks))
    return out_of_memory(lists);
  list->marks[list->mark_count++] = (struct list_mark){op_count, list->step_count};
  return ncclSuccess;
}

ncclResult_t lists_move(struct lists *lists, uint32_t block, uint32_t op_index, const uint32_t *known,
                        uint32_t version) {
  const struct onesided_plan *plan = lists->plan;
  const struct onesided_block *own = &plan->blocks[block];
  const struct onesided_op *op = &plan->ops[own->first_op + op_index];
  const struct onesided_place *places = &plan->places[op->first_place];
  TRY(wait_for_known(lists, &lists->lists[block], known, version, op->line));
  for (uint32_t i = 0; i < op->source_count + op->target_count; i++) {
    if (places[i].rank == own->rank) continue;
    struct one_list *helper = &lists->lists[lists_helper(lists, block, places[i].rank)];
    TRY(wait_for_known(lists, helper, known, version, op->line));
  }
  for (uint32_t chunk = 0; chunk < op->chunk_count; chunk++) TRY(lists_move_chunk(lists, block, op, chunk));
  TRY(mark_push(lists, &lists->lists[block], op_index + 1));
  for (uint32_t helper = lists->lists[block].next_helper; helper != 0;
       helper = lists->lists[helper].next_helper)
    TRY(mark_push(lists, &lists->lists[helper], op_index + 1));
  return ncclSuccess;
}

/* ---- channels ---- */

/* Which channels are used: by a connection, a bit each, from rank to rank; and how often on a rank. */
struct taken {
  uint64_t *connections;
  uint8_t (*places)[PLAN_CHANNELS_MAX];
  uint32_t rank_count;
};

static uint64_t *connection(const struct taken *taken, uint32_t from, uint32_t to) {
  return &taken->connections[(size_t)from * taken->rank_count + to];
}

static bool channel_is_free(const struct taken *taken, const struct lists *lists, const struct one_list *list,
                            uint32_t channel) {
  if (taken->places[list->rank][channel] == PLAN_BATCH_WORKS_MAX) return false;
  for (uint32_t i = 0; i < list->send_count; i++)
    if (*connection(taken, list->rank, list->send_peer[i]) >> channel & 1) return false;
  for (uint32_t i = 0; i < list->recv_count; i++)
    if (*connection(taken, list->recv_peer[i], list->rank) >> channel & 1) return false;
  for (uint32_t i = list->next_helper; i != 0; i = lists->lists[i].next_helper)
    if (taken->places[lists->lists[i].rank][channel] == PLAN_BATCH_WORKS_MAX) return false;
  return true;
}

static void channel_take(const struct taken *taken, struct lists *lists, struct one_list *list,
                         uint32_t channel) {
  list->channel = channel;
  taken->places[list->rank][channel] += 1;
  for (uint32_t i = 0; i < list->send_count; i++)
    *connection(taken, list->rank, list->send_peer[i]) |= UINT64_C(1) << channel;
  for (uint32_t i = 0; i < list->recv_count; i++)
    *connection(taken, list->recv_peer[i], list->rank) |= UINT64_C(1) << channel;
  for (uint32_t i = list->next_helper; i != 0; i = lists->lists[i].next_helper) {
    lists->lists[i].channel = channel;
    taken->places[lists->lists[i].rank][channel] += 1;
  }
}

/* A block's number is its channel, if that is free: blocks then run concurrently if possible. */
static ncclResult_t channels_choose(struct lists *lists, const struct taken *taken) {
  const struct onesided_plan *plan = lists->plan;
  uint32_t number = 0;
  for (uint32_t i = 0; i < plan->block_count; i++) {
    struct one_list *list = &lists->lists[i];
    uint32_t tried = 0;
    number = i > 0 && plan->blocks[i - 1].rank == list->rank ? number + 1 : 0;
    while (tried < PLAN_CHANNELS_MAX &&
           !channel_is_free(taken, lists, list, (number + tried) % PLAN_CHANNELS_MAX))
      tried++;
    if (tried == PLAN_CHANNELS_MAX)
      return custom_fail(plan->build, plan->blocks[i].line,
                         "no channel is left for block %u of rank %u: expected fewer blocks, or fewer that "
                         "touch one rank's memory",
                         number, list->rank);
    channel_take(taken, lists, list, (number + tried) % PLAN_CHANNELS_MAX);
  }
  return ncclSuccess;
}

static ncclResult_t channels_give(struct lists *lists) {
  const uint32_t ranks = lists->plan->build->schedule->rank_count;
  struct taken taken = {NULL, NULL, ranks};
  taken.connections = (uint64_t *)os_alloc((size_t)ranks * ranks * sizeof *taken.connections);
  taken.places = (uint8_t(*)[PLAN_CHANNELS_MAX])os_alloc(ranks * sizeof *taken.places);
  const bool enough = taken.connections != NULL && taken.places != NULL;
  const ncclResult_t result = enough ? channels_choose(lists, &taken) : out_of_memory(lists);
  os_free(taken.connections);
  os_free(taken.places);
  return result;
}

/* ---- to the builder ---- */

static ncclResult_t list_build(const struct lists *lists, const struct one_list *list) {
  struct custom_build *build = lists->plan->build;
  const uint32_t line = lists->plan->blocks[list->block].line;
  struct custom_block *block;
  uint32_t link;
  TRY(custom_add_block(build, list->rank, list->channel, line, &block));
  for (uint32_t i = 0; i < list->recv_count; i++)
    TRY(custom_add_link(build, false, list->recv_peer[i], line, &link));
  for (uint32_t i = 0; i < list->send_count; i++)
    TRY(custom_add_link(build, true, list->send_peer[i], line, &link));
  for (uint32_t i = 0; i < list->step_count; i++)
    TRY(custom_add_step(build, &list->steps[i].step, 1, list->steps[i].line));
  return ncclSuccess;
}

ncclResult_t lists_build(struct lists *lists) {
  TRY(channels_give(lists));
  for (uint32_t rank = 0; rank < lists->plan->build->schedule->rank_count; rank++)
    for (uint32_t i = 0; i < lists->ranks[rank].count; i++)
      TRY(list_build(lists, &lists->lists[lists->ranks[rank].lists[i]]));
  return ncclSuccess;
}
