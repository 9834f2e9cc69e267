/* workload_records.c: a job's records as a workload (workload.h): ranks as files/job.h numbers them, the
 * operations that all ranks of a communicator still have records of, groups as they were launched, and the
 * times of the calls. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "collective.h"
#include "files/job.h"
#include "simulate/workload.h"

/* One operation of a rank. */
struct heard {
  uint32_t rank; /* of the job */
  bool dropped;
  uint64_t ps; /* since the job's first call */
  uint32_t sequence, collective, group;
  uint32_t comm, stream;
  struct workload_op op;
};

/* A communicator of the job: the collectives that all of its ranks have. */
struct shared {
  uint32_t first, end, members;
  bool cut; /* some rank has lost records */
};

struct hearing {
  struct workload *workload;
  const struct job *job;
  struct shared *shared; /* by communicator of the workload, except the first */
  uint32_t *comm_of;     /* by member */
  struct heard *rows;    /* of all ranks */
  uint32_t row_count, row_capacity;
  bool gaps, own; /* own: this library's files, which have groups and streams */
  uint64_t left_out, unknown;
};

static ncclResult_t no_memory(const struct hearing *hearing) {
  return log_no_memory("%s: its calls", hearing->workload->name);
}

/* ---- communicators ---- */

static bool comms_meet(const struct record_comm *a, const struct record_comm *b) {
  return a->comm_id == b->comm_id && a->rank_count == b->rank_count;
}

/* The first collective that the member still has a record of. */
static uint32_t first_of(const struct member *member) {
  struct record_iter iter = record_iter_begin(&member->state);
  const struct record_call *call;
  uint32_t first = member->state.collectives;
  while ((call = record_iter_collective(&iter)) != NULL) first = call->collective;
  return first;
}

static void shared_add(struct shared *shared, const struct member *member) {
  const uint32_t first = first_of(member), end = member->state.collectives;
  if (shared->members == 0 || (int32_t)(first - shared->first) > 0) shared->first = first;
  if (shared->members == 0 || (int32_t)(end - shared->end) < 0) shared->end = end;
  shared->members += 1;
  shared->cut = shared->cut || member->state.view->first > 0;
}

/* Makes names printable words, and unique. */
static void comm_name(const struct workload *workload, const struct record_comm *comm, char *name,
                      size_t bytes) {
  snprintf(name, bytes, "%.40s", comm->name[0] ? comm->name : "comm");
  for (char *at = name; *at; at++)
    if (strchr(" \t\r\n#", *at) || (unsigned char)*at < 32) *at = '_';
  const size_t length = strlen(name);
  for (uint32_t number = 2; workload_find_comm(workload, name) != WORKLOAD_NONE; number++)
    snprintf(&name[length], bytes - length, "~%u", number);
}

static ncclResult_t comm_add(struct hearing *hearing, const struct record_comm *comm, uint32_t *number) {
  const struct job *job = hearing->job;
  char name[48];
  if (comm->rank_count > WORKLOAD_RANKS_MAX)
    return log_fail(ncclInvalidUsage, "%s: communicator %.48s has %u ranks: at most %u",
                    hearing->workload->name, comm->name, comm->rank_count, WORKLOAD_RANKS_MAX);
  uint32_t *ranks = (uint32_t *)os_alloc((comm->rank_count + (size_t)1) * sizeof *ranks);
  ncclResult_t result = ranks ? ncclSuccess : no_memory(hearing);
  for (uint32_t i = 0; result == ncclSuccess && i < comm->rank_count; i++) {
    ranks[i] = job_rank_of(job, comm, i);
    bool heard = false;
    for (uint32_t k = 0; k < job->count && !heard; k++)
      heard = comms_meet(member_comm(&job->members[k]), comm) && member_comm(&job->members[k])->rank == i;
    if (!heard)
      result = log_fail(ncclInvalidUsage,
                        "%s: rank %u of communicator %.48s left no file: what it calls is not known",
                        hearing->workload->name, i, comm->name);
  }
  comm_name(hearing->workload, comm, name, sizeof name);
  if (result == ncclSuccess)
    result = workload_add_comm(hearing->workload, name, ranks, comm->rank_count, number);
  os_free(ranks);
  return result;
}

static ncclResult_t comms_add(struct hearing *hearing) {
  const struct job *job = hearing->job;
  for (uint32_t i = 0; i < job->count; i++) {
    const struct record_comm *comm = member_comm(&job->members[i]);
    uint32_t number = WORKLOAD_NONE;
    for (uint32_t k = 0; k < i && number == WORKLOAD_NONE; k++)
      if (comms_meet(member_comm(&job->members[k]), comm)) number = hearing->comm_of[k];
    if (number == WORKLOAD_NONE) TRY(comm_add(hearing, comm, &number));
    hearing->comm_of[i] = number;
    shared_add(&hearing->shared[number], &job->members[i]);
  }
  return ncclSuccess;
}

/* ---- calls ---- */

/* Arguments that the function does not have are ignored, whatever the record has. */
static struct workload_op op_of(const struct record_call *call) {
  const bool message = is_message(call->func);
  const struct collective *collective = message ? NULL : collective_find(workload_func_name(call->func));
  struct workload_op op;
  memset(&op, 0, sizeof op);
  op.func = call->func;
  op.dtype = call->dtype < ncclNumTypes ? call->dtype : (uint8_t)ncclUint8;
  if (collective && collective->has_op)
    op.op = call->op == ncclProd  ? OP_PROD
            : call->op == ncclMax ? OP_MAX
            : call->op == ncclMin ? OP_MIN
                                  : OP_SUM;
  if (message || (collective && collective->has_root)) op.peer = call->peer;
  op.count = call->count;
  return op;
}

/* Whether all ranks called it, and still have its record. A message has only two ranks. */
static bool call_is_shared(const struct shared *shared, const struct record_call *call) {
  return is_message(call->func) ||
         ((int32_t)(call->collective - shared->first) >= 0 && (int32_t)(call->collective - shared->end) < 0);
}

static ncclResult_t row_add(struct hearing *hearing, const struct heard *row) {
  if (!array_grow(&hearing->rows, &hearing->row_capacity, (uint64_t)hearing->row_count + 1,
                  sizeof *hearing->rows))
    return no_memory(hearing);
  hearing->rows[hearing->row_count++] = *row;
  return ncclSuccess;
}

/* Streams in this library's records are handles; in other files each communicator has one of its own. */
static ncclResult_t stream_of(struct hearing *hearing, const struct record_comm *comm, uint32_t comm_number,
                              const struct record_place *place, uint32_t *stream) {
  char name[48];
  if (place && place->stream < RECORD_STREAMS)
    snprintf(name, sizeof name, "%" PRIx64, comm->streams[place->stream]);
  else snprintf(name, sizeof name, "of-%.40s", hearing->workload->comms[comm_number].name);
  *stream = workload_find_stream(hearing->workload, name);
  return *stream != WORKLOAD_NONE ? ncclSuccess : workload_add_stream(hearing->workload, name, stream);
}

static ncclResult_t member_see(struct hearing *hearing, uint32_t index) {
  const struct member *member = &hearing->job->members[index];
  const struct record_comm *comm = member_comm(member);
  const struct shared *shared = &hearing->shared[hearing->comm_of[index]];
  struct record_iter iter = record_iter_begin(&member->state);
  const union record *record;
  const struct record_place *place = NULL;
  while ((record = record_iter_back(&iter)) != NULL) {
    if (record->kind == RECORD_PLACE) place = &record->place;
    if (record->kind != RECORD_CALL) continue;
    const struct record_call *call = &record->call;
    const int64_t ns = member_time_ns(member, call->ticks) - hearing->job->first_ns;
    struct heard row;
    memset(&row, 0, sizeof row);
    row.rank = member->rank;
    row.ps = ns > 0 ? (uint64_t)ns * 1000 : 0;
    row.sequence = call->sequence;
    row.collective = call->collective;
    row.group = place && hearing->own ? place->group : 0;
    row.comm = hearing->comm_of[index];
    row.op = op_of(call);
    hearing->unknown += call->dtype >= ncclNumTypes;
    const bool fits = call->func < FUNC_COPY && call->func != FUNC_SEND_RECV &&
                      call->peer < comm->rank_count && call->count <= WORKLOAD_COUNT_MAX &&
                      row.ps <= WORKLOAD_PS_MAX;
    TRY(stream_of(hearing, comm, row.comm, place, &row.stream));
    place = NULL;
    if (fits && call_is_shared(shared, call)) TRY(row_add(hearing, &row));
    else hearing->left_out += 1;
  }
  return ncclSuccess;
}

/* By rank, then by time; equal times by communicator, in order. */
static int heard_compare(const void *left, const void *right) {
  const struct heard *a = (const struct heard *)left, *b = (const struct heard *)right;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  if (a->ps != b->ps) return a->ps < b->ps ? -1 : 1;
  if (a->comm != b->comm) return a->comm < b->comm ? -1 : 1;
  return (int32_t)(a->sequence - b->sequence) < 0 ? -1 : a->sequence != b->sequence;
}

/* Whether they were launched together: by the group's number or, without group numbers, adjacent messages, as
 * PyTorch batches them. */
static bool rows_together(const struct hearing *hearing, const struct heard *a, const struct heard *b) {
  if (a->rank != b->rank || a->comm != b->comm || a->stream != b->stream) return false;
  if (hearing->own) return a->group != 0 && a->group == b->group;
  return is_message(a->op.func) && is_message(b->op.func);
}

static uint32_t place_of(const struct hearing *hearing, const struct heard *row) {
  return workload_place_of(&hearing->workload->comms[row->comm], row->rank);
}

/* A message's row, and its two ranks. */
struct message {
  uint32_t comm, from, to, row;
  bool receives;
};

/* Messages of a pair: sends, then receives, each in the order of the rows. */
static int message_compare(const void *left, const void *right) {
  const struct message *a = (const struct message *)left, *b = (const struct message *)right;
  if (a->comm != b->comm) return a->comm < b->comm ? -1 : 1;
  if (a->from != b->from) return a->from < b->from ? -1 : 1;
  if (a->to != b->to) return a->to < b->to ? -1 : 1;
  if (a->receives != b->receives) return a->receives < b->receives ? -1 : 1;
  return a->row < b->row ? -1 : a->row > b->row;
}

/* If a ring of records has wrapped around, one half of a pair's first messages is lost: drops the other, too.
 */
static ncclResult_t messages_trim(struct hearing *hearing) {
  struct message *messages = (struct message *)os_alloc((hearing->row_count + (size_t)1) * sizeof *messages);
  uint32_t count = 0;
  if (!messages) return no_memory(hearing);
  for (uint32_t i = 0; i < hearing->row_count; i++) {
    const struct heard *row = &hearing->rows[i];
    if (!is_message(row->op.func) || !hearing->shared[row->comm].cut) continue;
    const bool receives = row->op.func == FUNC_RECV;
    const uint32_t own = place_of(hearing, row), peer = row->op.peer;
    messages[count++] =
        (struct message){row->comm, receives ? peer : own, receives ? own : peer, i, receives};
  }
  qsort(messages, count, sizeof *messages, message_compare);
  for (uint32_t i = 0, all, sent; i < count; i += all) {
    const struct message *own = &messages[i];
    for (all = sent = 0; i + all < count && own[all].comm == own->comm && own[all].from == own->from &&
                         own[all].to == own->to;
         all++)
      sent += !own[all].receives;
    const uint32_t received = all - sent, kept = sent < received ? sent : received;
    for (uint32_t k = 0; k < sent - kept; k++) hearing->rows[own[k].row].dropped = true;
    for (uint32_t k = 0; k < received - kept; k++) hearing->rows[own[sent + k].row].dropped = true;
    hearing->left_out += all - 2 * kept;
  }
  os_free(messages);
  return ncclSuccess;
}

static ncclResult_t rows_add(struct hearing *hearing) {
  struct workload *workload = hearing->workload;
  uint64_t before_ps = 0;
  for (uint32_t i = 0, count; i < hearing->row_count; i += count) {
    const struct heard *rows = &hearing->rows[i];
    struct workload_call call = {.comm = rows->comm,
                                 .stream = rows->stream,
                                 .first_op = workload->op_count,
                                 .wait_stream = WORKLOAD_NONE};
    uint32_t number;
    for (count = 1; i + count < hearing->row_count && count < WORKLOAD_OPS_MAX; count++)
      if (!rows_together(hearing, rows, &rows[count])) break;
    for (uint32_t k = 0; k < count; k++)
      if (!rows[k].dropped) TRY(workload_add_op(workload, &rows[k].op));
    call.op_count = workload->op_count - call.first_op;
    if (i == 0 || rows[-1].rank != rows->rank) before_ps = 0;
    if (hearing->gaps) call.after_ps = rows->ps - before_ps;
    else call.at_ps = rows->ps;
    before_ps = rows[count - 1].ps;
    if (call.op_count == 0) continue;
    TRY(workload_add_call(workload, &call, &number));
    TRY(workload_add_step(workload, rows->rank, number));
  }
  return ncclSuccess;
}

static ncclResult_t job_see(struct hearing *hearing) {
  TRY(comms_add(hearing));
  for (uint32_t i = 0; i < hearing->job->count; i++) TRY(member_see(hearing, i));
  if (hearing->row_count == 0) return ncclSuccess;
  qsort(hearing->rows, hearing->row_count, sizeof *hearing->rows, heard_compare);
  TRY(messages_trim(hearing));
  return rows_add(hearing);
}

static void lacks_report(const struct hearing *hearing, const struct records *records) {
  const char *lack = records_lack(records);
  if (lack) fprintf(stderr, "tutti sim: %s\n", lack);
  if (hearing->left_out > 0)
    fprintf(stderr,
            "tutti sim: %" PRIu64
            " calls are left out: some rank of theirs no longer has the record, or had "
            "not come to them\n",
            hearing->left_out);
  if (hearing->unknown > 0)
    fprintf(stderr, "tutti sim: %" PRIu64 " calls have no type; they are taken for bytes\n",
            hearing->unknown);
}

static ncclResult_t records_see(const struct records *records, const struct job *job, bool gaps,
                                struct workload *workload) {
  struct hearing hearing;
  memset(&hearing, 0, sizeof hearing);
  hearing.workload = workload;
  hearing.job = job;
  hearing.gaps = gaps;
  hearing.own = records->sources == SOURCE_RECORDS;
  hearing.shared = (struct shared *)os_alloc((job->count + (size_t)2) * sizeof *hearing.shared);
  hearing.comm_of = (uint32_t *)os_alloc((job->count + (size_t)1) * sizeof *hearing.comm_of);
  ncclResult_t result = hearing.shared && hearing.comm_of ? job_see(&hearing) : no_memory(&hearing);
  if (result == ncclSuccess) lacks_report(&hearing, records);
  os_free(hearing.shared);
  os_free(hearing.comm_of);
  os_free(hearing.rows);
  return result;
}

ncclResult_t workload_records(int path_count, char **paths, bool gaps, struct workload *workload) {
  struct records records;
  struct job job;
  ncclResult_t result;
  memset(workload, 0, sizeof *workload);
  if (!records_read("sim", RECORDS_WHOLE, path_count, paths, &records))
    return log_no_memory("%d files", path_count);
  if (records_mixed("sim", &records)) result = log_fail(ncclInvalidUsage, "files of one kind are expected");
  else if (!job_open(&records, &job)) result = log_no_memory("the ranks of %u files", records.count);
  else {
    if (job.count == 0)
      result = log_fail(ncclInvalidUsage, "%s: no communicator is left in these files", paths[0]);
    else result = workload_make(paths[0], job.rank_count, workload);
    if (result == ncclSuccess) result = records_see(&records, &job, gaps, workload);
    job_close(&job);
  }
  records_free(&records);
  return result;
}
