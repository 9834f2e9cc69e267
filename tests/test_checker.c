/* test_checker.c: the checker's own rules. For each rule a plan that violates it, made by hand or by changing
 * one step of a good plan, and the expected report: rule, rank, channel, step. Good plans of every kind are
 * proved, with the order of their additions. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/os.h"
#include "check/all.h"
#include "check/check.h"
#include "check/part.h"
#include "check/request.h"
#include "core/custom/custom.h"
#include "schedules/schedules.h"
#include "machine.h"
#include "two_blocks.h"

#define NO_STEP UINT64_MAX
#define NOBODY UINT32_MAX

static struct check_engine *engine;
static struct check_setup setup;
static struct check_report report;
static struct graph graph;
static struct check_call call;

static int setup_all(void **state) {
  (void)state;
  engine = check_engine_new();
  return engine == NULL;
}

static int teardown_all(void **state) {
  (void)state;
  check_setup_free(&setup);
  check_engine_free(engine);
  graph_free(&graph);
  return os_alloc_live() != 0;
}

/* A small call: chunks of 64 bytes, 4 slots, one channel, direct stores. */
static void call_begin(uint8_t func, uint8_t algo, uint32_t ranks, size_t count) {
  graph_free(&graph);
  assert_int_equal(graph_flat(ranks, &graph), ncclSuccess);
  memset(&call, 0, sizeof call);
  call.func = func;
  call.rank_count = ranks;
  call.count = count;
  call.dtype = ncclFloat32;
  call.algo_mask = 1u << algo;
  call.proto_mask = 1u << PROTO_SIMPLE;
  call.graph = &graph;
  check_limits(&call.limits, 4, 64, 1, true);
}

static void call_plan(void) { assert_int_equal(check_setup_make(&setup, &call), ncclSuccess); }

static void assert_proved(void) {
  const bool proved = check_run(engine, &setup.input, &report);
  if (!proved) print_error("%s: rank %u: %s\n", check_rule_name(report.rule), report.rank, report.text);
  assert_true(proved);
}

/* The plans violate `rule`, first at that rank, channel and step; the text has `words`. */
static void assert_broken(enum check_rule rule, uint32_t rank, uint32_t channel, uint64_t step,
                          const char *words) {
  assert_false(check_run(engine, &setup.input, &report));
  if (report.rule != rule || report.rank != rank || report.channel != channel || report.step != step ||
      strstr(report.text, words) == NULL)
    print_error("%s: rank %d channel %d step %lld: %s\n", check_rule_name(report.rule), (int)report.rank,
                (int)report.channel, (long long)report.step, report.text);
  assert_string_equal(check_rule_name(report.rule), check_rule_name(rule));
  assert_int_equal(report.rank, rank);
  assert_int_equal(report.channel, channel);
  assert_int_equal(report.step, step);
  assert_non_null(strstr(report.text, words));
}

/* ---- changing one step ---- */

struct change {
  uint32_t rank, clear, set, what; /* whose; flags; enum check_hook */
  uint64_t step;
  int64_t in, out, count; /* added to the step's */
  uint32_t own, send_place, recv_place, part;
};
static struct change change;

static uint32_t change_step(void *context, const struct work *work, uint64_t step_number, struct step *step) {
  const struct change *c = (const struct change *)context;
  if (work->rank != c->rank || step_number != c->step) return HOOK_RUN;
  step->flags = (step->flags & ~c->clear) | c->set;
  step->in_offset = (size_t)((int64_t)step->in_offset + c->in);
  step->out_offset = (size_t)((int64_t)step->out_offset + c->out);
  step->count = (size_t)((int64_t)step->count + c->count);
  step->own_index += c->own;
  step->send_place += c->send_place;
  step->recv_place += c->recv_place;
  step->part += c->part;
  if (c->what == HOOK_SKIP) change.rank = NOBODY; /* only this step, not all after it */
  return c->what;
}

/* Step number `step` of rank `rank` is to be changed; *change says how. */
static void change_begin(uint32_t rank, uint64_t step) {
  memset(&change, 0, sizeof change);
  change.rank = rank;
  change.step = step;
  setup.input.hook = change_step;
  setup.input.hook_context = &change;
}

/* ---- plans that are proved ---- */

static void good_plans_are_proved(void **state) {
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE, FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER,
                                  FUNC_BROADCAST,  FUNC_REDUCE,     FUNC_SEND_RECV,
                                  FUNC_ALL_TO_ALL, FUNC_SCATTER,    FUNC_GATHER};
  (void)state;
  for (uint32_t i = 0; i < sizeof funcs; i++) {
    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
      call_begin(funcs[i], ALGO_RING, ranks, 67);
      call.root = ranks - 1;
      call.in_place = ranks % 2 == 0 && funcs[i] != FUNC_SEND_RECV && funcs[i] != FUNC_ALL_TO_ALL;
      call_plan();
      assert_proved();
    }
  }
}

static void the_order_is_told(void **state) {
  (void)state;
  call_begin(FUNC_REDUCE, ALGO_RING, 4, 8);
  call_plan();
  assert_proved();
  assert_string_equal(report.order, "(0+(3+(2+1)))");
  assert_int_equal(report.order_count, 1);
  call_begin(FUNC_ALL_REDUCE, ALGO_DIRECT, 4, 8);
  call_plan();
  assert_proved();
  assert_string_equal(report.order, "(((0+1)+2)+3)");
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 3, 96);
  call_plan();
  assert_proved();
  assert_int_equal(report.order_count, 3);
  assert_int_equal(report.connection_count, 3);
  assert_int_equal(report.channel_count, 1);
  assert_int_equal(report.work_count, 3);
}

/* The number of steps: 2n-1 per loop and rank, two slices each. */
static void steps_are_counted(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 4, 64);
  call_plan();
  assert_proved();
  assert_int_equal(report.step_count, 4 * 7);
  assert_int_equal(report.slice_count, 2 * 4 * 7);
}

static void trees_over_nodes_are_proved(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_TREE, 12, 200);
  graph_free(&graph);
  assert_int_equal(machine_graph(NULL, 4, 3, &graph), ncclSuccess);
  check_limits(&call.limits, 2, 64, 2, true);
  call.in_place = true;
  call_plan();
  assert_proved();
}

/* ---- plans that are refused ---- */

static void parts_of_one_operation(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 3, 48);
  call_plan();
  setup.plans[1].works[0].part_count -= 1;
  assert_broken(CHECK_PARTS, 0, 0, 0, "announces 188");
  call_plan();
  setup.plans[2].works[0].op = OP_MAX;
  assert_broken(CHECK_PARTS, 0, 0, 1, "another operation");
  call_plan();
  setup.plans[2].works[0].op_sequence = 7;
  assert_broken(CHECK_PARTS, 2, 0, 0, "operation 7");
  call_plan();
  setup.plans[2].works[0].chunk_steps = 3;
  assert_broken(CHECK_PARTS, 0, 0, 1, "chunking");
  call_plan();
  setup.plans[2].limits.slots = 3;
  assert_broken(CHECK_PARTS, NOBODY, NOBODY, NO_STEP, "different slots");
  call_plan();
  setup.plans[1].works[0].send_peer[0] = 3;
  assert_broken(CHECK_PARTS, 1, 0, 0, "no executor");
}

static void parts_must_tile(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 3, 20000);
  check_limits(&call.limits, 4, 4096, 3, true);
  call_plan();
  assert_true(part_tiles(&setup, &report));
  setup.plans[2].works[1].part_offset += 1;
  assert_false(part_tiles(&setup, &report));
  assert_int_equal(report.rule, CHECK_PARTS);
  assert_int_equal(report.rank, 2);
  assert_int_equal(report.channel, 1);
  /* The symbolic run finds it too, when ranks 0 and 2 communicate on that channel. */
  assert_broken(CHECK_PARTS, 0, 1, 1, "another operation, part");
}

static void sends_must_meet_receives(void **state) {
  (void)state;
  call_begin(FUNC_BROADCAST, ALGO_RING, 3, 40); /* five steps of 32 bytes */
  call_plan();
  change_begin(0, 1);
  change.count = -1;
  assert_broken(CHECK_MATCH, 1, 0, 1, "expects 32 elements from rank 0, which sends 31");
  change_begin(0, 1);
  change.what = HOOK_SKIP;
  assert_broken(CHECK_MATCH, 1, 0, 1, "at another place of its output");
  change_begin(0, 4); /* the last one */
  change.what = HOOK_SKIP;
  assert_broken(CHECK_MATCH, 1, 0, 4, "waits for data from rank 0, which has no more steps");
  change_begin(2, 4);
  change.what = HOOK_END;
  assert_broken(CHECK_MATCH, 1, 0, 5, "has sent up to step 5 to rank 2, which took up to step 4");
  change_begin(1, 0);
  change.clear = STEP_RECV_FINAL;
  assert_broken(CHECK_MATCH, 1, 0, 0, "takes as partial what rank 0 sends as final");
}

static void an_offer_must_be_taken(void **state) {
  (void)state;
  call_begin(FUNC_BROADCAST, ALGO_RING, 3, 40);
  call_plan();
  setup.plans[1].works[0].flags &= ~(uint32_t)WORK_DIRECT_SEND;
  assert_broken(CHECK_MATCH, 2, 0, 0, "looks for data in its output");
  call_plan();
  setup.plans[2].works[0].flags &= ~(uint32_t)WORK_DIRECT_RECV;
  assert_broken(CHECK_DEADLOCK, 1, 0, 0, "offer");
}

static void one_slot_is_a_deadlock(void **state) {
  (void)state;
  call_begin(FUNC_ALL_GATHER, ALGO_RING, 3, 5);
  check_limits(&call.limits, 1, 64, 1, true);
  call_plan();
  assert_broken(CHECK_DEADLOCK, 0, 0, 1, "a cycle of 3 lanes that wait for each other with 1 slots");
  check_limits(&call.limits, 2, 64, 1, true);
  call_plan();
  assert_proved();
}

/* An executor that violates the slots' protocol on rank 1. */
static void break_slots(enum check_fault fault, enum check_rule rule, uint32_t rank, uint64_t step,
                        const char *words) {
  call_plan();
  setup.input.fault = (uint32_t)fault;
  setup.input.fault_rank = 1;
  assert_broken(rule, rank, 0, step, words);
}

static void slots_have_one_owner(void **state) {
  (void)state;
  call_begin(FUNC_BROADCAST, ALGO_RING, 3, 1000);
  break_slots(FAULT_EARLY_FREE, CHECK_SLOT, 1, 0, "frees step 0 of the connection from rank 0 before");
  break_slots(FAULT_EARLY_POST, CHECK_SLOT, 1, 0, "announces step 0 to rank 2 before");
  break_slots(FAULT_NO_WAIT, CHECK_SLOT, 1, 0, "reads step 0 from rank 0 without");
  /* The fifth step needs the first slot again. */
  break_slots(FAULT_SLOT_TOO_MANY, CHECK_SLOT, 1, 4, "writes step 4 towards rank 2");
  break_slots(FAULT_NEVER_FREE, CHECK_DEADLOCK, 1, 4, "waits for data of rank 0, in a cycle of 2 lanes");
  break_slots(FAULT_WRONG_SIZE, CHECK_PARTS, 2, 0, "announces 4001");
}

/* Four slots, slices of two steps: at step 3 a slice would cross the end. */
static void a_slice_lies_in_one_piece(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 3, 48);
  check_limits(&call.limits, 8, 64, 1, true);
  call.limits.slots = 7;
  call_plan();
  for (uint32_t rank = 0; rank < 3; rank++) {
    setup.plans[rank].works[0].chunk_steps = 4;
    setup.plans[rank].works[0].slice_steps = 2;
  }
  assert_broken(CHECK_SLOT, 2, 0, 1, "over the end of the slots");
}

static void slots_hold_a_chunk(void **state) {
  (void)state;
  call_begin(FUNC_BROADCAST, ALGO_RING, 2, 1000);
  call.proto_mask = 1u << PROTO_LL;
  call_plan();
  for (uint32_t rank = 0; rank < 2; rank++) setup.plans[rank].works[0].chunk_count *= 2;
  assert_broken(CHECK_SLOT, 0, 0, 0, "128 elements into slots towards rank 1 that hold 64");
}

static void both_ends_round(void **state) {
  (void)state;
  call_begin(FUNC_ALL_GATHER, ALGO_RING, 3, 40);
  call.first_step = 1;
  call_plan();
  assert_proved();
  break_slots(FAULT_NO_ROUNDING, CHECK_MATCH, 0, 0, "the address that belongs to step 2 of the connection");
  call.limits.direct = false; /* no address is offered */
  break_slots(FAULT_NO_ROUNDING, CHECK_MATCH, 1, 1,
              "steps 1 to 2 of the connection from rank 0, which filled 2 to 3");
}

static void empty_slices_count(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 3, 3);
  call_plan();
  assert_proved();
  break_slots(FAULT_EMPTY_NOT_POSTED, CHECK_DEADLOCK, 2, 1, "waits for data of rank 1");
  break_slots(FAULT_EMPTY_NOT_AWAITED, CHECK_SLOT, 1, 1, "without having waited");
}

/* Two calls of a schedule: a block may begin the second one while another block is still in the first. A wait
 * for that block's steps is then for those of the second call. */
static void lists_of_two_calls_follow_each_other(void **state) {
  struct custom_schedule *schedule = NULL;
  (void)state;
  assert_int_equal(custom_parse("text", two_blocks, strlen(two_blocks), &schedule), ncclSuccess);
  call_begin(FUNC_ALL_GATHER, ALGO_CUSTOM, 2, 64);
  call.custom = schedule;
  call.group_count = 2;
  call_plan();
  assert_int_equal(setup.plans[0].works[0].algo, ALGO_CUSTOM);
  assert_int_equal(setup.plans[0].work_count, 4);
  assert_proved();
  custom_free(schedule);
}

static void memory_has_borders(void **state) {
  (void)state;
  call_begin(FUNC_REDUCE, ALGO_RING, 3, 16);
  call_plan();
  change_begin(2, 0);
  change.in = 9;
  assert_broken(CHECK_BOUNDS, 2, 0, 0, "reads 8 elements of rank 2's memory outside");
  change_begin(0, 0);
  change.out = 9;
  assert_broken(CHECK_BOUNDS, 0, 0, 0, "writes 8 elements of rank 0's memory outside");
}

/* The ring's last stage stores final chunks directly into outputs that are also inputs. */
static void stores_come_after_reads(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 3, 48);
  call.in_place = true;
  call_plan();
  assert_proved();
  change_begin(0, 2); /* rank 0 finishes chunk 0 and sends it to rank 1 into chunk 1 */
  change.out = 16;
  assert_broken(CHECK_MEMORY, 0, 0, 2, "");
  /* A rank that reads its input again at the end may read data stored meanwhile. */
  call_plan();
  change_begin(1, 4);
  change.set = STEP_COPY_IN | STEP_REDUCE;
  assert_broken(CHECK_MEMORY, 1, 0, 4, "that rank 0 writes, in no order with it");
}

/* The same message twice into one buffer: the second store may overwrite, or be overwritten by, the receipt
 * of the first, although the elements are the same. */
static void stores_of_two_messages_are_not_one(void **state) {
  (void)state;
  call_begin(FUNC_SEND_RECV, ALGO_RING, 2, 16);
  call_plan();
  assert_proved();
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct plan *plan = &setup.plans[rank];
    assert_int_equal(plan->batch_count, 1);
    plan->batches[1] = plan->batches[0];
    plan->batch_count = 2;
  }
  assert_false(check_run(engine, &setup.input, &report));
  assert_int_equal(report.rule, CHECK_MEMORY);
}

/* A broadcast in which the last rank reads data stored by the rank before, without receiving its message. */
static void reads_come_after_stores(void **state) {
  (void)state;
  call_begin(FUNC_BROADCAST, ALGO_RING, 2, 16);
  call_plan();
  change_begin(1, 0);
  change.clear = STEP_RECV | STEP_RECV_FINAL;
  change.set = STEP_COPY_IN | STEP_FROM_OUTPUT;
  assert_false(check_run(engine, &setup.input, &report));
  assert_true(report.rule == CHECK_MEMORY || report.rule == CHECK_COMBINE);
}

/* Two channels, or two lanes of one block, that write the same place. */
static void writes_have_an_order(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_RING, 2, 20000);
  check_limits(&call.limits, 4, 4096, 2, true);
  call_plan();
  for (uint32_t rank = 0; rank < 2; rank++) setup.plans[rank].works[1].part_offset -= 1;
  for (uint32_t rank = 0; rank < 2; rank++) setup.plans[rank].works[1].part_count += 1;
  assert_false(check_run(engine, &setup.input, &report));
  assert_int_equal(report.rule, CHECK_MEMORY);
  assert_int_equal(report.channel, 1);
  assert_non_null(strstr(report.text, "another channel"));
  call_begin(FUNC_ALL_TO_ALL, ALGO_RING, 3, 16);
  check_limits(&call.limits, 4, 64, 1, false);
  call_plan();
  struct plan *plan = &setup.plans[1]; /* both messages go into one block */
  for (uint32_t i = 0; i < plan->work_count; i++)
    if (plan->works[i].func == FUNC_RECV) plan->buffers[i].out = plan->buffers[plan->work_count - 1].out;
  assert_false(check_run(engine, &setup.input, &report));
  assert_int_equal(report.rule, CHECK_MEMORY);
  assert_int_equal(report.rank, 1);
  assert_non_null(strstr(report.text, "in no order with it"));
}

static void what_is_combined_belongs_together(void **state) {
  (void)state;
  call_begin(FUNC_REDUCE_SCATTER, ALGO_RING, 3, 16);
  call_plan();
  change_begin(1, 1);
  change.in = 1;
  assert_broken(CHECK_COMBINE, 1, 0, 1, "combines element");
  change_begin(1, 1);
  change.clear = STEP_REDUCE;
  assert_broken(CHECK_COMBINE, 1, 0, 1, "does not reduce");
  change_begin(0, 1);
  change.set = STEP_POST_OP;
  assert_broken(CHECK_COMBINE, 1, 0, 2, "finished already");
  change_begin(0, 0);
  change.clear = STEP_COPY_IN;
  assert_broken(CHECK_COMBINE, 0, 0, 0, "comes from nowhere");
  call_plan();
  setup.input.fault = FAULT_NO_FIRST_STAGE;
  setup.input.fault_rank = 2;
  assert_broken(CHECK_COMBINE, 2, 0, 1, "first stage");
}

static void results_are_what_was_asked_for(void **state) {
  (void)state;
  call_begin(FUNC_REDUCE, ALGO_RING, 3, 16);
  call_plan();
  change_begin(0, 0);
  change.clear = STEP_KEEP;
  assert_broken(CHECK_RESULT, 0, NOBODY, NO_STEP, "all ranks' sum of element 0 and ends as old content");
  change.clear = STEP_POST_OP;
  assert_broken(CHECK_RESULT, 0, NOBODY, NO_STEP, "element 0");
  change_begin(2, 0);
  change.clear = STEP_COPY_IN | STEP_REDUCE;
  assert_broken(CHECK_RESULT, 0, NOBODY, NO_STEP, "ends as (0+1)");
  call_plan();
  setup.plans[0].works[0].func = FUNC_REDUCE;
  setup.regions[1].results[0].count -= 1; /* the last element belongs to no result, but is written */
  assert_broken(CHECK_RESULT, 0, NOBODY, NO_STEP, "element 15 of a buffer is written");
}

static void ranks_add_up_in_one_order(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_DIRECT, 4, 16);
  call_plan();
  assert_proved();
  change_begin(2, 2); /* after the first steps of two loops */
  change.own = 1;
  assert_broken(CHECK_SAME_ORDER, 2, NOBODY, NO_STEP, "(((0+1)+3)+2), rank 0 as (((0+1)+2)+3)");
}

/* A wrong schedule: every rank adds its own contribution before all others. */
static uint32_t own_first(void *context, const struct work *work, uint64_t step_number, struct step *step) {
  (void)context, (void)work, (void)step_number;
  if ((step->flags & STEP_REDUCE) != 0) step->own_index = 0;
  return HOOK_RUN;
}

static void sums_are_in_rank_order(void **state) {
  (void)state;
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE, FUNC_REDUCE_SCATTER, FUNC_REDUCE};
  for (uint32_t i = 0; i < 3; i++) {
    call_begin(funcs[i], ALGO_RING, 4, 16); /* NCCL_ALGO does not count */
    call.rank_order = true;
    call.root = 2;
    call_plan();
    assert_int_equal(setup.plans[1].works[0].algo,
                     funcs[i] == FUNC_REDUCE_SCATTER ? ALGO_DIRECT : ALGO_TWO_SHOT);
    assert_proved();
    setup.input.hook = own_first;
    assert_broken(CHECK_RANK_ORDER,
                  funcs[i] == FUNC_REDUCE       ? 2
                  : funcs[i] == FUNC_ALL_REDUCE ? 0
                                                : 1,
                  NOBODY, NO_STEP, "is added up as (((1+0)+2)+3), not from rank 0 on");
  }
  /* Without the setting a ring begins elsewhere. */
  call_begin(FUNC_REDUCE_SCATTER, ALGO_RING, 4, 16);
  call_plan();
  setup.op_rows[0].rank_order = true;
  assert_broken(CHECK_RANK_ORDER, 0, NOBODY, NO_STEP, "not from rank 0 on");
}

static void proxies_pass_what_lanes_pass(void **state) {
  (void)state;
  call_begin(FUNC_REDUCE_SCATTER, ALGO_RING, 3, 40);
  call_plan();
  setup.input.fault = FAULT_PROXY_ONE_MORE;
  setup.input.fault_rank = 2;
  assert_broken(CHECK_PROXY, 2, 0, 0,
                "passes 32 bytes in steps 0 to 1 of the connection to rank 0, where a proxy would pass 32 "
                "bytes in steps 0 to 2");
}

static void what_is_not_known_is_not_proved(void **state) {
  (void)state;
  call_begin(FUNC_REDUCE_SCATTER, ALGO_RING, 3, 16);
  call_plan();
  change_begin(1, 1);
  change.set = 1u << 30;
  assert_broken(CHECK_RESOURCES, 1, 0, 1, "nothing is proved");
}

/* Aggregated trees: any number of ranks, blocks that share a slot or do not, both collectives. */
static void slots_that_steps_share_are_proved(void **state) {
  (void)state;
  for (uint32_t ranks = 2; ranks <= 17; ranks++) {
    for (uint32_t i = 0; i < 12; i++) {
      call_begin(i % 2 ? FUNC_ALL_GATHER : FUNC_REDUCE_SCATTER, ALGO_PAT, ranks, i < 4 ? 1 : i < 8 ? 5 : 70);
      check_limits(&call.limits, 1 + i % 3, 64, 1, i % 3 != 0);
      call.in_place = i / 2 % 2 != 0;
      call_plan();
      assert_int_equal(setup.plans[0].works[0].algo, ALGO_PAT);
      assert_proved();
    }
  }
}

static void a_shared_slot_has_its_rules(void **state) {
  (void)state;
  call_begin(FUNC_REDUCE_SCATTER, ALGO_PAT, 8, 2); /* four blocks per slot, rows of two */
  call_plan();
  assert_int_equal(setup.plans[0].works[0].pack, 4);
  assert_proved();
  change_begin(0, 0);
  change.clear = STEP_SEND_MORE;
  assert_broken(CHECK_SLOT, 0, 0, 1, "writes place 2 of a slot to rank 1 that is written up to 0");
  change_begin(0, 3); /* the last of four places */
  change.set = STEP_SEND_MORE;
  assert_broken(CHECK_MATCH, 0, 0, 11, "ends with a slot to rank 1 that another step was to share");
  change_begin(0, 1);
  change.send_place = 1;
  assert_broken(CHECK_SLOT, 0, 0, 1, "writes place 3 of a slot to rank 1 that is written up to 2");
  change_begin(0, 3);
  change.send_place = 20;
  assert_broken(CHECK_SLOT, 0, 0, 3, "elements into slots towards rank 1 that hold 8");
  change_begin(0, 4);
  change.recv_place = 2;
  assert_false(check_run(engine, &setup.input, &report));
  assert_int_equal(report.rule, CHECK_COMBINE);
}

/* ---- several calls, and switches ---- */

static void fused_broadcasts_are_proved(void **state) {
  (void)state;
  for (uint32_t ranks = 2; ranks <= 6; ranks++) {
    for (uint32_t group = 2; group <= 2 * ranks; group += ranks - 1) {
      call_begin(FUNC_BROADCAST, ALGO_RING, ranks, 40);
      call.group_count = group;
      call.in_place = group % 2 != 0;
      call.root = ranks - 1;
      call_plan();
      uint32_t fused = 0;
      for (uint32_t i = 0; i < setup.plans[0].work_count; i++)
        fused += (setup.plans[0].works[i].flags & WORK_FUSED) != 0;
      assert_true(fused > 0);
      assert_proved();
    }
  }
}

/* Parts must come in the same order at both ends, each with its size at its begin, after the lane's own. */
static void fused_parts_have_their_order(void **state) {
  (void)state;
  call_begin(FUNC_BROADCAST, ALGO_RING, 3, 40);
  call.group_count = 3;
  call_plan();
  assert_proved();
  struct work *works = setup.plans[1].works, kept = works[1];
  works[1].root = works[2].root;
  works[2].root = kept.root;
  assert_false(check_run(engine, &setup.input, &report));
  assert_true(report.rule == CHECK_PARTS || report.rule == CHECK_RESULT || report.rule == CHECK_DEADLOCK);
  call_plan();
  change_begin(1, 0);
  change.clear = STEP_PART;
  assert_broken(CHECK_PARTS, 2, 0, 1, "another operation, part");
  call_plan();
  setup.plans[0].works[0].fused_count = 4;
  assert_broken(CHECK_PARTS, 0, 0, 0, "parts do not lie behind it");
  call_plan();
  change_begin(2, 1);
  change.part = 7;
  assert_broken(CHECK_PARTS, 2, 0, 1, "which its work does not have");
}

static void switches_are_proved(void **state) {
  static const struct {
    uint8_t func, algo;
    uint32_t nodes, gpus;
  } rows[] = {{FUNC_ALL_REDUCE, ALGO_NVLS, 1, 5},
              {FUNC_ALL_GATHER, ALGO_NVLS, 1, 4},
              {FUNC_REDUCE_SCATTER, ALGO_NVLS, 1, 4},
              {FUNC_ALL_REDUCE, ALGO_NVLS_TREE, 5, 3},
              {FUNC_ALL_REDUCE, ALGO_COLLNET_DIRECT, 3, 4},
              {FUNC_ALL_GATHER, ALGO_COLLNET_DIRECT, 4, 2},
              {FUNC_REDUCE_SCATTER, ALGO_COLLNET_DIRECT, 2, 3},
              {FUNC_ALL_REDUCE, ALGO_COLLNET_CHAIN, 4, 3}};
  (void)state;
  for (uint32_t i = 0; i < 4 * (sizeof rows / sizeof rows[0]); i++) {
    const uint32_t nodes = rows[i / 4].nodes, gpus = rows[i / 4].gpus;
    call_begin(rows[i / 4].func, rows[i / 4].algo, nodes * gpus, 211 * (i % 4 + 1));
    graph_free(&graph);
    assert_int_equal(machine_graph(NULL, nodes, gpus, &graph), ncclSuccess);
    check_limits(&call.limits, 1 + i % 3, 64, 1 + i % 4, true);
    call.in_place = i % 2 != 0;
    call_plan();
    assert_int_equal(setup.plans[0].works[0].conn_index, CONN_SWITCH);
    assert_proved();
  }
}

/* A switch adds in the order of its members: one with members in another order gives shards to the wrong
 * rank. */
static void a_switch_knows_its_members(void **state) {
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_NVLS, 4, 100);
  call_plan();
  assert_proved();
  assert_int_equal(setup.plans[0].works[1].role, ROLE_SWITCH);
  setup.plans[0].works[1].send_peer[0] = 1;
  setup.plans[0].works[1].send_peer[1] = 0;
  assert_false(check_run(engine, &setup.input, &report));
  assert_true(report.rule == CHECK_MATCH || report.rule == CHECK_COMBINE || report.rule == CHECK_RESULT);
  call_plan();
  setup.plans[0].batches[0].work_count = 1; /* no rank hosts the switch */
  assert_false(check_run(engine, &setup.input, &report));
  assert_int_equal(report.rule, CHECK_MATCH);
  call_plan();
  setup.plans[2].works[0].send_peer[0] = setup.plans[2].works[0].recv_peer[0] = 1;
  assert_false(check_run(engine, &setup.input, &report));
}

/* Every allocation fails in turn: an error message, no crash, no leak. */
static void memory_may_run_out(void **state) {
  (void)state;
  for (uint64_t k = 1; k < 400; k++) {
    struct check_engine *fresh = check_engine_new();
    assert_non_null(fresh);
    call_begin(FUNC_ALL_REDUCE, ALGO_TWO_SHOT, 4, 300);
    call_plan();
    os_alloc_fail_at(k);
    const bool proved = check_run(fresh, &setup.input, &report);
    os_alloc_fail_at(0);
    check_engine_free(fresh);
    if (proved) {
      assert_true(k > 5);
      return;
    }
    assert_int_equal(report.rule, CHECK_RESOURCES);
  }
  fail();
}

/* ---- requests and the matrix ---- */

static void a_request_is_proved(void **state) {
  struct plan_request request;
  struct plan_op op;
  (void)state;
  call_begin(FUNC_ALL_REDUCE, ALGO_TREE, 5, 100);
  memset(&request, 0, sizeof request);
  memset(&op, 0, sizeof op);
  request.rank_count = 5;
  request.graph = &graph;
  request.settings.limits = call.limits;
  for (uint32_t i = 0; i < FUNC_COUNT; i++)
    request.settings.algo_mask[i] = request.settings.proto_mask[i] = UINT32_MAX;
  op.func = FUNC_ALL_REDUCE;
  op.dtype = ncclFloat16;
  op.count = 1000;
  request.ops = &op;
  request.op_count = 1;
  assert_true(check_plan_of_request(engine, &request, &report));
  for (uint32_t i = 0; i < FUNC_COUNT; i++) request.settings.algo_mask[i] = 1u << ALGO_RING;
  request.settings.limits.slots = 1;
  request.settings.limits.chunk_bytes = 16;
  assert_false(check_plan_of_request(engine, &request, &report));
  assert_int_equal(report.rule, CHECK_DEADLOCK);
}

/* A channel alone and within its plan are one program; other channels are not. */
static void channels_that_are_alike_have_one_key(void **state) {
  size_t first, second, third;
  (void)state;
  call_begin(FUNC_ALL_GATHER, ALGO_RING, 4, 24000);
  check_limits(&call.limits, 4, 4096, 3, true);
  call_plan();
  const struct part_key a = part_key_of(&setup, 0, &first), b = part_key_of(&setup, 1, &second),
                        c = part_key_of(&setup, 2, &third);
  assert_int_equal(first, second);
  assert_true(a.low == b.low && a.high == b.high);
  assert_true(third != first && (a.low != c.low || a.high != c.high));
  struct part_set set;
  memset(&set, 0, sizeof set);
  assert_true(part_set_add(&set, a));
  assert_false(part_set_add(&set, b));
  assert_true(part_set_add(&set, c));
  for (uint64_t i = 1; i < 9000; i++) assert_true(part_set_add(&set, (struct part_key){i << 20, i}));
  assert_false(part_set_add(&set, a));
  part_set_free(&set);
  struct check_setup part;
  memset(&part, 0, sizeof part);
  assert_int_equal(part_setup(&part, &setup, &call, 2, third), ncclSuccess);
  assert_true(check_run(engine, &part.input, &report));
  check_setup_free(&part);
}

static void the_matrix_of_few_ranks_is_proved(void **state) {
  struct check_all_report all;
  (void)state;
  struct progress progress = {0}; /* no output: no terminal */
  assert_int_equal(check_all(2, 4, 2, &progress, &all), ncclSuccess);
  assert_false(all.failed);
  assert_true(all.plan_count > 5000);
  assert_true(all.run_count < all.program_count);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(good_plans_are_proved),
      cmocka_unit_test(the_order_is_told),
      cmocka_unit_test(steps_are_counted),
      cmocka_unit_test(trees_over_nodes_are_proved),
      cmocka_unit_test(parts_of_one_operation),
      cmocka_unit_test(parts_must_tile),
      cmocka_unit_test(sends_must_meet_receives),
      cmocka_unit_test(an_offer_must_be_taken),
      cmocka_unit_test(one_slot_is_a_deadlock),
      cmocka_unit_test(slots_have_one_owner),
      cmocka_unit_test(a_slice_lies_in_one_piece),
      cmocka_unit_test(slots_hold_a_chunk),
      cmocka_unit_test(both_ends_round),
      cmocka_unit_test(lists_of_two_calls_follow_each_other),
      cmocka_unit_test(empty_slices_count),
      cmocka_unit_test(memory_has_borders),
      cmocka_unit_test(stores_come_after_reads),
      cmocka_unit_test(stores_of_two_messages_are_not_one),
      cmocka_unit_test(reads_come_after_stores),
      cmocka_unit_test(writes_have_an_order),
      cmocka_unit_test(what_is_combined_belongs_together),
      cmocka_unit_test(results_are_what_was_asked_for),
      cmocka_unit_test(ranks_add_up_in_one_order),
      cmocka_unit_test(sums_are_in_rank_order),
      cmocka_unit_test(proxies_pass_what_lanes_pass),
      cmocka_unit_test(what_is_not_known_is_not_proved),
      cmocka_unit_test(slots_that_steps_share_are_proved),
      cmocka_unit_test(a_shared_slot_has_its_rules),
      cmocka_unit_test(fused_broadcasts_are_proved),
      cmocka_unit_test(fused_parts_have_their_order),
      cmocka_unit_test(switches_are_proved),
      cmocka_unit_test(a_switch_knows_its_members),
      cmocka_unit_test(memory_may_run_out),
      cmocka_unit_test(a_request_is_proved),
      cmocka_unit_test(channels_that_are_alike_have_one_key),
      cmocka_unit_test(the_matrix_of_few_ranks_is_proved),
  };
  return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
