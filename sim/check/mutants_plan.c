/* mutants_plan.c: plans that are wrong on one rank, or on all, and executors that break their protocol. */
#include "check/check.h"
#include "check/mutation.h"
#include "schedule/switch.h"

/* The victim's works. */
#define EACH_WORK(work, setup, rank)                                                                         \
  for (struct work *work = (setup)->plans[rank].works, *work##_end = work + (setup)->plans[rank].work_count; \
       work < work##_end; work++)
#define EACH_RANK(rank, setup) for (uint32_t rank = 0; rank < (setup)->input.rank_count; rank++)

static void swap(uint32_t *a, uint32_t *b) {
  const uint32_t kept = *a;
  *a = *b;
  *b = kept;
}

static bool sends_elsewhere(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if (work->send_count == 0) continue;
    do work->send_peer[0] = (work->send_peer[0] + 1) % m->rank_count;
    while (work->send_peer[0] == m->victim);
    return true;
  }
  return false;
}
static bool receives_elsewhere(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if (work->recv_count == 0) continue;
    do work->recv_peer[0] = (work->recv_peer[0] + 1) % m->rank_count;
    while (work->recv_peer[0] == m->victim);
    return true;
  }
  return false;
}
static bool receivers_swapped(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if (work->send_count < 2) continue;
    swap(&work->send_peer[0], &work->send_peer[1]);
    return true;
  }
  return false;
}
static bool senders_swapped(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if (work->recv_count < 2) continue;
    swap(&work->recv_peer[0], &work->recv_peer[1]);
    return true;
  }
  return false;
}
static bool parent_and_child(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if (work->send_count == 0 || work->recv_count == 0 || work->send_peer[0] == work->recv_peer[0]) continue;
    swap(&work->send_peer[0], &work->recv_peer[0]);
    return true;
  }
  return false;
}
static bool halves_swapped(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->role == ROLE_WHOLE) continue;
    work->role = work->role == ROLE_UP ? ROLE_DOWN : ROLE_UP;
    any = true;
  }
  return any;
}
static bool ring_index_off(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->ring_ranks == NULL) continue;
    work->ring_index = (work->ring_index + 1) % m->rank_count;
    any = true;
  }
  return any;
}
static bool rank_off(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) work->rank = (work->rank + 1) % m->rank_count;
  return setup->plans[m->victim].work_count > 0;
}
static bool other_root(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->func != FUNC_BROADCAST && work->func != FUNC_REDUCE) continue;
    work->root = (work->root + 1) % m->rank_count;
    any = true;
  }
  return any;
}
static bool part_shifted(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) work->part_offset += 1;
  return setup->plans[m->victim].work_count > 0;
}
static bool parts_shifted(struct mutation *m, struct check_setup *setup) {
  (void)m;
  EACH_RANK(rank, setup) EACH_WORK(work, setup, rank) work->part_offset += 1;
  return true;
}
static bool parts_overlap(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  (void)m;
  EACH_RANK(rank, setup) EACH_WORK(work, setup, rank) {
    if (work->channel_index == 0 || work->part_offset == 0) continue;
    work->part_offset -= 1;
    work->part_count += 1;
    any = true;
  }
  return any;
}
static bool parts_short(struct mutation *m, struct check_setup *setup) {
  (void)m;
  EACH_RANK(rank, setup) EACH_WORK(work, setup, rank) work->part_count -= 1;
  return true;
}
static bool part_short(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) work->part_count -= 1;
  return setup->plans[m->victim].work_count > 0;
}
static bool part_long(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) work->part_count += 1;
  return setup->plans[m->victim].work_count > 0;
}
static bool block_distance(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->func != FUNC_ALL_GATHER && work->func != FUNC_REDUCE_SCATTER) continue;
    work->count += 1;
    any = true;
  }
  return any;
}
static bool chunk_half(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->chunk_count < 2) continue;
    work->chunk_count /= 2;
    any = true;
  }
  return any;
}
static bool chunks_too_large(struct mutation *m, struct check_setup *setup) {
  (void)m;
  EACH_RANK(rank, setup) EACH_WORK(work, setup, rank) {
    work->chunk_count *= 8;
    work->last_chunk_count = work->chunk_count;
  }
  return true;
}
static bool last_chunks_short(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  (void)m;
  EACH_RANK(rank, setup) EACH_WORK(work, setup, rank) {
    if (work->func != FUNC_ALL_REDUCE || work->last_chunk_count < 2) continue;
    if (work->algo != ALGO_RING && work->algo != ALGO_TWO_SHOT) continue;
    work->last_chunk_count /= 2;
    any = true;
  }
  return any;
}
static bool last_chunk_short(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->func != FUNC_ALL_REDUCE || work->last_chunk_count < 2) continue;
    if (work->algo != ALGO_RING && work->algo != ALGO_TWO_SHOT) continue;
    work->last_chunk_count -= 1;
    any = true;
  }
  return any;
}
static bool last_chunks_full(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  (void)m;
  EACH_RANK(rank, setup) EACH_WORK(work, setup, rank) {
    if (work->last_chunk_count == work->chunk_count || work->func != FUNC_ALL_REDUCE) continue;
    if (work->algo != ALGO_RING && work->algo != ALGO_TWO_SHOT) continue;
    work->last_chunk_count = work->chunk_count;
    any = true;
  }
  return any;
}
static bool slices_other(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->proto != PROTO_SIMPLE || work->chunk_steps == 1) continue;
    work->slice_steps = work->slice_steps == work->chunk_steps ? 1 : work->chunk_steps;
    any = true;
  }
  return any;
}
static bool chunk_steps_other(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->proto != PROTO_SIMPLE || work->recv_count + work->send_count == 0) continue;
    work->chunk_steps = (uint8_t)(work->chunk_steps == 1 ? 2 : 1);
    work->slice_steps = 1;
    any = true;
  }
  return any;
}
static bool other_connection(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) work->conn_index ^= 1;
  return setup->plans[m->victim].work_count > 0;
}
static bool other_channel(struct mutation *m, struct check_setup *setup) {
  struct plan *plan = &setup->plans[m->victim];
  if (plan->batch_count == 0) return false;
  for (uint32_t i = 0; i < plan->batch_count; i++) plan->batches[i].channel_index += 1;
  plan->channel_mask <<= 1;
  return true;
}
static bool other_protocol(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->recv_count + work->send_count == 0) continue;
    work->proto = work->proto == PROTO_LL ? PROTO_LL128 : PROTO_LL;
    any = true;
  }
  return any;
}
static bool other_operation(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) work->op_sequence += 1;
  return setup->plans[m->victim].work_count > 0;
}
static bool other_operator(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->conn_index != 0 || !setup->op_rows[0].reduces) continue;
    work->op = OP_MAX;
    any = true;
  }
  return any;
}
static bool in_place_unknown(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if ((work->flags & WORK_IN_PLACE) == 0) continue;
    work->flags &= ~(uint32_t)WORK_IN_PLACE;
    any = true;
  }
  return any;
}
static bool in_place_invented(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if ((work->flags & WORK_IN_PLACE) != 0 || work->conn_index != 0) continue;
    work->flags |= WORK_IN_PLACE;
    any = true;
  }
  return any;
}
static bool flag_dropped(struct mutation *m, struct check_setup *setup, uint32_t flag) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if ((work->flags & flag) == 0) continue;
    work->flags &= ~flag;
    any = true;
  }
  return any;
}
static bool offer_not_taken(struct mutation *m, struct check_setup *setup) {
  return flag_dropped(m, setup, WORK_DIRECT_SEND);
}
static bool offer_not_made(struct mutation *m, struct check_setup *setup) {
  return flag_dropped(m, setup, WORK_DIRECT_RECV);
}
static bool output_hidden(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if ((work->flags & WORK_DIRECT_RECV) == 0) continue;
    work->flags |= WORK_OUTPUT_HIDDEN;
    any = true;
  }
  return any;
}
static bool slots_elsewhere(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->proto != PROTO_SIMPLE) continue;
    work->flags ^= WORK_READS_SLOTS;
    any = true;
  }
  return any;
}
static bool work_missing(struct mutation *m, struct check_setup *setup) {
  struct plan *plan = &setup->plans[m->victim];
  if (plan->batch_count == 0) return false;
  plan->batches[plan->batch_count - 1].work_count -= 1;
  return true;
}
static bool batch_twice(struct mutation *m, struct check_setup *setup) {
  struct plan *plan = &setup->plans[m->victim];
  if (plan->batch_count < 2 || plan->batches[0].channel_index != plan->batches[1].channel_index) return false;
  plan->batches[1] = plan->batches[0];
  return true;
}
static bool batches_swapped(struct mutation *m, struct check_setup *setup) {
  struct plan *plan = &setup->plans[m->victim];
  if (plan->batch_count < 2 || plan->batches[0].channel_index != plan->batches[1].channel_index) return false;
  const struct plan_batch kept = plan->batches[0];
  plan->batches[0] = plan->batches[1];
  plan->batches[1] = kept;
  return true;
}
/* Works that should run concurrently run one after another. */
static bool lanes_in_turn(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  (void)m;
  EACH_RANK(rank, setup) {
    struct plan *plan = &setup->plans[rank];
    if (plan->batch_count != 1 || plan->batches[0].work_count != 2) continue;
    plan->batches[1] = plan->batches[0];
    plan->batches[0].work_count = 1;
    plan->batches[1].first_work += 1;
    plan->batches[1].work_count = 1;
    plan->batch_count = 2;
    any = true;
  }
  return any;
}
static bool one_slot(struct mutation *m, struct check_setup *setup) {
  (void)m;
  EACH_RANK(rank, setup) {
    setup->plans[rank].limits.slots = 1;
    EACH_WORK(work, setup, rank) work->chunk_steps = work->slice_steps = 1;
  }
  return true;
}
static bool no_output(struct mutation *m, struct check_setup *setup) {
  struct plan *plan = &setup->plans[m->victim];
  bool any = false;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    any = any || plan->buffers[i].out != NULL;
    plan->buffers[i].out = NULL;
  }
  return any;
}

/* ---- fused works, aggregated trees ---- */

static bool parts_swapped(struct mutation *m, struct check_setup *setup) {
  struct plan *plan = &setup->plans[m->victim];
  for (uint32_t i = 1; i + 1 < plan->work_count; i++) {
    struct work *a = &plan->works[i], *b = a + 1;
    if ((a->flags & b->flags & WORK_PART) == 0) continue;
    const struct work work = *a;
    const struct plan_buffers buffers = plan->buffers[i];
    *a = *b;
    *b = work;
    plan->buffers[i] = plan->buffers[i + 1];
    plan->buffers[i + 1] = buffers;
    return true;
  }
  return false;
}
static bool part_missing(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if ((work->flags & WORK_FUSED) == 0) continue;
    work->fused_count -= 1;
    return true;
  }
  return false;
}
static bool other_pack(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->algo != ALGO_PAT) continue;
    work->pack = work->pack > 1 ? work->pack / 2 : 2;
    any = true;
  }
  return any;
}

/* ---- switches ---- */

/* The rank that each link to a switch names becomes the next one. */
static bool switch_elsewhere(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    for (uint32_t i = 0; i < work->recv_count; i++) {
      if (!switch_is_behind(work, work->recv_peer[i], false)) continue;
      work->recv_peer[i] = (work->recv_peer[i] + 1) % m->rank_count;
      any = true;
      break;
    }
    for (uint32_t i = 0; i < work->send_count; i++) {
      if (!switch_is_behind(work, work->send_peer[i], true)) continue;
      work->send_peer[i] = (work->send_peer[i] + 1) % m->rank_count;
      any = true;
      break;
    }
  }
  return any;
}
static bool members_swapped(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if (work->role != ROLE_SWITCH || work->recv_count < 2) continue;
    swap(&work->recv_peer[0], &work->recv_peer[1]);
    swap(&work->send_peer[0], &work->send_peer[1]);
    return true;
  }
  return false;
}
static bool member_missing(struct mutation *m, struct check_setup *setup) {
  EACH_WORK(work, setup, m->victim) {
    if (work->role != ROLE_SWITCH || work->recv_count < 2) continue;
    work->recv_count -= 1;
    work->send_count -= 1;
    return true;
  }
  return false;
}
static bool other_head(struct mutation *m, struct check_setup *setup) {
  bool any = false;
  EACH_WORK(work, setup, m->victim) {
    if (work->role == ROLE_SWITCH || work->head_count < 2) continue;
    work->head_index = (uint16_t)((work->head_index + 1) % work->head_count);
    any = true;
  }
  return any;
}

#define PLAN_MUTANT_EQUAL(name, text, ...)      \
  {                                             \
#name, text, NULL, name, 0, { __VA_ARGS__ } \
  }
#define FAULT_MUTANT_EQUAL(name, text, fault, ...) \
  {                                                \
    name, text, NULL, NULL, fault, { __VA_ARGS__ } \
  }
#define PLAN_MUTANT(name, text)   \
  {                               \
#name, text, NULL, name, 0, { \
      { 0, NULL }                 \
    }                             \
  }
#define FAULT_MUTANT(name, text, fault) \
  {                                     \
    name, text, NULL, NULL, fault, {    \
      { 0, NULL }                       \
    }                                   \
  }

const struct mutant mutants_of_plans[] = {
    PLAN_MUTANT(sends_elsewhere, "a rank sends to another rank"),
    PLAN_MUTANT(receives_elsewhere, "a rank receives from another rank"),
    PLAN_MUTANT_EQUAL(
        receivers_swapped, "two receivers change places in a rank's links",
        {COLUMN(TREE_ALL_REDUCE) | COLUMN(DIRECT_ALL_REDUCE) | COLUMN(DIRECT_ALL_GATHER) |
             COLUMN(DIRECT_BROADCAST) | COLUMN(COLLNET_DIRECT_ALL_GATHER) | COLUMN(COLLNET_CHAIN_ALL_REDUCE),
         "a step sends the same to all of them"}),
    PLAN_MUTANT_EQUAL(
        senders_swapped, "two senders change places in a rank's links",
        {COLUMN(TREE_ALL_REDUCE) | COLUMN(DIRECT_REDUCE_SCATTER) | COLUMN(DIRECT_REDUCE) | COLUMNS_SWITCH_SUM,
         "each element is added up in one place and handed to the others, so that all still "
         "get the same bits"}),
    PLAN_MUTANT(parent_and_child, "a rank's sender and receiver change places"),
    PLAN_MUTANT(halves_swapped, "up and down change places on a rank"),
    PLAN_MUTANT_EQUAL(ring_index_off, "a rank takes itself for its neighbour in the ring",
                      {COLUMN(FUSED_BROADCAST), "chunks of parts go by the parts' roots"}),
    PLAN_MUTANT(rank_off, "a rank takes itself for another rank"),
    PLAN_MUTANT(other_root, "a rank takes another one for the root"),
    PLAN_MUTANT(part_shifted, "a rank's part begins one element late"),
    PLAN_MUTANT(parts_shifted, "all ranks' parts begin one element late"),
    PLAN_MUTANT(parts_overlap, "parts of two channels overlap"),
    PLAN_MUTANT(part_short, "a rank's part is one element short"),
    PLAN_MUTANT(part_long, "a rank's part is one element long"),
    PLAN_MUTANT(parts_short, "all ranks' parts are one element short"),
    PLAN_MUTANT(block_distance, "a rank takes blocks for one element longer"),
    PLAN_MUTANT(chunk_half, "a rank takes chunks of half the size"),
    PLAN_MUTANT(chunks_too_large, "all ranks take chunks that are larger than the slots"),
    PLAN_MUTANT(last_chunk_short, "a rank cuts the last loop into too short chunks"),
    PLAN_MUTANT_EQUAL(last_chunks_short, "all ranks cut the last loop into too short chunks",
                      {COLUMN(RING_ALL_REDUCE), "what is left takes further loops, on all ranks"}),
    PLAN_MUTANT_EQUAL(
        last_chunks_full, "all ranks cut the last loop into full chunks",
        {COLUMN(RING_ALL_REDUCE) | COLUMNS_TWO_SHOT, "the last loop is only shared out unevenly"}),
    PLAN_MUTANT(slices_other, "a rank cuts chunks into another number of slices"),
    PLAN_MUTANT(chunk_steps_other, "a rank's chunks take another number of steps"),
    PLAN_MUTANT(other_connection, "a rank uses another connection"),
    PLAN_MUTANT(other_channel, "a rank uses another channel"),
    PLAN_MUTANT(other_protocol, "a rank uses another protocol"),
    PLAN_MUTANT(other_operation, "a rank's works are of another call"),
    PLAN_MUTANT(other_operator, "a rank combines by another operator"),
    PLAN_MUTANT_EQUAL(
        in_place_unknown, "a rank in place does not know it",
        {COLUMN(RING_ALL_REDUCE) | COLUMN(RING_REDUCE_SCATTER) | COLUMN(RING_REDUCE) |
             COLUMN(TREE_ALL_REDUCE) | COLUMN(DIRECT_ALL_REDUCE) | COLUMN(DIRECT_REDUCE) | COLUMNS_TWO_SHOT |
             COLUMN(TWO_SHOT_REDUCE) | COLUMNS_DIRECT_SCATTER | COLUMN(PAT_REDUCE_SCATTER) |
             COLUMNS_SWITCH_SUM,
         "where inputs are added up nobody asks for it"},
        {COLUMN(RING_ALL_GATHER) | COLUMN(RING_BROADCAST) | COLUMN(DIRECT_ALL_GATHER) |
             COLUMN(DIRECT_BROADCAST) | COLUMN(TWO_SHOT_BROADCAST) | COLUMN(PAT_ALL_GATHER) |
             COLUMN(FUSED_BROADCAST) | COLUMN(NVLS_ALL_GATHER) | COLUMN(COLLNET_DIRECT_ALL_GATHER),
         "the rank writes what lies there"}),
    PLAN_MUTANT_EQUAL(in_place_invented, "a rank thinks that it is in place",
                      {COLUMN(RING_ALL_REDUCE) | COLUMN(RING_REDUCE_SCATTER) | COLUMN(RING_REDUCE) |
                           COLUMN(TREE_ALL_REDUCE) | COLUMN(DIRECT_ALL_REDUCE) | COLUMN(DIRECT_REDUCE) |
                           COLUMNS_TWO_SHOT | COLUMN(TWO_SHOT_REDUCE) | COLUMNS_DIRECT_SCATTER |
                           COLUMN(PAT_REDUCE_SCATTER) | COLUMNS_SWITCH_SUM,
                       "where inputs are added up nobody asks for it"}),
    PLAN_MUTANT(offer_not_taken, "a rank does not take the outputs that it is offered"),
    PLAN_MUTANT(offer_not_made, "a rank does not offer its output"),
    PLAN_MUTANT_EQUAL(output_hidden, "a rank's output turns out to be out of reach",
                      {COLUMNS_ALL, "the offer says so, and both ends take the slots"}),
    PLAN_MUTANT(slots_elsewhere, "a rank takes the slots to be at the other end"),
    PLAN_MUTANT(work_missing, "a rank lacks a work"),
    PLAN_MUTANT(batch_twice, "a rank makes one batch twice and leaves out the next"),
    PLAN_MUTANT(batches_swapped, "two batches of a rank change places"),
    PLAN_MUTANT(lanes_in_turn, "works that should run side by side run one behind the other"),
    PLAN_MUTANT_EQUAL(
        one_slot, "connections have one slot",
        {COLUMNS_ALL & ~(COLUMN(RING_ALL_REDUCE) | COLUMN(RING_ALL_GATHER) | COLUMN(RING_REDUCE_SCATTER) |
                         COLUMN(TWO_SHOT_ALL_REDUCE) | COLUMN(ORDERED_ALL_REDUCE) | COLUMN(FUSED_BROADCAST)),
         "no cycle of steps each of which sends before it frees: only slower"}),
    PLAN_MUTANT(no_output, "a rank's works know no output"),
    PLAN_MUTANT(parts_swapped, "two parts of a fused work change places"),
    PLAN_MUTANT(part_missing, "a fused work leaves its last part out"),
    PLAN_MUTANT(other_pack, "a rank lets another number of blocks share a slot"),
    PLAN_MUTANT(switch_elsewhere, "a rank looks for its switch on another rank"),
    PLAN_MUTANT_EQUAL(members_swapped, "a switch takes two members for each other",
                      {COLUMN(NVLS_ALL_REDUCE),
                       "a head hands on what it is given, and the switch hands it to all: which head "
                       "finishes a shard is no matter"},
                      {COLUMN(COLLNET_DIRECT_ALL_REDUCE) | COLUMN(COLLNET_CHAIN_ALL_REDUCE),
                       "each element is added up in one place and handed to all, so that all still get the "
                       "same bits"}),
    PLAN_MUTANT(member_missing, "a switch lacks its last member"),
    PLAN_MUTANT_EQUAL(
        other_head, "a rank takes itself for the next head of its node",
        {COLUMN(NVLS_ALL_GATHER) | COLUMN(NVLS_REDUCE_SCATTER) | COLUMN(COLLNET_CHAIN_ALL_REDUCE),
         "blocks go by ranks, and chains know one head a node"}),
};
const uint32_t mutants_of_plans_count = sizeof mutants_of_plans / sizeof mutants_of_plans[0];

#define COLUMNS_SHOWN (COLUMN(DIRECT_ALL_REDUCE) | COLUMNS_TWO_SHOT | COLUMNS_DIRECT_SCATTER)
#define NO_INPUT_IS_SHOWN "no input is read in place"

const struct mutant mutants_of_executors[] = {
    FAULT_MUTANT("one_slot_too_many", "a sender counts one slot too many", FAULT_SLOT_TOO_MANY),
    FAULT_MUTANT_EQUAL("one_slot_too_few", "a sender counts one slot too few", FAULT_SLOT_TOO_FEW,
                       {COLUMNS_ALL, "only slower, as long as two are left"}),
    FAULT_MUTANT("early_free", "a receiver frees a slot before it reads it", FAULT_EARLY_FREE),
    FAULT_MUTANT("early_post", "a sender announces a slice before it writes it", FAULT_EARLY_POST),
    FAULT_MUTANT("never_free", "a receiver never frees a slot", FAULT_NEVER_FREE),
    FAULT_MUTANT_EQUAL(
        "no_rounding", "a receiver does not round up to a chunk", FAULT_NO_ROUNDING,
        {COLUMNS_ALL & ~(COLUMN(RING_ALL_REDUCE) | COLUMN(RING_ALL_GATHER) | COLUMN(RING_REDUCE_SCATTER)),
         "chunks of one step begin anywhere"}),
    FAULT_MUTANT("announced_size", "a sender announces another size", FAULT_WRONG_SIZE),
    FAULT_MUTANT_EQUAL(
        "empty_not_posted", "a sender does not post empty slices", FAULT_EMPTY_NOT_POSTED,
        {COLUMNS_ALL & ~(COLUMN(RING_ALL_REDUCE) | COLUMN(RING_ALL_GATHER) | COLUMN(RING_REDUCE_SCATTER) |
                         COLUMNS_TWO_SHOT | COLUMN(NVLS_ALL_REDUCE) | COLUMN(NVLS_TREE_ALL_REDUCE) |
                         COLUMN(COLLNET_DIRECT_ALL_REDUCE)),
         "no slice of it is ever empty"}),
    FAULT_MUTANT_EQUAL(
        "empty_not_awaited", "a receiver does not wait for empty slices", FAULT_EMPTY_NOT_AWAITED,
        {COLUMNS_ALL & ~(COLUMN(RING_ALL_REDUCE) | COLUMN(RING_ALL_GATHER) | COLUMN(RING_REDUCE_SCATTER) |
                         COLUMNS_TWO_SHOT | COLUMN(NVLS_ALL_REDUCE) | COLUMN(NVLS_TREE_ALL_REDUCE) |
                         COLUMN(COLLNET_DIRECT_ALL_REDUCE)),
         "no slice of it is ever empty"}),
    FAULT_MUTANT("no_wait", "a receiver does not wait for data", FAULT_NO_WAIT),
    FAULT_MUTANT("proxy_one_more", "a proxy's slices are one step longer", FAULT_PROXY_ONE_MORE),
    FAULT_MUTANT_EQUAL(
        "no_first_stage", "inputs lack the operator's first stage", FAULT_NO_FIRST_STAGE,
        {COLUMNS_ALL & ~(COLUMN(RING_ALL_REDUCE) | COLUMN(RING_REDUCE_SCATTER) | COLUMN(RING_REDUCE) |
                         COLUMN(TREE_ALL_REDUCE) | COLUMN(DIRECT_ALL_REDUCE) | COLUMNS_TWO_SHOT |
                         COLUMNS_DIRECT_SCATTER | COLUMN(PAT_REDUCE_SCATTER) | COLUMNS_SWITCH_SUM),
         "nothing is added up"}),
    FAULT_MUTANT_EQUAL("input_not_awaited", "a receiver does not wait for the addresses of inputs",
                       FAULT_INPUT_NOT_AWAITED, {COLUMNS_ALL & ~COLUMNS_SHOWN, NO_INPUT_IS_SHOWN}),
    FAULT_MUTANT_EQUAL("input_elsewhere", "a receiver reads another element of an input",
                       FAULT_INPUT_ELSEWHERE, {COLUMNS_ALL & ~COLUMNS_SHOWN, NO_INPUT_IS_SHOWN}),
    FAULT_MUTANT_EQUAL(
        "input_ends_early", "a sender does not wait until its input was read", FAULT_INPUT_ENDS_EARLY,
        {COLUMNS_ALL & ~COLUMNS_SHOWN, NO_INPUT_IS_SHOWN},
        {COLUMN(TWO_SHOT_ALL_REDUCE) | COLUMN(ORDERED_ALL_REDUCE), "the sums that come back show it"}),
    FAULT_MUTANT_EQUAL("input_hidden", "a sender hides its input and sends nothing", FAULT_INPUT_HIDDEN,
                       {COLUMNS_ALL & ~COLUMNS_SHOWN, NO_INPUT_IS_SHOWN}),
};
const uint32_t mutants_of_executors_count = sizeof mutants_of_executors / sizeof mutants_of_executors[0];
