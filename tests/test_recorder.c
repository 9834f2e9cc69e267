/* test_recorder.c: files of records: their contents after a run, when they are deleted, their text, and how a
 * reader handles truncated and wrong files. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/emu/cudart/include/cuda_runtime.h"
#include "base/hash.h"
#include "base/os.h"
#include "base/param.h"
#include "core/comm/comm.h"
#include "trace/record_text.h"
#include "tutti.h"

static char folder[256];

static void trace_to(const char *value) {
  setenv("TUTTI_TRACE", value, 1);
  param_reset();
  recorder_reset();
}

static void path_in(char path[512], const char *name) { snprintf(path, 512, "%s/%s", folder, name); }

static bool there(const char *path) { return access(path, F_OK) == 0; }

static struct record_file file_load(const char *path, void **bytes) {
  struct record_file file;
  size_t count = 0;
  *bytes = os_file_read(path, &count);
  assert_non_null(*bytes);
  assert_int_equal(record_file_read(path, *bytes, count, NULL, &file), ncclSuccess);
  return file;
}

static void file_drop(struct record_file *file, void *bytes) {
  record_file_free(file);
  os_free(bytes);
}

static int setup(void **state) {
  (void)state;
  const char *temporary = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/recorder.XXXXXX", temporary ? temporary : "/tmp");
  return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  trace_to("off");
  char command[512];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

/* ---- a run ---- */

#define CALLS 5

/* Two ranks of one thread make the same calls; the group with an error is removed from the records. */
static void run_two_ranks(const char *emu) {
  ncclComm_t comms[2];
  cudaStream_t streams[2];
  float *memory[2];
  setenv("TUTTI_EMU", emu, 1);
  param_reset();
  const tutti_emu_config_t config = {.size = sizeof config, .threads = strstr(emu, "threads") != NULL};
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_int_equal(ncclCommInitAll(comms, 2, NULL), ncclSuccess);
  for (int rank = 0; rank < 2; rank++) {
    assert_int_equal(cudaSetDevice(rank), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&streams[rank]), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&memory[rank], 4096), cudaSuccess);
  }
  for (int call = 0; call < CALLS; call++) {
    assert_int_equal(ncclGroupStart(), ncclSuccess);
    for (int rank = 0; rank < 2; rank++)
      assert_int_equal(
          ncclAllReduce(memory[rank], memory[rank], 16, ncclFloat, ncclMax, comms[rank], streams[rank]),
          ncclSuccess);
    assert_int_equal(ncclGroupEnd(), ncclSuccess);
    for (int rank = 0; rank < 2; rank++) assert_int_equal(cudaStreamSynchronize(streams[rank]), cudaSuccess);
  }
  for (int rank = 0; rank < 2; rank++) {
    assert_int_equal(cudaStreamDestroy(streams[rank]), cudaSuccess);
    assert_int_equal(cudaFree(memory[rank]), cudaSuccess);
    assert_int_equal(ncclCommDestroy(comms[rank]), ncclSuccess);
  }
}

static uint32_t count_kind(const struct record_view *view, uint8_t kind) {
  uint32_t count = 0;
  for (uint64_t number = view->first; number < view->end; number++)
    count += record_at(view, number)->kind == kind;
  return count;
}

static void check_two_ranks(const char *path) {
  void *bytes;
  struct record_file file = file_load(path, &bytes);
  assert_int_equal(file.view_count, 2);
  assert_int_equal(file.header.process, (uint32_t)getpid());
  for (uint32_t rank = 0; rank < 2; rank++) {
    const struct record_view *view = &file.views[rank];
    assert_int_equal(view->comm->rank, rank);
    assert_int_equal(view->comm->rank_count, 2);
    assert_int_equal(view->comm->state, RECORD_ENDED);
    assert_int_equal(view->comm->calls, CALLS);
    assert_int_equal(view->comm->launched, CALLS);
    assert_int_equal(view->comm->ended, CALLS);
    assert_int_equal(view->comm->settings_digest, file.views[0].comm->settings_digest);
    assert_int_equal(view->comm->topology_digest, file.views[0].comm->topology_digest);
    assert_int_not_equal(view->comm->topology_digest, 0);
    assert_int_equal(count_kind(view, RECORD_CALL), CALLS);
    assert_int_equal(count_kind(view, RECORD_PLACE), CALLS);
    assert_int_equal(count_kind(view, RECORD_LAUNCH), CALLS);
    assert_int_equal(count_kind(view, RECORD_LIFE), 1);
    const struct record_call *call = &record_at(view, 0)->call;
    assert_int_equal(call->func, FUNC_ALL_REDUCE);
    assert_int_equal(call->op, ncclMax);
    assert_int_equal(call->count, 16);
    const struct record_place *place = &record_at(view, 1)->place;
    const struct record_caller *caller = record_caller_of(&file, place->caller);
    assert_non_null(caller);
    assert_string_equal(caller->file, "test_recorder");
    assert_in_range(caller->offset, 1, 1u << 24);
    assert_int_not_equal(place->group, 0);
  }
  file_drop(&file, bytes);
}

static void a_run_is_recorded(void **state) {
  (void)state;
  char path[512];
  path_in(path, "run");
  trace_to(path);
  run_two_ranks("mode=guarded");
  check_two_ranks(path);
  trace_to(path);
  run_two_ranks("mode=threads");
  check_two_ranks(path);
}

static void repeated_calls_are_recorded(void **state) {
  (void)state;
  char path[512];
  void *bytes;
  uint32_t second = 0;
  path_in(path, "again");
  trace_to(path);
  ncclComm_t comm;
  cudaStream_t stream;
  float *memory;
  const tutti_emu_config_t config = {.size = sizeof config, .threads = 1};
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_int_equal(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
  assert_int_equal(cudaSetDevice(0), cudaSuccess);
  assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
  assert_int_equal(cudaMalloc((void **)&memory, 4096), cudaSuccess);
  for (int call = 0; call < CALLS; call++)
    assert_int_equal(ncclAllReduce(memory, memory + 512, 16, ncclFloat, ncclSum, comm, stream), ncclSuccess);
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  assert_int_equal(ncclAllReduce(memory, memory, 16, ncclFloat, ncclSum, comm, stream), ncclSuccess);
  assert_int_equal(ncclBroadcast(memory, memory, 16, ncclFloat, 7, comm, stream), ncclInvalidArgument);
  assert_int_not_equal(ncclGroupEnd(), ncclSuccess);
  assert_int_equal(ncclAllReduce(memory, memory + 512, 16, ncclFloat, ncclSum, comm, stream), ncclSuccess);
  assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
  struct record_file file = file_load(path, &bytes);
  const struct record_view *view = &file.views[0];
  for (uint64_t number = view->first; number < view->end; number++) {
    const union record *record = record_at(view, number);
    second += record->kind == RECORD_PLACE && (record->place.flags & RECORD_CACHED) != 0;
  }
  assert_in_range(second, 1, CALLS);
  assert_int_equal(count_kind(view, RECORD_CALL), CALLS + 2);
  assert_int_equal(count_kind(view, RECORD_LAUNCH), CALLS + 1);
  assert_int_equal(count_kind(view, RECORD_ERROR), 1);
  assert_int_equal(count_kind(view, RECORD_DROP), 1);
  assert_int_equal(view->comm->calls, CALLS + 1);
  file_drop(&file, bytes);
  cudaStreamDestroy(stream);
  cudaFree(memory);
  assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
}

/* ---- when files are kept ---- */

static uint32_t file_count(void) {
  char command[512];
  int count = -1;
  snprintf(command, sizeof command, "ls '%s' | grep -c trace$", folder);
  FILE *list = popen(command, "r");
  assert_non_null(list);
  assert_int_equal(fscanf(list, "%d", &count), 1);
  pclose(list);
  return (uint32_t)count;
}

static void birth_fill(struct recorder_birth *birth, uint32_t rank) {
  *birth = (struct recorder_birth){.comm_id = 7, .rank = rank, .rank_count = 4, .name = "test"};
}

static void a_good_end_leaves_nothing(void **state) {
  (void)state;
  char value[300];
  snprintf(value, sizeof value, "%s/", folder);
  trace_to(value);
  run_two_ranks("mode=threads");
  assert_int_equal(file_count(), 0);
  struct recorder recorder;
  struct recorder_birth birth;
  birth_fill(&birth, 1);
  recorder_open(&recorder, &birth);
  assert_true(there(recorder_path()));
  recorder_break(recorder.comm, ncclRemoteError, "rank 3 was lost");
  recorder_close(&recorder, RECORD_ENDED);
  recorder_reset();
  assert_int_equal(file_count(), 1);
}

static void a_killed_process_leaves_its_file(void **state) {
  (void)state;
  char path[512];
  void *bytes;
  path_in(path, "killed");
  const pid_t child = fork();
  if (child == 0) {
    struct recorder recorder;
    struct recorder_birth birth;
    trace_to(path);
    birth_fill(&birth, 2);
    recorder_open(&recorder, &birth);
    const struct record_call call = {.kind = RECORD_CALL, .func = FUNC_REDUCE, .count = 11};
    const struct record_place place = {.kind = RECORD_PLACE};
    for (uint32_t i = 0; i < 5000; i++) recorder_call(&recorder, &call, &place);
    kill(getpid(), SIGKILL);
  }
  assert_int_equal(waitpid(child, NULL, 0), child);
  struct record_file file = file_load(path, &bytes);
  assert_int_equal(file.header.process, (uint32_t)child);
  assert_int_equal(file.header.state, RECORD_OPEN);
  assert_int_equal(file.views[0].end, 10000);
  assert_int_equal(file.views[0].end - file.views[0].first, file.views[0].ring_records);
  assert_int_equal(record_at(&file.views[0], 9998)->call.count, 11);
  file_drop(&file, bytes);
}

/* Files of ended processes are deleted, the oldest first. */
static void old_files_go(void **state) {
  (void)state;
  char value[300];
  snprintf(value, sizeof value, "%s/", folder);
  setenv("TUTTI_TRACE_KEEP_BYTES", "400K", 1);
  for (int i = 0; i < 6; i++) {
    const pid_t child = fork();
    if (child == 0) {
      struct recorder recorder;
      struct recorder_birth birth;
      trace_to(value);
      birth_fill(&birth, 0);
      recorder_open(&recorder, &birth);
      kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
  }
  unsetenv("TUTTI_TRACE_KEEP_BYTES");
  assert_in_range(file_count(), 2, 4);
}

/* Thousands of old files: each is looked at once. */
static void many_old_files_go(void **state) {
  (void)state;
  char value[300], path[512];
  snprintf(value, sizeof value, "%s/", folder);
  for (int i = 0; i < 3000; i++) {
    snprintf(path, sizeof path, "%s/tutti.host.%d.0.trace", folder, i);
    assert_true(os_file_write(path, "x", 1)); /* too short for a header: nobody writes it any more */
  }
  setenv("TUTTI_TRACE_KEEP_BYTES", "1M", 1);
  trace_to(value);
  struct recorder recorder;
  struct recorder_birth birth;
  birth_fill(&birth, 0);
  recorder_open(&recorder, &birth);
  recorder_close(&recorder, RECORD_ENDED);
  unsetenv("TUTTI_TRACE_KEEP_BYTES");
  assert_in_range(file_count(), 1, 300);
}

static void no_place_is_no_failure(void **state) {
  (void)state;
  struct recorder recorder;
  struct recorder_birth birth;
  birth_fill(&birth, 0);
  const char *values[] = {"off", "/nonexistent/folder/", "/proc/", "/dev/full/x"};
  for (size_t i = 0; i < 4; i++) {
    trace_to(values[i]);
    recorder_open(&recorder, &birth);
    assert_null(recorder.comm);
    recorder_error(&recorder, 1, 2);
    recorder_life(&recorder, LIFE_ABORT, 2);
    recorder_close(&recorder, RECORD_ENDED);
  }
  trace_to("/nonexistent/folder/");
  run_two_ranks("mode=threads");
}

/* Communicators beyond the file's space are counted; ended ones free their space. */
static void space_is_bounded(void **state) {
  (void)state;
  static struct recorder recorders[40];
  struct recorder_birth birth;
  char path[512];
  void *bytes;
  path_in(path, "space");
  setenv("TUTTI_TRACE_BYTES", "512K", 1);
  trace_to(path);
  uint32_t open = 0;
  for (uint32_t i = 0; i < 40; i++) {
    birth_fill(&birth, 0);
    birth.comm_id = i;
    recorder_open(&recorders[i], &birth);
    open += recorders[i].comm != NULL;
  }
  assert_in_range(open, 4, 39);
  struct record_file file = file_load(path, &bytes);
  assert_int_equal(file.view_count, open);
  assert_int_equal(file.header.refused, 40 - open);
  file_drop(&file, bytes);
  for (uint32_t i = 0; i < 40; i++) recorder_close(&recorders[i], RECORD_ENDED);
  birth.comm_id = 99;
  recorder_open(&recorders[0], &birth);
  assert_non_null(recorders[0].comm);
  file = file_load(path, &bytes);
  assert_int_equal(file.view_count, open);
  file_drop(&file, bytes);
  recorder_close(&recorders[0], RECORD_ENDED);
  unsetenv("TUTTI_TRACE_BYTES");
}

/* ---- text, and malformed files ---- */

struct text {
  char *bytes;
  size_t used;
};

static void text_put(void *argument, const char *line) {
  struct text *text = (struct text *)argument;
  const size_t length = strlen(line);
  text->bytes = (char *)os_realloc(text->bytes, text->used + length + 1);
  assert_non_null(text->bytes);
  memcpy(text->bytes + text->used, line, length);
  text->bytes[text->used + length] = '\n';
  text->used += length + 1;
}

static void call_from(struct recorder *recorder, const char *code) {
  const struct record_call call = {.kind = RECORD_CALL, .ticks = ticks_now()};
  const struct record_place place = {.kind = RECORD_PLACE, .caller = recorder_caller(recorder, code)};
  recorder_call(recorder, &call, &place);
}

static bool has_place(const struct record_file *file, const struct record_view *view, uint64_t record) {
  return record_caller_of(file, record_at(view, record)->place.caller) != NULL;
}

/* More places than there are rows: those of each communicator's last calls are there, also of one that has
 * not called for long, and a recorder notes a place again that was evicted. */
static void places_are_evicted(void **state) {
  (void)state;
  const uint32_t many = 4 * RECORD_CALLERS;
  const char *code = (const char *)(uintptr_t)&text_put;
  struct recorder early, late;
  struct recorder_birth birth;
  struct record_file file;
  char path[512];
  void *bytes;
  path_in(path, "places");
  trace_to(path);
  birth_fill(&birth, 0);
  recorder_open(&early, &birth);
  recorder_open(&late, &birth);
  call_from(&early, code + 4);
  for (int i = 0; i < 20; i++) call_from(&early, code);
  for (uint32_t i = 1; i <= many; i++) call_from(&late, code + 64 * (size_t)i);
  assert_int_not_equal(recorder_evictions, 0);
  file = file_load(path, &bytes);
  assert_int_equal(file.view_count, 2);
  assert_false(has_place(&file, &file.views[0], 1));
  assert_true(has_place(&file, &file.views[0], 2 * 20 + 1));
  assert_false(has_place(&file, &file.views[1], 1));
  for (uint64_t i = many - 8; i < many; i++) assert_true(has_place(&file, &file.views[1], 2 * i + 1));
  file_drop(&file, bytes);
  call_from(&early, code + 4);
  file = file_load(path, &bytes);
  assert_true(has_place(&file, &file.views[0], 2 * 21 + 1));
  recorder_close(&early, RECORD_ENDED);
  recorder_close(&late, RECORD_ENDED);
  file_drop(&file, bytes);
}

/* A file with a record of each kind, in a ring that has wrapped. */
static void *sample_make(size_t *count) {
  struct recorder recorder;
  struct recorder_birth birth;
  char path[512];
  path_in(path, "sample");
  trace_to(path);
  birth_fill(&birth, 3);
  birth.name = "a \"name\" with\tsigns\\";
  recorder_open(&recorder, &birth);
  recorder_caller(&recorder, (const void *)(uintptr_t)&text_put);
  recorder_caller(&recorder, &recorder); /* not a code address */
  for (uint32_t i = 0; i < 3000; i++) {
    const struct record_call call = {RECORD_CALL, FUNC_SEND, ncclFloat, 255, i, ticks_now(), i * 3, i, 0};
    const struct record_place place = {
        RECORD_PLACE, recorder_stream(&recorder, (void *)(uintptr_t)(i % 20)), 0, i, 4096 + i, 0, UINT64_MAX};
    recorder_call(&recorder, &call, &place);
    const struct record_launch launch = {.captured = 1, .streams = 2, .number = i};
    recorder_launch(&recorder, &launch);
  }
  recorder_error(&recorder, 4, 1);
  recorder_drop(&recorder, 17);
  recorder_life(&recorder, LIFE_SPLIT, 18);
  const union record strange = {.bytes = {200, 1, 2, 3}};
  recorder_push(&recorder, &strange);
  const struct record_plan plan = {.used = 1, .algo = 9, .proto = 77, .number = 130, .slots = 8};
  recorder_plan(&recorder, &plan);
  const struct recorder_live live = recorder_live(&recorder);
  recorder_link(&live, 2, 1, PROTO_LL, RECORD_LINK_SENDS)->tail = 5;
  recorder_proxy(&live, 1, 2, PROTO_SIMPLE, 0)->flushed = 3;
  struct recorder_pace pace;
  recorder_pace_open(&pace, &live, 3, 1, 2, RECORD_LINK_SENDS);
  recorder_pace_note(&pace, true, 5);
  live.lanes[9] = (struct record_lane){1, 1, 1, WAITS_SLOT, 2, 7, 3, 4, 5};
  recorder_break(recorder.comm, 6, "it broke");
  recorder_close(&recorder, RECORD_ABORTED);
  void *bytes = os_file_read(path, count);
  assert_non_null(bytes);
  return bytes;
}

/* A message that takes `units` of RECORD_PACE_UNIT ticks, and a little more. */
static void message_take(struct recorder_pace *pace, uint64_t units) {
  recorder_pace_note(pace, true, 0);
  pace->row->since -= units * RECORD_PACE_UNIT;
  recorder_pace_note(pace, false, 1);
}

/* Durations of waits add up, without waits that continue and the two longest; old ones count less. */
static void paces_forget(void **state) {
  (void)state;
  struct record_comm comm = {.pace_rows = 2};
  struct record_pace rows[2];
  const struct recorder_live live = {.comm = &comm, .paces = rows};
  struct recorder_pace pace, other;
  recorder_pace_open(&pace, &live, 5, 1, 3, RECORD_LINK_SENDS);
  struct record_pace *row = pace.row;
  assert_ptr_equal(row, &rows[0]);
  recorder_pace_note(&pace, false, 0);
  assert_int_equal(row->since, 0);
  const uint64_t longest = UINT64_C(1) << 40; /* longer than any real wait between these lines */
  message_take(&pace, longest);
  message_take(&pace, 2 * longest);
  assert_true(row->waited == 0 && row->count == 2);
  message_take(&pace, longest / 1024);
  assert_true(row->waited >= longest / 1024 && row->waited < longest / 512 && row->count == 3);
  message_take(&pace, 3 * longest); /* a longer one: the shortest of the three counts now */
  assert_true(row->waited == UINT32_MAX && row->count == 4);

  recorder_pace_open(&other, &live, 5, 2, 3, 0);
  row = other.row;
  recorder_pace_note(&other, true, 0);
  assert_int_not_equal(row->since, 0);
  recorder_pace_note(&other, true, 2);
  assert_true(row->since != 0 && row->count == 2);
  const uint32_t waited = row->waited;
  recorder_pace_note(&other, true, 0); /* nothing has changed */
  assert_int_equal(row->waited, waited);
  for (uint32_t i = 0; i < 2; i++) message_take(&other, longest);
  row->since = row->begin -= RECORD_PACE_TICKS;
  recorder_pace_note(&other, false, 4);
  assert_int_equal(row->since, 0);
  assert_true(row->count == 4 && row->waited >= RECORD_PACE_TICKS / RECORD_PACE_UNIT / 2);
  assert_true(ticks_now() - row->begin < RECORD_PACE_TICKS);

  recorder_pace_open(&other, &live, 5, 3, 3, 0); /* no space left */
  assert_null(other.row);
  recorder_pace_note(&other, true, 1);
}

static void text_is_the_same_twice(void **state) {
  (void)state;
  size_t count = 0, packed_count = 0;
  void *packed = NULL;
  struct record_file file;
  struct text text = {NULL, 0};
  void *bytes = sample_make(&count);
  assert_int_equal(record_file_read("sample", bytes, count, NULL, &file), ncclSuccess);
  record_text_dump(&file, text_put, &text);
  assert_true(record_is_text(text.bytes, text.used));
  assert_int_equal(record_text_pack("text", text.bytes, text.used, &packed, &packed_count), ncclSuccess);
  assert_int_equal(packed_count, count);
  assert_memory_equal(packed, bytes, count);
  os_free(packed);
  os_free(text.bytes);
  file_drop(&file, bytes);
}

static void finding_count(void *argument, const struct record_finding *finding) {
  assert_non_null(finding->text);
  *(uint32_t *)argument += 1;
}

static void nothing_put(void *argument, const char *line) { (void)argument, (void)line; }

/* Reads a malformed file, and prints all of it; returns the number of errors found. */
static uint32_t try_bytes(const uint8_t *bytes, size_t count, uint32_t *views) {
  uint32_t findings = 0;
  struct record_listener listener = {finding_count, &findings, 0};
  struct record_file file;
  uint8_t *copy = (uint8_t *)os_alloc(count);
  memcpy(copy, bytes, count);
  *views = 0;
  if (record_file_read("x", copy, count, &listener, &file) == ncclSuccess) {
    *views = file.view_count;
    record_text_dump(&file, nothing_put, NULL);
    record_file_free(&file);
  } else {
    findings += 1;
  }
  os_free(copy);
  return findings;
}

static void cut_files_are_used_as_far_as_they_go(void **state) {
  (void)state;
  size_t count = 0;
  uint32_t views;
  uint8_t *bytes = (uint8_t *)sample_make(&count);
  assert_int_equal(try_bytes(bytes, count, &views), 0);
  assert_int_equal(views, 1);
  for (size_t cut = 0; cut < count; cut += 4000) assert_in_range(try_bytes(bytes, cut, &views), 1, 7);
  assert_int_equal(views, 1);
  uint64_t seed = 3;
  for (uint32_t i = 0; i < 300; i++) {
    const uint64_t drawn = hash_draw(&seed);
    const size_t at = i % 2 ? (size_t)(drawn >> 8) % 700 : RECORD_PAGE_BYTES + (size_t)(drawn >> 8) % 600;
    const uint8_t kept = bytes[at];
    bytes[at] = (uint8_t)drawn;
    try_bytes(bytes, count, &views);
    bytes[at] = kept;
  }
  os_free(bytes);
}

static void wrong_text_is_told_with_its_line(void **state) {
  (void)state;
  static const struct {
    const char *text, *said;
  } rows[] = {
      {"", "x:0: a header was expected"},
      {"# tutti records 1\ncomm bytes=4096", "x:2: a header was expected first"},
      {"header version=1\ncomm bytes=99", "x:2: a section of 99 bytes"},
      {"header version=1\ncomm bytes=999999999999", "x:2: a section of 999999999999 bytes"},
      {"header version=1\nheader version=1", "x:2: one header was expected"},
      {"header version=99999999999", "x:1: \"version=99999999999\": no such value"},
      {"header colour=3", "x:1: \"colour=3\": a field of `header`"},
      {"header host=\"abc", "x:1: \"host=\"abc\": no such value"},
      {"header version=1\ncall @3 count=1", "x:2: call @3 lies in no section"},
      {"header version=1\ncomm bytes=4096 ring_records=64 ring_offset=4000\ncall @3 count=1",
       "x:3: call @3 lies in no section"},
      {"header version=1\nfoo @3", "x:2: `foo` is no line of records"},
      {"header version=1\nfoo 3", "x:2: `foo`: a place was expected"},
  };
  const uint64_t live = os_alloc_live();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    void *bytes = NULL;
    size_t count = 0;
    assert_int_equal(record_text_pack("x", rows[i].text, strlen(rows[i].text), &bytes, &count),
                     ncclInvalidArgument);
    if (strstr(ncclGetLastError(NULL), rows[i].said) == NULL)
      fail_msg("\"%s\" where \"%s\" was expected", ncclGetLastError(NULL), rows[i].said);
  }
  assert_int_equal(os_alloc_live(), live);
}

int main(void) {
  setenv("NCCL_CHECK_POINTERS", "0", 1); /* calls that are checked are not cached */
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {TEST(a_run_is_recorded),
                                     TEST(repeated_calls_are_recorded),
                                     TEST(a_good_end_leaves_nothing),
                                     TEST(a_killed_process_leaves_its_file),
                                     TEST(old_files_go),
                                     TEST(many_old_files_go),
                                     TEST(no_place_is_no_failure),
                                     TEST(space_is_bounded),
                                     TEST(paces_forget),
                                     TEST(places_are_evicted),
                                     TEST(text_is_the_same_twice),
                                     TEST(cut_files_are_used_as_far_as_they_go),
                                     TEST(wrong_text_is_told_with_its_line)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
