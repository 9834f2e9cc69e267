/* flow.c: see flow.h. Rates are found by filling: the link with the least left for each of its transfers, or
 * the transfer with the least bound, goes first, and what it takes is taken off the links that it crosses.
 * Only transfers that share full links, directly or by way of others, with one that began or ended are looked
 * at. */
#include "simulate/flow.h"

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define BYTES_A_PS 1e-3 /* of 1 GB/s */
#define SLACK 1e-9      /* of sums of rates */

/* ---- making ---- */

/* By link of the cluster: what its users could take at most, and then its number here. */
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
  return set->flows && set->links && set->entry_link && set->entry_flow && set->entry_times &&
         set->entry_next && set->entry_previous && set->dirty && set->some_links && set->some_flows;
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
  return log_fail(ncclSystemError, "no memory for the links of %u connections; take fewer ranks", user_count);
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
  memset(set, 0, sizeof *set);
}

/* ---- coming and going ---- */

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

/* Whether all of its links have room for as much as it may take, so that nobody else has less for it. */
static bool flow_has_room(const struct flow_set *set, const struct flow *flow) {
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
  const bool room = flow_has_room(set, flow);
  if (room) flow->bytes_a_ps = flow->most_bytes_a_ps;
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    struct flow_link *link = &set->links[set->entry_link[e]];
    set->entry_next[e] = link->first;
    set->entry_previous[e] = FLOW_NONE;
    if (link->first != FLOW_NONE) set->entry_previous[link->first] = e;
    link->first = e;
    link->load += set->entry_times[e] * flow->bytes_a_ps;
    if (!room) link_touch(set, set->entry_link[e]);
  }
  return room ? flow_end_ps(flow) : UINT64_MAX;
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

/* What is to be found anew. A link is open when all its transfers are in the part, and else on its border:
 * some pass through, those of others keep what they have. */
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

/* All transfers of links that were opened. */
static void part_grow(struct flow_set *set, struct part *part, uint64_t now_ps) {
  const uint32_t link_count = part->link_count; /* those that join now are not open */
  for (uint32_t i = 0; i < link_count; i++) {
    struct flow_link *link = &set->links[set->some_links[i]];
    if (!link->open || link->grown) continue;
    link->grown = true;
    for (uint32_t e = link->first; e != FLOW_NONE; e = set->entry_next[e])
      part_add_flow(set, part, set->entry_flow[e], now_ps);
  }
}

/* What the part's transfers may have of its links. */
static void part_weigh(struct flow_set *set, const struct part *part) {
  for (uint32_t i = 0; i < part->flow_count; i++)
    set->flows[set->some_flows[i]].found = set->flows[set->some_flows[i]].by_border = false;
  for (uint32_t i = 0; i < part->link_count; i++) {
    struct flow_link *link = &set->links[set->some_links[i]];
    link->load = 0;
    link->count = 0;
    for (uint32_t e = link->first; e != FLOW_NONE; e = set->entry_next[e]) {
      const struct flow *flow = &set->flows[set->entry_flow[e]];
      if (flow->stamp == set->stamp) link->count += set->entry_times[e];
      else link->load += set->entry_times[e] * flow->bytes_a_ps;
    }
    link->left = link->bytes_a_ps > link->load ? link->bytes_a_ps - link->load : 0;
    link->passed = link->load > 0;
  }
}

/* Whether the part does something on a full link of the border that those outside must hear of: one has
 * another rate than before, or is bound by the link alone to less than somebody outside has of it. */
static bool link_speaks(const struct flow_set *set, const struct flow_link *link) {
  double outside = 0;
  for (uint32_t e = link->first; e != FLOW_NONE; e = set->entry_next[e]) {
    const struct flow *flow = &set->flows[set->entry_flow[e]];
    if (flow->stamp != set->stamp && flow->bytes_a_ps > outside) outside = flow->bytes_a_ps;
  }
  for (uint32_t e = link->first; e != FLOW_NONE; e = set->entry_next[e]) {
    const struct flow *flow = &set->flows[set->entry_flow[e]];
    const double rate = flow->bytes_a_ps, slack = rate * 1e-12;
    if (flow->stamp != set->stamp) continue;
    if (fabs(rate - flow->was_bytes_a_ps) > slack || (flow->by_border && rate + slack < outside)) return true;
  }
  return false;
}

/* Opens such links. On all others nothing has changed for those outside. */
static bool part_widen(struct flow_set *set, struct part *part) {
  bool wider = false;
  for (uint32_t i = 0; i < part->link_count; i++) {
    const struct flow_link *link = &set->links[set->some_links[i]];
    if (link->open || !link->passed || !(link->was_full || link_is_full(link))) continue;
    if (!link_speaks(set, link)) continue;
    part_add_link(set, part, set->some_links[i], true);
    wider = true;
  }
  return wider;
}

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

static double share_least(const struct flow_set *set, const struct part *part) {
  double least = INFINITY;
  for (uint32_t i = 0; i < part->link_count; i++) {
    const struct flow_link *link = &set->links[set->some_links[i]];
    if (link->count > 0 && link->left / link->count < least) least = link->left / link->count;
  }
  return least;
}

/* Says so in the transfer: whether the narrowest links bound it, and whether only those of the border do. */
static void flow_look(const struct flow_set *set, struct flow *flow, double share) {
  flow->narrow = false;
  if (flow->found) return;
  flow->by_border = false;
  for (uint32_t e = flow->first_entry; e < flow->first_entry + flow->entry_count; e++) {
    const struct flow_link *link = &set->links[set->entry_link[e]];
    if (link->left / link->count > share * (1 + 1e-12)) continue;
    flow->by_border = !link->open && (flow->by_border || !flow->narrow);
    flow->narrow = true;
  }
}

/* One round: those that are bound below the least share, else those on the narrowest links. */
static uint32_t rates_round(struct flow_set *set, const struct part *part) {
  const double share = share_least(set, part);
  uint32_t fixed = 0;
  for (uint32_t i = 0; i < part->flow_count; i++) {
    struct flow *flow = &set->flows[set->some_flows[i]];
    if (flow->found || flow->most_bytes_a_ps > share) continue;
    rate_fix(set, flow, flow->most_bytes_a_ps);
    fixed += 1;
  }
  for (uint32_t i = 0; fixed == 0 && i < part->flow_count; i++) {
    flow_look(set, &set->flows[set->some_flows[i]], share);
  }
  if (fixed > 0) return fixed;
  for (uint32_t i = 0; i < part->flow_count; i++) {
    struct flow *flow = &set->flows[set->some_flows[i]];
    if (!flow->narrow) continue;
    rate_fix(set, flow, share);
    fixed += 1;
  }
  return fixed;
}

void flow_settle(struct flow_set *set, uint64_t now_ps, flow_tell *tell, void *context) {
  struct part part = {0, 0};
  if (set->dirty_count == 0) return;
  set->stamp += 1;
  for (uint32_t i = 0; i < set->dirty_count; i++) part_add_link(set, &part, set->dirty[i], true);
  do {
    part_grow(set, &part, now_ps);
    part_weigh(set, &part);
    for (uint32_t left = part.flow_count; left > 0;) left -= rates_round(set, &part);
  } while (part_widen(set, &part));
  for (uint32_t i = 0; i < set->dirty_count; i++) set->links[set->dirty[i]].dirty = false;
  set->dirty_count = 0;
  for (uint32_t i = 0; i < part.flow_count; i++) {
    const struct flow *flow = &set->flows[set->some_flows[i]];
    if (flow->bytes_a_ps != flow->was_bytes_a_ps || flow->bytes_a_ps <= 0)
      tell(context, set->some_flows[i], flow_end_ps(flow));
  }
}
