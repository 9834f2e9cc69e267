/* replay_break.c: breakpoints. A place with a step is reached by the event after which a lane has taken that
 * many steps; one with a channel, when a channel begins its part of the operation; any other, when a rank
 * begins the operation. So whether an event stops a run depends on that event alone, however the run came
 * there. */
#include "replay/replay_session.h"

#define BREAKS_MOST 64
#define LANES_MOST 64 /* with an event in one event of the scheduler */

struct breakpoint {
  uint32_t number;
  struct replay_place place;
  uint64_t event;
  char words[128];
};
static struct breakpoint breaks[BREAKS_MOST];
static uint32_t break_count, last_number;
static uint32_t reached;                      /* number of the breakpoint that this event came to */
static struct trace_record moved[LANES_MOST]; /* records of lanes in this event */
static uint32_t moved_count;

/* ---- matching ---- */

static const struct device_comm *comm_of(const struct trace_record *record) {
  if (record->comm == 0 || record->comm > world.replay->comm_count) return NULL;
  const uint32_t c = record->comm - 1;
  return record->rank < world.replay->comms[c].rank_count ? world.ranks[c][record->rank].device : NULL;
}

static const struct emu_kernel_run *run_of(const struct device_comm *comm, uint64_t turn) {
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    if (run->launch->comm == comm && run->turn == turn) return run;
  return NULL;
}

/* A work is part of the place's operation, and on its channel and lane. */
static bool place_has_work(const struct replay_place *place, const struct emu_kernel_run *run,
                           const struct work *work, uint32_t lane) {
  const uint64_t sequence = run->first_sequence + work->op_sequence;
  const uint32_t func = operation_func(run->launch->comm, sequence, work->func);
  return (place->channel == REPLAY_NONE || work->channel_index == place->channel) &&
         (place->lane == REPLAY_NONE || lane == place->lane) &&
         (place->sequence == UINT64_MAX || sequence == place->sequence) &&
         (place->func == REPLAY_NONE || func == place->func);
}

static bool batch_has(const struct replay_place *place, const struct emu_kernel_run *run, uint64_t index) {
  if (index >= run->launch->plan.batch_count) return false;
  const struct plan_batch *batch = &run->launch->plan.batches[index];
  for (uint32_t i = 0; i < batch->work_count; i++)
    if (place_has_work(place, run, &run->launch->plan.works[batch->first_work + i], i)) return true;
  return false;
}

static bool kernel_begins(const struct replay_place *place, const struct trace_record *record,
                          const struct device_comm *comm) {
  const struct emu_kernel_run *run = run_of(comm, record->value);
  for (uint32_t i = 0; run != NULL && i < run->launch->plan.work_count; i++)
    if (place_has_work(place, run, &run->launch->plan.works[i], place->lane)) return true;
  return false;
}

static bool record_reaches(const struct breakpoint *stop, const struct trace_record *record) {
  const struct replay_place *place = &stop->place;
  const bool channel = place->channel != REPLAY_NONE || place->lane != REPLAY_NONE;
  if (stop->event != UINT64_MAX) return emu_event_count() == stop->event;
  const struct device_comm *comm = comm_of(record);
  if (comm == NULL || !place_has_rank(place, comm) || record->action != 0) return false;
  if (record->kind == TRACE_KERNEL && !channel && place->step == UINT64_MAX)
    return kernel_begins(place, record, comm);
  const bool begins = place->step == 0 || (channel && place->step == UINT64_MAX);
  const struct emu_kernel_run *run = run_of(comm, comm->turn);
  return record->kind == TRACE_BLOCK && begins && run != NULL && batch_has(place, run, record->value);
}

void break_watch(const struct trace_record *record) {
  if (record->kind == TRACE_LANE && moved_count < LANES_MOST) moved[moved_count++] = *record;
  for (uint32_t i = 0; i < break_count && reached == 0; i++)
    if (record_reaches(&breaks[i], record)) reached = breaks[i].number;
}

/* The lane of a record, after its event; NULL: it has ended. */
static struct emu_lane *lane_of(const struct trace_record *record) {
  const struct device_comm *comm = comm_of(record);
  const struct emu_kernel_run *run = comm != NULL ? run_of(comm, comm->turn) : NULL;
  for (uint32_t b = 0; run != NULL && b < run->launch->block_count; b++) {
    struct emu_block *block = &run->launch->blocks[b];
    if (record->lane >= block->lane_count) continue;
    struct emu_lane *emu = &block->lanes[record->lane];
    if (emu->bound && emu->lane.work->channel_index == record->channel) return emu;
  }
  return NULL;
}

static bool lane_reaches(const struct replay_place *place, const struct trace_record *record) {
  const struct device_comm *comm = comm_of(record);
  if (place->step == UINT64_MAX || place->step == 0 || comm == NULL || !place_has_rank(place, comm))
    return false;
  const struct emu_lane *emu = lane_of(record);
  return emu != NULL && record->value >> 32 < place->step && emu->lane.steps_done >= place->step &&
         place_has_work(place, emu->block->run, emu->lane.work, record->lane);
}

uint32_t break_take(void) {
  for (uint32_t i = 0; i < break_count && reached == 0; i++)
    for (uint32_t k = 0; k < moved_count && reached == 0; k++)
      if (breaks[i].event == UINT64_MAX && lane_reaches(&breaks[i].place, &moved[k]))
        reached = breaks[i].number;
  for (uint32_t i = 0; i < break_count && reached == 0; i++)
    if (breaks[i].event == emu_event_count()) reached = breaks[i].number;
  const uint32_t number = reached;
  reached = moved_count = 0;
  return number;
}

/* ---- the list ---- */

bool break_add(const struct replay_place *place, uint64_t event, const char *words,
               char why[REPLAY_TEXT_BYTES]) {
  if (break_count == BREAKS_MOST) {
    replay_say(why, "there are %d breakpoints already; `delete` some", BREAKS_MOST);
    return false;
  }
  struct breakpoint *stop = &breaks[break_count++];
  *stop = (struct breakpoint){.number = ++last_number, .place = *place, .event = event};
  snprintf(stop->words, sizeof stop->words, "%s", words);
  printf("breakpoint %u: %s\n", stop->number, stop->words);
  return true;
}

bool break_delete(uint64_t number) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < break_count; i++)
    if (number != 0 && breaks[i].number != number) breaks[kept++] = breaks[i];
  const bool found = kept < break_count || number == 0;
  break_count = kept;
  return found;
}

void break_print(void) {
  if (break_count == 0) puts("no breakpoints");
  for (uint32_t i = 0; i < break_count; i++) printf("breakpoint %u: %s\n", breaks[i].number, breaks[i].words);
}

bool break_any(void) { return break_count > 0; }
