/* match.c: a ring of collectives for each order, that ranks which are behind compare their own with; a table
 * of messages (match_p2p.h); and who has left. */
#include "core/comm/match.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/comm/copies.h"
#include "core/comm/match_p2p.h"
#include "core/comm/record.h"
#include "core/plan/names.h"
#include "core/plugins/tuner.h"
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
  struct match_p2p p2p;
  struct match_entry *left; /* those who have left */
  uint32_t left_count, left_capacity;
  bool captured; /* some calls are in graphs: which run, and when, is not known */
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
  match_p2p_clear(&match->p2p);
  os_free(match->left);
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

static bool factors_differ(const struct match_entry *one, const struct match_entry *other) {
  return one->factor != 0 && other->factor != 0 && one->factor != other->factor;
}

static const char PLACES_DIFFER[] = "different places of outputs in symmetric windows";

/* What differs, in words; NULL: nothing. */
static const char *difference(const struct match_entry *one, const struct match_entry *other) {
  if (one->order == MATCH_ANSWERS)
    return one->func == other->func && one->count == other->count && one->before == other->before &&
                   one->root == other->root && one->in_group == other->in_group
               ? NULL
               : "different answers of the tuner plugin";
  if (one->func != other->func && one->order != MATCH_P2P) return "different functions";
  if (one->dtype != other->dtype) return "different datatypes";
  if (one->op != other->op) return "different reduction operators";
  if (one->root != other->root && one->order != MATCH_P2P) return "different roots";
  if (one->count != other->count) return "different counts";
  if (one->in_group != other->in_group) return "different places in groups (ncclGroupStart)";
  if (one->before != other->before) return "different numbers of other collectives before its group";
  if (!copies_places_agree(one->place, other->place)) return PLACES_DIFFER;
  if (factors_differ(one, other)) return "different factors of premultiplied sums";
  return NULL;
}

/* How many collectives of an order a rank that has left had called. */
static uint64_t left_calls(const struct match_entry *left, int order) {
  return order == MATCH_COLLECTIVES ? left->number : left->before;
}

static bool order_is_captured(uint8_t order) { return order >= MATCH_CAPTURED && order < MATCH_ANSWERS; }

static void rank_compared(struct match *match, const struct match_entry *entry) {
  match->next[(size_t)entry->order * match->rank_count + entry->rank] = entry->number + 1;
}

/* The call of another rank that does not fit; NULL: none. All that follow are locked, and set *fits to false
 * if memory is out. */
static const struct match_entry *collective_compare(struct match *match, const struct match_entry *entry,
                                                    bool *fits) {
  const struct match_ring *ring = &match->rings[entry->order];
  const struct match_entry *other = NULL;
  if (order_is_captured(entry->order)) match->captured = true;
  *fits = ring_cover(match, entry->order, entry->number);
  if (!*fits) return NULL;
  if (entry->number >= ring->first) {
    struct match_kept *kept = ring_at(ring, entry->number);
    if (!kept->present || kept->entry.rank == entry->rank) /* its own: the group was discarded */
      *kept = (struct match_kept){*entry, true};
    else if (difference(&kept->entry, entry)) other = &kept->entry;
  }
  rank_compared(match, entry);
  if (entry->order == MATCH_ANSWERS) return other;
  for (uint32_t i = 0; i < match->left_count && !other && !match->captured; i++)
    if (left_calls(&match->left[i], entry->order) <= entry->number) other = &match->left[i];
  return other;
}

static const struct match_entry *p2p_compare(struct match *match, const struct match_entry *entry,
                                             struct match_entry *other, bool *fits) {
  bool found = false;
  if (match->captured) return NULL;
  *fits = match_p2p_take(&match->p2p, entry, other, &found);
  if (found) return difference(entry, other) ? other : NULL;
  for (uint32_t i = 0; i < match->left_count; i++)
    if (match->left[i].rank == entry->root) return &match->left[i];
  return NULL;
}

/* Which calls of a graph run is not known, and so not which messages the others belong to. */
static void p2p_stop(struct match *match) {
  match->captured = true;
  match_p2p_clear(&match->p2p);
}

static void collectives_undo(struct match *match, const struct match_entry *entry) {
  for (int order = 0; order < MATCH_CAPTURED; order++) {
    const struct match_ring *ring = &match->rings[order];
    const uint64_t from = left_calls(entry, order);
    for (uint64_t number = from > ring->first ? from : ring->first; number < ring->end; number++)
      if (ring_at(ring, number)->entry.rank == entry->rank) ring_at(ring, number)->present = false;
  }
}

/* A call of another rank that waits for one of this rank. */
static const struct match_entry *left_compare(struct match *match, const struct match_entry *entry,
                                              bool *fits) {
  if (match->captured) return NULL;
  for (int order = 0; order < MATCH_CAPTURED; order++) {
    const struct match_ring *ring = &match->rings[order];
    const uint64_t from = left_calls(entry, order);
    for (uint64_t number = from > ring->first ? from : ring->first; number < ring->end; number++)
      if (ring_at(ring, number)->present) return &ring_at(ring, number)->entry;
  }
  const struct match_entry *waiting = match_p2p_waiting_for(&match->p2p, entry->rank);
  if (waiting) return waiting;
  *fits =
      array_grow(&match->left, &match->left_capacity, match->left_count + UINT64_C(1), sizeof *match->left);
  if (*fits) match->left[match->left_count++] = *entry;
  return NULL;
}

ncclResult_t match_compare(struct match *match, const struct match_entry *entry, struct match_entry *other,
                           bool *differs) {
  const struct match_entry *odd = NULL;
  bool fits = true;
  os_mutex_lock(&match->lock);
  switch (entry->order) {
    case MATCH_P2P: odd = p2p_compare(match, entry, other, &fits); break;
    case MATCH_P2P_CAPTURED: p2p_stop(match); break;
    case MATCH_P2P_UNDONE: match_p2p_forget(&match->p2p, entry); break;
    case MATCH_UNDONE: collectives_undo(match, entry); break;
    case MATCH_LEFT: odd = left_compare(match, entry, &fits); break;
    default: odd = collective_compare(match, entry, &fits); break;
  }
  *differs = odd != NULL;
  if (odd) *other = *odd;
  os_mutex_unlock(&match->lock);
  return fits ? ncclSuccess : log_no_memory("comparing a call with those of other ranks");
}

/* What match_export() copies: those behind the first `skip`, as long as there is space. */
struct exporter {
  struct match_entry *entries;
  uint32_t count, capacity;
  uint64_t skip, passed;
};

static void export_one(struct exporter *exporter, const struct match_entry *entry) {
  if (exporter->passed++ >= exporter->skip && exporter->count < exporter->capacity)
    exporter->entries[exporter->count++] = *entry;
}

static void export_p2p(struct exporter *exporter, const struct match_p2p *p2p) {
  const uint64_t skip = exporter->skip > exporter->passed ? exporter->skip - exporter->passed : 0;
  exporter->count +=
      match_p2p_export(p2p, skip, exporter->entries + exporter->count, exporter->capacity - exporter->count);
  exporter->passed += p2p->count;
}

/* Those who have left come last, because calls that they wait for are entries too. */
uint32_t match_export(struct match *match, uint64_t *place, struct match_entry *entries, uint32_t capacity) {
  struct exporter exporter = {entries, 0, capacity, *place, 0};
  struct match_entry captured;
  memset(&captured, 0, sizeof captured);
  captured.order = MATCH_P2P_CAPTURED;
  captured.func = FUNC_SEND;
  os_mutex_lock(&match->lock);
  if (match->captured) export_one(&exporter, &captured);
  for (int order = 0; order < MATCH_ORDERS; order++) {
    struct match_ring *ring = &match->rings[order];
    ring_drop(ring, all_compared(match, order));
    for (uint64_t number = ring->first; number < ring->end; number++)
      if (ring_at(ring, number)->present) export_one(&exporter, &ring_at(ring, number)->entry);
  }
  export_p2p(&exporter, &match->p2p);
  for (uint32_t i = 0; i < match->left_count; i++) export_one(&exporter, &match->left[i]);
  os_mutex_unlock(&match->lock);
  *place += exporter.count;
  return exporter.count;
}

bool match_is_sane(const struct match *match, const struct match_entry *entry) {
  const bool is_p2p =
      entry->order == MATCH_P2P || entry->order == MATCH_P2P_CAPTURED || entry->order == MATCH_P2P_UNDONE;
  if (is_p2p && (entry->root >= match->rank_count || !func_is_p2p(entry->func))) return false;
  if (entry->order == MATCH_LEFT && entry->count >= MATCH_ENDS) return false;
  return entry->rank < match->rank_count && entry->order < MATCH_ORDER_COUNT && entry->func < FUNC_COUNT &&
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

static void add_factor(char *text, size_t bytes, const struct match_entry *entry) {
  float single;
  double real;
  memcpy(&single, &entry->factor, sizeof single);
  memcpy(&real, &entry->factor, sizeof real);
  if (entry->dtype == ncclFloat32) add(text, bytes, " by %g", (double)single);
  else if (entry->dtype == ncclFloat64) add(text, bytes, " by %g", real);
  else if (entry->dtype < ncclFloat16) add(text, bytes, " by %" PRIu64, entry->factor);
  else add(text, bytes, " by 0x%" PRIx64, entry->factor);
}

static void add_operator(char *text, size_t bytes, const struct match_entry *entry) {
  static const char *const names[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};
  add(text, bytes, ", %s", entry->op < ncclNumOps ? names[entry->op] : "premultiplied sum");
  if (entry->factor != 0) add_factor(text, bytes, entry);
}

static void add_callsite(struct match *match, char *text, size_t bytes, const struct match_entry *entry) {
  char site[160] = "";
  if (entry->caller == 0) return;
  if (match->remote.callsite) match->remote.callsite(match->remote.argument, entry, site, sizeof site);
  else callsite_text((const void *)(uintptr_t)entry->caller, site, sizeof site);
  if (site[0] != '\0') add(text, bytes, " at %s", site);
}

/* The entry's root: what was chosen. */
static uint32_t answer_pack(const struct tuner_answer *answer) {
  return answer->algo | (uint32_t)answer->proto << 8 | answer->channel_count << 16;
}

/* "rank 1 chose Tree over LL with 2 channels for AllReduce of 4096 bytes". */
static void add_answer(char *text, size_t bytes, const struct match_entry *entry) {
  const uint32_t algo = entry->root & 255, proto = entry->root >> 8 & 255;
  add(text, bytes,
      "rank %u chose %s over %s with %u channels and chunks of %u bytes for %s of %" PRIu64 " bytes",
      entry->rank, algo < ALGO_COUNT ? names_algo[algo] : "?", proto < PROTO_COUNT ? names_proto[proto] : "?",
      entry->root >> 16, entry->in_group, names_func[entry->func], entry->count);
}

/* "rank 1 called ncclReduce(1024 float, sum, root 0) as number 2 of its group at job.c:31 (train)". */
static void add_entry(struct match *match, char *text, size_t bytes, const struct match_entry *entry) {
  if (entry->order == MATCH_ANSWERS) {
    add_answer(text, bytes, entry);
    return;
  }
  add(text, bytes, "rank %u called nccl%s(%" PRIu64 " %s", entry->rank, names_func[entry->func], entry->count,
      kernel_type_name(entry->dtype));
  if (entry->order == MATCH_P2P)
    add(text, bytes, ", %s rank %u", entry->func == FUNC_SEND ? "to" : "from", entry->root);
  if (func_reduces(entry->func)) add_operator(text, bytes, entry);
  if (func_has_root(entry->func)) add(text, bytes, ", root %u", entry->root);
  add(text, bytes, ")");
  if (entry->in_group > 0) add(text, bytes, " as number %u of its group", entry->in_group + 1);
  add_callsite(match, text, bytes, entry);
}

/* "; rank 2 called ncclCommDestroy after 3 collectives at job.c:40 (main)". */
static void add_left(struct match *match, char *text, size_t bytes, const struct match_entry *left) {
  static const char *const ends[MATCH_ENDS] = {"called ncclCommDestroy", "called ncclCommFinalize",
                                               "ended its process"};
  const uint64_t calls = left->number + left->before;
  add(text, bytes, "; rank %u %s after %" PRIu64 " collective%s", left->rank, ends[left->count], calls,
      calls == 1 ? "" : "s");
  add_callsite(match, text, bytes, left);
}

/* A call that waits for a rank that has left. */
static void left_text(struct match *match, const struct match_entry *call, const struct match_entry *left,
                      char *text, size_t bytes) {
  if (call->order == MATCH_P2P)
    snprintf(text, bytes, "a message was never %s: ", call->func == FUNC_SEND ? "received" : "sent");
  else snprintf(text, bytes, "collective #%" PRIu64 " was not called by rank %u: ", call->number, left->rank);
  add_entry(match, text, bytes, call);
  add_left(match, text, bytes, left);
}

void match_text(struct match *match, const struct match_entry *one, const struct match_entry *other,
                char *text, size_t bytes) {
  if (one->order == MATCH_LEFT || other->order == MATCH_LEFT) {
    const bool first = one->order == MATCH_LEFT;
    left_text(match, first ? other : one, first ? one : other, text, bytes);
    return;
  }
  const char *differs = difference(one, other);
  if (one->order == MATCH_P2P) {
    const struct match_entry *send = one->func == FUNC_SEND ? one : other;
    snprintf(text, bytes, "message #%" PRIu64 " from rank %u to rank %u has %s: ", one->number, send->rank,
             send->root, differs);
  } else if (one->order == MATCH_ANSWERS) {
    snprintf(text, bytes, "choice #%" PRIu64 " has %s: ", one->number, differs ? differs : "no difference");
  } else
    snprintf(text, bytes, "collective #%" PRIu64 "%s has %s: ", one->number,
             order_is_captured(one->order) ? " of those in graphs" : "", differs ? differs : "no difference");
  add_entry(match, text, bytes, one);
  add(text, bytes, "; ");
  add_entry(match, text, bytes, other);
}

const char *match_cure(const struct match_entry *one, const struct match_entry *other) {
  if (one->order == MATCH_P2P || other->order == MATCH_P2P)
    return "give every ncclSend one ncclRecv of the same count and datatype";
  if (one->order == MATCH_ANSWERS)
    return "give the tuner plugin the same configuration on all ranks, or set NCCL_TUNER_PLUGIN=none";
  if (difference(one, other) == PLACES_DIFFER)
    return "under NCCL_CTA_POLICY_ZERO let all ranks pass outputs at the same offset in the same window, or "
           "none in a symmetric window; if the root's part of a scatter is in place, "
           "recvbuff == sendbuff + rank * recvcount on all ranks";
  return "make the same calls in the same order on all ranks";
}

/* ---- calls ---- */

static uint8_t call_order(const struct collective_call *call, bool captured) {
  const bool messages =
      call->func == FUNC_ALL_TO_ALL || call->func == FUNC_GATHER || call->func == FUNC_SCATTER;
  return (uint8_t)((captured ? MATCH_CAPTURED : 0) + (messages ? MATCH_MESSAGES : MATCH_COLLECTIVES));
}

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
  entry.place = copies_place_number(call);
  entry.func = call->func;
  entry.dtype = (uint8_t)call->dtype;
  if (func_reduces(call->func)) entry.op = (unsigned)call->op < ncclNumOps ? (uint8_t)call->op : ncclNumOps;
  if (entry.op == ncclNumOps && func_reduces(call->func))
    entry.factor = redop_factor(&comm->redops, call->op);
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

/* The call is recorded before others learn of it: then they may end, and their launcher this process. */
static ncclResult_t report(struct ncclComm *comm, const char *name, const struct collective_call *call,
                           const struct match_entry *entry, const struct match_entry *other) {
  char text[COMM_REASON_BYTES];
  if (call != NULL) record_mismatch(call, ticks_now());
  comm->match.recorded = call != NULL;
  match_text(comm->shared->match, other, entry, text, sizeof text);
  log_urgent("%s: rank %u of comm '%s': %s; %s", name, comm->rank, comm->name, text,
             match_cure(entry, other));
  break_all(comm->shared->match, comm, text);
  return ncclInvalidUsage;
}

static bool factors_alone_differ(const struct match_entry *entry, const struct match_entry *other) {
  struct match_entry same = *other;
  same.factor = entry->factor;
  return other->order < MATCH_ORDERS && entry->order < MATCH_ORDERS && factors_differ(entry, other) &&
         !difference(entry, &same);
}

/* Each rank multiplies its own input, and may do so by a factor of its own; few programs mean to. */
static void factors_warn(struct ncclComm *comm, const char *name, const struct match_entry *entry,
                         const struct match_entry *other) {
  char text[COMM_REASON_BYTES];
  if (comm->match.factor_told) return;
  comm->match.factor_told = true;
  match_text(comm->shared->match, other, entry, text, sizeof text);
  log_warn("%s: rank %u of comm '%s': %s; this is allowed (NCCL_CHECK_MODE=GLOBAL makes it an error)", name,
           comm->rank, comm->name, text);
}

/* `call`: that the entry describes; NULL: none. */
static ncclResult_t compare(struct ncclComm *comm, const char *name, const struct collective_call *call,
                            const struct match_entry *entry) {
  struct match *match = comm->shared->match;
  const struct match_remote *remote = &match->remote;
  struct match_entry other;
  bool differs = false;
  TRY(remote->compare ? remote->compare(remote->argument, comm, entry, &other, &differs)
                      : match_compare(match, entry, &other, &differs));
  if (!differs) return ncclSuccess;
  if (!comm->settings.match_factors && factors_alone_differ(entry, &other)) {
    factors_warn(comm, name, entry, &other);
    return ncclSuccess;
  }
  return report(comm, name, call, entry, &other);
}

void match_join(struct ncclComm *comm) { comm->shared->match->comms[comm->rank] = comm; }

void match_begin(struct ncclComm *comm) {
  comm->match.before = comm->match.now;
  comm->match.group += 1;
}

/* ---- messages ---- */

/* NULL if memory is out. */
static struct match_peer *peer_touch(struct ncclComm *comm, uint32_t rank) {
  struct match_rank *own = &comm->match;
  if (!own->peers) own->peers = (struct match_peer *)os_alloc(comm->rank_count * sizeof *own->peers);
  if (!own->peers) return NULL;
  struct match_peer *peer = &own->peers[rank];
  if (peer->group == own->group) return peer;
  peer->group = own->group;
  peer->sends_before = peer->sends;
  peer->recvs_before = peer->recvs;
  return peer;
}

static struct match_entry message_entry(const struct ncclComm *comm, uint8_t order, uint8_t func,
                                        uint32_t peer, uint32_t number) {
  struct match_entry entry;
  memset(&entry, 0, sizeof entry);
  entry.order = order;
  entry.func = func;
  entry.rank = comm->rank;
  entry.root = peer;
  entry.number = number;
  return entry;
}

static ncclResult_t message_call(const struct collective_call *call, bool captured) {
  struct ncclComm *comm = call->comm;
  struct match_peer *peer = peer_touch(comm, (uint32_t)call->peer);
  if (!peer) return log_no_memory("%s: counting messages", call->name);
  uint32_t *number = call->func == FUNC_SEND ? &peer->sends : &peer->recvs;
  struct match_entry entry = message_entry(comm, captured ? MATCH_P2P_CAPTURED : MATCH_P2P, call->func,
                                           (uint32_t)call->peer, *number);
  entry.count = call->count;
  entry.dtype = (uint8_t)call->dtype;
  entry.caller = (uint64_t)(uintptr_t)call->caller;
  TRY(compare(comm, call->name, call, &entry));
  *number += 1;
  return ncclSuccess;
}

static void messages_undo(struct ncclComm *comm, uint8_t func, uint32_t peer, uint32_t *number,
                          uint32_t before, bool broken) {
  for (; *number != before && !broken; *number -= 1) {
    const struct match_entry entry = message_entry(comm, MATCH_P2P_UNDONE, func, peer, *number - 1);
    compare(comm, "ncclGroupEnd", NULL, &entry);
  }
  *number = before;
}

/* ---- calls ---- */

static ncclResult_t call_compare(const struct collective_call *call) {
  struct ncclComm *comm = call->comm;
  uint64_t graph = 0;
  TRY(comm->ops->device->stream_capture(call->stream, &graph));
  if (func_is_p2p(call->func)) return message_call(call, graph != 0);
  const struct match_entry entry = entry_of(call, graph != 0);
  TRY(compare(comm, call->name, call, &entry));
  comm->match.now.calls[entry.order] += 1;
  comm->match.now.queued[entry.order] += call->count > 0;
  return ncclSuccess;
}

ncclResult_t match_call(const struct collective_call *call) {
  struct match_rank *rank = &call->comm->match;
  if (!call->comm->settings.match_calls) return ncclSuccess;
  rank->recorded = false;
  const ncclResult_t result = call_compare(call);
  if (result != ncclSuccess && !rank->recorded) record_mismatch(call, ticks_now());
  return result;
}

ncclResult_t match_answer(struct ncclComm *comm, uint32_t number, const struct tuner_answer *answer) {
  struct match_entry entry;
  memset(&entry, 0, sizeof entry);
  entry.order = MATCH_ANSWERS;
  entry.number = number;
  entry.rank = comm->rank;
  entry.func = answer->func;
  entry.count = answer->bytes;
  entry.before = answer->collectives | (uint64_t)answer->options << 32;
  entry.root = answer_pack(answer);
  entry.in_group = answer->chunk_bytes;
  return compare(comm, "ncclGroupEnd", NULL, &entry);
}

/* What a rank had called when it left, or before a group. */
static struct match_entry counts_entry(const struct ncclComm *comm, uint8_t order,
                                       const struct match_counts *counts) {
  struct match_entry entry;
  memset(&entry, 0, sizeof entry);
  entry.order = order;
  entry.rank = comm->rank;
  entry.number = counts->calls[MATCH_COLLECTIVES];
  entry.before = counts->calls[MATCH_MESSAGES];
  return entry;
}

void match_undo(struct ncclComm *comm) {
  struct match_rank *rank = &comm->match;
  const bool broken = comm_async_error(comm) != ncclSuccess; /* then nothing is compared any more */
  if (!comm->settings.match_calls) return;
  for (uint32_t i = 0; rank->peers && i < comm->rank_count; i++) {
    struct match_peer *peer = &rank->peers[i];
    if (peer->group != rank->group) continue;
    messages_undo(comm, FUNC_SEND, i, &peer->sends, peer->sends_before, broken);
    messages_undo(comm, FUNC_RECV, i, &peer->recvs, peer->recvs_before, broken);
  }
  if (memcmp(&rank->now, &rank->before, sizeof rank->now) == 0) return;
  const struct match_entry entry = counts_entry(comm, MATCH_UNDONE, &rank->before);
  if (!broken) compare(comm, "ncclGroupEnd", NULL, &entry);
  rank->now = rank->before;
}

ncclResult_t match_end(struct ncclComm *comm, enum match_end end, const void *caller) {
  static const char *const calls[MATCH_ENDS] = {"ncclCommDestroy", "ncclCommFinalize", "exit"};
  if (!comm->settings.match_calls || comm_state(comm) != COMM_READY || comm->revoked ||
      comm_async_error(comm) != ncclSuccess)
    return ncclSuccess;
  struct match_entry entry = counts_entry(comm, MATCH_LEFT, &comm->match.now);
  entry.count = end;
  entry.caller = (uint64_t)(uintptr_t)caller;
  return compare(comm, calls[end], NULL, &entry);
}

/* The others no longer wait for this rank's comparisons. */
void match_leave(struct ncclComm *comm) {
  struct match *match = comm->shared ? comm->shared->match : NULL;
  os_free(comm->match.peers);
  comm->match.peers = NULL;
  if (!match) return;
  os_mutex_lock(&match->lock);
  if (match->comms[comm->rank] == comm) {
    match->comms[comm->rank] = NULL;
    for (int order = 0; order < MATCH_ORDERS; order++)
      match->next[(size_t)order * match->rank_count + comm->rank] = UINT64_MAX;
  }
  os_mutex_unlock(&match->lock);
}
