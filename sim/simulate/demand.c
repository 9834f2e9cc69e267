/* demand.c: see demand.h. */
#include "simulate/demand.h"

#include <string.h>

#include "base/hash.h"
#include "base/os.h"

bool demand_make(const struct cluster *cluster, struct demand *demand) {
  memset(demand, 0, sizeof *demand);
  demand->cluster = cluster;
  demand->mask = 255;
  demand->pairs = (struct demand_pair *)os_alloc((demand->mask + (size_t)1) * sizeof *demand->pairs);
  return demand->pairs != NULL;
}

void demand_free(struct demand *demand) {
  os_free(demand->pairs);
  memset(demand, 0, sizeof *demand);
}

static struct demand_pair *pair_find(const struct demand *demand, uint32_t link, uint32_t other,
                                     bool behind) {
  uint32_t at = (uint32_t)hash_scramble((uint64_t)link << 33 | (uint64_t)other << 1 | behind) & demand->mask;
  for (; demand->pairs[at].used; at = (at + 1) & demand->mask) {
    struct demand_pair *pair = &demand->pairs[at];
    if (pair->link == link && pair->other == other && pair->behind == behind) break;
  }
  return &demand->pairs[at];
}

static bool pairs_grow(struct demand *demand) {
  struct demand grown = *demand;
  grown.mask = 2 * demand->mask + 1;
  grown.pairs = (struct demand_pair *)os_alloc((grown.mask + (size_t)1) * sizeof *grown.pairs);
  if (!grown.pairs) return false;
  for (uint32_t i = 0; i <= demand->mask; i++) {
    const struct demand_pair *pair = &demand->pairs[i];
    if (pair->used) *pair_find(&grown, pair->link, pair->other, pair->behind) = *pair;
  }
  os_free(demand->pairs);
  *demand = grown;
  return true;
}

static bool pair_add(struct demand *demand, uint32_t link, uint32_t other, bool behind, double gbps) {
  if (2 * demand->pair_count > demand->mask && !pairs_grow(demand)) return false;
  struct demand_pair *pair = pair_find(demand, link, other, behind);
  demand->pair_count += !pair->used;
  pair->used = true;
  pair->link = link;
  pair->other = other;
  pair->behind = behind;
  pair->gbps += gbps;
  return true;
}

bool demand_add(struct demand *demand, const struct cluster_route *route, double gbps) {
  const uint32_t last = route->link_count > 0 ? route->link_count - 1 : 0;
  bool added = true;
  for (uint32_t hop = 0; added && gbps > 0 && hop < route->link_count; hop++) {
    const uint32_t before = hop > 0 ? route->links[hop - 1] : SIM_NONE;
    const uint32_t after = hop < last ? route->links[hop + 1] : SIM_NONE;
    added = pair_add(demand, route->links[hop], before, true, gbps) &&
            pair_add(demand, route->links[hop], after, false, gbps);
  }
  return added;
}

/* The most that arrives over the pair. Of two links only one may depend on the other. */
static double pair_gbps(const struct demand *demand, const struct demand_pair *pair) {
  if (pair->other == SIM_NONE) return pair->gbps;
  const double own = demand->cluster->link_gbps[pair->link], other = demand->cluster->link_gbps[pair->other];
  const bool rests = other < own || (other == own && pair->other < pair->link);
  return rests && other < pair->gbps ? other : pair->gbps;
}

bool demand_sum(const struct demand *demand, double *gbps) {
  const uint32_t links = demand->cluster->link_count;
  double *sides[2]; /* by what is before and what is after */
  sides[0] = (double *)os_alloc((links + (size_t)1) * sizeof(double));
  sides[1] = (double *)os_alloc((links + (size_t)1) * sizeof(double));
  const bool whole = sides[0] && sides[1];
  for (uint32_t i = 0; whole && i <= demand->mask; i++) {
    const struct demand_pair *pair = &demand->pairs[i];
    if (pair->used) sides[pair->behind][pair->link] += pair_gbps(demand, pair);
  }
  for (uint32_t link = 0; whole && link < links; link++)
    gbps[link] += sides[0][link] < sides[1][link] ? sides[0][link] : sides[1][link];
  os_free(sides[0]);
  os_free(sides[1]);
  return whole;
}
