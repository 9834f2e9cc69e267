/* mutants.c: runs the catalogue: each mutant under each algorithm, on each rank in turn, in several kinds of
 * memory and protocol. At least one of these runs must break a rule, unless the mutant changes nothing, or
 * the catalogue says why it is equivalent. */
#include "check/mutants.h"

#include <string.h>

#include "check/mutation.h"
#include "machine.h"
#include "schedule/switch.h"

enum { RANKS = 6, VARIANTS = 4, WORKS_MAX = 3, FUSED = RANKS };

struct column {
  const char *name;
  uint8_t func, algo;
  uint32_t nodes;
  bool fused, rank_order;
};
static const struct column columns[COLUMN_COUNT] = {
    {"ring all_reduce", FUNC_ALL_REDUCE, ALGO_RING, 1, false, false},
    {"ring all_gather", FUNC_ALL_GATHER, ALGO_RING, 1, false, false},
    {"ring reduce_scatter", FUNC_REDUCE_SCATTER, ALGO_RING, 1, false, false},
    {"ring broadcast", FUNC_BROADCAST, ALGO_RING, 1, false, false},
    {"ring reduce", FUNC_REDUCE, ALGO_RING, 1, false, false},
    {"tree all_reduce", FUNC_ALL_REDUCE, ALGO_TREE, RANKS, false,
     false}, /* so that some rank has two children */
    {"direct all_reduce", FUNC_ALL_REDUCE, ALGO_DIRECT, 1, false, false},
    {"two-shot all_reduce", FUNC_ALL_REDUCE, ALGO_TWO_SHOT, 1, false, false},
    {"direct all_gather", FUNC_ALL_GATHER, ALGO_DIRECT, 1, false, false},
    {"direct reduce_scatter", FUNC_REDUCE_SCATTER, ALGO_DIRECT, 1, false, false},
    {"direct broadcast", FUNC_BROADCAST, ALGO_DIRECT, 1, false, false},
    {"direct reduce", FUNC_REDUCE, ALGO_DIRECT, 1, false, false},
    {"sendrecv", FUNC_SEND_RECV, ALGO_RING, 1, false, false},
    {"alltoall", FUNC_ALL_TO_ALL, ALGO_RING, 1, false, false},
    {"PAT all_gather", FUNC_ALL_GATHER, ALGO_PAT, 1, false, false},
    {"PAT reduce_scatter", FUNC_REDUCE_SCATTER, ALGO_PAT, 1, false, false},
    {"fused broadcasts", FUNC_BROADCAST, ALGO_RING, 1, true, false},
    {"NVLS all_reduce", FUNC_ALL_REDUCE, ALGO_NVLS, 1, false, false},
    {"NVLS all_gather", FUNC_ALL_GATHER, ALGO_NVLS, 1, false, false},
    {"NVLS reduce_scatter", FUNC_REDUCE_SCATTER, ALGO_NVLS, 1, false, false},
    {"NVLSTree all_reduce", FUNC_ALL_REDUCE, ALGO_NVLS_TREE, 3, false, false},
    {"CollNetDirect all_reduce", FUNC_ALL_REDUCE, ALGO_COLLNET_DIRECT, 3, false, false},
    {"CollNetDirect all_gather", FUNC_ALL_GATHER, ALGO_COLLNET_DIRECT, 3, false, false},
    {"CollNetDirect reduce_scatter", FUNC_REDUCE_SCATTER, ALGO_COLLNET_DIRECT, 3, false, false},
    {"CollNetChain all_reduce", FUNC_ALL_REDUCE, ALGO_COLLNET_CHAIN, 3, false, false},
    {"ordered all_reduce", FUNC_ALL_REDUCE, ALGO_TWO_SHOT, 3, false, true},
    {"ordered reduce_scatter", FUNC_REDUCE_SCATTER, ALGO_DIRECT, 1, false, true},
    {"ordered reduce", FUNC_REDUCE, ALGO_TWO_SHOT, 1, false, true},
    {"two-shot reduce", FUNC_REDUCE, ALGO_TWO_SHOT, 1, false, false},
    {"two-shot broadcast", FUNC_BROADCAST, ALGO_TWO_SHOT, 1, false, false},
};

static const struct mutant *mutant_at(uint32_t index) {
  if (index < mutants_of_steps_count) return &mutants_of_steps[index];
  index -= mutants_of_steps_count;
  if (index < mutants_of_plans_count) return &mutants_of_plans[index];
  return &mutants_of_executors[index - mutants_of_plans_count];
}

uint32_t mutant_count(void) {
  return mutants_of_steps_count + mutants_of_plans_count + mutants_of_executors_count;
}
uint32_t mutant_column_count(void) { return COLUMN_COUNT; }
const char *mutant_name(uint32_t mutant) { return mutant_at(mutant)->name; }
const char *mutant_text(uint32_t mutant) { return mutant_at(mutant)->text; }
const char *mutant_column_name(uint32_t column) { return columns[column].name; }

/* Hook of the engine: passes the steps of the victim's work to the mutant. */
struct hooked {
  const struct mutant *mutant;
  struct mutation *mutation;
};

static uint32_t hook(void *context, const struct work *work, uint64_t step_number, struct step *step) {
  const struct hooked *hooked = (const struct hooked *)context;
  struct mutation *mutation = hooked->mutation;
  (void)step_number;
  if (work != mutation->work) return HOOK_RUN;
  const uint32_t what = hooked->mutant->step(mutation, work, step);
  mutation->steps += 1;
  return what;
}

/* Variants: Simple in place with direct stores; out of place; out of place through slots on two channels; LL,
 * or Simple again if there is no LL. Aggregated trees have small blocks in the first and last variant, which
 * share slots. */
static void call_of(const struct column *column, uint32_t variant, struct check_call *call) {
  const bool shards =
      column->algo == ALGO_TWO_SHOT ||
      (column->func == FUNC_ALL_REDUCE && column->algo != ALGO_TREE && column->algo != ALGO_DIRECT);
  const bool apart = func_has_root(column->func) && !column->rank_order;
  memset(call, 0, sizeof *call);
  call->func = column->func;
  call->rank_count = RANKS;
  call->root = 2;
  call->dtype = ncclFloat32;
  call->algo_mask = 1u << column->algo;
  call->rank_order = column->rank_order;
  const bool ll = variant == 3 && (column->algo == ALGO_RING || column->algo == ALGO_TREE ||
                                   column->algo == ALGO_DIRECT || (column->algo == ALGO_TWO_SHOT && !apart));
  call->proto_mask = 1u << (ll ? PROTO_LL : PROTO_SIMPLE);
  call->group_count = column->fused ? FUSED : 1;
  call->p2p_ll_threshold = variant == 3 ? 1 << 20 : 0;
  call->in_place = variant == 0 && column->func != FUNC_SEND_RECV && column->func != FUNC_ALL_TO_ALL;
  check_limits(&call->limits, variant == 2 ? 4 : 8, variant == 2 ? 4096 : 256, variant == 2 ? 2 : 1,
               variant < 2);
  call->first_step = 1;
  call->inputs = INPUTS_MIXED;
  /* Several loops and a short one, more than the slots hold; on two channels a part is at least 16 KiB. */
  call->count = shards ? 64 * RANKS * 2 + 37 : 64 * 9 + 3;
  if (switch_is_algo(column->algo)) call->count -= 2; /* the last shard is empty */
  if (variant == 2) call->count = 9000 / (column->func == FUNC_ALL_REDUCE ? 1 : 2);
  if (variant == 3) call->limits.slots = 3;
  if (column->algo == ALGO_PAT && variant % 3 == 0) call->count = 3;
}

/* The rank's n-th work that has connections; NULL when there is none. */
static const struct work *linked_work(const struct plan *plan, uint32_t n) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    if (work->recv_count + work->send_count > 0 && n-- == 0) return work;
  }
  return NULL;
}

/* One run: the mutant on one rank, in the n-th of its works. */
static ncclResult_t run_one(struct check_engine *engine, struct check_setup *setup,
                            const struct mutant *mutant, const struct check_call *call, uint32_t victim,
                            uint32_t n, struct mutant_entry *entry) {
  struct mutation mutation;
  struct hooked hooked = {mutant, &mutation};
  struct check_report report;
  memset(&mutation, 0, sizeof mutation);
  mutation.victim = victim;
  mutation.rank_count = call->rank_count;
  TRY(check_setup_make(setup, call));
  mutation.work = linked_work(&setup->plans[victim], n);
  if (n > 0 && (mutant->step == NULL || mutation.work == NULL)) return ncclSuccess;
  if (mutant->plans != NULL && !mutant->plans(&mutation, setup)) return ncclSuccess;
  if (mutant->step != NULL) {
    setup->input.hook = hook;
    setup->input.hook_context = &hooked;
  }
  setup->input.fault = mutant->fault;
  setup->input.fault_rank = victim;
  const bool proved = check_run(engine, &setup->input, &report);
  if (mutant->step != NULL && mutation.applied == 0) return ncclSuccess;
  entry->applied += 1;
  if (proved) return ncclSuccess;
  if (entry->caught == 0) entry->rule = (uint8_t)report.rule;
  entry->caught += 1;
  return ncclSuccess;
}

static const char *reason_of(const struct mutant *mutant, uint32_t column) {
  for (uint32_t i = 0; i < EQUIVALENCES_MAX; i++)
    if ((mutant->equivalences[i].columns >> column & 1) != 0) return mutant->equivalences[i].reason;
  return NULL;
}

ncclResult_t mutant_run(struct check_engine *engine, struct check_setup *setup, uint32_t mutant,
                        uint32_t column, struct mutant_entry *entry) {
  const struct mutant *row = mutant_at(mutant);
  memset(entry, 0, sizeof *entry);
  for (uint32_t variant = 0; variant < VARIANTS; variant++) {
    struct check_call call;
    struct graph graph;
    call_of(&columns[column], variant, &call);
    const uint32_t nodes = columns[column].nodes > 1 ? columns[column].nodes : 1;
    TRY(machine_graph(NULL, nodes, RANKS / nodes, &graph));
    call.graph = &graph;
    ncclResult_t result = ncclSuccess;
    for (uint32_t i = 0; i < RANKS * WORKS_MAX && result == ncclSuccess; i++)
      result = run_one(engine, setup, row, &call, i % RANKS, i / RANKS, entry);
    graph_free(&graph);
    TRY(result);
  }
  entry->reason = reason_of(row, column);
  entry->fate = (uint8_t)(entry->applied == 0     ? MUTANT_NOT_APPLICABLE
                          : entry->caught > 0     ? MUTANT_CAUGHT
                          : entry->reason != NULL ? MUTANT_EQUIVALENT
                                                  : MUTANT_MISSED);
  return ncclSuccess;
}
