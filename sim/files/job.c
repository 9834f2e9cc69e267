/* job.c: numbers ranks, and finds the first and last time. */
#include "files/job.h"

#include <stdlib.h>
#include <string.h>

#include "base/os.h"

static bool comms_same(const struct record_comm *a, const struct record_comm *b) {
  return a->comm_id == b->comm_id && a->rank_count == b->rank_count;
}

int64_t member_time_ns(const struct member *member, uint64_t ticks) {
  const struct record_header *header = &member->state.file->header;
  const int64_t most = INT64_MAX / 4; /* a damaged file has any bits: differences must not overflow either */
  const double elapsed = record_elapsed_ns(header, ticks);
  const int64_t begin = header->wall_ns < (uint64_t)most ? (int64_t)header->wall_ns : most;
  if (!(elapsed > -(double)most && elapsed < (double)most)) return begin;
  return begin + (int64_t)elapsed;
}

static bool devices_same(const struct member *a, const struct member *b) {
  return a->state.file == b->state.file && member_comm(a)->device == member_comm(b)->device;
}

/* The communicator with most ranks. */
static const struct record_comm *world_find(const struct job *job) {
  const struct record_comm *world = NULL;
  for (uint32_t i = 0; i < job->count; i++) {
    const struct record_comm *comm = member_comm(&job->members[i]);
    if (world == NULL || comm->rank_count > world->rank_count) world = comm;
  }
  return world;
}

/* A device's communicators are in one file, so only that file is searched. */
static void ranks_number(struct job *job) {
  const struct record_comm *world = job->world;
  job->rank_count = world->rank_count;
  for (uint32_t i = 0, begin = 0; i < job->count; i++) {
    struct member *member = &job->members[i];
    if (member->state.file != job->members[begin].state.file) begin = i;
    member->rank = UINT32_MAX;
    member->place = 0;
    for (uint32_t k = begin; k < i; k++) {
      if (!devices_same(member, &job->members[k])) continue;
      member->rank = job->members[k].rank;
      member->place += 1;
    }
    for (uint32_t k = i; k < job->count && member->rank == UINT32_MAX; k++) {
      if (job->members[k].state.file != member->state.file) break;
      if (devices_same(member, &job->members[k]) && comms_same(member_comm(&job->members[k]), world))
        member->rank = member_comm(&job->members[k])->rank;
    }
    if (member->rank == UINT32_MAX) member->rank = job->rank_count++;
  }
}

static void time_add(struct job *job, const struct member *member, uint64_t ticks) {
  const int64_t at = member_time_ns(member, ticks);
  if (ticks == 0) return;
  if (job->first_ns == 0 || at < job->first_ns) job->first_ns = at;
  if (at > job->end_ns) job->end_ns = at;
}

static void times_find(struct job *job) {
  for (uint32_t i = 0; i < job->count; i++) {
    const struct member *member = &job->members[i];
    const struct record_view *view = member->state.view;
    time_add(job, member, member->state.file->header.first_ticks);
    time_add(job, member, member->state.file->header.last_ticks);
    time_add(job, member, view->comm->moved_ticks);
    for (uint64_t number = view->first; number < view->end; number++) {
      const union record *record = record_at(view, number);
      if (record->kind == RECORD_CALL || record->kind == RECORD_LAUNCH)
        time_add(job, member, record->call.ticks); /* the same offset in both structs */
    }
  }
}
static_assert(offsetof(struct record_call, ticks) == offsetof(struct record_launch, ticks), "times_find");

static int member_compare(const void *left, const void *right) {
  const struct member *a = (const struct member *)left, *b = (const struct member *)right;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  return a->place < b->place ? -1 : a->place > b->place;
}

bool job_open(const struct records *records, struct job *job) {
  uint32_t count = 0;
  memset(job, 0, sizeof *job);
  for (uint32_t i = 0; i < records->count; i++) count += records->files[i].view_count;
  job->members = (struct member *)os_alloc((count + 1) * sizeof *job->members);
  if (job->members == NULL) return false;
  for (uint32_t i = 0; i < records->count; i++)
    for (uint32_t k = 0; k < records->files[i].view_count; k++) {
      struct rank_state *state = &job->members[job->count++].state;
      *state = (struct rank_state){.file = &records->files[i], .view = &records->files[i].views[k]};
      rank_state_read(state);
    }
  if (count == 0) return true;
  job->world = world_find(job);
  ranks_number(job);
  times_find(job);
  qsort(job->members, job->count, sizeof *job->members, member_compare);
  return true;
}

void job_close(struct job *job) {
  os_free(job->members);
  memset(job, 0, sizeof *job);
}

uint32_t job_rank_of(const struct job *job, const struct record_comm *comm, uint32_t rank) {
  if (comms_same(comm, job->world)) return rank;
  for (uint32_t i = 0; i < job->count; i++) {
    const struct record_comm *other = member_comm(&job->members[i]);
    if (comms_same(comm, other) && other->rank == rank) return job->members[i].rank;
  }
  return UINT32_MAX;
}
