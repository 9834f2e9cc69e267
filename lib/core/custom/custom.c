/* custom.c: schedules that a user wrote, from file to plan: which reader a file is for, which calls a
 * schedule can carry, and the works of a rank. Knows nothing of the formats. */
#include "core/custom/custom.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/custom/custom_build.h"
#include "core/plan/plan.h"
#include "schedule/algo.h"

/* ---- reading ---- */

void custom_free(struct custom_schedule *schedule) {
  if (schedule == NULL) return;
  os_free(schedule->blocks);
  os_free(schedule->first_block);
  os_free(schedule->steps);
  os_free(schedule);
}

ncclResult_t custom_finish(struct custom_build *build, ncclResult_t result,
                           struct custom_schedule **schedule) {
  if (result == ncclSuccess) result = custom_settle(build);
  if (result == ncclSuccess) *schedule = build->schedule;
  else custom_free(build->schedule);
  os_free(build->drafts);
  os_free(build->rows);
  return result;
}

ncclResult_t custom_start(const char *name, struct custom_build *build) {
  memset(build, 0, sizeof *build);
  build->name = name;
  build->schedule = (struct custom_schedule *)os_alloc(sizeof *build->schedule);
  if (build->schedule == NULL) return log_no_memory("%s: a schedule", name);
  build->schedule->max_bytes = SIZE_MAX;
  return ncclSuccess;
}

/* The first letter behind blanks: XML begins with an angle bracket, JSON with a brace. */
static char text_begin(const char *text) {
  if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
  while (*text == ' ' || *text == '\t' || *text == '\r' || *text == '\n') text++;
  return *text;
}

ncclResult_t custom_parse(const char *name, const char *text, size_t bytes,
                          struct custom_schedule **schedule) {
  struct custom_build build;
  if (bytes > CUSTOM_FILE_BYTES_MAX)
    return log_fail(ncclInvalidUsage, "%s: %zu bytes, and a schedule has at most %u", name, bytes,
                    CUSTOM_FILE_BYTES_MAX);
  char *copy = (char *)os_alloc(bytes + 1);
  if (copy == NULL) return log_no_memory("%s: its %zu bytes", name, bytes);
  memcpy(copy, text, bytes);
  ncclResult_t result = custom_start(name, &build);
  if (result == ncclSuccess) {
    const char begin = text_begin(copy);
    if (begin == '<') result = custom_msccl_parse(&build, copy, bytes);
    else if (begin == '{') result = custom_mscclpp_parse(&build, copy, bytes);
    else result = custom_text_parse(&build, copy, bytes);
    result = custom_finish(&build, result, schedule);
  }
  os_free(copy);
  return result;
}

ncclResult_t custom_read(const char *path, struct custom_schedule **schedule) {
  size_t bytes = 0;
  char *text = os_file_read_most(path, CUSTOM_FILE_BYTES_MAX, &bytes);
  if (text == NULL)
    return log_fail(ncclSystemError, "%s: the schedule cannot be read: %s", path, strerror(errno));
  const ncclResult_t result = custom_parse(path, text, bytes, schedule);
  os_free(text);
  return result;
}

/* ---- sharing ---- */

/* Schedules in use, each read once: every rank of a process asks for the same file. */
struct custom_shared {
  struct custom_shared *next;
  char *path;
  struct custom_schedule *schedule;
  uint32_t users;
};

static os_mutex shared_mutex = OS_MUTEX_INITIALIZER;
static struct custom_shared *shared_list;

static ncclResult_t shared_read(const char *path, struct custom_shared **result) {
  struct custom_shared *fresh = (struct custom_shared *)os_alloc(sizeof *fresh);
  if (fresh != NULL) fresh->path = os_strdup(path);
  if (fresh == NULL || fresh->path == NULL) {
    os_free(fresh);
    return log_no_memory("%s: a schedule", path);
  }
  const ncclResult_t read = custom_read(path, &fresh->schedule);
  if (read != ncclSuccess) {
    os_free(fresh->path);
    os_free(fresh);
    return read;
  }
  fresh->next = shared_list;
  shared_list = *result = fresh;
  return ncclSuccess;
}

ncclResult_t custom_share(const char *path, const struct custom_schedule **schedule) {
  os_mutex_lock(&shared_mutex);
  struct custom_shared *shared = shared_list;
  while (shared != NULL && strcmp(shared->path, path) != 0) shared = shared->next;
  const ncclResult_t result = shared == NULL ? shared_read(path, &shared) : ncclSuccess;
  if (result == ncclSuccess) {
    shared->users += 1;
    *schedule = shared->schedule;
  }
  os_mutex_unlock(&shared_mutex);
  return result;
}

void custom_release(const struct custom_schedule *schedule) {
  if (schedule == NULL) return;
  os_mutex_lock(&shared_mutex);
  struct custom_shared **place = &shared_list;
  while ((*place)->schedule != schedule) place = &(*place)->next;
  struct custom_shared *shared = *place;
  shared->users -= 1;
  if (shared->users == 0) {
    *place = shared->next;
    custom_free(shared->schedule);
    os_free(shared->path);
    os_free(shared);
  }
  os_mutex_unlock(&shared_mutex);
}

/* ---- calls ---- */

uint8_t custom_func(const struct custom_schedule *schedule) { return schedule->func; }

static const char *forbid_size(const struct custom_schedule *schedule, const struct work *work) {
  const bool all = work->func == FUNC_ALL_GATHER || work->func == FUNC_REDUCE_SCATTER;
  const size_t bytes = work->count * work->element_bytes * (all ? work->rank_count : 1);
  if (bytes < schedule->min_bytes || bytes > schedule->max_bytes)
    return "the schedule is for calls of another size";
  if (schedule->even && work->count % schedule->chunk_count != 0)
    return "the schedule needs a count that is a multiple of its chunks";
  return NULL;
}

const char *custom_forbid(const struct custom_schedule *schedule, const struct work *work) {
  const bool in_place = (work->flags & WORK_IN_PLACE) != 0;
  const bool staged = work->op == OP_PRE_MUL_SUM || work->op == OP_SUM_POST_DIV;
  if (work->func != schedule->func) return "the schedule is for another collective";
  if (work->rank_count != schedule->rank_count) return "the schedule is for another number of ranks";
  if (((schedule->protos >> work->proto) & 1) == 0) return "the schedule is for another protocol";
  if ((work->func == FUNC_BROADCAST || work->func == FUNC_REDUCE) && work->root != schedule->root)
    return "the schedule is for another root";
  if (in_place && (schedule->places & CUSTOM_IN_PLACE) == 0)
    return "the schedule is for calls out of place alone";
  if (!in_place && (schedule->places & CUSTOM_OUT_OF_PLACE) == 0)
    return "the schedule is for calls in place alone";
  if (staged && !schedule->staged)
    return "the schedule does not say where its sums are finished, which averages need";
  return forbid_size(schedule, work);
}

uint32_t custom_links_most(const struct custom_schedule *schedule) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < schedule->block_count; i++) {
    const struct custom_block *block = &schedule->blocks[i];
    if (block->recv_count > most) most = block->recv_count;
    if (block->send_count > most) most = block->send_count;
  }
  return most;
}

bool custom_work(const struct custom_schedule *schedule, uint32_t index, struct work *work) {
  const uint32_t first = schedule->first_block[work->rank];
  if (index >= schedule->first_block[work->rank + 1] - first) return false;
  const struct custom_block *block = &schedule->blocks[first + index];
  work->algo = ALGO_CUSTOM;
  work->chunk_steps = work->slice_steps = 1;
  work->channel_index = (uint16_t)block->channel_index;
  work->role = index;
  work->list = &block->list;
  work->part_offset = 0;
  work->part_count = work->count;
  work->last_chunk_count = list_grid_count(&block->list, work->count, work->element_bytes);
  work->chunk_count = size_min(work->chunk_count, work->last_chunk_count);
  work->recv_count = block->recv_count;
  work->send_count = block->send_count;
  memcpy(work->recv_peer, block->recv_peer, sizeof work->recv_peer);
  memcpy(work->send_peer, block->send_peer, sizeof work->send_peer);
  return true;
}

size_t custom_scratch_bytes(const struct custom_schedule *schedule, size_t count, uint32_t element_bytes) {
  if (schedule->block_count == 0) return 0;
  const size_t grid = list_grid_count(&schedule->blocks[0].list, count, element_bytes);
  return size_round_up(schedule->scratch_count * grid * element_bytes, LIST_PAGE_BYTES);
}

bool custom_needs_scratch(const struct custom_schedule *schedule) {
  return schedule->waits || schedule->scratch_count > 0;
}

/* ---- a plan without a communicator ---- */

#define PLAN_ELEMENT_BYTES 4

/* Addresses that nobody follows: they say whether a call is in place. */
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
  memset(&request, 0, sizeof request);
  memset(&op, 0, sizeof op);
  op.func = schedule->func;
  op.dtype = ncclFloat32;
  op.op = OP_SUM;
  op.peer = schedule->root;
  op.count = count;
  op_place(schedule, rank, &op);
  request.rank = rank;
  request.rank_count = schedule->rank_count;
  request.limits = *limits;
  request.limits.algos |= 1u << ALGO_CUSTOM;
  request.limits.links = STEP_LINKS_MAX;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request.algo_mask[func] = 1u << ALGO_CUSTOM;
    request.proto_mask[func] = (1u << PROTO_COUNT) - 1;
  }
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

/* ---- from plans ---- */

static size_t common_divisor(size_t a, size_t b) {
  while (b != 0) {
    const size_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Calls `visit` for every step of every work of a plan, until it fails. */
static ncclResult_t plan_each_step(const struct plan *plan, void *argument,
                                   ncclResult_t (*visit)(void *argument, const struct work *work,
                                                         const struct step *step)) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    struct algo_iter it;
    struct step step;
    TRY(visit(argument, &plan->works[i], NULL));
    memset(&it, 0, sizeof it); /* a compiler cannot see that a work has one family throughout */
    algo_begin(&it, &plan->works[i]);
    while (algo_next(&it, &plan->works[i], &step)) TRY(visit(argument, &plan->works[i], &step));
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
