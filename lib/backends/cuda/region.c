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

struct region *region_of_piece(struct regions *regions, uint64_t number) {
  struct region *region = regions->first;
  while (region != NULL && (!region->offered || region->piece.number != number)) region = region->next;
  return region;
}

static bool is_mapped(const struct region *region, uint32_t rank_count) {
  for (uint32_t rank = 0; rank < rank_count; rank++)
    if (region->answers[rank] > REGION_REFUSED) return true;
  return false;
}

void region_retire(struct regions *regions, struct region *region) {
  *region_place(regions, region) = region->next;
  regions->count -= 1;
  if (!is_mapped(region, regions->rank_count)) {
    os_free(region);
    return;
  }
  region->next = regions->gone;
  regions->gone = region;
}

static void push_out(struct regions *regions) {
  struct region *last = NULL;
  for (struct region *region = regions->first; region != NULL; region = region->next)
    if (!region->lasts) last = region;
  if (last == NULL) return;
  last->pushed_out = true;
  region_retire(regions, last);
}

struct region *region_add(struct regions *regions, uint64_t base, uint64_t bytes, uint64_t id) {
  if (regions->count >= REGIONS_MOST) push_out(regions);
  struct region *region =
      (struct region *)os_alloc(sizeof *region + regions->rank_count * sizeof region->answers[0]);
  if (region == NULL) return NULL;
  region->base = base;
  region->bytes = bytes;
  region->id = id;
  region->next = regions->first;
  regions->first = region;
  regions->count += 1;
  return region;
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

bool region_next_gone(struct regions *regions, bool idle, uint32_t *peer, struct ipc_piece *piece) {
  for (struct region **place = &regions->gone, *region; (region = *place) != NULL;) {
    if (region->pushed_out && !idle) {
      place = &region->next;
      continue;
    }
    *piece = region->piece;
    if (peer_take(region, regions->rank_count, peer)) return true;
    *place = region->next;
    os_free(region);
  }
  return false;
}

static void list_free(struct region *region) {
  for (struct region *next; region != NULL; region = next) {
    next = region->next;
    os_free(region);
  }
}

void regions_free(struct regions *regions) {
  list_free(regions->first);
  list_free(regions->gone);
  memset(regions, 0, sizeof *regions);
}
