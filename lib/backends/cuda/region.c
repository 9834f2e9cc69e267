/* region.c: see region.h. Few regions are in use at a time, and mostly the most recently used one. */
#include "backends/cuda/region.h"

#include <string.h>

static struct region **region_place(struct regions *regions, const struct region *region) {
  struct region **place = &regions->first;
  while (*place != region) place = &(*place)->next;
  return place;
}

struct region *region_find(struct regions *regions, uint64_t address) {
  for (struct region **place = &regions->first, *region; (region = *place) != NULL; place = &region->next) {
    if (address - region->base >= region->bytes) continue;
    *place = region->next;
    region->next = regions->first;
    regions->first = region;
    return region;
  }
  return NULL;
}

struct region *region_beside(struct regions *regions, struct region *region) {
  if (region->beside == NULL) region->beside = region_find(regions, region->base + region->bytes);
  return region->beside;
}

bool region_shift(struct regions *regions, uint64_t address, uint64_t bytes, uint32_t peer, uint64_t *shift) {
  struct region *region = region_find(regions, address);
  for (bool first = true; region != NULL; first = false) {
    if (region->answers[peer] <= REGION_REFUSED) return false;
    const uint64_t found = region->answers[peer] - region->base;
    if (!first && found != *shift) return false;
    *shift = found;
    if (address + bytes <= region->base + region->bytes) return true;
    region = region_beside(regions, region);
  }
  return false;
}

bool region_decided(struct regions *regions, uint64_t address, uint64_t bytes, uint32_t peer) {
  bool open = false;
  struct region *region = region_find(regions, address);
  for (; region != NULL; region = region_beside(regions, region)) {
    if (!region->mappable || region->answers[peer] == REGION_REFUSED) return true;
    open = open || region->answers[peer] < REGION_REFUSED;
    if (address + bytes <= region->base + region->bytes) return !open;
  }
  return false;
}

void region_used(struct regions *regions, uint64_t address) {
  struct region *region = region_find(regions, address);
  if (region != NULL) region->idle_looks = 0;
}

#define LATER_USES_MOST 64u

void region_answer(struct region *region, uint32_t peer, uint64_t address) {
  if (address == DEVICE_REGION_LATER) {
    region->later = region->later < LATER_USES_MOST ? 2 * region->later + 1 : LATER_USES_MOST;
    region->later_uses = region->later;
    region->answers[peer] = REGION_UNASKED;
    return;
  }
  region->later = 0;
  region->answers[peer] = address > REGION_REFUSED ? address : REGION_REFUSED;
}

static struct region *list_find(struct region *region, uint64_t number) {
  while (region != NULL && (!region->offered || region->piece.number != number)) region = region->next;
  return region;
}

struct region *region_of_piece(struct regions *regions, uint64_t number) {
  struct region *region = list_find(regions->first, number);
  return region != NULL ? region : list_find(regions->gone, number);
}

/* ---- graphs ---- */

struct region_hold {
  uint32_t count; /* atomic: graphs, and the region */
};

struct region_hold *region_hold(struct region *region) {
  if (region->hold == NULL) {
    region->hold = (struct region_hold *)os_alloc(sizeof *region->hold);
    if (region->hold == NULL) return NULL;
    region->hold->count = 1;
  }
  __atomic_add_fetch(&region->hold->count, 1, __ATOMIC_ACQ_REL);
  return region->hold;
}

void region_release(struct region_hold *hold) {
  if (hold != NULL && __atomic_sub_fetch(&hold->count, 1, __ATOMIC_ACQ_REL) == 0) os_free(hold);
}

static bool is_held(const struct region *region) {
  return region->hold != NULL && __atomic_load_n(&region->hold->count, __ATOMIC_ACQUIRE) > 1;
}

static void region_free(struct region *region) {
  region_release(region->hold);
  os_free(region);
}

/* ---- regions that are gone ---- */

/* Also if a peer is being asked: its answer is noted. */
static bool is_mapped(const struct region *region, uint32_t rank_count) {
  for (uint32_t rank = 0; rank < rank_count; rank++)
    if (region->answers[rank] == REGION_ASKED || region->answers[rank] > REGION_REFUSED) return true;
  return false;
}

void region_retire(struct regions *regions, struct region *region) {
  regions->generation += 1;
  *region_place(regions, region) = region->next;
  if (region->is_piece) regions->piece_count -= 1;
  else regions->count -= 1;
  for (struct region *each = regions->first; each != NULL; each = each->next)
    if (each->beside == region) each->beside = NULL;
  if (!is_mapped(region, regions->rank_count)) {
    region_free(region);
    return;
  }
  region->next = regions->gone;
  regions->gone = region;
}

static void push_out(struct regions *regions, bool piece) {
  struct region *last = NULL;
  for (struct region *region = regions->first; region != NULL; region = region->next)
    if (!region->lasts && region->is_piece == piece) last = region;
  if (last != NULL) region_retire(regions, last);
}

struct region *region_add(struct regions *regions, uint64_t base, uint64_t bytes, uint64_t id,
                          bool is_piece) {
  uint32_t *count = is_piece ? &regions->piece_count : &regions->count;
  if (*count >= (is_piece ? REGION_PIECES_MOST : REGIONS_MOST)) push_out(regions, is_piece);
  struct region *region =
      (struct region *)os_alloc(sizeof *region + regions->rank_count * sizeof region->answers[0]);
  if (region == NULL) return NULL;
  region->base = base;
  region->bytes = bytes;
  region->id = id;
  region->is_piece = is_piece;
  region->next = regions->first;
  regions->first = region;
  *count += 1;
  return region;
}

/* Nobody is being asked for it, somebody has it mapped, and no graph contains that address, and no window. */
static bool may_be_recalled(const struct region *region, uint32_t rank_count) {
  bool mapped = false;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    if (region->answers[rank] == REGION_ASKED) return false;
    mapped = mapped || region->answers[rank] > REGION_REFUSED;
  }
  return mapped && region->windows == 0 && !is_held(region);
}

/* Without memory for it, the region stays as it is. */
static void region_recall(struct regions *regions, struct region *region) {
  const struct region content = *region;
  struct region *fresh =
      (struct region *)os_alloc(sizeof *region + regions->rank_count * sizeof region->answers[0]);
  if (fresh == NULL) return;
  region_retire(regions, region);
  *fresh = content;
  fresh->beside = NULL;
  fresh->hold = NULL;
  fresh->lasts = fresh->offered = false;
  fresh->idle_looks = 0;
  struct region **last = &regions->first;
  while (*last != NULL) last = &(*last)->next;
  fresh->next = NULL;
  *last = fresh;
  *(content.is_piece ? &regions->piece_count : &regions->count) += 1;
}

void regions_recall(struct regions *regions) {
  for (struct region *region = regions->first, *next; region != NULL; region = next) {
    next = region->next;
    if (!may_be_recalled(region, regions->rank_count)) continue;
    if (++region->idle_looks >= REGION_IDLE_LOOKS) region_recall(regions, region);
  }
}

void regions_hold(struct regions *regions, uint64_t address, uint64_t bytes, bool holds) {
  const uint64_t end = address + bytes;
  for (struct region *region; address < end && (region = region_find(regions, address)) != NULL;) {
    address = region->base + region->bytes;
    if (holds) region->windows += 1;
    else if (region->windows > 0) region->windows -= 1;
    if (!holds && may_be_recalled(region, regions->rank_count)) region_recall(regions, region);
  }
}

void regions_settle(struct regions *regions, bool launching, uint64_t launched, uint64_t ended) {
  for (struct region *region = regions->gone; region != NULL; region = region->next) {
    if (!region->fenced && !launching) {
      region->fenced = true;
      region->fence = launched;
    }
    region->settled = region->fenced && ended >= region->fence;
  }
}

bool regions_unsettled(const struct regions *regions) {
  const struct region *region = regions->gone;
  while (region != NULL && region->settled) region = region->next;
  return region != NULL;
}

/* Takes one of its peers; false: none is left. */
static bool peer_take(struct region *region, uint32_t rank_count, uint32_t *peer) {
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    if (region->answers[rank] <= REGION_REFUSED) continue;
    region->answers[rank] = REGION_UNASKED;
    *peer = rank;
    return true;
  }
  return false;
}

bool region_next_gone(struct regions *regions, uint32_t *peer, struct ipc_piece *piece) {
  for (struct region **place = &regions->gone, *region; (region = *place) != NULL;) {
    const bool ready = region->settled && !is_held(region);
    *piece = region->piece;
    if (ready && peer_take(region, regions->rank_count, peer)) return true;
    if (is_mapped(region, regions->rank_count)) {
      place = &region->next;
      continue;
    }
    *place = region->next;
    region_free(region);
  }
  return false;
}

static void list_free(struct region *region) {
  for (struct region *next; region != NULL; region = next) {
    next = region->next;
    region_free(region);
  }
}

void regions_free(struct regions *regions) {
  list_free(regions->first);
  list_free(regions->gone);
  memset(regions, 0, sizeof *regions);
}
