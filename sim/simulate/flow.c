/* flow.c: see flow.h. Rates are found by progressive filling: the link with the least capacity left per
 * transfer, or the transfer with the least limit, is fixed first, and its rate is subtracted from the links
 * that it uses. As the capacity per remaining transfer of those links does not decrease, a heap whose entries
 * are only corrected when they are taken gives the next link. Only transfers that share full links, directly
 * or through others, with one that began or ended are examined. */
#include "simulate/flow.h"

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define BYTES_A_PS 1e-3 /* of 1 GB/s */
#define SLACK 1e-9      /* tolerance of sums of rates, and of remaining capacity */

/* ---- making ---- */

/* By link of the cluster: the most that its users could demand, and then its number here. */
struct demand {
  double *gbps;
  uint32_t *users, *number;
};

static uint32_t user_times(const struct flow_user *user, uint32_t link) {
  return user->times ? user->times[link] : 1;
}

static void demand_add(struct demand *demand, const struct flow_user *users, uint32_t user_count) {
  for (uint32_t i = 0; i < user_count; i++)
    for (uint32_t k = 0; k < users[i].link_count; k++) {
      demand->gbps[users[i].links[k]] += user_times(&users[i], k) * users[i].most_gbps;
      demand->users[users[i].links[k]] += 1;
    }
}

static void links_number(struct flow_set *set, const struct demand *demand, const double *link_gbps,
                         uint32_t link_count) {
  for (uint32_t link = 0; link < link_count; link++) {
    demand->number[link] = FLOW_NONE;
    if (demand->gbps[link] <= link_gbps[link] * (1 + 1e-9)) continue;
    demand->number[link] = set->link_count++;
    set->entry_count += demand->users[link];
  }
}

static bool set_reserve(struct flow_set *set, uint32_t user_count) {
  const size_t links = (size_t)set->link_count + 1, entries = (size_t)set->entry_count + 1,
               flows = (size_t)user_count + 1;
  set->flow_count = user_count;
  set->flows = (struct flow *)os_alloc(flows * sizeof *set->flows);
  set->links = (struct flow_link *)os_alloc(links * sizeof *set->links);
  set->entry_link = (uint32_t *)os_alloc(entries * sizeof(uint32_t));
  set->entry_flow = (uint32_t *)os_alloc(entries * sizeof(uint32_t));
  set->entry_times = (uint32_t *)os_alloc(entries * sizeof(uint32_t));
  set->entry_next = (uint32_t *)os_alloc(entries * sizeof(uint32_t));
  set->entry_previous = (uint32_t *)os_alloc(entries * sizeof(uint32_t));
  set->dirty = (uint32_t *)os_alloc(links * sizeof(uint32_t));
  set->some_links = (uint32_t *)os_alloc(links * sizeof(uint32_t));
  set->some_flows = (uint32_t *)os_alloc(flows * sizeof(uint32_t));
  set->shares = (struct flow_share *)os_alloc(links * sizeof *set->shares);
  return set->flows && set->links && set->entry_link && set->entry_flow && set->entry_times &&
         set->entry_next && set->entry_previous && set->dirty && set->some_links && set->some_flows &&
         set->shares;
}

static void entries_fill(struct flow_set *set, const struct demand *demand, const struct flow_user *users,
                         const double *link_gbps, uint32_t link_count) {
  uint32_t entry = 0;
  for (uint32_t link = 0; link < link_count; link++) {
    if (demand->number[link] == FLOW_NONE) continue;
    struct flow_link *made = &set->links[demand->number[link]];
    made->bytes_a_ps = link_gbps[link] * BYTES_A_PS;
    made->first = FLOW_NONE;
    made->link = link;
  }
  for (uint32_t i = 0; i < set->flow_count; i++) {
    set->flows[i].first_entry = entry;
    for (uint32_t k = 0; k < users[i].link_count; k++) {
      const uint32_t number = demand->number[users[i].links[k]];
      if (number == FLOW_NONE) continue;
      set->entry_link[entry] = number;
      set->entry_times[entry] = user_times(&users[i], k);
      set->entry_flow[entry++] = i;
    }
    set->flows[i].entry_count = entry - set->flows[i].first_entry;
  }
}

ncclResult_t flow_set_make(const double *link_gbps, const double *demand_gbps, uint32_t link_count,
                           const struct flow_user *users, uint32_t user_count, struct flow_set *set) {
  struct demand demand;
  demand.gbps = (double *)os_alloc(((size_t)link_count + 1) * sizeof(double));
  demand.users = (uint32_t *)os_alloc(((size_t)link_count + 1) * sizeof(uint32_t));
  demand.number = (uint32_t *)os_alloc(((size_t)link_count + 1) * sizeof(uint32_t));
  bool whole = demand.gbps && demand.users && demand.number;
  memset(set, 0, sizeof *set);
  if (whole) {
    demand_add(&demand, users, user_count);
    if (demand_gbps) memcpy(demand.gbps, demand_gbps, link_count * sizeof(double));
    links_number(set, &demand, link_gbps, link_count);
    whole = set_reserve(set, user_count);
  }
  if (whole) entries_fill(set, &demand, users, link_gbps, link_count);
  os_free(demand.gbps);
  os_free(demand.users);
  os_free(demand.number);
  if (whole) return ncclSuccess;
  flow_set_free(set);
  return log_no_memory("the links of %u connections", user_count);
}

void flow_set_free(struct flow_set *set) {
  os_free(set->flows);
  os_free(set->links);
  os_free(set->entry_link);
  os_free(set->entry_flow);
  os_free(set->entry_times);
  os_free(set->entry_next);
  os_free(set->entry_previous);
  os_free(set->dirty);
  os_free(set->some_links);
  os_free(set->some_flows);
  os_free(set->shares);
  memset(set, 0, sizeof *set);
}

/* ---- begin and end of transfers ---- */

static uint64_t flow_end_ps(const struct flow *flow) {
  if (flow->bytes_a_ps <= 0) return flow->left_bytes > 0 ? UINT64_MAX : flow->since_ps;
  const double more = ceil(flow->left_bytes / flow->bytes_a_ps);
  return more < 9e18 ? flow->since_ps + (uint64_t)more : UINT64_MAX;
}

static bool link_is_full(const struct flow_link *link) {
  return link->load >= link->bytes_a_ps * (1 - SLACK);
}

static void link_touch(struct flow_set *set, uint32_t link) {
  if (set->links[link].dirty) return;
  set->links[link].dirty = true;
  set->dirty[set->dirty_count++] = link;
}

/* Whether all of its links have capacity for its full rate, so that no other transfer loses any. */
static bool flow_has_space(const struct flow_set *set, const struct flow *flow) {
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    const struct flow_link *link = &set->links[set->entry_link[e]];
    const double more = set->entry_times[e] * flow->most_bytes_a_ps;
    if (link->dirty || link->load + more > link->bytes_a_ps * (1 + SLACK)) return false;
  }
  return flow->most_bytes_a_ps > 0;
}

uint64_t flow_begin(struct flow_set *set, uint32_t conn, double bytes, double most_gbps, uint64_t now_ps) {
  struct flow *flow = &set->flows[conn];
  flow->left_bytes = bytes;
  flow->bytes_a_ps = 0;
  flow->most_bytes_a_ps = most_gbps * BYTES_A_PS;
  flow->since_ps = now_ps;
  flow->active = true;
  const bool fits = flow_has_space(set, flow);
  if (fits) flow->bytes_a_ps = flow->most_bytes_a_ps;
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    struct flow_link *link = &set->links[set->entry_link[e]];
    set->entry_next[e] = link->first;
    set->entry_previous[e] = FLOW_NONE;
    if (link->first != FLOW_NONE) set->entry_previous[link->first] = e;
    link->first = e;
    link->load += set->entry_times[e] * flow->bytes_a_ps;
    if (!fits) link_touch(set, set->entry_link[e]);
  }
  return fits ? flow_end_ps(flow) : UINT64_MAX;
}

void flow_end(struct flow_set *set, uint32_t conn) {
  struct flow *flow = &set->flows[conn];
  flow->active = false;
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    struct flow_link *link = &set->links[set->entry_link[e]];
    const uint32_t next = set->entry_next[e], previous = set->entry_previous[e];
    const bool full = link_is_full(link);
    if (previous == FLOW_NONE) link->first = next;
    else set->entry_next[previous] = next;
    if (next != FLOW_NONE) set->entry_previous[next] = previous;
    link->load = link->first == FLOW_NONE ? 0 : link->load - set->entry_times[e] * flow->bytes_a_ps;
    if (full && link->first != FLOW_NONE) link_touch(set, set->entry_link[e]);
  }
}

/* ---- rates ---- */

/* The part whose rates are computed again. A link is open if all its transfers are in the part, else on its
 * border: some of its transfers are in the part, the others keep their rates. */
struct part {
  uint32_t flow_count, link_count;
};

static void part_add_link(struct flow_set *set, struct part *part, uint32_t number, bool open) {
  struct flow_link *link = &set->links[number];
  if (link->stamp != set->stamp) {
    link->stamp = set->stamp;
    link->open = false;
    link->was_full = link_is_full(link);
    set->some_links[part->link_count++] = number;
  }
  if (!open || link->open) return;
  link->open = true;
  link->grown = false;
}

static void part_add_flow(struct flow_set *set, struct part *part, uint32_t number, uint64_t now_ps) {
  struct flow *flow = &set->flows[number];
  if (flow->stamp == set->stamp) return;
  flow->stamp = set->stamp;
  flow->was_bytes_a_ps = flow->bytes_a_ps;
  flow->left_bytes -= flow->bytes_a_ps * (double)(now_ps - flow->since_ps);
  if (flow->left_bytes < 0) flow->left_bytes = 0;
  flow->since_ps = now_ps;
  set->some_flows[part->flow_count++] = number;
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++)
    part_add_link(set, part, set->entry_link[e], false);
}

/* Adds all transfers of links that were opened. */
static void part_grow(struct flow_set *set, struct part *part, uint64_t now_ps) {
  const uint32_t link_count = part->link_count; /* links that join now are not open */
  for (uint32_t i = 0; i < link_count; i++) {
    struct flow_link *link = &set->links[set->some_links[i]];
    if (!link->open || link->grown) continue;
    link->grown = true;
    for (uint32_t e = link->first; e != FLOW_NONE; e = set->entry_next[e])
      part_add_flow(set, part, set->entry_flow[e], now_ps);
  }
}

/* What the part's transfers may have of its links: everything on open links, else what other transfers leave.
 */
static void part_weigh(struct flow_set *set, const struct part *part) {
  for (uint32_t i = 0; i < part->link_count; i++) set->links[set->some_links[i]].count = 0;
  for (uint32_t i = 0; i < part->flow_count; i++) {
    struct flow *flow = &set->flows[set->some_flows[i]];
    for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
      struct flow_link *link = &set->links[set->entry_link[e]];
      link->count += set->entry_times[e];
      link->load -= set->entry_times[e] * flow->bytes_a_ps;
    }
    flow->found = flow->by_border = false;
  }
  for (uint32_t i = 0; i < part->link_count; i++) {
    struct flow_link *link = &set->links[set->some_links[i]];
    if (link->open || link->load < link->bytes_a_ps * (SLACK / 1000)) link->load = 0;
    link->left = link->bytes_a_ps > link->load ? link->bytes_a_ps - link->load : 0;
    link->passed = link->load > 0;
    link->bound = INFINITY;
  }
}

/* ---- the narrowest link ---- */

static bool share_before(struct flow_share a, struct flow_share b) {
  return a.rate != b.rate ? a.rate < b.rate : a.number < b.number;
}

/* Puts the row at `at`, which is free, or below. */
static void share_sink(struct flow_set *set, uint32_t at, struct flow_share row) {
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= set->share_count) break;
    if (child + 1 < set->share_count && share_before(set->shares[child + 1], set->shares[child])) child += 1;
    if (!share_before(set->shares[child], row)) break;
    set->shares[at] = set->shares[child];
    at = child;
  }
  set->shares[at] = row;
}

static void shares_fill(struct flow_set *set, const struct part *part) {
  set->share_count = 0;
  for (uint32_t i = 0; i < part->link_count; i++) {
    const struct flow_link *link = &set->links[set->some_links[i]];
    if (link->count > 0)
      set->shares[set->share_count++] = (struct flow_share){link->left / link->count, set->some_links[i]};
  }
  for (uint32_t at = set->share_count / 2; at-- > 0;) share_sink(set, at, set->shares[at]);
}

/* False when no link has transfers without a rate. */
static bool share_least(struct flow_set *set, struct flow_share *least) {
  while (set->share_count > 0) {
    const struct flow_link *link = &set->links[set->shares[0].number];
    struct flow_share row = {0, set->shares[0].number};
    if (link->count > 0) {
      row.rate = link->left / link->count;
      if (row.rate <= set->shares[0].rate) {
        *least = set->shares[0];
        return true;
      }
    } else row = set->shares[--set->share_count];
    if (set->share_count > 0) share_sink(set, 0, row);
  }
  return false;
}

/* ---- filling ---- */

static void rate_fix(struct flow_set *set, struct flow *flow, double rate) {
  flow->found = true;
  flow->bytes_a_ps = rate;
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    struct flow_link *link = &set->links[set->entry_link[e]];
    const double taken = set->entry_times[e] * rate;
    link->left = link->left > taken ? link->left - taken : 0;
    link->load += taken;
    link->count -= set->entry_times[e];
  }
}

/* Whether only links of the border limit the transfer to `share`. */
static bool flow_is_by_border(const struct flow_set *set, const struct flow *flow, double share) {
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    const struct flow_link *link = &set->links[set->entry_link[e]];
    if (link->open && link->left <= link->count * share * (1 + SLACK)) return false;
  }
  return true;
}

/* Fixes those that may take at most `share`, and finds the least limit of the others. */
static double bounded_fix(struct flow_set *set, const struct part *part, double share, uint32_t *left) {
  double least = INFINITY;
  for (uint32_t i = 0; i < part->flow_count; i++) {
    struct flow *flow = &set->flows[set->some_flows[i]];
    if (flow->found) continue;
    if (flow->most_bytes_a_ps <= share) {
      rate_fix(set, flow, flow->most_bytes_a_ps);
      *left -= 1;
    } else if (flow->most_bytes_a_ps < least) least = flow->most_bytes_a_ps;
  }
  return least;
}

static void link_fix(struct flow_set *set, struct flow_share share, uint32_t *left) {
  for (uint32_t e = set->links[share.number].first; e != FLOW_NONE; e = set->entry_next[e]) {
    struct flow *flow = &set->flows[set->entry_flow[e]];
    if (flow->stamp != set->stamp || flow->found) continue;
    flow->by_border = flow_is_by_border(set, flow, share.rate);
    rate_fix(set, flow, share.rate);
    *left -= 1;
  }
}

static void rates_find(struct flow_set *set, const struct part *part) {
  uint32_t left = part->flow_count;
  double least_most = 0; /* no transfer without a rate has a lower limit */
  struct flow_share share;
  part_weigh(set, part);
  shares_fill(set, part);
  while (left > 0 && share_least(set, &share)) {
    if (least_most <= share.rate) least_most = bounded_fix(set, part, share.rate, &left);
    else link_fix(set, share, &left);
  }
}

/* ---- the border ---- */

static bool flow_has_changed(const struct flow *flow) {
  return fabs(flow->bytes_a_ps - flow->was_bytes_a_ps) > flow->bytes_a_ps * 1e-12;
}

static bool link_is_asked(const struct flow_link *link) {
  return !link->open && link->passed && (link->was_full || link_is_full(link));
}

/* Whether the link limits a transfer of the part to less than a transfer outside has of it. */
static bool link_is_unfair(const struct flow_set *set, const struct flow_link *link) {
  if (!link_is_asked(link) || link->bound == INFINITY) return false;
  for (uint32_t e = link->first; e != FLOW_NONE; e = set->entry_next[e]) {
    const struct flow *flow = &set->flows[set->entry_flow[e]];
    if (flow->stamp != set->stamp && flow->bytes_a_ps > link->bound * (1 + 1e-12)) return true;
  }
  return false;
}

/* Opens full links of the border on which transfers outside the part are affected: a transfer of the part has
 * a new rate, or is limited by the link alone to less than one outside has. On all other links nothing has
 * changed for transfers outside. */
static bool part_widen(struct flow_set *set, struct part *part) {
  bool wider = false;
  for (uint32_t i = 0; i < part->flow_count; i++) {
    const struct flow *flow = &set->flows[set->some_flows[i]];
    const bool changed = flow_has_changed(flow);
    if (!changed && !flow->by_border) continue;
    for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
      struct flow_link *link = &set->links[set->entry_link[e]];
      if (!link_is_asked(link)) continue;
      if (flow->by_border && flow->bytes_a_ps < link->bound) link->bound = flow->bytes_a_ps;
      if (changed) part_add_link(set, part, set->entry_link[e], true);
      wider = wider || changed;
    }
  }
  for (uint32_t i = 0; i < part->link_count; i++) {
    if (!link_is_unfair(set, &set->links[set->some_links[i]])) continue;
    part_add_link(set, part, set->some_links[i], true);
    wider = true;
  }
  return wider;
}

void flow_settle(struct flow_set *set, uint64_t now_ps, flow_report *tell, void *context) {
  struct part part = {0, 0};
  if (set->dirty_count == 0) return;
  set->stamp += 1;
  for (uint32_t i = 0; i < set->dirty_count; i++) part_add_link(set, &part, set->dirty[i], true);
  do {
    part_grow(set, &part, now_ps);
    rates_find(set, &part);
  } while (part_widen(set, &part));
  for (uint32_t i = 0; i < set->dirty_count; i++) set->links[set->dirty[i]].dirty = false;
  set->dirty_count = 0;
  for (uint32_t i = 0; i < part.flow_count; i++) {
    const struct flow *flow = &set->flows[set->some_flows[i]];
    if (flow->bytes_a_ps != flow->was_bytes_a_ps || flow->bytes_a_ps <= 0)
      tell(context, set->some_flows[i], flow_end_ps(flow));
  }
}
