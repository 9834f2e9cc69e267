/* plans.c: the plans of a schedule, without a communicator; and the schedule of a set of plans. */
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/custom/custom_build.h"
#include "core/plan/plan.h"
#include "schedule/algo.h"
#include "schedules/schedules.h"

/* ---- a plan without a communicator ---- */

#define PLAN_ELEMENT_BYTES 4

/* Addresses that are never dereferenced: they only show whether a call is in place. */
static void op_place(const struct custom_schedule *schedule, uint32_t rank, struct plan_op *op) {
  static uint8_t somewhere[2];
  const size_t own = (size_t)rank * op->count * PLAN_ELEMENT_BYTES;
  op->in = op->out = &somewhere[0];
  if ((schedule->places & CUSTOM_OUT_OF_PLACE) != 0) op->in = &somewhere[1];
  else if (op->func == FUNC_ALL_GATHER) op->in = (const void *)((uintptr_t)op->out + own);
  else if (op->func == FUNC_REDUCE_SCATTER) op->out = (void *)((uintptr_t)op->in + own);
}

ncclResult_t custom_plan(const struct custom_schedule *schedule, uint32_t rank, size_t count,
                         const struct plan_limits *limits, struct plan *plan) {
  struct plan_request request;
  struct plan_op op;
  struct plan fresh;
  plan_request_begin(&request, schedule->rank_count, NULL);
  memset(&op, 0, sizeof op);
  op.func = schedule->func;
  op.dtype = ncclFloat32;
  op.op = OP_SUM;
  op.peer = schedule->root;
  op.count = count;
  op_place(schedule, rank, &op);
  request.rank = rank;
  request.settings.limits = *limits;
  request.settings.limits.algos |= 1u << ALGO_CUSTOM;
  request.settings.limits.links = LIST_LINKS_MAX;
  request.settings.algo_mask[op.func] = 1u << ALGO_CUSTOM;
  request.custom = schedule;
  request.ops = &op;
  request.op_count = 1;
  TRY(plan_build(&request, &fresh));
  for (uint32_t i = 0; i < fresh.work_count; i++) fresh.buffers[i].in = fresh.buffers[i].out = NULL;
  *plan = fresh;
  return ncclSuccess;
}

void custom_plans_free(const struct custom_schedule *schedule, struct plan *plans) {
  for (uint32_t rank = 0; plans != NULL && rank < schedule->rank_count; rank++) plan_free(&plans[rank]);
  os_free(plans);
}

ncclResult_t custom_plans(const struct custom_schedule *schedule, size_t count,
                          const struct plan_limits *limits, struct plan **plans) {
  struct plan *fresh = (struct plan *)os_alloc(schedule->rank_count * sizeof *fresh);
  if (fresh == NULL) return log_no_memory("the plans of %u ranks", schedule->rank_count);
  for (uint32_t rank = 0; rank < schedule->rank_count; rank++) {
    const ncclResult_t result = custom_plan(schedule, rank, count, limits, &fresh[rank]);
    if (result == ncclSuccess) continue;
    custom_plans_free(schedule, fresh);
    return result;
  }
  *plans = fresh;
  return ncclSuccess;
}

ncclResult_t custom_slots_min(const struct custom_schedule *schedule, size_t count,
                              const struct plan_limits *limits, uint32_t most,
                              bool (*ends)(void *argument, const struct plan *plans, uint32_t rank_count),
                              void *argument, uint32_t *slots) {
  struct plan_limits tried = *limits;
  for (tried.slots = 1; tried.slots <= most; tried.slots++) {
    struct plan *plans = NULL;
    TRY(custom_plans(schedule, count, &tried, &plans));
    const bool good = ends(argument, plans, schedule->rank_count);
    custom_plans_free(schedule, plans);
    if (!good) continue;
    *slots = tried.slots;
    return ncclSuccess;
  }
  *slots = 0;
  return ncclSuccess;
}

/* ---- from plans to a schedule ---- */

static size_t common_divisor(size_t a, size_t b) {
  while (b != 0) {
    const size_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

typedef ncclResult_t visit_step(void *argument, const struct work *work, const struct step *step);

/* Of a step with a block for each link, the part that moves one block, over no link yet. */
static struct step block_step(const struct step *step, uint32_t block) {
  struct step single = *step;
  single.flags &= ~(uint32_t)STEP_EACH;
  single.recv_links = single.send_links = single.own_index = 0;
  single.count = step_block_count(step, block);
  single.in_offset += step_block_offset(step, block);
  single.out_offset += step_block_offset(step, block);
  return single;
}

/* Visits a step with a block for each link as steps of one link each, which is all that lists have. Begins
 * with the next rank, so that at any time each rank sends to a different one. */
static ncclResult_t each_visit(const struct work *work, const struct step *step, void *argument,
                               visit_step *visit) {
  const uint32_t keeps = STEP_COPY_IN | STEP_KEEP, own = step->own_index;
  if ((step->flags & keeps) == keeps) {
    struct step copy = block_step(step, own);
    copy.flags &= ~(uint32_t)(STEP_SEND | STEP_SEND_FINAL);
    TRY(visit(argument, work, &copy));
  }
  for (uint32_t turn = 1; turn < work->rank_count; turn++) {
    const uint32_t block = (own + turn) % work->rank_count;
    const link_set link = link_bit(block < own ? block : block - 1);
    struct step single = block_step(step, block);
    single.send_links = step->send_links & link;
    single.recv_links = step->recv_links & link;
    if (single.send_links != 0) single.flags &= ~(uint32_t)STEP_KEEP;
    if ((single.send_links | single.recv_links) != 0) TRY(visit(argument, work, &single));
  }
  return ncclSuccess;
}

/* In lists every input is sent: they show none. */
#define STEPS_SHOWN ((uint32_t)(STEP_SEND_SHOWN | STEP_RECV_SHOWN))

/* Calls `visit` for every step of every work of a plan, until it fails. */
static ncclResult_t plan_each_step(const struct plan *plan, void *argument, visit_step *visit) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    struct algo_iter it;
    struct step step;
    TRY(visit(argument, &plan->works[i], NULL));
    memset(&it, 0, sizeof it); /* the compiler cannot see that a work has one family throughout */
    algo_begin(&it, &plan->works[i]);
    while (algo_next(&it, &plan->works[i], &step)) {
      step.flags &= ~STEPS_SHOWN;
      TRY(step_is_each(&step) ? each_visit(&plan->works[i], &step, argument, visit)
                              : visit(argument, &plan->works[i], &step));
    }
  }
  return ncclSuccess;
}

/* The largest chunk of which all places and sizes are multiples. */
static ncclResult_t visit_grid(void *argument, const struct work *work, const struct step *step) {
  size_t *grid = (size_t *)argument;
  *grid = common_divisor(*grid, work->count);
  if (step == NULL) return ncclSuccess;
  *grid = common_divisor(*grid, step->count);
  if (step->flags & STEP_COPY_IN) *grid = common_divisor(*grid, step->in_offset);
  if (step->flags & STEP_KEEP) *grid = common_divisor(*grid, step->out_offset);
  return ncclSuccess;
}

struct plan_copy {
  struct custom_build build;
  size_t grid;
};

static ncclResult_t copy_work(struct plan_copy *copy, const struct work *work) {
  struct custom_block *block;
  if (work->conn_index != CONN_COLLECTIVE || (work->flags & (WORK_FUSED | WORK_PART)) != 0)
    return custom_fail(
        &copy->build, 0,
        "its works go over a switch or are fused, which lists do not: expected another algorithm");
  TRY(custom_add_block(&copy->build, work->rank, work->channel_index, 0, &block));
  block->recv_count = work->recv_count;
  block->send_count = work->send_count;
  memcpy(block->recv_peer, work->recv_peer, work->recv_count * sizeof *block->recv_peer);
  memcpy(block->send_peer, work->send_peer, work->send_count * sizeof *block->send_peer);
  return ncclSuccess;
}

static ncclResult_t visit_copy(void *argument, const struct work *work, const struct step *step) {
  struct plan_copy *copy = (struct plan_copy *)argument;
  if (step == NULL) return copy_work(copy, work);
  struct list_step row;
  if (step->flags & (STEP_RECV_MORE | STEP_SEND_MORE | STEP_SEND_ADD | STEP_PART))
    return custom_fail(&copy->build, 0,
                       "its steps share slots, which lists do not: expected another algorithm");
  memset(&row, 0, sizeof row);
  row.flags = step->flags & ~(uint32_t)(STEP_SEND_FINAL | STEP_RECV_FINAL);
  row.recv_links = (uint16_t)step->recv_links;
  row.send_links = (uint16_t)step->send_links;
  row.own_index = (uint16_t)step->own_index;
  if (row.flags & STEP_COPY_IN) row.in_chunk = (uint32_t)(step->in_offset / copy->grid);
  if (row.flags & STEP_KEEP) row.out_chunk = (uint32_t)(step->out_offset / copy->grid);
  return custom_add_step(&copy->build, &row, (uint32_t)(step->count / copy->grid), 0);
}

static ncclResult_t copy_plans(struct plan_copy *copy, const struct plan *plans, uint32_t rank_count) {
  struct custom_schedule *schedule = copy->build.schedule;
  const struct work *work = plans[0].works;
  for (uint32_t rank = 0; rank < rank_count; rank++)
    TRY(plan_each_step(&plans[rank], &copy->grid, visit_grid));
  if (work->algo == ALGO_CUSTOM || work->func > FUNC_ALL_REDUCE)
    return custom_fail(&copy->build, 0, "expected the plan of a collective that no schedule made");
  if (work->count / copy->grid > CUSTOM_CHUNKS_MAX)
    return custom_fail(&copy->build, 0,
                       "its steps cut the count into more than %d chunks: expected a count of "
                       "even chunks",
                       CUSTOM_CHUNKS_MAX);
  schedule->func = work->func;
  schedule->protos = (uint8_t)(1u << work->proto);
  schedule->places = work->flags & WORK_IN_PLACE ? CUSTOM_IN_PLACE : CUSTOM_IN_PLACE | CUSTOM_OUT_OF_PLACE;
  schedule->rank_count = rank_count;
  schedule->root = work->root;
  schedule->chunk_count = (uint32_t)(work->count / copy->grid);
  for (uint32_t rank = 0; rank < rank_count; rank++) TRY(plan_each_step(&plans[rank], copy, visit_copy));
  return ncclSuccess;
}

ncclResult_t custom_of_plans(const char *name, const struct plan *plans, uint32_t rank_count,
                             struct custom_schedule **schedule) {
  struct plan_copy copy;
  memset(&copy, 0, sizeof copy);
  TRY(custom_start(name, &copy.build));
  strncpy(copy.build.schedule->name, name, sizeof copy.build.schedule->name - 1);
  if (plans[0].work_count == 0)
    return custom_finish(&copy.build, custom_fail(&copy.build, 0, "the plan has no steps"), schedule);
  return custom_finish(&copy.build, copy_plans(&copy, plans, rank_count), schedule);
}
