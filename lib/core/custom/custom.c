/* custom.c: custom schedules: read once for all users, which calls a schedule can execute, and the works of a
 * rank. Knows nothing of the formats. */
#include "core/custom/custom.h"

#include <errno.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/custom/custom_build.h"

/* ---- reading ---- */

void custom_free(struct custom_schedule *schedule) {
  if (schedule == NULL) return;
  os_free(schedule->blocks);
  os_free(schedule->first_block);
  os_free(schedule->steps);
  os_free(schedule);
}

ncclResult_t custom_finish(struct custom_build *build, ncclResult_t result,
                           struct custom_schedule **schedule) {
  if (result == ncclSuccess) result = custom_settle(build);
  if (result == ncclSuccess) *schedule = build->schedule;
  else custom_free(build->schedule);
  os_free(build->drafts);
  os_free(build->rows);
  return result;
}

ncclResult_t custom_start(const char *name, struct custom_build *build) {
  memset(build, 0, sizeof *build);
  build->name = name;
  build->schedule = (struct custom_schedule *)os_alloc(sizeof *build->schedule);
  if (build->schedule == NULL) return log_no_memory("%s: a schedule", name);
  build->schedule->max_bytes = SIZE_MAX;
  return ncclSuccess;
}

uint64_t custom_digest(const struct custom_schedule *schedule) {
  const struct custom_schedule *s = schedule;
  const uint64_t numbers[] = {s->func,      s->protos,      s->places,        s->staged,
                              s->waits,     s->even,        s->rank_count,    s->channel_count,
                              s->root,      s->chunk_count, s->scratch_count, s->min_bytes,
                              s->max_bytes, s->block_count};
  uint64_t digest = hash_bytes(HASH_SEED, numbers, sizeof numbers);
  for (uint32_t i = 0; i < s->block_count; i++) {
    const struct custom_block *block = &s->blocks[i];
    const struct list *list = &block->list;
    const uint32_t own[] = {block->rank,      block->channel_index, block->recv_count, block->send_count,
                            list->step_count, list->round,          list->chunk_count};
    digest = hash_bytes(digest, own, sizeof own);
    digest = hash_bytes(digest, block->recv_peer, block->recv_count * sizeof block->recv_peer[0]);
    digest = hash_bytes(digest, block->send_peer, block->send_count * sizeof block->send_peer[0]);
    digest = hash_bytes(digest, list->steps, list->step_count * sizeof *list->steps);
  }
  return digest | 1;
}

char custom_first_letter(const char *text) {
  if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
  while (*text == ' ' || *text == '\t' || *text == '\r' || *text == '\n') text++;
  return *text;
}

/* The library reads tutti's text only; the command reads other formats (sim/schedules). */
static ncclResult_t parse_text(struct custom_build *build, char *text, size_t bytes) {
  const char begin = custom_first_letter(text);
  if (begin != '<' && begin != '{') return custom_text_parse(build, text, bytes);
  return custom_fail(build, 0,
                     "this is %s, and a running program reads tutti's own format; convert it: "
                     "tutti check --plan %s --print > schedule.txt",
                     begin == '<' ? "XML" : "JSON", build->name);
}

ncclResult_t custom_parse_as(const char *name, const char *text, size_t bytes, custom_parser *parse,
                             struct custom_schedule **schedule) {
  struct custom_build build;
  if (bytes > CUSTOM_FILE_BYTES_MAX)
    return log_fail(ncclInvalidUsage, "%s: %zu bytes, and a schedule has at most %u", name, bytes,
                    CUSTOM_FILE_BYTES_MAX);
  char *copy = (char *)os_alloc(bytes + 1);
  if (copy == NULL) return log_no_memory("%s: its %zu bytes", name, bytes);
  memcpy(copy, text, bytes);
  ncclResult_t result = custom_start(name, &build);
  if (result == ncclSuccess) result = custom_finish(&build, parse(&build, copy, bytes), schedule);
  os_free(copy);
  return result;
}

ncclResult_t custom_read_as(const char *path, custom_parser *parse, struct custom_schedule **schedule) {
  size_t bytes = 0;
  char *text = os_file_read_most(path, CUSTOM_FILE_BYTES_MAX, &bytes);
  if (text == NULL)
    return log_fail(ncclSystemError, "%s: the schedule cannot be read: %s", path, strerror(errno));
  const ncclResult_t result = custom_parse_as(path, text, bytes, parse, schedule);
  os_free(text);
  return result;
}

/* ---- sharing ---- */

/* Schedules in use, each read once, because every rank of a process asks for the same file. */
struct custom_shared {
  struct custom_shared *next;
  char *path;
  struct custom_schedule *schedule;
  uint32_t users;
};

static os_mutex shared_mutex = OS_MUTEX_INITIALIZER;
static struct custom_shared *shared_list;

static ncclResult_t shared_read(const char *path, struct custom_shared **result) {
  struct custom_shared *fresh = (struct custom_shared *)os_alloc(sizeof *fresh);
  if (fresh != NULL) fresh->path = os_strdup(path);
  if (fresh == NULL || fresh->path == NULL) {
    os_free(fresh);
    return log_no_memory("%s: a schedule", path);
  }
  const ncclResult_t read = custom_read_as(path, parse_text, &fresh->schedule);
  if (read != ncclSuccess) {
    os_free(fresh->path);
    os_free(fresh);
    return read;
  }
  fresh->next = shared_list;
  shared_list = *result = fresh;
  return ncclSuccess;
}

ncclResult_t custom_share(const char *path, const struct custom_schedule **schedule) {
  os_mutex_lock(&shared_mutex);
  struct custom_shared *shared = shared_list;
  while (shared != NULL && strcmp(shared->path, path) != 0) shared = shared->next;
  const ncclResult_t result = shared == NULL ? shared_read(path, &shared) : ncclSuccess;
  if (result == ncclSuccess) {
    shared->users += 1;
    *schedule = shared->schedule;
  }
  os_mutex_unlock(&shared_mutex);
  return result;
}

void custom_release(const struct custom_schedule *schedule) {
  if (schedule == NULL) return;
  os_mutex_lock(&shared_mutex);
  struct custom_shared **place = &shared_list;
  while ((*place)->schedule != schedule) place = &(*place)->next;
  struct custom_shared *shared = *place;
  shared->users -= 1;
  if (shared->users == 0) {
    *place = shared->next;
    custom_free(shared->schedule);
    os_free(shared->path);
    os_free(shared);
  }
  os_mutex_unlock(&shared_mutex);
}

/* ---- calls ---- */

uint8_t custom_func(const struct custom_schedule *schedule) { return schedule->func; }

static const char *forbid_size(const struct custom_schedule *schedule, const struct work *work) {
  const bool all = work->func == FUNC_ALL_GATHER || work->func == FUNC_REDUCE_SCATTER;
  const size_t bytes = work->count * work->element_bytes * (all ? work->rank_count : 1);
  if (bytes < schedule->min_bytes || bytes > schedule->max_bytes)
    return "the schedule is for calls of another size";
  if (schedule->even && work->count % schedule->chunk_count != 0)
    return "the schedule needs a count that is a multiple of its chunks";
  return NULL;
}

const char *custom_forbid(const struct custom_schedule *schedule, const struct work *work) {
  /* Only the root of a reduce has an output that could be the input. */
  const bool placed = work->func != FUNC_REDUCE || work->rank == work->root;
  const bool in_place = (work->flags & WORK_IN_PLACE) != 0;
  const bool staged = work->op == OP_PRE_MUL_SUM || work->op == OP_SUM_POST_DIV;
  if (work->func != schedule->func) return "the schedule is for another collective";
  if (work->rank_count != schedule->rank_count) return "the schedule is for another number of ranks";
  if (((schedule->protos >> work->proto) & 1) == 0) return "the schedule is for another protocol";
  if ((work->func == FUNC_BROADCAST || work->func == FUNC_REDUCE) && work->root != schedule->root)
    return "the schedule is for another root";
  if (placed && in_place && (schedule->places & CUSTOM_IN_PLACE) == 0)
    return "the schedule is for calls out of place alone";
  if (placed && !in_place && (schedule->places & CUSTOM_OUT_OF_PLACE) == 0)
    return "the schedule is for calls in place alone";
  if (staged && !schedule->staged)
    return "the schedule does not say where its sums are finished, which averages need";
  return forbid_size(schedule, work);
}

uint32_t custom_links_most(const struct custom_schedule *schedule) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < schedule->block_count; i++) {
    const struct custom_block *block = &schedule->blocks[i];
    if (block->recv_count > most) most = block->recv_count;
    if (block->send_count > most) most = block->send_count;
  }
  return most;
}

bool custom_work(const struct custom_schedule *schedule, uint32_t index, struct work *work) {
  const uint32_t first = schedule->first_block[work->rank];
  if (index >= schedule->first_block[work->rank + 1] - first) return false;
  const struct custom_block *block = &schedule->blocks[first + index];
  work->algo = ALGO_CUSTOM;
  work->chunk_steps = work->slice_steps = 1;
  work->channel_index = (uint16_t)block->channel_index;
  work->role = index;
  work->list = &block->list;
  work->part_offset = 0;
  work->part_count = work->count;
  work->last_chunk_count = list_grid_count(&block->list, work->count, work->element_bytes);
  work->chunk_count = size_min(work->chunk_count, work->last_chunk_count);
  work->recv_count = block->recv_count;
  work->send_count = block->send_count;
  memcpy(work->recv_peer, block->recv_peer, sizeof block->recv_peer);
  memcpy(work->send_peer, block->send_peer, sizeof block->send_peer);
  return true;
}

size_t custom_scratch_bytes(const struct custom_schedule *schedule, size_t count, uint32_t element_bytes) {
  if (schedule->block_count == 0) return 0;
  const size_t grid = list_grid_count(&schedule->blocks[0].list, count, element_bytes);
  return size_round_up(schedule->scratch_count * grid * element_bytes, LIST_PAGE_BYTES);
}

bool custom_needs_scratch(const struct custom_schedule *schedule) {
  return schedule->waits || schedule->scratch_count > 0;
}
