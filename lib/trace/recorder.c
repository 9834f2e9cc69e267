/* recorder.c: the process's record file: opens it, adds a section for each communicator, and deletes it. A
 * program never fails or waits because it cannot record. With the default setting, processes that destroy all
 * their communicators without an error leave no file, and the files of all others take at most
 * TUTTI_TRACE_KEEP_BYTES. */
#include "trace/recorder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/callsite.h"
#include "base/hash.h"
#include "base/launch.h"
#include "base/mapped_file.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "trace/record_path.h"
#include "tutti.h"

/* Rows of a section's tables. Once half of the file's space is taken, new sections get the short sizes. */
#define RING_RECORDS 4096u
#define LANE_ROWS 512u
#define LINK_ROWS 256u
#define PROXY_ROWS 128u
#define PACE_ROWS 48u
#define INPUT_ROWS 160u
#define SHORT_RING_RECORDS 256u
#define SHORT_LANE_ROWS 64u
#define SHORT_LINK_ROWS 64u
#define SHORT_PROXY_ROWS 32u
#define SHORT_PACE_ROWS 16u

/* Sections of ended communicators that are kept before their space is reused. */
#define GONE_MOST 8u

/* The places among so many last records of a communicator are not evicted. */
#define CALLERS_KEPT 16u

uint32_t recorder_evictions;

static struct {
  os_mutex lock;
  struct mapped_file mapped; /* memory is NULL if there is no file */
  bool tried;                /* opening the file has been tried, with or without success */
  bool volatile_name;        /* the file is deleted if everything ends without an error */
  uint32_t live, gone;       /* open communicators; sections of ended ones */
  uint32_t fork_count;
  bool at_exit, spoilt;                         /* spoilt: a communicator failed, so the file is kept */
  uint64_t asked, caller_asked[RECORD_CALLERS]; /* of each row: when a recorder asked for it last */
} process = {.lock = OS_MUTEX_INITIALIZER};

static struct record_header *header(void) { return (struct record_header *)(void *)process.mapped.memory; }

/* ---- the file ---- */

/* The path of this process's file. False if it does not fit. */
static bool path_make(const char *place, uint32_t rank, char *out, size_t out_bytes) {
  char host[64], number[16], own[16];
  os_host_name(host, sizeof host);
  for (char *c = host; *c != '\0'; c++)
    if (*c == '/') *c = '_';
  snprintf(number, sizeof number, "%d", os_pid());
  snprintf(own, sizeof own, "%u", rank);
  const struct record_path_parts parts = {host, number, own};
  return record_path(place, &parts, out, out_bytes);
}

/* The process that wrote the file has ended. */
static bool file_is_stale(const char *path) {
  struct record_header old;
  if (mapped_file_peek(path, &old, sizeof old) != sizeof old) return true;
  if (memcmp(old.magic, RECORD_MAGIC, sizeof old.magic) != 0) return false;
  const struct os_process maker = {old.process_realm, old.process_born, (int32_t)old.process};
  return os_process_gone(&maker);
}

static void header_fill(uint32_t rank) {
  struct record_header *h = header();
  struct os_process self;
  os_process_self(&self);
  h->version = RECORD_VERSION;
  h->byte_order = RECORD_BYTE_ORDER;
  h->header_bytes = RECORD_PAGE_BYTES;
  h->record_bytes = RECORD_BYTES;
  h->process_realm = self.realm;
  h->process_born = self.born;
  h->process = (uint32_t)self.number;
  h->first_ticks = ticks_now();
  h->first_ns = os_time_ns();
  h->wall_ns = wall_ns();
  h->rank = rank;
  os_host_name(h->host, sizeof h->host);
  launch_job(h->job);
  snprintf(h->library, sizeof h->library, "tutti %d.%d.%d", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR,
           TUTTI_VERSION_PATCH);
  __atomic_store_n(&h->used_bytes, RECORD_PAGE_BYTES, __ATOMIC_RELEASE);
  memcpy(h->magic, RECORD_MAGIC, sizeof h->magic);
}

/* If the backend does not count kernels, they are taken as ended. */
static bool comm_has_ended(const struct record_comm *comm) {
  return comm->counts != RECORD_COUNTS_TRUE || __atomic_load_n(&comm->launched, __ATOMIC_RELAXED) ==
                                                   __atomic_load_n(&comm->ended, __ATOMIC_RELAXED);
}

static bool comm_has_failed(const struct record_comm *comm) {
  return __atomic_load_n(&comm->error, __ATOMIC_RELAXED) != 0;
}

/* Every recorded communicator has ended without an error. */
static bool all_is_well(void) {
  const uint8_t *memory = process.mapped.memory;
  if (process.spoilt) return false;
  for (uint64_t at = RECORD_PAGE_BYTES; at < header()->used_bytes;) {
    const struct record_comm *comm = (const struct record_comm *)(const void *)(memory + at);
    if (comm_has_failed(comm) || comm->state == RECORD_OPEN) return false;
    if (comm->state != RECORD_ENDED && !comm_has_ended(comm)) return false;
    at += comm->section.bytes;
  }
  return true;
}

static void clock_note(void) {
  header()->last_ticks = ticks_now();
  header()->last_ns = os_time_ns();
}

/* The file of a process that exits with an open communicator is kept: other ranks may wait for this one. */
static void process_exit(int status) {
  if (process.mapped.memory == NULL || process.fork_count != os_fork_count()) return;
  header()->exit_status = (uint32_t)status;
  header()->exits = 1;
  header()->state = RECORD_ENDED;
  clock_note();
  if (process.volatile_name && all_is_well()) mapped_file_remove(&process.mapped);
}

/* A job does not fail for want of records; but whoever has asked for them learns that there are none. */
static void file_refuse(const char *path) {
  static const char format[] =
      "TUTTI_TRACE: nothing is recorded: %s: %s; set it to a folder that can be written, with a / at its "
      "end, "
      "or to off";
  const char *why = errno != 0 ? strerror(errno) : "the name is too long";
  if (param_is_set(PARAM_TUTTI_TRACE)) log_visible(format, path, why);
  else log_info(LOG_INIT, format, path, why);
}

static bool file_open(uint32_t rank) {
  const char *pattern = param_text(PARAM_TUTTI_TRACE);
  char path[MAPPED_FILE_PATH_BYTES];
  if (pattern[0] == '\0' || strcmp(pattern, "off") == 0 || strcmp(pattern, "0") == 0) return false;
  process.volatile_name = record_path_folder(pattern) != NULL;
  errno = 0;
  if (!path_make(pattern, rank, path, sizeof path)) {
    file_refuse(pattern);
    return false;
  }
  if (process.volatile_name)
    mapped_file_sweep(pattern, RECORD_FILE_BEGIN, RECORD_FILE_END,
                      (uint64_t)param_int(PARAM_TUTTI_TRACE_KEEP_BYTES), file_is_stale);
  if (!mapped_file_open(&process.mapped, path, (size_t)param_int(PARAM_TUTTI_TRACE_BYTES))) {
    file_refuse(path);
    return false;
  }
  if (mapped_file_grow(&process.mapped, RECORD_PAGE_BYTES)) return true;
  file_refuse(path);
  mapped_file_remove(&process.mapped);
  mapped_file_close(&process.mapped);
  return false;
}

/* A forked child does not write to its parent's file; it opens its own. */
static void process_renew(void) {
  if (process.fork_count == os_fork_count()) return;
  process.fork_count = os_fork_count();
  process.mapped.memory = NULL;
  process.tried = process.spoilt = false;
  process.live = process.gone = 0;
}

/* Locked. */
static bool process_ready(uint32_t rank) {
  process_renew();
  if (process.tried) return process.mapped.memory != NULL;
  process.tried = true;
  process.spoilt = false;
  if (!file_open(rank)) return false;
  header_fill(rank);
  if (!process.at_exit) os_at_exit_status(process_exit);
  process.at_exit = true;
  log_info(LOG_INIT, "TUTTI_TRACE: records go to %s", process.mapped.path);
  return true;
}

/* ---- sections ---- */

static uint64_t round_page(uint64_t bytes) {
  return (bytes + RECORD_PAGE_BYTES - 1) & ~(uint64_t)(RECORD_PAGE_BYTES - 1);
}

static void section_lay_out(struct record_comm *comm, bool is_short) {
  memset(comm, 0, sizeof *comm);
  comm->section.kind = RECORD_SECTION_COMM;
  comm->section.header_bytes = sizeof *comm;
  comm->plan_rows = RECORD_PLANS;
  comm->lane_rows = is_short ? SHORT_LANE_ROWS : LANE_ROWS;
  comm->link_rows = is_short ? SHORT_LINK_ROWS : LINK_ROWS;
  comm->proxy_rows = is_short ? SHORT_PROXY_ROWS : PROXY_ROWS;
  comm->pace_rows = is_short ? SHORT_PACE_ROWS : PACE_ROWS;
  comm->ring_records = is_short ? SHORT_RING_RECORDS : RING_RECORDS;
  comm->input_rows = INPUT_ROWS;
  comm->plan_offset = RECORD_COMM_BYTES;
  comm->lane_offset = comm->plan_offset + comm->plan_rows * RECORD_BYTES;
  comm->link_offset = comm->lane_offset + comm->lane_rows * RECORD_BYTES;
  comm->proxy_offset = comm->link_offset + comm->link_rows * RECORD_BYTES;
  comm->pace_offset = comm->proxy_offset + comm->proxy_rows * RECORD_BYTES;
  comm->input_offset = comm->pace_offset + comm->pace_rows * RECORD_BYTES;
  comm->ring_offset = (uint32_t)round_page(comm->input_offset + comm->input_rows * RECORD_BYTES);
  comm->section.bytes = round_page(comm->ring_offset + (uint64_t)comm->ring_records * RECORD_BYTES);
}

/* Appends a section to the file. Locked. */
static struct record_comm *section_append(void) {
  const uint64_t used = header()->used_bytes;
  struct record_comm shape;
  section_lay_out(&shape, used > process.mapped.bytes_most / 2);
  if (!mapped_file_grow(&process.mapped, used + shape.section.bytes)) return NULL;
  struct record_comm *comm = (struct record_comm *)(void *)(process.mapped.memory + used);
  *comm = shape;
  __atomic_store_n(&header()->used_bytes, used + shape.section.bytes, __ATOMIC_RELEASE);
  return comm;
}

/* The section of the communicator that ended first. Locked. */
static struct record_comm *section_oldest(void) {
  struct record_comm *oldest = NULL;
  for (uint64_t at = RECORD_PAGE_BYTES; at < header()->used_bytes;) {
    struct record_comm *comm = (struct record_comm *)(void *)(process.mapped.memory + at);
    at += comm->section.bytes;
    if (comm->state == RECORD_OPEN) continue;
    if (oldest == NULL || comm->moved_ticks < oldest->moved_ticks) oldest = comm;
  }
  return oldest;
}

static struct record_comm *section_reuse(void) {
  struct record_comm *comm = section_oldest();
  if (comm == NULL) return NULL;
  const bool is_short = comm->ring_records == SHORT_RING_RECORDS;
  memset((uint8_t *)comm + sizeof *comm, 0, comm->section.bytes - sizeof *comm);
  section_lay_out(comm, is_short);
  process.gone -= 1;
  return comm;
}

static struct record_comm *section_take(void) {
  struct record_comm *comm = process.gone > GONE_MOST ? section_reuse() : section_append();
  if (comm == NULL) comm = section_reuse();
  if (comm == NULL) header()->refused += 1;
  return comm;
}

static void *section_at(struct record_comm *comm, uint32_t offset) { return (uint8_t *)comm + offset; }

static void recorder_bind(struct recorder *recorder, struct record_comm *comm) {
  recorder->comm = comm;
  recorder->ring = (union record *)section_at(comm, comm->ring_offset);
  recorder->plans = (struct record_plan *)section_at(comm, comm->plan_offset);
  recorder->lanes = (struct record_lane *)section_at(comm, comm->lane_offset);
  recorder->links = (struct record_link *)section_at(comm, comm->link_offset);
  recorder->proxies = (struct record_proxy *)section_at(comm, comm->proxy_offset);
  recorder->paces = (struct record_pace *)section_at(comm, comm->pace_offset);
  recorder->inputs = (struct record_input *)section_at(comm, comm->input_offset);
  recorder->mask = comm->ring_records - 1;
}

void recorder_open(struct recorder *recorder, const struct recorder_birth *birth) {
  memset(recorder, 0, sizeof *recorder);
  python_frame_look();
  os_mutex_lock(&process.lock);
  struct record_comm *comm = process_ready(birth->rank) ? section_take() : NULL;
  if (comm != NULL) {
    process.live += 1;
    comm->comm_id = birth->comm_id;
    comm->rank = birth->rank;
    comm->rank_count = birth->rank_count;
    comm->device = birth->device;
    comm->settings_digest = birth->settings_digest;
    comm->topology_digest = birth->topology_digest;
    snprintf(comm->name, sizeof comm->name, "%s", birth->name);
    comm->born = ticks_now();
    recorder_bind(recorder, comm);
    clock_note();
  }
  os_mutex_unlock(&process.lock);
}

/* Deletes the file after the last communicator if all ended without an error; the next communicator opens a
 * new file. No backend still writes to it: all kernels have ended. */
static void process_settle(void) {
  if (process.live > 0 || !process.volatile_name || !all_is_well()) return;
  mapped_file_remove(&process.mapped);
  mapped_file_close(&process.mapped);
  process.tried = false;
  process.gone = 0;
}

void recorder_close(struct recorder *recorder, enum record_state state) {
  struct record_comm *comm = recorder->comm;
  if (comm == NULL || process.fork_count != os_fork_count()) return;
  os_mutex_lock(&process.lock);
  if (comm_has_failed(comm) || !comm_has_ended(comm)) process.spoilt = true;
  comm->state = state;
  /* Atomic, because a kernel of an aborted rank may still end: its device side is closed with the last rank.
   */
  __atomic_store_n(&comm->moved_ticks, ticks_now(), __ATOMIC_RELAXED);
  process.live -= 1;
  process.gone += 1;
  clock_note();
  process_settle();
  os_mutex_unlock(&process.lock);
  recorder->comm = NULL;
}

struct recorder_live recorder_live(const struct recorder *recorder) {
  const struct recorder_live live = {recorder->comm, recorder->lanes, recorder->links, recorder->proxies,
                                     recorder->paces};
  return live;
}

/* ---- records ---- */

uint8_t recorder_add_stream(struct recorder *recorder, uint64_t stream) {
  struct record_comm *comm = recorder->comm;
  uint32_t i = 0;
  while (i < RECORD_STREAMS && comm->streams[i] != stream && (i == 0 || comm->streams[i] != 0)) i++;
  if (i == RECORD_STREAMS) return 255;
  comm->streams[i] = stream;
  recorder->last_stream = i;
  return (uint8_t)i;
}

/* Notes the file's path, by which a reader finds its debug information, and what tells whether it is still
 * the same file. Without space there is no path. */
static void module_note(const char *path) {
  char *modules = header()->modules, line[MAPPED_FILE_PATH_BYTES + 48];
  const size_t used = strlen(modules);
  struct callsite_stamp stamp;
  if (strchr(path, '\n') != NULL || !callsite_stamp(path, &stamp)) return;
  const int bytes =
      snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 " %s\n", stamp.bytes, stamp.changed_ns, path);
  if (bytes >= (int)sizeof line || used + (size_t)bytes >= RECORD_MODULES_BYTES) return;
  if (strstr(modules, line) != NULL) return;
  memcpy(modules + used, line, (size_t)bytes); /* zeroes follow */
}

typedef uint64_t __attribute__((may_alias)) live_word;

/* Locked. Other threads write this memory at the same time: the copy may mix old and new words. */
__attribute__((no_sanitize_thread)) static void live_copy(void *out, const void *in, size_t bytes) {
  live_word *to = (live_word *)out;
  const live_word *from = (const live_word *)in;
  for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

static struct record_caller *caller_rows(void) {
  return (struct record_caller *)(void *)(process.mapped.memory + RECORD_CALLERS_OFFSET);
}

/* Locked. */
static struct record_caller *caller_row(uint64_t address) {
  struct record_caller *rows = caller_rows();
  for (uint32_t i = 0; i < RECORD_CALLERS; i++) {
    if (rows[i].address != address) continue;
    process.caller_asked[i] = ++process.asked;
    return &rows[i];
  }
  return NULL;
}

/* Marks the rows of a communicator's last calls. Its thread may write at the same time. */
static void callers_keep(const struct record_comm *comm, bool *kept) {
  const uint64_t tail = __atomic_load_n(&comm->tail, __ATOMIC_ACQUIRE);
  const union record *ring = (const union record *)(const void *)((const uint8_t *)comm + comm->ring_offset);
  for (uint64_t back = 1; back <= CALLERS_KEPT && back <= tail; back++) {
    union record record;
    live_copy(&record, &ring[(tail - back) & (comm->ring_records - 1)], sizeof record);
    for (uint32_t i = 0; record.kind == RECORD_PLACE && i < RECORD_CALLERS; i++)
      if (caller_rows()[i].address == record.place.caller) kept[i] = true;
  }
}

/* The row that nothing has asked for longest; one that is kept only if all are. */
static uint32_t caller_oldest(const bool *kept) {
  uint32_t oldest = 0;
  for (uint32_t i = 1; i < RECORD_CALLERS; i++) {
    const bool is_older = process.caller_asked[i] < process.caller_asked[oldest];
    if (kept[i] == kept[oldest] ? is_older : kept[oldest]) oldest = i;
  }
  return oldest;
}

/* Empties a quarter of the rows: their places are those of calls long ago, and of none that is a
 * communicator's last one. All recorders ask for their places again. Locked. */
static void callers_evict(void) {
  bool kept[RECORD_CALLERS] = {false};
  for (uint64_t at = RECORD_PAGE_BYTES; at < header()->used_bytes;) {
    const struct record_comm *comm = (const struct record_comm *)(const void *)(process.mapped.memory + at);
    if (comm->state == RECORD_OPEN) callers_keep(comm, kept);
    at += comm->section.bytes;
  }
  for (uint32_t i = 0; i < RECORD_CALLERS / 4; i++) {
    const uint32_t oldest = caller_oldest(kept);
    __atomic_store_n(&caller_rows()[oldest].address, 0, __ATOMIC_RELEASE);
    process.caller_asked[oldest] = UINT64_MAX;
  }
  __atomic_fetch_add(&recorder_evictions, 1, __ATOMIC_RELAXED);
}

/* Fills an empty row. Locked. */
static void caller_put(uint64_t address, uint64_t offset, const char *text) {
  struct record_caller *row = caller_row(0);
  if (row == NULL) {
    callers_evict();
    row = caller_row(0);
  }
  snprintf(row->file, sizeof row->file, "%s", text);
  row->offset = offset;
  __atomic_store_n(&row->address, address, __ATOMIC_RELEASE);
}

/* Forgets what the recorder knows of rows that were emptied since. */
static void callers_renew(struct recorder *recorder) {
  const uint32_t now = __atomic_load_n(&recorder_evictions, __ATOMIC_RELAXED);
  if (recorder->evictions == now) return;
  memset(recorder->callers, 0, sizeof recorder->callers);
  memset(recorder->frames, 0, sizeof recorder->frames);
  recorder->evictions = now;
}

/* For places that are new: others hold the lock for moments, and then again not at all. A caller must not
 * wait long here: if this fails, the next call tries again. */
static bool lock_soon(void) {
  for (int tries = 0; tries < 100; tries++) {
    if (os_mutex_try_lock(&process.lock)) return true;
    os_yield();
  }
  return false;
}

/* Without a file of that address the record has only the address. */
void recorder_add_caller(struct recorder *recorder, const void *caller) {
  if (!lock_soon()) return;
  struct callsite site;
  if (caller_row((uintptr_t)caller) == NULL && callsite_find(caller, &site)) {
    module_note(site.path);
    caller_put((uintptr_t)caller, site.offset, os_base_name(site.path));
  }
  callers_renew(recorder);
  recorder->callers[((uintptr_t)caller >> 2) % 8] = caller;
  os_mutex_unlock(&process.lock);
}

/* The code at an instruction may be freed, and other code take its place: the number then differs in the bits
 * that no address has. */
static uint64_t frame_put(const struct python_frame *frame, const char *text) {
  const uint64_t step = UINT64_C(1) << 48, end = RECORD_CALLER_TEXT | (step << 8);
  uint64_t address = RECORD_CALLER_TEXT | (uint64_t)(uintptr_t)frame->instruction;
  for (; address < end; address += step) {
    const struct record_caller *row = caller_row(address);
    if (row != NULL && strcmp(row->file, text) != 0) continue;
    if (row == NULL) caller_put(address, 0, text);
    return address;
  }
  return 0;
}

uint64_t recorder_add_frame(struct recorder *recorder, const struct python_frame *frame) {
  char text[sizeof((struct record_caller *)NULL)->file];
  struct recorder_frame row = {*frame, 0};
  if (!lock_soon()) return 0;
  if (python_frame_text(frame, text, sizeof text)) row.address = frame_put(frame, text);
  callers_renew(recorder);
  recorder->frames[((uintptr_t)frame->instruction >> 2) % 8] = row;
  os_mutex_unlock(&process.lock);
  return row.address;
}

void recorder_launch(struct recorder *recorder, const struct record_launch *launch) {
  union record record;
  if (recorder->comm == NULL) return;
  record.launch = *launch;
  record.kind = RECORD_LAUNCH;
  recorder_push(recorder, &record);
}

void recorder_error(struct recorder *recorder, uint32_t result, uint64_t sequence) {
  union record record;
  if (recorder->comm == NULL) return;
  memset(&record, 0, sizeof record);
  record.error = (struct record_error){RECORD_ERROR, {0}, result, ticks_now(), sequence, 0};
  recorder_push(recorder, &record);
}

static void life_push(struct recorder *recorder, uint8_t kind, uint8_t life, uint64_t sequence) {
  union record record;
  if (recorder->comm == NULL) return;
  record.life = (struct record_life_event){kind, life, {0}, ticks_now(), sequence, 0};
  recorder_push(recorder, &record);
}

void recorder_drop(struct recorder *recorder, uint64_t sequence) {
  life_push(recorder, RECORD_DROP, 0, sequence);
}

void recorder_life(struct recorder *recorder, enum record_life life, uint64_t sequence) {
  life_push(recorder, RECORD_LIFE, (uint8_t)life, sequence);
}

void recorder_plan(struct recorder *recorder, const struct record_plan *plan) {
  if (recorder->comm == NULL) return;
  recorder->plans[plan->number % RECORD_PLANS] = *plan;
  if (!os_mutex_try_lock(&process.lock)) return; /* the thread that holds it notes the time */
  clock_note();
  os_mutex_unlock(&process.lock);
}

/* ---- for the watchdog and tutti status ---- */

static uint64_t live_hash(uint64_t hash, const struct record_comm *comm, uint32_t offset, uint64_t rows) {
  uint64_t words[RECORD_BYTES / 8];
  for (uint64_t row = 0; row < rows; row++) {
    live_copy(words, (const uint8_t *)comm + offset + row * RECORD_BYTES, RECORD_BYTES);
    for (uint32_t i = 0; i < RECORD_BYTES / 8; i++) hash = hash_mix(hash, words[i]);
  }
  return hash;
}

/* This process has a file. Locked. */
static bool process_has_file(void) {
  return process.mapped.memory != NULL && process.fork_count == os_fork_count();
}

void recorder_note_awaited(uint32_t awaited) {
  if (!os_mutex_try_lock(&process.lock)) return; /* whoever calls may hold locks: the next call notes it */
  if (process_has_file()) header()->awaited = awaited;
  os_mutex_unlock(&process.lock);
}

void recorder_note_address(const char *text) {
  os_mutex_lock(&process.lock);
  if (process_has_file()) snprintf(header()->control, sizeof header()->control, "%s", text);
  os_mutex_unlock(&process.lock);
}

void recorder_note_time(void) {
  os_mutex_lock(&process.lock);
  if (process_has_file()) clock_note();
  os_mutex_unlock(&process.lock);
}

size_t recorder_copy(uint64_t offset, void *out, size_t bytes) {
  size_t there = 0;
  os_mutex_lock(&process.lock);
  const uint64_t used = process_has_file() ? header()->used_bytes : 0;
  if (offset < used) there = used - offset < bytes ? (size_t)(used - offset) : bytes;
  if (there > 0) live_copy(out, process.mapped.memory + offset, there);
  os_mutex_unlock(&process.lock);
  return there;
}

static void comm_look(const struct record_comm *comm, struct recorder_look *look) {
  struct record_comm now;
  const struct record_comm *c = &now;
  live_copy(&now, comm, sizeof now);
  look->comm_id = c->comm_id;
  look->rank = c->rank;
  look->pends = c->state == RECORD_OPEN && c->error == 0 && c->counts != 0 &&
                (c->launched != c->ended || c->graph_operation != 0);
  look->moves = HASH_SEED;
  const uint64_t counters[] = {c->born,  c->tail,        c->calls,      c->launched,       c->started,
                               c->ended, c->moved_ticks, c->links_used, c->graph_operation};
  for (uint32_t i = 0; i < sizeof counters / sizeof counters[0]; i++)
    look->moves = hash_mix(look->moves, counters[i]);
  if (!look->pends) return;
  look->moves = live_hash(look->moves, comm, c->link_offset, c->links_used);
  look->moves = live_hash(look->moves, comm, c->proxy_offset, c->proxies_used);
}

bool recorder_look_next(uint64_t *offset, struct recorder_look *look) {
  const uint64_t at = *offset > 0 ? *offset : RECORD_PAGE_BYTES;
  os_mutex_lock(&process.lock);
  const bool there = process_has_file() && at < header()->used_bytes;
  if (there) {
    const struct record_comm *comm = (const struct record_comm *)(const void *)(process.mapped.memory + at);
    comm_look(comm, look);
    *offset = at + comm->section.bytes;
  }
  os_mutex_unlock(&process.lock);
  return there;
}

/* ---- for tests ---- */

void recorder_reset(void) {
  os_mutex_lock(&process.lock);
  if (process.mapped.memory != NULL && process.fork_count == os_fork_count()) {
    if (process.volatile_name && all_is_well()) mapped_file_remove(&process.mapped);
    mapped_file_close(&process.mapped);
  }
  process.tried = process.spoilt = false;
  process.live = process.gone = 0;
  os_mutex_unlock(&process.lock);
}

const char *recorder_path(void) { return process.mapped.memory != NULL ? process.mapped.path : ""; }
