/* workload.c: see workload.h. */
#include "simulate/workload.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "bench/bench.h"

/* ---- making ---- */

static ncclResult_t no_memory(const struct workload *workload) {
  return log_no_memory("%s: its calls", workload->name);
}

ncclResult_t workload_make(const char *name, uint32_t rank_count, struct workload *workload) {
  uint32_t number;
  memset(workload, 0, sizeof *workload);
  workload->name = name;
  if (rank_count < 1 || rank_count > WORKLOAD_RANKS_MAX)
    return log_fail(ncclInvalidUsage, "%s: %u ranks: must be 1 to %u", name, rank_count, WORKLOAD_RANKS_MAX);
  workload->ranks = (struct workload_rank *)os_alloc(rank_count * sizeof *workload->ranks);
  workload->streams = (char(*)[48])os_alloc(WORKLOAD_STREAMS_MAX * sizeof *workload->streams);
  if (!workload->ranks || !workload->streams) return no_memory(workload);
  workload->rank_count = rank_count;
  TRY(workload_add_comm(workload, "world", NULL, rank_count, &number));
  return workload_add_stream(workload, "main", &number);
}

void workload_free(struct workload *workload) {
  for (uint32_t i = 0; i < workload->comm_count; i++) os_free(workload->comms[i].ranks);
  for (uint32_t i = 0; i < workload->rank_count; i++) {
    os_free(workload->ranks[i].steps);
    os_free(workload->ranks[i].stream_steps);
  }
  os_free(workload->streams);
  os_free(workload->comms);
  os_free(workload->ops);
  os_free(workload->calls);
  os_free(workload->ranks);
  memset(workload, 0, sizeof *workload);
}

ncclResult_t workload_add_comm(struct workload *workload, const char *name, const uint32_t *ranks,
                               uint32_t rank_count, uint32_t *number) {
  if (workload->comm_count == WORKLOAD_COMMS_MAX)
    return log_fail(ncclInvalidUsage, "%s: more than %u communicators", workload->name, WORKLOAD_COMMS_MAX);
  if (!array_grow(&workload->comms, &workload->comm_capacity, (uint64_t)workload->comm_count + 1,
                  sizeof *workload->comms))
    return no_memory(workload);
  struct workload_comm *comm = &workload->comms[workload->comm_count];
  memset(comm, 0, sizeof *comm);
  snprintf(comm->name, sizeof comm->name, "%s", name);
  comm->rank_count = rank_count;
  if (ranks) comm->ranks = (uint32_t *)os_alloc(rank_count * sizeof *ranks);
  if (ranks && !comm->ranks) return no_memory(workload);
  if (ranks) memcpy(comm->ranks, ranks, rank_count * sizeof *ranks);
  *number = workload->comm_count++;
  return ncclSuccess;
}

ncclResult_t workload_add_stream(struct workload *workload, const char *name, uint32_t *number) {
  if (workload->stream_count == WORKLOAD_STREAMS_MAX)
    return log_fail(ncclInvalidUsage, "%s: more than %u streams", workload->name, WORKLOAD_STREAMS_MAX);
  snprintf(workload->streams[workload->stream_count], sizeof workload->streams[0], "%s", name);
  *number = workload->stream_count++;
  return ncclSuccess;
}

ncclResult_t workload_add_op(struct workload *workload, const struct workload_op *op) {
  if (workload->op_count == UINT32_MAX / 2 ||
      !array_grow(&workload->ops, &workload->op_capacity, (uint64_t)workload->op_count + 1,
                  sizeof *workload->ops))
    return no_memory(workload);
  workload->ops[workload->op_count++] = *op;
  return ncclSuccess;
}

ncclResult_t workload_add_call(struct workload *workload, const struct workload_call *call,
                               uint32_t *number) {
  if (workload->call_count == WORKLOAD_CALLS_MAX)
    return log_fail(ncclInvalidUsage, "%s: more than %u calls that differ; take a part of it", workload->name,
                    WORKLOAD_CALLS_MAX);
  if (!array_grow(&workload->calls, &workload->call_capacity, (uint64_t)workload->call_count + 1,
                  sizeof *workload->calls))
    return no_memory(workload);
  workload->calls[workload->call_count] = *call;
  *number = workload->call_count++;
  return ncclSuccess;
}

ncclResult_t workload_add_waiting(struct workload *workload, uint32_t rank, uint32_t call, uint32_t wait) {
  struct workload_rank *own = &workload->ranks[rank];
  if (workload->step_count == WORKLOAD_STEPS_MAX)
    return log_fail(ncclInvalidUsage,
                    "%s: more than %u calls of all ranks together; take fewer ranks or repetitions",
                    workload->name, WORKLOAD_STEPS_MAX);
  if (!own->stream_steps)
    own->stream_steps = (uint32_t *)os_alloc(WORKLOAD_STREAMS_MAX * sizeof *own->stream_steps);
  if (!own->stream_steps ||
      !array_grow(&own->steps, &own->step_capacity, (uint64_t)own->step_count + 1, sizeof *own->steps))
    return no_memory(workload);
  own->steps[own->step_count++] = (struct workload_step){call, wait};
  own->stream_steps[workload->calls[call].stream] += 1;
  workload->step_count += 1;
  return ncclSuccess;
}

ncclResult_t workload_add_step(struct workload *workload, uint32_t rank, uint32_t call) {
  const uint32_t *so_far = workload->ranks[rank].stream_steps;
  const uint32_t stream = workload->calls[call].wait_stream, but = workload->calls[call].wait_but;
  const uint32_t there = stream == WORKLOAD_NONE || !so_far ? 0 : so_far[stream];
  return workload_add_waiting(workload, rank, call, there > but ? there - but : 0);
}

/* ---- look-up ---- */

uint32_t workload_find_comm(const struct workload *workload, const char *name) {
  for (uint32_t i = 0; i < workload->comm_count; i++)
    if (!strcmp(workload->comms[i].name, name)) return i;
  return WORKLOAD_NONE;
}

uint32_t workload_find_stream(const struct workload *workload, const char *name) {
  for (uint32_t i = 0; i < workload->stream_count; i++)
    if (!strcmp(workload->streams[i], name)) return i;
  return WORKLOAD_NONE;
}

uint32_t workload_rank_of(const struct workload_comm *comm, uint32_t place) {
  if (place >= comm->rank_count) return WORKLOAD_NONE;
  return comm->ranks ? comm->ranks[place] : place;
}

uint32_t workload_place_of(const struct workload_comm *comm, uint32_t rank) {
  if (!comm->ranks) return rank < comm->rank_count ? rank : WORKLOAD_NONE;
  for (uint32_t i = 0; i < comm->rank_count; i++)
    if (comm->ranks[i] == rank) return i;
  return WORKLOAD_NONE;
}

/* ---- descriptions ---- */

const char *workload_func_name(uint8_t func) {
  if (func == FUNC_SEND) return "send";
  if (func == FUNC_RECV) return "recv";
  for (size_t i = 0; collective_at(i); i++)
    if (collective_func(collective_at(i)) == func) return collective_at(i)->name;
  return "compute";
}

static const char *op_name(uint8_t op) {
  static const char *const names[OP_COUNT] = {"sum", "prod", "max", "min", "sum", "sum"};
  return names[op < OP_COUNT ? op : OP_SUM];
}

void workload_say_op(const struct workload *workload, const struct workload_call *call,
                     const struct workload_op *op, char *out, size_t out_bytes) {
  const bool message = op->func == FUNC_SEND || op->func == FUNC_RECV;
  const struct collective *collective = message ? NULL : collective_find(workload_func_name(op->func));
  const struct workload_comm *comm = &workload->comms[call->comm];
  char peer[32] = "", where[64] = "", word[16] = "";
  if (collective && collective->has_op) snprintf(word, sizeof word, " %s", op_name(op->op));
  if (message && op->peer != WORKLOAD_NONE)
    snprintf(peer, sizeof peer, " %s %u", op->func == FUNC_SEND ? "to" : "from", op->peer);
  if (collective && collective->has_root) snprintf(peer, sizeof peer, " root %u", op->peer);
  if (call->comm != 0) snprintf(where, sizeof where, " comm %s", comm->name);
  snprintf(out, out_bytes, "%s %" PRIu64 " x %s%s%s%s", workload_func_name(op->func), op->count,
           bench_type_name((ncclDataType_t)op->dtype), word, peer, where);
}

void workload_say_place(const struct workload *workload, const struct workload_call *call, char *out,
                        size_t out_bytes) {
  out[0] = 0;
  if (call->line > 0) snprintf(out, out_bytes, "%s line %u: ", workload->name, call->line);
}

/* ---- text ---- */

static void time_print(FILE *out, const char *word, uint64_t ps) {
  fprintf(out, "%s%" PRIu64, word, ps / 1000000);
  if (ps % 1000000 != 0) fprintf(out, ".%06" PRIu64, ps % 1000000);
  fputs("us", out);
}

static void ranks_print(FILE *out, const struct workload_comm *comm) {
  for (uint32_t i = 0, last; i < comm->rank_count; i = last + 1) {
    const uint32_t first = workload_rank_of(comm, i);
    for (last = i; workload_rank_of(comm, last + 1) == first + (last + 1 - i);) last++;
    fprintf(out, "%s%u", i > 0 ? "," : "", first);
    if (last > i) fprintf(out, "-%u", first + (last - i));
  }
}

/* `but`: how many steps of the other stream it does not wait for; WORKLOAD_NONE: it does not wait. */
static void when_print(const struct workload *workload, const struct workload_call *call, uint32_t but,
                       FILE *out) {
  if (call->stream != 0) fprintf(out, " stream %s", workload->streams[call->stream]);
  if (but != WORKLOAD_NONE) fprintf(out, " wait %s", workload->streams[call->wait_stream]);
  if (but != WORKLOAD_NONE && but != 0) fprintf(out, " but %u", but);
  if (call->op_count > 0 && call->after_ps > 0) time_print(out, " after ", call->after_ps);
  if (call->at_ps > 0) time_print(out, " at ", call->at_ps);
}

static void op_print(const struct workload *workload, const struct workload_call *call,
                     const struct workload_op *op, uint32_t place, FILE *out) {
  const bool message = op->func == FUNC_SEND || op->func == FUNC_RECV;
  const char *name = workload_func_name(op->func);
  fprintf(out, "%s count %" PRIu64 " %s", name, op->count, bench_type_name((ncclDataType_t)op->dtype));
  if (message) {
    const bool sends = op->func == FUNC_SEND;
    fprintf(out, " from %u to %u", sends ? place : op->peer, sends ? op->peer : place);
  } else {
    const struct collective *collective = collective_find(name);
    if (collective->has_op) fprintf(out, " %s", op_name(op->op));
    if (collective->has_root) fprintf(out, " root %u", op->peer);
    fprintf(out, " ranks %u", place);
  }
  if (call->comm != 0) fprintf(out, " comm %s", workload->comms[call->comm].name);
}

/* `so_far`: steps by stream. */
static void step_print(const struct workload *workload, uint32_t rank, const struct workload_step *step,
                       const uint32_t *so_far, FILE *out) {
  const struct workload_call *call = &workload->calls[step->call];
  const uint32_t but = step->wait > 0 ? so_far[call->wait_stream] - step->wait : WORKLOAD_NONE;
  const uint32_t place = workload_place_of(&workload->comms[call->comm], rank);
  if (call->op_count == 0) {
    fputs("compute", out);
    time_print(out, " ", call->after_ps);
    fprintf(out, " ranks %u", rank);
    when_print(workload, call, but, out);
  } else if (call->op_count == 1) {
    op_print(workload, call, &workload->ops[call->first_op], place, out);
    when_print(workload, call, but, out);
  } else {
    fputs("group", out);
    when_print(workload, call, but, out);
    for (uint32_t i = 0; i < call->op_count; i++) {
      fputs("\n  ", out);
      op_print(workload, call, &workload->ops[call->first_op + i], place, out);
    }
    fputs("\nend", out);
  }
  fputc('\n', out);
}

void workload_print(const struct workload *workload, FILE *out) {
  fprintf(out, "ranks %u\n", workload->rank_count);
  for (uint32_t i = 1; i < workload->comm_count; i++) {
    const struct workload_comm *comm = &workload->comms[i];
    fprintf(out, "comm %s ", comm->name);
    ranks_print(out, comm);
    fputc('\n', out);
  }
  for (uint32_t rank = 0; rank < workload->rank_count; rank++) {
    uint32_t so_far[WORKLOAD_STREAMS_MAX] = {0};
    if (workload->ranks[rank].step_count > 0) fprintf(out, "\n# rank %u\n", rank);
    for (uint32_t i = 0; i < workload->ranks[rank].step_count; i++) {
      const struct workload_step *step = &workload->ranks[rank].steps[i];
      step_print(workload, rank, step, so_far, out);
      so_far[workload->calls[step->call].stream] += 1;
    }
  }
}
