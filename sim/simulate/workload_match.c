/* workload_match.c: checks that the ranks' calls match (workload.h): the n-th collective of a communicator is
 * the same on all its ranks, the n-th message between two ranks is sent and received. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "simulate/workload.h"

/* An operation that one rank calls. After sorting, matching operations are adjacent. */
struct participant {
  uint32_t comm, from, to; /* from, to: the ranks of a message; WORKLOAD_NONE for a collective */
  uint32_t number;         /* on its communicator and rank, or among the pair's messages */
  uint32_t place, call, op;
  bool receives;
};

struct matching {
  const struct workload *workload;
  struct participant *participants;
  uint64_t count;
  void (*tell)(void *context, const char *text);
  void *context;
  uint64_t wrong;
};

static int participant_compare(const void *left, const void *right) {
  const struct participant *a = (const struct participant *)left, *b = (const struct participant *)right;
  if (a->comm != b->comm) return a->comm < b->comm ? -1 : 1;
  if (a->from != b->from) return a->from < b->from ? -1 : 1;
  if (a->to != b->to) return a->to < b->to ? -1 : 1;
  if (a->number != b->number) return a->number < b->number ? -1 : 1;
  if (a->place != b->place) return a->place < b->place ? -1 : 1;
  return a->receives < b->receives ? -1 : a->receives > b->receives;
}

/* Order before numbering: by ranks, then in the order of the calls. */
static int message_compare(const void *left, const void *right) {
  const struct participant *a = (const struct participant *)left, *b = (const struct participant *)right;
  if (a->comm != b->comm) return a->comm < b->comm ? -1 : 1;
  if (a->from != b->from) return a->from < b->from ? -1 : 1;
  if (a->to != b->to) return a->to < b->to ? -1 : 1;
  if (a->receives != b->receives) return a->receives < b->receives ? -1 : 1;
  return a->number < b->number ? -1 : a->number > b->number;
}

static void find(struct matching *matching, const char *text) {
  if (matching->wrong++ < WORKLOAD_TOLD_MOST) matching->tell(matching->context, text);
}

static void say(const struct matching *matching, const struct participant *participant, char *out,
                size_t out_bytes) {
  const struct workload *workload = matching->workload;
  const struct workload_call *call = &workload->calls[participant->call];
  char op[160], where[256];
  workload_say_op(workload, call, &workload->ops[participant->op], op, sizeof op);
  workload_say_place(workload, call, where, sizeof where);
  snprintf(out, out_bytes, "%srank %u calls %s", where, participant->place, op);
}

/* Numbers the messages of a pair, sends before receives. */
static void messages_number(struct matching *matching) {
  qsort(matching->participants, matching->count, sizeof *matching->participants, message_compare);
  for (uint64_t i = 0, number = 0; i < matching->count; i++) {
    struct participant *own = &matching->participants[i];
    const struct participant *before = i > 0 ? own - 1 : NULL;
    if (own->from == WORKLOAD_NONE) continue;
    if (!before || before->comm != own->comm || before->from != own->from || before->to != own->to ||
        before->receives != own->receives)
      number = 0;
    own->number = (uint32_t)number++;
  }
}

static uint64_t op_bytes(const struct workload_op *op) {
  static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return op->count * (op->dtype < ncclNumTypes ? bytes[op->dtype] : 1);
}

static void message_check(struct matching *matching, const struct participant *first, uint64_t count) {
  char text[1200], one[512], two[512];
  const struct workload_op *ops = matching->workload->ops;
  say(matching, first, one, sizeof one);
  if (count == 1) {
    snprintf(text, sizeof text, "%s, and rank %u has no %s for it", one,
             first->receives ? first->from : first->to, first->receives ? "send" : "receive");
    find(matching, text);
    return;
  }
  if (op_bytes(&ops[first->op]) == op_bytes(&ops[first[1].op])) return;
  say(matching, first + 1, two, sizeof two);
  snprintf(text, sizeof text, "%s, %" PRIu64 " bytes, but %s, %" PRIu64 " bytes", one,
           op_bytes(&ops[first->op]), two, op_bytes(&ops[first[1].op]));
  find(matching, text);
}

/* All calls for the n-th collective of a communicator. */
static void collective_check(struct matching *matching, const struct participant *first, uint64_t count) {
  const struct workload *workload = matching->workload;
  const struct workload_comm *comm = &workload->comms[first->comm];
  const struct workload_op *own = &workload->ops[first->op];
  char text[1200], one[512], two[512];
  uint32_t missing = 0;
  say(matching, first, one, sizeof one);
  for (uint64_t i = 0; i < count; i++) {
    const struct workload_op *other = &workload->ops[first[i].op];
    if (other->func == own->func && other->dtype == own->dtype && other->op == own->op &&
        other->count == own->count && other->peer == own->peer)
      continue;
    say(matching, &first[i], two, sizeof two);
    snprintf(text, sizeof text, "%s as number %u of its communicator, where %s", two, first->number + 1, one);
    find(matching, text);
    return;
  }
  if (count == comm->rank_count) return;
  while (missing < count && first[missing].place == missing) missing++;
  snprintf(text, sizeof text, "%s, and rank %u does not (%" PRIu64 " of %u ranks do)", one, missing, count,
           comm->rank_count);
  find(matching, text);
}

static void participants_check(struct matching *matching) {
  qsort(matching->participants, matching->count, sizeof *matching->participants, participant_compare);
  for (uint64_t i = 0, count; i < matching->count; i += count) {
    const struct participant *own = &matching->participants[i];
    for (count = 1; i + count < matching->count; count++)
      if (own[count].comm != own->comm || own[count].from != own->from || own[count].to != own->to ||
          own[count].number != own->number)
        break;
    if (own->from == WORKLOAD_NONE) collective_check(matching, own, count);
    else message_check(matching, own, count);
  }
}

/* A rank's calls, in its order; by communicator, its place there and its number of collectives so far. */
static void rank_gather(struct matching *matching, uint32_t rank, uint32_t *places, uint32_t *numbers) {
  const struct workload *workload = matching->workload;
  const struct workload_rank *own = &workload->ranks[rank];
  uint32_t message = 0;
  for (uint32_t i = 0; i < own->step_count; i++) {
    const struct workload_call *call = &workload->calls[own->steps[i].call];
    for (uint32_t k = 0; k < call->op_count; k++) {
      const struct workload_op *op = &workload->ops[call->first_op + k];
      const bool sends = op->func == FUNC_SEND, receives = op->func == FUNC_RECV;
      if (places[call->comm] == WORKLOAD_NONE)
        places[call->comm] = workload_place_of(&workload->comms[call->comm], rank);
      const uint32_t place = places[call->comm];
      struct participant *participant = &matching->participants[matching->count++];
      *participant = (struct participant){.comm = call->comm,
                                          .from = WORKLOAD_NONE,
                                          .to = WORKLOAD_NONE,
                                          .place = place,
                                          .call = own->steps[i].call,
                                          .op = call->first_op + k,
                                          .receives = receives};
      if (sends || receives) {
        participant->from = sends ? place : op->peer;
        participant->to = sends ? op->peer : place;
        participant->number = message++;
      } else {
        participant->number = numbers[call->comm]++;
      }
    }
  }
}

static uint64_t ops_count(const struct workload *workload) {
  uint64_t count = 0;
  for (uint32_t rank = 0; rank < workload->rank_count; rank++)
    for (uint32_t i = 0; i < workload->ranks[rank].step_count; i++)
      count += workload->calls[workload->ranks[rank].steps[i].call].op_count;
  return count;
}

ncclResult_t workload_match(const struct workload *workload, void (*tell)(void *context, const char *text),
                            void *context, uint64_t *wrong) {
  struct matching matching = {workload, NULL, 0, tell, context, 0};
  const uint64_t count = ops_count(workload);
  uint32_t *numbers = (uint32_t *)os_alloc((workload->comm_count + (size_t)1) * sizeof *numbers);
  uint32_t *places = (uint32_t *)os_alloc((workload->comm_count + (size_t)1) * sizeof *places);
  matching.participants = (struct participant *)os_alloc((count + 1) * sizeof *matching.participants);
  const bool whole = numbers && places && matching.participants;
  for (uint32_t rank = 0; whole && rank < workload->rank_count; rank++) {
    memset(numbers, 0, workload->comm_count * sizeof *numbers);
    memset(places, 0xff, workload->comm_count * sizeof *places); /* WORKLOAD_NONE: not known yet */
    rank_gather(&matching, rank, places, numbers);
  }
  if (whole) {
    messages_number(&matching);
    participants_check(&matching);
  }
  os_free(numbers);
  os_free(places);
  os_free(matching.participants);
  *wrong = matching.wrong;
  if (whole) return ncclSuccess;
  return log_no_memory("%s: comparing %" PRIu64 " operations", workload->name, count);
}
