/* onesided.c: simulates a plan of one-sided operations once, block by block as far as each can go, and
 * records what every block knows: how many operations of each other block are done. If several blocks can
 * raise a counter, a waiting block learns only of raises that must have happened in every order of events. */
#include "schedules/onesided.h"

#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

/* Limit of the numbers that all knowledge together takes: 256 MiB. */
#define KNOWLEDGE_MAX (1u << 26)
#define NOBODY UINT32_MAX

/* What a block knew at some time. */
struct moment {
  uint32_t block, version, op_count; /* op_count: operations of the block itself that were done */
  uint32_t ordinal, of_block;        /* of a raise */
  bool relaxed;
};

struct moments {
  struct moment *items;
  uint32_t count, capacity;
};

/* A block that is not done; queues of blocks are chained by `next`. */
struct runner {
  uint32_t version, op_index, next;
};

struct run {
  struct onesided_plan *plan;
  struct lists *lists;
  struct runner *runners;
  uint32_t ready, ready_last;
  uint32_t **versions; /* what is known, by block; version 0: nothing */
  uint32_t version_count, version_capacity;
  struct moments *raises;                                       /* by counter, in the order of the run */
  uint32_t *awaited;                                            /* by counter: how often it was lowered */
  uint32_t *counter_waiters, *packet_waiters, *barrier_waiters; /* first of a chain; by rank: packets */
  uint32_t *barrier_arrivals;
  uint32_t **writers; /* by rank and chunk of scratch: the moment of its packet, from 1 on; 0: none */
  struct moments packets;
};

void onesided_free(struct onesided_plan *plan) {
  os_free(plan->blocks);
  os_free(plan->ops);
  os_free(plan->places);
  os_free(plan->counters);
  os_free(plan->barriers);
}

static ncclResult_t out_of_memory(const struct run *run) {
  return log_no_memory("%s: a plan of %u operations", run->plan->build->name, run->plan->op_count);
}

/* ---- queues ---- */

static void ready_add(struct run *run, uint32_t block) {
  run->runners[block].next = NOBODY;
  if (run->ready == NOBODY) run->ready = block;
  else run->runners[run->ready_last].next = block;
  run->ready_last = block;
}

static void wait_at(struct run *run, uint32_t *chain, uint32_t block) {
  run->runners[block].next = *chain;
  *chain = block;
}

static void wake_all(struct run *run, uint32_t *chain) {
  uint32_t block = *chain;
  *chain = NOBODY;
  while (block != NOBODY) {
    const uint32_t next = run->runners[block].next;
    ready_add(run, block);
    block = next;
  }
}

/* ---- knowledge ---- */

static ncclResult_t version_add(struct run *run, const uint32_t *from, uint32_t *version) {
  const uint32_t blocks = run->plan->block_count;
  if (run->version_count >= KNOWLEDGE_MAX / blocks)
    return custom_fail(run->plan->build, 0, "its %u blocks wait more than %u times, which is more than fits",
                       blocks, run->version_count);
  if (!array_grow(&run->versions, &run->version_capacity, (uint64_t)run->version_count + 1,
                  sizeof *run->versions))
    return out_of_memory(run);
  uint32_t *fresh = (uint32_t *)os_alloc(blocks * sizeof *fresh);
  if (fresh == NULL) return out_of_memory(run);
  if (from != NULL) memcpy(fresh, from, blocks * sizeof *fresh);
  *version = run->version_count;
  run->versions[run->version_count++] = fresh;
  return ncclSuccess;
}

static bool knows(const struct run *run, const struct runner *runner, uint32_t self,
                  const struct moment *moment) {
  const uint32_t *own = run->versions[runner->version], *other = run->versions[moment->version];
  if (moment->block != self && own[moment->block] < moment->op_count) return false;
  if (moment->version == runner->version) return true;
  for (uint32_t i = 0; i < run->plan->block_count; i++)
    if (i != self && own[i] < other[i]) return false;
  return true;
}

static void raise_to(uint32_t *known, const uint32_t *other, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (known[i] < other[i]) known[i] = other[i];
}

static ncclResult_t learn(struct run *run, uint32_t block, const struct moment *moment) {
  struct runner *runner = &run->runners[block];
  uint32_t version;
  if (knows(run, runner, block, moment)) return ncclSuccess;
  TRY(version_add(run, run->versions[runner->version], &version));
  uint32_t *known = run->versions[version];
  raise_to(known, run->versions[moment->version], run->plan->block_count);
  if (known[moment->block] < moment->op_count) known[moment->block] = moment->op_count;
  runner->version = version;
  return ncclSuccess;
}

/* ---- counters ---- */

static ncclResult_t counter_raise(struct run *run, uint32_t block, const struct onesided_op *op) {
  struct moments *raises = &run->raises[op->object];
  const struct runner *runner = &run->runners[block];
  if (!array_grow(&raises->items, &raises->capacity, (uint64_t)raises->count + 1, sizeof *raises->items))
    return out_of_memory(run);
  raises->items[raises->count++] = (struct moment){.block = block,
                                                   .version = runner->version,
                                                   .op_count = runner->op_index,
                                                   .ordinal = op->ordinal,
                                                   .of_block = op->of_block,
                                                   .relaxed = op->relaxed};
  wake_all(run, &run->counter_waiters[op->object]);
  return ncclSuccess;
}

/* After its nth wait a block knows of n raises minus the counter's initial value. All but of_block of them
 * may be others': the rest are this block's. */
static ncclResult_t counter_learn(struct run *run, uint32_t block, const struct onesided_op *op) {
  const struct onesided_counter *counter = &run->plan->counters[op->object];
  const struct moments *raises = &run->raises[op->object];
  if (op->relaxed || op->ordinal <= counter->initial) return ncclSuccess;
  const uint32_t least = op->ordinal - counter->initial;
  const bool alone = raises->items[0].of_block == counter->raise_count;
  for (uint32_t i = alone ? least - 1 : 0; i < (alone ? least : raises->count); i++) {
    const struct moment *moment = &raises->items[i];
    if (!moment->relaxed &&
        (uint64_t)moment->ordinal + counter->raise_count <= (uint64_t)least + moment->of_block)
      TRY(learn(run, block, moment));
  }
  return ncclSuccess;
}

static ncclResult_t counter_await(struct run *run, uint32_t block, const struct onesided_op *op, bool *done) {
  const struct onesided_counter *counter = &run->plan->counters[op->object];
  *done = (uint64_t)counter->initial + run->raises[op->object].count > run->awaited[op->object];
  if (!*done) {
    wait_at(run, &run->counter_waiters[op->object], block);
    return ncclSuccess;
  }
  run->awaited[op->object] += 1;
  return counter_learn(run, block, op);
}

/* ---- barriers ---- */

/* The last block to arrive learns what all know, and then all know it. */
static ncclResult_t barrier_meet(struct run *run, uint32_t block, const struct onesided_op *op, bool *done) {
  uint32_t *chain = &run->barrier_waiters[op->object], version;
  *done = ++run->barrier_arrivals[op->object] == run->plan->barriers[op->object];
  if (!*done) {
    wait_at(run, chain, block);
    return ncclSuccess;
  }
  run->barrier_arrivals[op->object] = 0;
  TRY(version_add(run, run->versions[run->runners[block].version], &version));
  uint32_t *known = run->versions[version];
  known[block] = run->runners[block].op_index;
  for (uint32_t i = *chain; i != NOBODY; i = run->runners[i].next) {
    raise_to(known, run->versions[run->runners[i].version], run->plan->block_count);
    known[i] = run->runners[i].op_index;
  }
  for (uint32_t i = *chain; i != NOBODY; i = run->runners[i].next) {
    run->runners[i].version = version;
    run->runners[i].op_index += 1;
  }
  run->runners[block].version = version;
  wake_all(run, chain);
  return ncclSuccess;
}

/* ---- moves ---- */

static ncclResult_t packets_await(struct run *run, uint32_t block, const struct onesided_op *op, bool *done) {
  const struct onesided_place *places = &run->plan->places[op->first_place];
  for (uint32_t learning = 0; learning < 2; learning++)
    for (uint32_t i = 0; i < op->source_count; i++) {
      if (places[i].buffer != ONESIDED_SCRATCH) continue;
      const uint32_t *writers = run->writers[places[i].rank];
      for (uint32_t k = 0; k < op->chunk_count; k++) {
        const uint32_t moment = writers[places[i].chunk + k];
        *done = moment != 0;
        if (!*done) {
          wait_at(run, &run->packet_waiters[places[i].rank], block);
          return ncclSuccess;
        }
        if (learning) TRY(learn(run, block, &run->packets.items[moment - 1]));
      }
    }
  return ncclSuccess;
}

static ncclResult_t packets_make(struct run *run, uint32_t block, const struct onesided_op *op) {
  const struct onesided_place *places = &run->plan->places[op->first_place + op->source_count];
  const struct runner *runner = &run->runners[block];
  struct moments *packets = &run->packets;
  if (!array_grow(&packets->items, &packets->capacity, (uint64_t)packets->count + 1, sizeof *packets->items))
    return out_of_memory(run);
  packets->items[packets->count++] =
      (struct moment){.block = block, .version = runner->version, .op_count = runner->op_index + 1};
  for (uint32_t i = 0; i < op->target_count; i++) {
    if (places[i].buffer != ONESIDED_SCRATCH) continue;
    uint32_t *writers = run->writers[places[i].rank];
    for (uint32_t k = 0; k < op->chunk_count; k++) {
      uint32_t *writer = &writers[places[i].chunk + k];
      if (*writer != 0)
        return custom_fail(run->plan->build, op->line,
                           "a second packet for chunk %u of rank %u's scratch: expected one, since a reader "
                           "cannot tell them apart",
                           places[i].chunk + k, places[i].rank);
      *writer = packets->count;
    }
    wake_all(run, &run->packet_waiters[places[i].rank]);
  }
  return ncclSuccess;
}

static ncclResult_t move(struct run *run, uint32_t block, const struct onesided_op *op, bool *done) {
  struct runner *runner = &run->runners[block];
  *done = true;
  if (op->takes_packets) TRY(packets_await(run, block, op, done));
  if (!*done) return ncclSuccess;
  TRY(lists_move(run->lists, block, runner->op_index, run->versions[runner->version], runner->version));
  return op->makes_packets ? packets_make(run, block, op) : ncclSuccess;
}

/* ---- the run ---- */

/* Runs one block as far as it can go. */
static ncclResult_t block_run(struct run *run, uint32_t block) {
  const struct onesided_block *own = &run->plan->blocks[block];
  struct runner *runner = &run->runners[block];
  bool done = true;
  for (; runner->op_index < own->op_count; runner->op_index++) {
    const struct onesided_op *op = &run->plan->ops[own->first_op + runner->op_index];
    switch (op->kind) {
      case ONESIDED_MOVE: TRY(move(run, block, op, &done)); break;
      case ONESIDED_RAISE: TRY(counter_raise(run, block, op)); break;
      case ONESIDED_AWAIT: TRY(counter_await(run, block, op, &done)); break;
      default: TRY(barrier_meet(run, block, op, &done)); break;
    }
    if (!done) return ncclSuccess;
  }
  return ncclSuccess;
}

static ncclResult_t hang_name(const struct run *run) {
  for (uint32_t i = 0; i < run->plan->block_count; i++) {
    const struct onesided_block *block = &run->plan->blocks[i];
    if (run->runners[i].op_index == block->op_count) continue;
    const struct onesided_op *op = &run->plan->ops[block->first_op + run->runners[i].op_index];
    return custom_fail(run->plan->build, op->line, "here rank %u waits without end: %s", block->rank,
                       op->kind == ONESIDED_MOVE      ? "no block writes this packet before"
                       : op->kind == ONESIDED_BARRIER ? "fewer blocks than it names reach this barrier"
                                                      : "no block signals, or releases, once more before");
  }
  return ncclSuccess;
}

static ncclResult_t run_all(struct run *run) {
  uint32_t nothing;
  TRY(version_add(run, NULL, &nothing));
  for (uint32_t i = 0; i < run->plan->block_count; i++) ready_add(run, i);
  while (run->ready != NOBODY) {
    const uint32_t block = run->ready;
    run->ready = run->runners[block].next;
    TRY(block_run(run, block));
  }
  return hang_name(run);
}

static uint32_t *chains_make(uint32_t count) {
  uint32_t *chains = (uint32_t *)os_alloc((count + 1) * sizeof *chains);
  for (uint32_t i = 0; chains != NULL && i < count; i++) chains[i] = NOBODY;
  return chains;
}

static bool writers_make(struct run *run) {
  const struct custom_schedule *schedule = run->plan->build->schedule;
  run->writers = (uint32_t **)os_alloc(schedule->rank_count * sizeof *run->writers);
  if (run->writers == NULL) return false;
  for (uint32_t rank = 0; rank < schedule->rank_count; rank++) {
    run->writers[rank] = (uint32_t *)os_alloc((schedule->scratch_count + 1) * sizeof **run->writers);
    if (run->writers[rank] == NULL) return false;
  }
  return true;
}

static bool run_make(struct run *run) {
  const struct onesided_plan *plan = run->plan;
  run->ready = NOBODY;
  run->runners = (struct runner *)os_alloc(plan->block_count * sizeof *run->runners);
  run->raises = (struct moments *)os_alloc((plan->counter_count + 1) * sizeof *run->raises);
  run->awaited = (uint32_t *)os_alloc((plan->counter_count + 1) * sizeof *run->awaited);
  run->barrier_arrivals = (uint32_t *)os_alloc((plan->barrier_count + 1) * sizeof *run->barrier_arrivals);
  run->counter_waiters = chains_make(plan->counter_count);
  run->barrier_waiters = chains_make(plan->barrier_count);
  run->packet_waiters = chains_make(plan->build->schedule->rank_count);
  return run->runners != NULL && run->raises != NULL && run->awaited != NULL &&
         run->barrier_arrivals != NULL && run->counter_waiters != NULL && run->barrier_waiters != NULL &&
         run->packet_waiters != NULL && writers_make(run);
}

static void run_free(struct run *run) {
  for (uint32_t i = 0; i < run->version_count; i++) os_free(run->versions[i]);
  for (uint32_t i = 0; run->raises != NULL && i < run->plan->counter_count; i++)
    os_free(run->raises[i].items);
  for (uint32_t i = 0; run->writers != NULL && i < run->plan->build->schedule->rank_count; i++)
    os_free(run->writers[i]);
  os_free(run->versions);
  os_free(run->raises);
  os_free(run->writers);
  os_free(run->packets.items);
  os_free(run->runners);
  os_free(run->awaited);
  os_free(run->barrier_arrivals);
  os_free(run->counter_waiters);
  os_free(run->barrier_waiters);
  os_free(run->packet_waiters);
  lists_free(run->lists);
}

ncclResult_t onesided_lower(struct onesided_plan *plan) {
  struct run run;
  memset(&run, 0, sizeof run);
  run.plan = plan;
  ncclResult_t result = run_make(&run) ? lists_begin(plan, &run.lists) : out_of_memory(&run);
  if (result == ncclSuccess) result = run_all(&run);
  if (result == ncclSuccess) result = lists_build(run.lists);
  run_free(&run);
  return result;
}
