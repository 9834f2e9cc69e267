/* leaks.c: reports in a destructor, behind the program's own exit handlers and destructors, which may give
 * back what they hold. */
#include "core/comm/leaks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/comm/comm.h"
#include "core/comm/handles.h"

#define SITE_BYTES 160
#define LINES_MOST 64
#define NOTED_MOST 32

/* What outlived the communicator or the thread that it belonged to. */
struct noted {
  const char *what, *cure; /* "the operator that ncclRedOpCreatePreMulSum made" */
  const void *caller;
  char owner[COMM_NAME_BYTES + 32];
  uint64_t count;
};

struct memory_block {
  struct memory_block *next;
  const void *memory;
  size_t bytes;
  uint32_t device_index;
  const void *caller;
};

static struct {
  os_mutex lock;
  bool watched, excused, ended;
  int status; /* with which the program ends */
  uint32_t fork_count;
  struct memory_block *blocks;
  struct noted noted[NOTED_MOST];
  uint32_t noted_count, line_count;
} leaks = {.lock = OS_MUTEX_INITIALIZER};

static void note_status(int status) {
  leaks.ended = true;
  leaks.status = status;
}

void leaks_watch(void) {
  os_mutex_lock(&leaks.lock);
  const bool first = !leaks.watched;
  leaks.watched = true;
  if (leaks.fork_count != os_fork_count()) leaks.blocks = NULL; /* the parent's */
  leaks.fork_count = os_fork_count();
  os_mutex_unlock(&leaks.lock);
  if (first) os_at_exit_status(note_status);
}

void leaks_excuse(void) { __atomic_store_n(&leaks.excused, true, __ATOMIC_RELAXED); }

/* ---- what is noted ---- */

static void note(const char *what, const char *cure, const void *caller, const char *owner, uint64_t count) {
  os_mutex_lock(&leaks.lock);
  if (leaks.noted_count < NOTED_MOST) {
    struct noted *noted = &leaks.noted[leaks.noted_count++];
    noted->what = what;
    noted->cure = cure;
    noted->caller = caller;
    noted->count = count;
    snprintf(noted->owner, sizeof noted->owner, "%s", owner);
  }
  os_mutex_unlock(&leaks.lock);
}

void leaks_leave(const struct ncclComm *comm) {
  char owner[sizeof leaks.noted[0].owner];
  if (comm->aborted || comm_async_error(comm) != ncclSuccess) return;
  snprintf(owner, sizeof owner, "rank %u of comm '%s'", comm->rank, comm->name);
  for (const struct registration *row = comm->registrations; row; row = row->next)
    note(
        "never deregistered the buffer of %llu bytes that ncclCommRegister or ncclCommWindowRegister took at",
        "call ncclCommDeregister or ncclCommWindowDeregister before the communicator ends", row->caller,
        owner, row->bytes);
  for (uint32_t i = 0; i < comm->redops.count; i++) {
    const struct redop *op = &comm->redops.rows[i];
    if (op->live)
      note("never destroyed the operator that ncclRedOpCreatePreMulSum made at",
           "call ncclRedOpDestroy before the communicator ends", op->caller, owner, 0);
  }
}

void leaks_group(const void *caller, uint32_t call_count) {
  note("never ended its group, whose %llu calls were not launched; ncclGroupStart was called at",
       "call ncclGroupEnd", caller, "a thread", call_count);
}

ncclResult_t leaks_memory_add(const void *memory, size_t bytes, uint32_t device_index, const void *caller) {
  struct memory_block *block = (struct memory_block *)os_alloc(sizeof *block);
  leaks_watch();
  if (!block) return log_no_memory("ncclMemAlloc: noting %zu bytes", bytes);
  *block = (struct memory_block){NULL, memory, bytes, device_index, caller};
  os_mutex_lock(&leaks.lock);
  block->next = leaks.blocks;
  leaks.blocks = block;
  os_mutex_unlock(&leaks.lock);
  return ncclSuccess;
}

void leaks_memory_remove(const void *memory) {
  os_mutex_lock(&leaks.lock);
  struct memory_block **link = &leaks.blocks;
  while (*link && (*link)->memory != memory) link = &(*link)->next;
  struct memory_block *block = *link;
  if (block) *link = block->next;
  os_mutex_unlock(&leaks.lock);
  os_free(block);
}

/* ---- the report ---- */

/* "job.c:31 (main)"; addresses repeat, and the debug information is read once for each. */
static const char *site_of(const void *caller) {
  static const void *last;
  static char text[SITE_BYTES];
  if (caller != last || text[0] == '\0') callsite_text(caller, text, sizeof text);
  last = caller;
  return caller ? text : "an unknown place";
}

/* False if no more lines are printed. */
static bool line_next(void) {
  leaks.line_count += 1;
  if (leaks.line_count == LINES_MOST + 1) log_urgent("leaks: there are more than %d", LINES_MOST);
  return leaks.line_count <= LINES_MOST;
}

struct live_comms {
  struct ncclComm **comms;
  uint32_t count, capacity;
};

static void live_add(const void *handle, void *argument) {
  struct live_comms *live = (struct live_comms *)argument;
  struct ncclComm *comm = (struct ncclComm *)(uintptr_t)handle;
  const enum comm_state state = comm_state(comm);
  if (live->count == live->capacity || comm->fork_count != os_fork_count()) return;
  if (state != COMM_RENDEZVOUS && state != COMM_FAILED && comm_async_error(comm) == ncclSuccess)
    live->comms[live->count++] = comm;
}

static int by_rank(const void *left, const void *right) {
  const struct ncclComm *a = *(const struct ncclComm *const *)left,
                        *b = *(const struct ncclComm *const *)right;
  if (a->comm_id != b->comm_id) return a->comm_id < b->comm_id ? -1 : 1;
  return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static bool made_alike(const struct ncclComm *one, const struct ncclComm *other) {
  return one->shared == other->shared && one->caller == other->caller && one->state == other->state;
}

/* Ranks begin to end, which one call made or calls on one line. */
static void comms_report(struct ncclComm *const *comms, uint32_t begin, uint32_t end) {
  const struct ncclComm *first = comms[begin];
  char ranks[64];
  bool busy = false;
  for (uint32_t i = begin; i < end; i++)
    busy = busy || !comms[i]->ops->device->comm_idle(comms[i]->device_comm);
  if (end - begin == 1) snprintf(ranks, sizeof ranks, "rank %u", first->rank);
  else if (comms[end - 1]->rank - first->rank == end - begin - 1)
    snprintf(ranks, sizeof ranks, "ranks %u to %u", first->rank, comms[end - 1]->rank);
  else
    snprintf(ranks, sizeof ranks, "%u ranks (%u, %u ...)", end - begin, first->rank, comms[begin + 1]->rank);
  if (!line_next()) return;
  log_urgent("leak: %s of comm '%s', made by %s at %s, %s%s; call ncclCommDestroy", ranks, first->name,
             first->made_by, site_of(first->caller),
             first->state == COMM_FINALIZED ? "finalized and never destroyed" : "never destroyed",
             busy ? ", with operations that have not ended" : "");
}

/* A rank that ends its process makes no more calls. */
static void comm_end(struct ncclComm *comm) {
  if (comm->ops->device->comm_idle(comm->device_comm) && comm_state(comm) == COMM_READY &&
      match_end(comm, MATCH_END_EXIT, NULL) != ncclSuccess)
    line_next();
}

static void live_report(void) {
  struct live_comms live = {NULL, 0, handles_count()};
  live.comms = (struct ncclComm **)os_alloc((live.capacity + 1) * sizeof(struct ncclComm *));
  if (!live.comms) return;
  handles_visit(live_add, &live);
  qsort(live.comms, live.count, sizeof(struct ncclComm *), by_rank);
  for (uint32_t begin = 0, end; begin < live.count; begin = end) {
    for (end = begin + 1; end < live.count && made_alike(live.comms[begin], live.comms[end]);) end++;
    comms_report(live.comms, begin, end);
  }
  for (uint32_t i = 0; i < live.count; i++) leaks_leave(live.comms[i]);
  for (uint32_t i = 0; i < live.count; i++) comm_end(live.comms[i]);
  os_free(live.comms);
}

static void noted_report(void) {
  for (uint32_t i = 0; i < leaks.noted_count && line_next(); i++) {
    const struct noted *noted = &leaks.noted[i];
    char what[160];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(what, sizeof what, noted->what, (unsigned long long)noted->count);
#pragma GCC diagnostic pop
    log_urgent("leak: %s %s %s; %s", noted->owner, what, site_of(noted->caller), noted->cure);
  }
}

static void memory_report(void) {
  for (const struct memory_block *block = leaks.blocks; block && line_next(); block = block->next)
    log_urgent("leak: %zu bytes on device %u, allocated by ncclMemAlloc at %s, never freed; call ncclMemFree",
               block->bytes, block->device_index, site_of(block->caller));
}

static void __attribute__((destructor)) leaks_report(void) {
  if (!leaks.watched || !leaks.ended || leaks.status != 0 || leaks.excused) return;
  const struct backend *ops = leaks.fork_count == os_fork_count() ? backend_ops() : NULL;
  const enum leak_check check = ops ? settings_leak_check(ops) : LEAK_CHECK_OFF;
  if (check == LEAK_CHECK_OFF) return;
  live_report();
  noted_report();
  memory_report();
  if (leaks.line_count > 0 && check == LEAK_CHECK_ERROR) os_exit_now(LEAKS_EXIT_STATUS);
}
