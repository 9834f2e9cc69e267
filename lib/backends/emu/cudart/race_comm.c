/* race_comm.c: which operations of other ranks an NCCL call comes after. The n-th collective of each rank is
 * one join, and so is the n-th message from a rank to another. What passes through other processes is not
 * seen: a rank that hears from one is taken to hear all that this process has told others until then. */
#include "backends/emu/cudart/race_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/map.h"

/* Messages, or signals, from one rank to another. Of signals: `joins` are those sent and not awaited, and
 * those awaited and not sent; `newest` is the last one sent. */
struct race_pairing {
  uint64_t sent, received;
  struct race_join *joins, *newest;
  struct race_pairing *next;
};

/* The ranks of a communicator in this process. */
struct race_group {
  uint64_t comm_id;
  uint32_t number, rank_count, local_count, open_count;
  struct race_rank **ranks;   /* by rank; NULL: another process's */
  struct race_join *joins[2]; /* by order; oldest first */
  struct map pairings;        /* by sender and receiver */
  struct race_pairing *all_pairings;
  struct race_group *next;
};

static struct race_group *groups;
static uint32_t group_count;
static struct race_clock *outside; /* what other processes may have heard of */

/* ---- life ---- */

static void joins_drop(struct race_join **list) {
  while (*list != NULL) {
    struct race_join *join = *list;
    *list = join->next;
    join->next = NULL;
    join->missing = 0; /* nobody will bring more */
    race_join_drop(join);
  }
}

static void group_free(struct race_group *group) {
  struct race_group **link = &groups;
  while (*link != NULL && *link != group) link = &(*link)->next;
  if (*link == group) *link = group->next;
  for (uint32_t order = 0; order < 2; order++) joins_drop(&group->joins[order]);
  while (group->all_pairings != NULL) {
    struct race_pairing *pairing = group->all_pairings;
    group->all_pairings = pairing->next;
    joins_drop(&pairing->joins);
    if (pairing->newest != NULL) race_join_drop(pairing->newest);
    os_free(pairing);
  }
  map_clear(&group->pairings);
  os_free(group->ranks);
  os_free(group);
}

static struct race_group *group_of(uint64_t comm_id, uint32_t rank_count) {
  for (struct race_group *group = groups; group != NULL; group = group->next)
    if (group->comm_id == comm_id) return group;
  struct race_group *group = (struct race_group *)os_alloc(sizeof *group);
  struct race_rank **ranks = (struct race_rank **)os_alloc(rank_count * sizeof *ranks);
  if (group == NULL || ranks == NULL) {
    os_free(group);
    os_free(ranks);
    return NULL;
  }
  group->comm_id = comm_id;
  group->number = ++group_count;
  group->rank_count = rank_count;
  group->ranks = ranks;
  group->next = groups;
  return groups = group;
}

struct race_rank *emu_race_rank_open(uint64_t comm_id, const char *name, uint32_t rank, uint32_t rank_count,
                                     void (*fail)(uint64_t comm_id)) {
  struct race_rank *fresh = (struct race_rank *)os_alloc(sizeof *fresh);
  struct race_group *group = fresh != NULL ? group_of(comm_id, rank_count) : NULL;
  if (group == NULL) {
    os_free(fresh);
    race_give_up();
    return NULL;
  }
  fresh->reference_count = 1;
  fresh->rank = rank;
  snprintf(fresh->name, sizeof fresh->name, "%s", name);
  fresh->group = group;
  fresh->fail = fail;
  group->ranks[rank] = fresh;
  group->local_count += 1;
  group->open_count += 1;
  return fresh;
}

struct race_rank *emu_race_rank_keep(struct race_rank *rank) {
  if (rank != NULL) rank->reference_count += 1;
  return rank;
}

void emu_race_rank_drop(struct race_rank *rank) {
  if (rank == NULL || --rank->reference_count != 0) return;
  emu_race_point_drop(&rank->last);
  os_free(rank);
}

void emu_race_rank_close(struct race_rank *rank) {
  if (rank == NULL) return;
  struct race_group *group = rank->group;
  emu_race_host_knows(&rank->last);
  rank->group = NULL;
  group->ranks[rank->rank] = NULL;
  if (--group->open_count == 0) {
    race_pairs_drop();
    group_free(group);
  }
  emu_race_rank_drop(rank);
}

void race_rank_fail(const struct race_rank *rank) {
  if (rank != NULL && rank->group != NULL) rank->fail(rank->group->comm_id);
}

const char *race_rank_text(const struct race_rank *rank, char *out, size_t out_bytes) {
  snprintf(out, out_bytes, "communicator %s rank %" PRIu32, rank->name, rank->rank);
  return out;
}

/* ---- joins of a call ---- */

static uint64_t family_of(const struct race_group *group, const struct race_use *use, uint64_t sender,
                          uint64_t receiver) {
  const uint64_t all = (uint64_t)group->rank_count * group->rank_count;
  const uint64_t pairs = use->rule >= RACE_SIGNAL ? all * (1 + use->set) : 0;
  const uint64_t kind = use->rule >= RACE_SEND        ? pairs + 3 + sender * group->rank_count + receiver
                        : use->rule == RACE_FROM_ROOT ? UINT64_C(0x80000000) + 2 * use->peer + use->order
                                                      : 1 + use->order;
  return (uint64_t)group->number << 32 | (kind & 0xffffffff);
}

/* The join of this number; made if there is none. */
static struct race_join *join_find(struct race_join **list, uint64_t number, uint64_t family,
                                   uint32_t missing, uint32_t absent) {
  struct race_join **link = list;
  while (*link != NULL && (*link)->number < number) link = &(*link)->next;
  if (*link != NULL && (*link)->number == number) return *link;
  struct race_join *join = race_join_new(family, number);
  if (join == NULL) return NULL;
  join->missing = missing;
  join->absent = absent;
  join->next = *link;
  return *link = join;
}

/* A rank has made the call; after the last one nobody looks for the join. */
static void join_met(struct race_join **list, struct race_join *join) {
  if (--join->absent != 0) return;
  struct race_join **link = list;
  while (*link != join) link = &(*link)->next;
  *link = join->next;
  join->next = NULL;
  race_join_drop(join);
}

/* `kind`: 0 for messages, 1 and on for sets of signals. */
static struct race_pairing *pairing_of(struct race_group *group, uint32_t sender, uint32_t receiver,
                                       uint32_t kind) {
  const uint64_t key = ((uint64_t)kind << 62 | (uint64_t)sender << 32 | receiver) + 1;
  struct race_pairing *pairing = (struct race_pairing *)map_find(&group->pairings, key);
  if (pairing != NULL) return pairing;
  pairing = (struct race_pairing *)os_alloc(sizeof *pairing);
  if (pairing == NULL || !map_reserve(&group->pairings)) {
    os_free(pairing);
    race_give_up();
    return NULL;
  }
  map_insert(&group->pairings, key, pairing);
  pairing->next = group->all_pairings;
  return group->all_pairings = pairing;
}

/* Ranks of this process from which the call's data comes. */
static uint32_t bringing(const struct race_group *group, const struct race_use *use) {
  if (use->rule == RACE_FROM_ROOT) return group->ranks[use->peer] != NULL;
  return group->local_count;
}

static struct race_join *collective_join(struct race_group *group, const struct race_use *use,
                                         uint64_t number) {
  return join_find(&group->joins[use->order], number, family_of(group, use, 0, 0), bringing(group, use),
                   group->local_count);
}

static bool peer_is_here(const struct race_group *group, const struct race_use *use) {
  return group->ranks[use->peer] != NULL;
}

static void bring(const struct race_rank *rank, const struct race_use *use, uint64_t number,
                  const struct race_point *entry, const struct race_point *read) {
  struct race_group *group = rank->group;
  struct race_join *join = NULL;
  if (use->rule == RACE_RECEIVE || (use->rule == RACE_FROM_ROOT && use->peer != rank->rank)) return;
  const bool sends = use->rule == RACE_SEND;
  if (sends ? !peer_is_here(group, use) : group->local_count < group->rank_count)
    race_clock_add(&outside, sends ? read : entry);
  if (!sends) {
    join = collective_join(group, use, number);
  } else if (peer_is_here(group, use)) {
    struct race_pairing *pairing = pairing_of(group, rank->rank, use->peer, 0);
    if (pairing == NULL) return;
    join = join_find(&pairing->joins, pairing->sent++, family_of(group, use, rank->rank, use->peer), 1, 2);
    if (join == NULL) return;
    race_join_bring(join, read);
    join_met(&pairing->joins, join);
    return;
  }
  /* A root that collects has all reads of its members behind it. */
  if (join != NULL) race_join_bring(join, use->rule == RACE_TO_ROOT ? read : entry);
}

static void take(const struct race_rank *rank, const struct race_use *use, uint64_t number,
                 struct race_clock **clock) {
  struct race_group *group = rank->group;
  if (use->rule == RACE_SEND) return;
  if (use->rule == RACE_RECEIVE) {
    if (!peer_is_here(group, use)) {
      race_clock_add_clock(clock, outside);
      return;
    }
    struct race_pairing *pairing = pairing_of(group, use->peer, rank->rank, 0);
    if (pairing == NULL) return;
    struct race_join *join =
        join_find(&pairing->joins, pairing->received++, family_of(group, use, use->peer, rank->rank), 1, 2);
    if (join == NULL) return;
    race_clock_add_join(clock, join);
    join_met(&pairing->joins, join);
    return;
  }
  struct race_join *join = collective_join(group, use, number);
  const bool takes = use->rule != RACE_TO_ROOT || use->peer == rank->rank;
  if (join == NULL) return;
  if (takes && group->local_count < group->rank_count) race_clock_add_clock(clock, outside);
  if (takes) race_clock_add_join(clock, join);
  join_met(&group->joins[use->order], join);
}

/* ---- signals ---- */

static void join_unlist(struct race_join **link) {
  struct race_join *join = *link;
  *link = join->next;
  join->next = NULL;
  race_join_drop(join);
}

/* A signal contains the earlier ones of its pair, so only the last of those that a wait takes is needed. */
static void signal_bring(const struct race_rank *rank, const struct race_use *use,
                         const struct race_point *read) {
  const struct race_point written = {read->clock, read->epoch + 1, read->stream};
  struct race_pairing *pairing = pairing_of(rank->group, rank->rank, use->peer, 1 + use->set);
  if (!peer_is_here(rank->group, use)) race_clock_add(&outside, &written);
  if (pairing == NULL || !peer_is_here(rank->group, use)) return;
  const uint64_t number = ++pairing->sent;
  struct race_join *join =
      join_find(&pairing->joins, number, family_of(rank->group, use, rank->rank, use->peer), 1, 1);
  if (join == NULL) return;
  race_join_bring(join, &written);
  if (pairing->newest != NULL) race_join_drop(pairing->newest);
  pairing->newest = join;
  join->reference_count += 1;
  struct race_join **link = &pairing->joins;
  while (*link != join) link = &(*link)->next;
  if (number <= pairing->received) join_unlist(link);
}

static void signal_take(const struct race_rank *rank, const struct race_use *use, struct race_clock **clock) {
  if (!peer_is_here(rank->group, use)) {
    race_clock_add_clock(clock, outside);
    return;
  }
  struct race_pairing *pairing = pairing_of(rank->group, use->peer, rank->rank, 1 + use->set);
  if (pairing == NULL) return;
  struct race_join *join =
      join_find(&pairing->joins, use->number, family_of(rank->group, use, use->peer, rank->rank), 1, 1);
  if (join == NULL) return;
  race_clock_add_join(clock, join);
  if (pairing->received < use->number) pairing->received = use->number;
  for (struct race_join **link = &pairing->joins; *link != NULL;) {
    if ((*link)->missing == 0 && (*link)->number <= pairing->received) join_unlist(link);
    else link = &(*link)->next;
  }
}

void race_rank_follow(struct race_rank *rank, const struct race_use *uses, uint32_t use_count,
                      struct race_clock **clock) {
  for (uint32_t i = 0; i < use_count && rank->group != NULL && race_is_on(); i++) {
    if (uses[i].rule != RACE_SIGNAL) continue;
    const struct race_pairing *pairing = pairing_of(rank->group, rank->rank, uses[i].peer, 1 + uses[i].set);
    if (pairing != NULL && pairing->newest != NULL) race_clock_add_join(clock, pairing->newest);
  }
}

/* ---- launches ---- */

void race_rank_bring(struct race_rank *rank, const struct race_use *uses, uint32_t use_count,
                     const struct race_point *entry, const struct race_point *read) {
  uint64_t numbers[2] = {rank->numbers[0], rank->numbers[1]};
  for (uint32_t i = 0; i < use_count && rank->group != NULL && race_is_on(); i++) {
    const bool counts = uses[i].rule < RACE_SEND;
    if (uses[i].rule == RACE_SIGNAL) signal_bring(rank, &uses[i], read);
    if (uses[i].rule >= RACE_SIGNAL) continue;
    bring(rank, &uses[i], counts ? numbers[uses[i].order]++ : 0, entry, read);
  }
}

void race_rank_take(struct race_rank *rank, const struct race_use *uses, uint32_t use_count,
                    struct race_clock **clock) {
  for (uint32_t i = 0; i < use_count && rank->group != NULL && race_is_on(); i++) {
    const bool counts = uses[i].rule < RACE_SEND;
    if (uses[i].rule == RACE_AWAIT) signal_take(rank, &uses[i], clock);
    if (uses[i].rule >= RACE_SIGNAL) continue;
    take(rank, &uses[i], counts ? rank->numbers[uses[i].order]++ : 0, clock);
  }
  race_pairs_look();
}
