/* match.c: a ring of calls for each order, that ranks which are behind compare their own with. */
#include "core/comm/match.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/comm/collective_call.h"
#include "core/plan/names.h"
#include "kernels/kernels.h"

/* A rank that is further behind than this is compared again once it has caught up. */
#define MATCH_CALLS_MOST (1u << 16)
#define MATCH_CALLS_LEAST 16u

struct match_kept {
  struct match_entry entry;
  bool present;
};

/* Entry n is at n % capacity. Some may be absent: calls that other processes compared. */
struct match_ring {
  struct match_kept *kept;
  uint32_t capacity;   /* a power of two, or 0 */
  uint64_t first, end; /* numbers that it spans */
};

struct match {
  os_mutex lock;
  uint32_t rank_count;
  struct match_remote remote;
  struct match_ring rings[MATCH_ORDERS];
  uint64_t *next;          /* by order and rank: the number after those compared here */
  struct ncclComm **comms; /* by rank; of this process */
};

struct match *match_create(uint32_t rank_count) {
  struct match *match = (struct match *)os_alloc(sizeof *match);
  if (!match) return NULL;
  match->rank_count = rank_count;
  os_mutex_init(&match->lock);
  match->next = (uint64_t *)os_alloc((size_t)MATCH_ORDERS * rank_count * sizeof *match->next);
  match->comms = (struct ncclComm **)os_alloc(rank_count * sizeof *match->comms);
  if (match->next && match->comms) return match;
  match_free(match);
  return NULL;
}

void match_free(struct match *match) {
  if (!match) return;
  for (int order = 0; order < MATCH_ORDERS; order++) os_free(match->rings[order].kept);
  os_free(match->next);
  os_free(match->comms);
  os_mutex_destroy(&match->lock);
  os_free(match);
}

void match_set_remote(struct match *match, const struct match_remote *remote) { match->remote = *remote; }

/* ---- the ring ---- */

static struct match_kept *ring_at(const struct match_ring *ring, uint64_t number) {
  return &ring->kept[number & (ring->capacity - 1)];
}

static bool ring_grow(struct match_ring *ring, uint64_t span) {
  struct match_ring grown = *ring;
  while (grown.capacity < span) grown.capacity = grown.capacity ? 2 * grown.capacity : MATCH_CALLS_LEAST;
  grown.kept = (struct match_kept *)os_alloc(grown.capacity * sizeof *grown.kept);
  if (!grown.kept) return false;
  for (uint64_t number = ring->first; number < ring->end; number++)
    *ring_at(&grown, number) = *ring_at(ring, number);
  os_free(ring->kept);
  *ring = grown;
  return true;
}

/* Up to which number all ranks have been compared. */
static uint64_t all_compared(const struct match *match, int order) {
  const uint64_t *next = match->next + (size_t)order * match->rank_count;
  uint64_t least = UINT64_MAX;
  for (uint32_t rank = 0; rank < match->rank_count; rank++)
    if (next[rank] < least) least = next[rank];
  return least;
}

static void ring_drop(struct match_ring *ring, uint64_t before) {
  for (; ring->first < before && ring->first < ring->end; ring->first++)
    ring_at(ring, ring->first)->present = false;
}

/* Makes the ring span the number, unless it is too far behind. False if memory is out. */
static bool ring_cover(struct match *match, int order, uint64_t number) {
  struct match_ring *ring = &match->rings[order];
  if (ring->first == ring->end) ring->first = ring->end = number;
  const uint64_t end = number < ring->end ? ring->end : number + 1;
  if (number < ring->first && end - number > MATCH_CALLS_MOST) return true;
  if (end - ring->first > ring->capacity) ring_drop(ring, all_compared(match, order));
  if (end - ring->first > MATCH_CALLS_MOST) ring_drop(ring, end - MATCH_CALLS_MOST);
  if (ring->first == ring->end) ring->first = ring->end = number;
  const uint64_t first = number < ring->first ? number : ring->first;
  if (end - first > ring->capacity && !ring_grow(ring, end - first)) return false;
  ring->first = first;
  ring->end = end;
  return true;
}

/* ---- comparing ---- */

/* What differs, in words; NULL: nothing. */
static const char *difference(const struct match_entry *one, const struct match_entry *other) {
  if (one->func != other->func) return "different functions";
  if (one->dtype != other->dtype) return "different datatypes";
  if (one->op != other->op) return "different reduction operators";
  if (one->root != other->root) return "different roots";
  if (one->count != other->count) return "different counts";
  if (one->in_group != other->in_group) return "different places in groups (ncclGroupStart)";
  if (one->before != other->before) return "different numbers of other collectives before its group";
  return NULL;
}

static void rank_compared(struct match *match, const struct match_entry *entry) {
  match->next[(size_t)entry->order * match->rank_count + entry->rank] = entry->number + 1;
}

ncclResult_t match_compare(struct match *match, const struct match_entry *entry, struct match_entry *other,
                           bool *differs) {
  const struct match_ring *ring = &match->rings[entry->order];
  *differs = false;
  os_mutex_lock(&match->lock);
  const bool covered = ring_cover(match, entry->order, entry->number);
  if (covered && entry->number >= ring->first) {
    struct match_kept *kept = ring_at(ring, entry->number);
    if (!kept->present || kept->entry.rank == entry->rank) { /* its own: the group was discarded */
      *kept = (struct match_kept){*entry, true};
    } else if (difference(&kept->entry, entry)) {
      *other = kept->entry;
      *differs = true;
    }
  }
  if (covered) rank_compared(match, entry);
  os_mutex_unlock(&match->lock);
  return covered ? ncclSuccess : log_no_memory("comparing a call with those of other ranks");
}

uint32_t match_export(struct match *match, uint64_t *place, struct match_entry *entries, uint32_t capacity) {
  uint32_t count = 0;
  uint64_t passed = 0;
  os_mutex_lock(&match->lock);
  for (int order = 0; order < MATCH_ORDERS; order++) {
    struct match_ring *ring = &match->rings[order];
    ring_drop(ring, all_compared(match, order));
    for (uint64_t number = ring->first; number < ring->end && count < capacity; number++) {
      if (!ring_at(ring, number)->present || passed++ < *place) continue;
      entries[count++] = ring_at(ring, number)->entry;
    }
  }
  os_mutex_unlock(&match->lock);
  *place += count;
  return count;
}

bool match_is_sane(const struct match *match, const struct match_entry *entry) {
  return entry->rank < match->rank_count && entry->order < MATCH_ORDERS && entry->func < FUNC_COUNT &&
         entry->dtype < ncclNumTypes && entry->op <= ncclNumOps && entry->number < UINT64_MAX / 2;
}

/* ---- sentences ---- */

static void add(char *text, size_t bytes, const char *format, ...) {
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, bytes - used, format, arguments);
  va_end(arguments);
}

static void add_operator(char *text, size_t bytes, const struct match_entry *entry) {
  static const char *const names[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};
  add(text, bytes, ", %s", entry->op < ncclNumOps ? names[entry->op] : "premultiplied sum");
}

static bool is_here(struct match *match, uint32_t rank) {
  os_mutex_lock(&match->lock);
  const bool here = match->comms[rank] != NULL;
  os_mutex_unlock(&match->lock);
  return here;
}

static void add_callsite(struct match *match, char *text, size_t bytes, const struct match_entry *entry) {
  char site[160] = "";
  if (entry->caller == 0) return;
  if (is_here(match, entry->rank)) callsite_text((const void *)(uintptr_t)entry->caller, site, sizeof site);
  else if (match->remote.callsite) match->remote.callsite(match->remote.argument, entry, site, sizeof site);
  if (site[0] != '\0') add(text, bytes, " at %s", site);
}

/* "rank 1 called ncclReduce(1024 float, sum, root 0) as number 2 of its group at job.c:31 (train)". */
static void add_entry(struct match *match, char *text, size_t bytes, const struct match_entry *entry) {
  add(text, bytes, "rank %u called nccl%s(%" PRIu64 " %s", entry->rank, names_func[entry->func], entry->count,
      kernel_type_name(entry->dtype));
  if (func_reduces(entry->func)) add_operator(text, bytes, entry);
  if (func_has_root(entry->func)) add(text, bytes, ", root %u", entry->root);
  add(text, bytes, ")");
  if (entry->in_group > 0) add(text, bytes, " as number %u of its group", entry->in_group + 1);
  add_callsite(match, text, bytes, entry);
}

void match_text(struct match *match, const struct match_entry *one, const struct match_entry *other,
                char *text, size_t bytes) {
  const char *differs = difference(one, other);
  snprintf(text, bytes, "collective #%" PRIu64 "%s has %s: ", one->number,
           one->order >= MATCH_CAPTURED ? " of those in graphs" : "", differs ? differs : "no difference");
  add_entry(match, text, bytes, one);
  add(text, bytes, "; ");
  add_entry(match, text, bytes, other);
}

/* ---- calls ---- */

static uint8_t call_order(const struct collective_call *call, bool captured) {
  const bool messages =
      call->func == FUNC_ALL_TO_ALL || call->func == FUNC_GATHER || call->func == FUNC_SCATTER;
  return (uint8_t)((captured ? MATCH_CAPTURED : 0) + (messages ? MATCH_MESSAGES : MATCH_COLLECTIVES));
}

/* Premultiplied sums are equal: each rank multiplies its own input, and may do so by a scalar of its own. */
static struct match_entry entry_of(const struct collective_call *call, bool captured) {
  const struct ncclComm *comm = call->comm;
  const struct match_rank *rank = &comm->match;
  struct match_entry entry;
  memset(&entry, 0, sizeof entry);
  entry.order = call_order(call, captured);
  entry.number = rank->now.calls[entry.order];
  entry.caller = (uint64_t)(uintptr_t)call->caller;
  entry.count = call->count;
  entry.rank = comm->rank;
  entry.root = func_has_root(call->func) ? (uint32_t)call->peer : 0;
  if (call->count > 0) {
    entry.in_group = (uint32_t)(rank->now.queued[entry.order] - rank->before.queued[entry.order]);
    if (entry.order % 2 == MATCH_MESSAGES) entry.before = rank->before.queued[entry.order - MATCH_MESSAGES];
  }
  entry.func = call->func;
  entry.dtype = (uint8_t)call->dtype;
  if (func_reduces(call->func)) entry.op = (unsigned)call->op < ncclNumOps ? (uint8_t)call->op : ncclNumOps;
  return entry;
}

/* No rank may continue: its calls no longer fit those of the others. */
static void break_all(struct match *match, struct ncclComm *comm, const char *text) {
  if (match->remote.give_up) {
    match->remote.give_up(comm, text);
    return;
  }
  os_mutex_lock(&match->lock);
  for (uint32_t rank = 0; rank < match->rank_count; rank++)
    if (match->comms[rank]) comm_break_silently(match->comms[rank], ncclInvalidUsage, text);
  os_mutex_unlock(&match->lock);
}

static ncclResult_t report(const struct collective_call *call, const struct match_entry *entry,
                           const struct match_entry *other) {
  struct ncclComm *comm = call->comm;
  char text[COMM_REASON_BYTES];
  match_text(comm->shared->match, other, entry, text, sizeof text);
  log_urgent("%s: rank %u of comm '%s': %s; make the same calls in the same order on all ranks", call->name,
             comm->rank, comm->name, text);
  break_all(comm->shared->match, comm, text);
  return log_fail(ncclInvalidUsage, "%s: rank %u of comm '%s': %s", call->name, comm->rank, comm->name, text);
}

void match_join(struct ncclComm *comm) { comm->shared->match->comms[comm->rank] = comm; }

void match_begin(struct ncclComm *comm) { comm->match.before = comm->match.now; }

ncclResult_t match_call(const struct collective_call *call) {
  struct ncclComm *comm = call->comm;
  struct match *match = comm->shared->match;
  struct match_entry other;
  uint64_t graph = 0;
  bool differs = false;
  if (!comm->settings.match_calls || call->func == FUNC_SEND || call->func == FUNC_RECV) return ncclSuccess;
  TRY(comm->ops->device->stream_capture(call->stream, &graph));
  const struct match_entry entry = entry_of(call, graph != 0);
  const struct match_remote *remote = &match->remote;
  TRY(remote->compare ? remote->compare(remote->argument, comm, &entry, &other, &differs)
                      : match_compare(match, &entry, &other, &differs));
  if (differs) return report(call, &entry, &other);
  comm->match.now.calls[entry.order] += 1;
  comm->match.now.queued[entry.order] += call->count > 0;
  return ncclSuccess;
}

void match_undo(struct ncclComm *comm) { comm->match.now = comm->match.before; }

/* The others no longer wait for this rank's comparisons. */
void match_leave(struct ncclComm *comm) {
  struct match *match = comm->shared ? comm->shared->match : NULL;
  if (!match) return;
  os_mutex_lock(&match->lock);
  if (match->comms[comm->rank] == comm) {
    match->comms[comm->rank] = NULL;
    for (int order = 0; order < MATCH_ORDERS; order++)
      match->next[(size_t)order * match->rank_count + comm->rank] = UINT64_MAX;
  }
  os_mutex_unlock(&match->lock);
}
