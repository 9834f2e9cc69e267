/* loggops.c: the LogGOPS engine: one queue of events, which are operations and messages with their times. An
 * event whose CPU or NIC is busy waits at the gate that opens last, so that it is not examined again while it
 * waits. The order of events is LogGOPSim's: by time, then by creation; of the events that one event creates,
 * sends come first, then receives, then computations. */
#include "goal/loggops.h"

#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "goal/loggops_inner.h"

#define LATEST_NS ((uint64_t)1 << 62)
enum { KIND_SHIFT = 30, OP_MASK = (1 << KIND_SHIFT) - 1 };

static ncclResult_t fail_memory(void) { return log_no_memory("the simulation of this schedule"); }

/* ---- gates ---- */

static inline struct gate *cpu_gate(struct loggops *run, uint32_t rank, uint32_t cpu) {
  return &run->gates[(size_t)rank * run->gate_count + cpu];
}
static inline struct gate *send_gate(struct loggops *run, uint32_t rank, uint32_t nic) {
  return cpu_gate(run, rank, run->goal->cpu_count + nic);
}
static inline struct gate *recv_gate(struct loggops *run, uint32_t rank, uint32_t nic) {
  return cpu_gate(run, rank, run->goal->cpu_count + run->goal->nic_count + nic);
}

/* Schedules an event that wakes the first waiting one. */
static ncclResult_t gate_call(struct loggops *run, struct gate *gate) {
  const struct event event = {gate->open_ns, run->queue.waiters[gate->waiting].event.number,
                              (uint32_t)(gate - run->gates), (uint32_t)EVENT_GATE << KIND_SHIFT};
  gate->call_ns = event.time_ns;
  gate->call_key = event.number;
  return queue_add(&run->queue, &event) ? ncclSuccess : fail_memory();
}

/* True when both gates are open; else the event waits at the one that opens last. */
static inline bool gates_open(const struct event *event, const struct gate *one, const struct gate *two) {
  return one->open_ns <= event->time_ns && two->open_ns <= event->time_ns;
}
static ncclResult_t gates_wait(struct loggops *run, const struct event *event, struct gate *one,
                               struct gate *two) {
  struct gate *gate = one->open_ns >= two->open_ns ? one : two;
  if (!waiters_add(&run->queue, &gate->waiting, event)) return fail_memory();
  if (run->queue.waiters[gate->waiting].event.number != event->number) return ncclSuccess;
  return gate_call(run, gate);
}

static ncclResult_t gate_take(struct gate *gate, uint64_t from_ns, uint64_t fixed_ns, uint64_t byte_ns,
                              uint64_t bytes) {
  const uint64_t cost = fixed_ns + bytes * byte_ns;
  gate->open_ns = from_ns + (cost > byte_ns ? cost - byte_ns : 0); /* the first byte is in the fixed part */
  if (gate->open_ns < LATEST_NS) return ncclSuccess;
  return log_fail(ncclInvalidArgument, "the schedule takes more than 2^62 ns; lower its sizes or costs");
}

/* ---- what becomes ready ---- */

static ncclResult_t free_one(struct loggops *run, uint32_t rank, uint32_t op) {
  if (!array_grow(&run->freed, &run->freed_capacity, (uint64_t)run->freed_count + 1, sizeof *run->freed))
    return fail_memory();
  const struct freed freed = {rank, op};
  run->freed[run->freed_count++] = freed;
  return ncclSuccess;
}

/* The followers from place `from` to `to` no longer wait for an operation of the rank. */
static ncclResult_t followers_free(struct loggops *run, uint32_t rank, uint32_t from, uint32_t to,
                                   uint64_t now_ns) {
  const uint32_t *nexts = run->goal->programs[rank]->nexts;
  for (uint32_t i = from; i < to; i++) {
    uint32_t *state = loggops_state(run, rank, nexts[i]);
    if (run->ready_ns != NULL) {
      uint64_t *ready = &run->ready_ns[run->op_base[rank] + nexts[i]];
      if (*ready < now_ns) *ready = now_ns;
    }
    if (--*state == 0) TRY(free_one(run, rank, nexts[i]));
  }
  return ncclSuccess;
}

static inline ncclResult_t op_begun(struct loggops *run, uint32_t rank, const struct goal_op *op,
                                    uint64_t now_ns) {
  return op->begun > 0 ? followers_free(run, rank, op->first, op->first + op->begun, now_ns) : ncclSuccess;
}

static inline ncclResult_t op_ended(struct loggops *run, uint32_t rank, uint32_t index, uint64_t now_ns) {
  const struct goal_op *op = &run->goal->programs[rank]->ops[index];
  *loggops_state(run, rank, index) = STATE_ENDED;
  run->ended_count += 1;
  if (run->rank_ns[rank] < now_ns) run->rank_ns[rank] = now_ns;
  return followers_free(run, rank, op->first + op->begun, op[1].first, now_ns);
}

/* The event of a ready operation: when its CPU, and for a send its NIC, is free. */
static ncclResult_t freed_add(struct loggops *run, uint32_t rank, uint32_t index) {
  const struct goal_op *op = &run->goal->programs[rank]->ops[index];
  struct event event = {cpu_gate(run, rank, op->cpu)->open_ns, run->next_number++, rank, index};
  if (op->kind == GOAL_SEND && event.time_ns < send_gate(run, rank, op->nic)->open_ns)
    event.time_ns = send_gate(run, rank, op->nic)->open_ns;
  if (run->ready_ns != NULL && event.time_ns < run->ready_ns[run->op_base[rank] + index])
    event.time_ns = run->ready_ns[run->op_base[rank] + index];
  return queue_add(&run->queue, &event) ? ncclSuccess : fail_memory();
}

/* Ready operations of one rank and kind. */
static ncclResult_t freed_add_some(struct loggops *run, uint32_t rank, uint8_t kind) {
  for (uint32_t i = 0; i < run->freed_count; i++) {
    const struct freed *freed = &run->freed[i];
    if (freed->rank == rank && run->goal->programs[rank]->ops[freed->op].kind == kind)
      TRY(freed_add(run, rank, freed->op));
  }
  return ncclSuccess;
}

/* One event makes operations of at most two ranks ready. */
static ncclResult_t freed_add_all(struct loggops *run) {
  if (run->freed_count == 0) return ncclSuccess;
  if (run->freed_count == 1) {
    run->freed_count = 0;
    return freed_add(run, run->freed[0].rank, run->freed[0].op);
  }
  uint32_t low = UINT32_MAX, high = 0;
  for (uint32_t i = 0; i < run->freed_count; i++) {
    if (run->freed[i].rank < low) low = run->freed[i].rank;
    if (run->freed[i].rank > high) high = run->freed[i].rank;
  }
  for (uint8_t kind = GOAL_SEND; kind <= GOAL_CALC; kind++) TRY(freed_add_some(run, low, kind));
  for (uint8_t kind = GOAL_SEND; low != high && kind <= GOAL_CALC; kind++)
    TRY(freed_add_some(run, high, kind));
  run->freed_count = 0;
  return ncclSuccess;
}

/* ---- messages and their receives ---- */

static uint32_t match_hash(uint32_t peer, uint32_t tag) { return (uint32_t)(hash_mix(peer, tag) >> 20); }

/* The class's place in its program's table, or a free place. */
static struct match_class *match_slot(const struct program_classes *classes, uint32_t peer, uint32_t tag) {
  uint32_t slot = match_hash(peer, tag) & (classes->capacity - 1);
  for (;; slot = (slot + 1) & (classes->capacity - 1)) {
    struct match_class *match = &classes->by_match[slot];
    if (match->number == 0 || (match->peer == peer && match->tag == tag)) return match;
  }
}

/* The first waiting receive in the class of this peer and tag, or UINT32_MAX. */
static uint32_t posted_first(const struct loggops *run, uint32_t rank, uint32_t peer, uint32_t tag,
                             uint32_t *which) {
  const struct program_classes *classes = &run->classes[run->goal->programs[rank]->number];
  const struct match_class *match = match_slot(classes, peer, tag);
  if (match->number == 0) return UINT32_MAX;
  *which = match->number - 1;
  const uint32_t last = run->posted[run->class_base[rank] + *which];
  return last == 0 ? UINT32_MAX : *loggops_state(run, rank, last - 1) & ~STATE_POSTED;
}

/* The receive that began first, of all classes that match the message. */
static uint32_t posted_find(const struct loggops *run, uint32_t rank, uint32_t peer, uint32_t tag,
                            uint32_t *which) {
  const struct program_classes *classes = &run->classes[run->goal->programs[rank]->number];
  if (classes->capacity == 0) return UINT32_MAX;
  uint32_t best = posted_first(run, rank, peer, tag, which);
  if (!classes->takes_any) return best;
  const uint32_t peers[] = {GOAL_ANY, peer, GOAL_ANY}, tags[] = {tag, GOAL_ANY, GOAL_ANY};
  for (int i = 0; i < 3; i++) {
    uint32_t other_class;
    const uint32_t other = posted_first(run, rank, peers[i], tags[i], &other_class);
    const uint64_t *order = &run->posted_order[run->op_base[rank]];
    if (other == UINT32_MAX || (best != UINT32_MAX && order[best] < order[other])) continue;
    best = other;
    *which = other_class;
  }
  return best;
}

static void posted_add(struct loggops *run, uint32_t rank, uint32_t op) {
  const struct program_classes *classes = &run->classes[run->goal->programs[rank]->number];
  uint32_t *last = &run->posted[run->class_base[rank] + classes->of_op[op]];
  uint32_t *state = loggops_state(run, rank, op);
  if (*last == 0) {
    *state = STATE_POSTED | op;
  } else {
    uint32_t *before = loggops_state(run, rank, *last - 1);
    *state = *before;
    *before = STATE_POSTED | op;
  }
  *last = op + 1;
  if (run->posted_order != NULL) run->posted_order[run->op_base[rank] + op] = run->posted_count++;
}

/* Removes the class's first receive. */
static void posted_remove(struct loggops *run, uint32_t rank, uint32_t which) {
  uint32_t *last = &run->posted[run->class_base[rank] + which];
  const uint32_t first = *loggops_state(run, rank, *last - 1) & ~STATE_POSTED;
  if (first == *last - 1) *last = 0;
  else *loggops_state(run, rank, *last - 1) = *loggops_state(run, rank, first);
}

static ncclResult_t unexpected_add(struct loggops *run, uint32_t rank, const struct event *message,
                                   uint64_t done_ns) {
  uint32_t place = run->unexpected_free;
  if (place != 0) {
    run->unexpected_free = run->unexpected[place].next;
  } else {
    if (!array_grow(&run->unexpected, &run->unexpected_capacity, (uint64_t)run->unexpected_count + 2,
                    sizeof *run->unexpected))
      return fail_memory();
    place = ++run->unexpected_count;
  }
  const struct unexpected unexpected = {message->rank, message->item & OP_MASK, 0, done_ns};
  run->unexpected[place] = unexpected;
  if (run->unexpected_last[rank] != 0) run->unexpected[run->unexpected_last[rank]].next = place;
  else run->unexpected_first[rank] = place;
  run->unexpected_last[rank] = place;
  return ncclSuccess;
}

/* Removes the first earlier message that matches the receive; false if there is none. */
static bool unexpected_take(struct loggops *run, uint32_t rank, const struct goal_op *recv,
                            struct unexpected *found) {
  const struct goal *goal = run->goal;
  uint32_t before = 0, place = run->unexpected_first[rank];
  for (; place != 0; before = place, place = run->unexpected[place].next) {
    const struct unexpected *unexpected = &run->unexpected[place];
    const struct goal_op *send = &goal->programs[unexpected->source]->ops[unexpected->op];
    if ((recv->peer == GOAL_ANY || recv->peer == goal_distance(goal, rank, unexpected->source)) &&
        (recv->tag == GOAL_ANY || recv->tag == send->tag))
      break;
  }
  if (place == 0) return false;
  *found = run->unexpected[place];
  if (before != 0) run->unexpected[before].next = found->next;
  else run->unexpected_first[rank] = found->next;
  if (run->unexpected_last[rank] == place) run->unexpected_last[rank] = before;
  run->unexpected[place].next = run->unexpected_free;
  run->unexpected_free = place;
  return true;
}

/* Matches a send and a receive: their sizes must be equal; a send above S ends now. */
static ncclResult_t meet(struct loggops *run, uint32_t source, uint32_t send_index, uint32_t rank,
                         uint32_t recv_index, uint64_t now_ns) {
  const struct goal_op *send = &run->goal->programs[source]->ops[send_index];
  if (send->size != run->goal->programs[rank]->ops[recv_index].size) {
    char one[160], two[160];
    goal_op_describe(run->goal, source, send_index, one, sizeof one);
    goal_op_describe(run->goal, rank, recv_index, two, sizeof two);
    return log_fail(ncclInvalidUsage, "a message is received with another size than it is sent: %s; %s", one,
                    two);
  }
  if (send->size <= run->costs.eager_bytes) return ncclSuccess;
  struct gate *cpu = cpu_gate(run, source, send->cpu);
  if (cpu->open_ns < now_ns) cpu->open_ns = now_ns;
  return op_ended(run, source, send_index, cpu->open_ns);
}

/* ---- events ---- */

static ncclResult_t run_send(struct loggops *run, struct event *event, const struct goal_op *op) {
  const struct loggops_costs *costs = &run->costs;
  struct gate *cpu = cpu_gate(run, event->rank, op->cpu), *nic = send_gate(run, event->rank, op->nic);
  const uint64_t now_ns = event->time_ns;
  if (!gates_open(event, cpu, nic)) return gates_wait(run, event, cpu, nic);
  TRY(gate_take(cpu, now_ns, costs->overhead_ns, costs->overhead_byte_ns, op->size));
  TRY(gate_take(nic, now_ns, costs->gap_ns, costs->gap_byte_ns, op->size));
  const struct event message = {now_ns + costs->overhead_ns + costs->latency_ns, run->next_number++,
                                event->rank, (uint32_t)EVENT_MESSAGE << KIND_SHIFT | event->item};
  if (!queue_add(&run->queue, &message)) return fail_memory();
  run->event_count += 1;
  TRY(op_begun(run, event->rank, op, now_ns));
  if (op->size <= costs->eager_bytes) return op_ended(run, event->rank, event->item, cpu->open_ns);
  *loggops_state(run, event->rank, event->item) = STATE_BEGUN;
  if (run->rank_ns[event->rank] < cpu->open_ns) run->rank_ns[event->rank] = cpu->open_ns;
  return ncclSuccess;
}

static ncclResult_t run_recv(struct loggops *run, const struct event *event, const struct goal_op *op) {
  struct unexpected unexpected;
  run->event_count += 1;
  TRY(op_begun(run, event->rank, op, event->time_ns));
  if (!unexpected_take(run, event->rank, op, &unexpected)) {
    posted_add(run, event->rank, event->item);
    return ncclSuccess;
  }
  TRY(meet(run, unexpected.source, unexpected.op, event->rank, event->item, event->time_ns));
  return op_ended(run, event->rank, event->item,
                  unexpected.done_ns > event->time_ns ? unexpected.done_ns : event->time_ns);
}

static ncclResult_t run_calc(struct loggops *run, struct event *event, const struct goal_op *op) {
  struct gate *cpu = cpu_gate(run, event->rank, op->cpu);
  if (!gates_open(event, cpu, cpu)) return gates_wait(run, event, cpu, cpu);
  TRY(gate_take(cpu, event->time_ns, op->size, 0, 0));
  run->event_count += 1;
  TRY(op_begun(run, event->rank, op, event->time_ns));
  return op_ended(run, event->rank, event->item, cpu->open_ns);
}

static ncclResult_t run_op(struct loggops *run, struct event *event) {
  const struct goal_op *op = &run->goal->programs[event->rank]->ops[event->item];
  if (op->kind == GOAL_SEND) return run_send(run, event, op);
  return op->kind == GOAL_RECV ? run_recv(run, event, op) : run_calc(run, event, op);
}

/* The CPU time to receive a byte: its own or the NIC's, whichever is more. For a message of 0 bytes, which
 * has no first byte, the lesser nonzero part is subtracted, as in LogGOPSim. */
static uint64_t recv_byte_ns(const struct loggops_costs *costs, uint64_t bytes) {
  const bool own = costs->overhead_byte_ns > costs->gap_byte_ns;
  const uint64_t more = own ? costs->overhead_byte_ns : costs->gap_byte_ns;
  const uint64_t less = own ? costs->gap_byte_ns : costs->overhead_byte_ns;
  return bytes == 0 && less != 0 ? less : more;
}

/* A message arrives: the CPU and the NIC with the sender's numbers receive it. */
static ncclResult_t run_message(struct loggops *run, struct event *event) {
  const struct loggops_costs *costs = &run->costs;
  const uint32_t send_index = event->item & OP_MASK, source = event->rank;
  const struct goal_op *send = &run->goal->programs[source]->ops[send_index];
  const uint32_t rank = goal_peer(run->goal, source, send);
  const uint64_t byte_ns = recv_byte_ns(costs, send->size);
  struct gate *cpu = cpu_gate(run, rank, send->cpu), *nic = recv_gate(run, rank, send->nic);
  if (!gates_open(event, cpu, nic)) return gates_wait(run, event, cpu, nic);
  TRY(gate_take(cpu, event->time_ns, costs->overhead_ns, byte_ns, send->size));
  TRY(gate_take(nic, event->time_ns, costs->gap_ns, costs->gap_byte_ns, send->size));
  run->event_count += 1;
  if (run->rank_ns[rank] < cpu->open_ns) run->rank_ns[rank] = cpu->open_ns;
  uint32_t which = 0;
  const uint32_t recv_index =
      posted_find(run, rank, goal_distance(run->goal, rank, source), send->tag, &which);
  if (recv_index == UINT32_MAX) return unexpected_add(run, rank, event, cpu->open_ns);
  posted_remove(run, rank, which);
  TRY(meet(run, source, send_index, rank, recv_index, event->time_ns));
  return op_ended(run, rank, recv_index, cpu->open_ns);
}

static ncclResult_t run_event(struct loggops *run, struct event *event) {
  if (event->item >> KIND_SHIFT == EVENT_MESSAGE) TRY(run_message(run, event));
  else TRY(run_op(run, event));
  return freed_add_all(run);
}

/* Wakes the first waiting event, unless the gate was taken meanwhile. */
static ncclResult_t run_gate(struct loggops *run, const struct event *call) {
  struct gate *gate = &run->gates[call->rank];
  struct event event;
  if (gate->waiting == 0 || gate->call_ns != call->time_ns || gate->call_key != call->number)
    return ncclSuccess;
  if (gate->open_ns <= call->time_ns) {
    waiters_take(&run->queue, &gate->waiting, &event);
    gate->call_key = UINT64_MAX;
    event.time_ns = call->time_ns;
    TRY(run_event(run, &event));
  }
  return gate->waiting != 0 ? gate_call(run, gate) : ncclSuccess;
}

/* Operations without dependences begin at time 0, rank after rank: they need no queue. */
static ncclResult_t run_initial(struct loggops *run) {
  const struct goal *goal = run->goal;
  uint64_t number = 0;
  for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
    const struct goal_program *program = goal->programs[rank];
    for (uint8_t kind = GOAL_SEND; kind <= GOAL_CALC; kind++) {
      for (uint32_t i = 0; i < program->op_count; i++) {
        if (program->ops[i].waits != 0 || program->ops[i].kind != kind) continue;
        struct event event = {0, number++, rank, i};
        TRY(run_event(run, &event));
      }
    }
  }
  return ncclSuccess;
}

enum { TELL_EVERY = 1 << 17 };

static ncclResult_t run_all(struct loggops *run) {
  TRY(run_initial(run));
  for (uint64_t turn = 1; run->queue.count > 0; turn++) {
    struct event event;
    if (run->watch && turn % TELL_EVERY == 0) run->watch->tell(run->watch->context, run->ended_count);
    queue_take(&run->queue, &event);
    if (event.item >> KIND_SHIFT == EVENT_GATE) TRY(run_gate(run, &event));
    else TRY(run_event(run, &event));
  }
  if (run->ended_count < run->goal->op_count || loggops_has_unexpected(run))
    return loggops_explain(run, run->why);
  return ncclSuccess;
}

/* ---- making ---- */

static ncclResult_t classes_make(const struct goal_program *program, struct program_classes *classes) {
  uint32_t recvs = 0, capacity = 2;
  classes->program = program;
  for (uint32_t i = 0; i < program->op_count; i++) recvs += program->ops[i].kind == GOAL_RECV;
  if (recvs == 0) return ncclSuccess;
  while (capacity < 2 * recvs) capacity *= 2;
  classes->of_op = (uint32_t *)os_alloc(program->op_count * sizeof *classes->of_op);
  classes->by_match = (struct match_class *)os_alloc(capacity * sizeof *classes->by_match);
  if (classes->of_op == NULL || classes->by_match == NULL) return fail_memory();
  classes->capacity = capacity;
  for (uint32_t i = 0; i < program->op_count; i++) {
    const struct goal_op *op = &program->ops[i];
    if (op->kind != GOAL_RECV) continue;
    struct match_class *match = match_slot(classes, op->peer, op->tag);
    if (match->number == 0) match->number = ++classes->count;
    match->peer = op->peer;
    match->tag = op->tag;
    classes->of_op[i] = match->number - 1;
    if (op->peer == GOAL_ANY || op->tag == GOAL_ANY) classes->takes_any = true;
  }
  return ncclSuccess;
}

static ncclResult_t run_make_programs(struct loggops *run, bool *takes_any) {
  const struct goal *goal = run->goal;
  run->classes = (struct program_classes *)os_alloc(goal->program_count * sizeof *run->classes);
  if (run->classes == NULL) return fail_memory();
  for (const struct goal_program *program = goal->newest; program != NULL; program = program->older) {
    TRY(classes_make(program, &run->classes[program->number]));
    if (run->classes[program->number].takes_any) *takes_any = true;
  }
  return ncclSuccess;
}

static ncclResult_t run_make_states(struct loggops *run, bool takes_any) {
  const struct goal *goal = run->goal;
  uint64_t ops = 0, posted = 0;
  for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
    run->op_base[rank] = ops;
    run->class_base[rank] = posted;
    ops += goal->programs[rank]->op_count;
    posted += run->classes[goal->programs[rank]->number].count;
  }
  run->states = (uint32_t *)os_alloc(ops * sizeof *run->states);
  run->posted = (uint32_t *)os_alloc(posted * sizeof *run->posted);
  if (run->states == NULL || run->posted == NULL) return fail_memory();
  if (goal->cpu_count > 1) {
    run->ready_ns = (uint64_t *)os_alloc(ops * sizeof *run->ready_ns);
    if (run->ready_ns == NULL) return fail_memory();
  }
  if (takes_any) {
    run->posted_order = (uint64_t *)os_alloc(ops * sizeof *run->posted_order);
    if (run->posted_order == NULL) return fail_memory();
  }
  for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
    const struct goal_program *program = goal->programs[rank];
    for (uint32_t i = 0; i < program->op_count; i++) {
      *loggops_state(run, rank, i) = program->ops[i].waits;
      run->next_number += program->ops[i].waits == 0;
    }
  }
  return ncclSuccess;
}

static ncclResult_t run_make(struct loggops *run) {
  const struct goal *goal = run->goal;
  const size_t ranks = goal->rank_count;
  bool takes_any = false;
  run->gate_count = goal->cpu_count + 2 * goal->nic_count;
  run->gates = (struct gate *)os_alloc(ranks * run->gate_count * sizeof *run->gates);
  run->op_base = (uint64_t *)os_alloc(ranks * sizeof *run->op_base);
  run->class_base = (uint64_t *)os_alloc(ranks * sizeof *run->class_base);
  run->unexpected_first = (uint32_t *)os_alloc(ranks * sizeof *run->unexpected_first);
  run->unexpected_last = (uint32_t *)os_alloc(ranks * sizeof *run->unexpected_last);
  run->rank_ns = (uint64_t *)os_alloc(ranks * sizeof *run->rank_ns);
  if (run->gates == NULL || run->op_base == NULL || run->class_base == NULL ||
      run->unexpected_first == NULL || run->unexpected_last == NULL || run->rank_ns == NULL)
    return fail_memory();
  TRY(run_make_programs(run, &takes_any));
  return run_make_states(run, takes_any);
}

static void run_free(struct loggops *run) {
  for (uint32_t i = 0; run->classes != NULL && i < run->goal->program_count; i++) {
    os_free(run->classes[i].of_op);
    os_free(run->classes[i].by_match);
  }
  queue_free(&run->queue);
  os_free(run->classes);
  os_free(run->gates);
  os_free(run->op_base);
  os_free(run->class_base);
  os_free(run->unexpected_first);
  os_free(run->unexpected_last);
  os_free(run->states);
  os_free(run->posted);
  os_free(run->ready_ns);
  os_free(run->posted_order);
  os_free(run->unexpected);
  os_free(run->freed);
  os_free(run->rank_ns);
}

ncclResult_t loggops_run(const struct goal *goal, const struct loggops_costs *costs,
                         const struct loggops_watch *watch, struct loggops_result *result, struct text *why) {
  struct loggops run;
  memset(&run, 0, sizeof run);
  run.goal = goal;
  run.costs = *costs;
  run.why = why;
  run.watch = watch;
  ncclResult_t code = run_make(&run);
  if (code == ncclSuccess) code = run_all(&run);
  if (code == ncclSuccess) {
    memset(result, 0, sizeof *result);
    result->rank_ns = run.rank_ns;
    run.rank_ns = NULL;
    result->event_count = run.event_count;
    for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
      if (result->rank_ns[rank] <= result->finish_ns) continue;
      result->finish_ns = result->rank_ns[rank];
      result->last_rank = rank;
    }
  }
  run_free(&run);
  return code;
}

void loggops_result_free(struct loggops_result *result) {
  os_free(result->rank_ns);
  memset(result, 0, sizeof *result);
}

/* ---- costs ---- */

ncclResult_t loggops_costs_parse(const char *text, struct loggops_costs *costs) {
  struct loggops_costs read = *costs;
  const struct {
    char letter;
    uint64_t *value, most;
  } rows[] = {{'L', &read.latency_ns, (uint64_t)1 << 40},  {'o', &read.overhead_ns, (uint64_t)1 << 40},
              {'g', &read.gap_ns, (uint64_t)1 << 40},      {'O', &read.overhead_byte_ns, (uint64_t)1 << 20},
              {'G', &read.gap_byte_ns, (uint64_t)1 << 20}, {'S', &read.eager_bytes, GOAL_BYTES_MOST}};
  for (const char *at = text; *at != '\0';) {
    size_t row = 0;
    while (row < 6 && rows[row].letter != *at) row++;
    if (row == 6 || at[1] != '=' || at[2] < '0' || at[2] > '9')
      return log_fail(ncclInvalidArgument,
                      "`%s`: expected L, o, g, O, G or S, `=` and a whole number, found `%.16s`", text, at);
    uint64_t value = 0;
    for (at += 2; *at >= '0' && *at <= '9' && value <= rows[row].most; at++)
      value = value * 10 + (uint64_t)(*at - '0');
    if (value > rows[row].most)
      return log_fail(ncclInvalidArgument, "`%s`: %c is at most %" PRIu64, text, rows[row].letter,
                      rows[row].most);
    if (*at != '\0' && *at != ',')
      return log_fail(ncclInvalidArgument, "`%s`: expected a comma or the end behind %c, found `%.16s`", text,
                      rows[row].letter, at);
    *rows[row].value = value;
    at += *at == ',';
  }
  *costs = read;
  return ncclSuccess;
}
