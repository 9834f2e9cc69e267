/* stall.c: reports what a rank's lanes wait for to core, which asks other processes about it. guarded: lanes
 * do not run while the world is locked, so they are read directly. threads: only a lane's own thread may read
 * it, so the blocks are asked, and report what their lanes wait for at their next poll without progress. */
#include <string.h>

#include "backends/emu/block.h"
#include "backends/emu/rma.h"

static uint64_t lane_moves(const struct lane *lane) {
  return lane->steps_done * 64 + lane->begun + lane->finished + lane->posted + lane->offer_index +
         lane->line_index + lane->phase;
}

static uint64_t run_moves(const struct emu_kernel_run *run) {
  const struct emu_launch *launch = run->launch;
  uint64_t sum = 0;
  for (uint32_t b = 0; b < launch->block_count; b++) {
    const struct emu_block *block = &launch->blocks[b];
    sum = sum * 31 + __atomic_load_n(&block->batch_index, __ATOMIC_RELAXED);
    if (emu_options()->mode == EMU_THREADS) sum += __atomic_load_n(&block->progress, __ATOMIC_RELAXED);
    else
      for (uint32_t i = 0; i < block->lane_count; i++) sum = sum * 31 + lane_moves(&block->lanes[i].lane);
  }
  return sum;
}

/* False if the lane has ended, can continue, or waits for another lane of its rank. */
static bool lane_waits(struct emu_lane *emu, struct device_wait *result) {
  struct lane_wait wait;
  emu_lane_wait(emu, &wait);
  if (wait.kind == WAIT_NOTHING || wait.kind == WAIT_LIST) return false;
  result->peer = wait.peer;
  result->sends = emu_wait_sends(&wait);
  result->func = emu->lane.work->func;
  result->operation = emu_lane_sequence(emu);
  return true;
}

/* All of the block's lanes belong to the reported batch, because batches do not overlap. */
static void stall_add_reported(struct device_stall *stall, const struct emu_kernel_run *run,
                               const struct emu_block *block) {
  const struct plan_batch *batches = run->launch->plan.batches;
  const uint32_t index = __atomic_load_n(&block->batch_index, __ATOMIC_RELAXED);
  if (index >= block->batch_end || block->reported != run->launch->comm->asked) return;
  if (block->reported_turn != run->turn || block->reported_batch != index) return;
  for (uint32_t i = 0; i < batches[index].work_count && stall->wait_count < DEVICE_WAITS_MOST; i++)
    if (block->lanes[i].waited) stall->waits[stall->wait_count++] = block->lanes[i].said;
}

static void stall_add_seen(struct device_stall *stall, struct emu_block *block) {
  for (uint32_t i = 0; i < block->lane_count && stall->wait_count < DEVICE_WAITS_MOST; i++) {
    struct emu_lane *emu = &block->lanes[i];
    if (emu->bound) stall->wait_count += lane_waits(emu, &stall->waits[stall->wait_count]);
  }
}

void emu_comm_stall(struct device_comm *comm, bool asks, struct device_stall *stall) {
  const bool threads = emu_options()->mode == EMU_THREADS;
  memset(stall, 0, sizeof *stall);
  emu_lock();
  stall->known = true;
  stall->busy = comm->launches != comm->ended;
  stall->moves = __atomic_load_n(&comm->turn, __ATOMIC_RELAXED) * 1024 + comm->launches;
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next) {
    if (run->launch->comm != comm) continue;
    stall->moves = stall->moves * 31 + run_moves(run);
    for (uint32_t b = 0; b < run->launch->block_count; b++) {
      if (threads) stall_add_reported(stall, run, &run->launch->blocks[b]);
      else stall_add_seen(stall, &run->launch->blocks[b]);
    }
  }
  emu_rma_stall(comm, stall);
  if (threads && asks) __atomic_store_n(&comm->asked, comm->asked + 1, __ATOMIC_RELAXED);
  emu_unlock();
}

void emu_block_report(struct emu_block *block) {
  emu_lock();
  for (uint32_t i = 0; i < block->lane_count; i++) {
    struct emu_lane *emu = &block->lanes[i];
    emu->waited = lane_waits(emu, &emu->said);
  }
  block->reported = block->run->launch->comm->asked;
  block->reported_turn = block->run->turn;
  block->reported_batch = block->batch_index;
  emu_unlock();
}
