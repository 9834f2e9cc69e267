/* flow.h: transfers that share links. Each connection has at most one at a time; at every moment the rates of
 * all transfers are max-min fair: no rate could be increased without reducing one that is not greater. Links
 * that can never be full are left out at the beginning; a connection with only such links is private, and its
 * transfers need no event. */
#ifndef TUTTI_SIM_SIMULATE_FLOW_H
#define TUTTI_SIM_SIMULATE_FLOW_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* A connection's use of its links. */
struct flow_user {
  const uint32_t *links;
  const uint32_t *times; /* by link: how many connections use it for which this one stands; NULL: each once */
  uint32_t link_count;
  double most_gbps; /* its greatest rate */
};

struct flow_link {
  double bytes_a_ps;    /* what it carries */
  double load;          /* sum of its transfers' rates */
  double left;          /* ... while rates are computed: not assigned yet */
  uint32_t first;       /* entry of a transfer on it, FLOW_NONE */
  uint32_t count;       /* while rates are computed: its transfers without a rate */
  uint32_t link, stamp; /* its number in the cluster */
  bool dirty;
  bool open, grown, passed, was_full; /* while rates are computed: flow.c */
  double bound;                       /* on a border link: the least rate that only this link limits */
};

struct flow {
  double left_bytes, bytes_a_ps, was_bytes_a_ps, most_bytes_a_ps;
  uint64_t since_ps; /* left_bytes is as of this time */
  uint32_t first_entry, entry_count;
  uint32_t stamp;
  bool active, found, by_border;
};

/* A link that limits its transfers to this rate, or by now to a higher one. */
struct flow_share {
  double rate;
  uint32_t number;
};

#define FLOW_NONE UINT32_MAX

struct flow_set {
  uint32_t flow_count, link_count, entry_count, dirty_count, stamp;
  struct flow *flows; /* by connection */
  struct flow_link *links;
  uint32_t *entry_link, *entry_flow, *entry_next, *entry_previous; /* a connection on a link ... */
  uint32_t *entry_times;                                           /* ... counted this often */
  uint32_t *dirty, *some_flows, *some_links;
  struct flow_share *shares; /* while rates are computed: a heap, the narrowest link first */
  uint32_t share_count;
};

/* `demand_gbps`: by link, the greatest demand at a time; NULL: the sum of all connections. ncclSystemError
 * when memory is out. Free with flow_set_free(). */
ncclResult_t flow_set_make(const double *link_gbps, const double *demand_gbps, uint32_t link_count,
                           const struct flow_user *users, uint32_t user_count, struct flow_set *set);
void flow_set_free(struct flow_set *set);
static inline bool flow_is_private(const struct flow_set *set, uint32_t conn) {
  return set->flows[conn].entry_count == 0;
}

/* When the transfer ends if no other one begins or ends; UINT64_MAX: flow_settle() computes it. If links that
 * it takes or leaves are full, rates change, but only at the next flow_settle(). */
uint64_t flow_begin(struct flow_set *set, uint32_t conn, double bytes, double most_gbps, uint64_t now_ps);
void flow_end(struct flow_set *set, uint32_t conn);

/* Computes all rates that changed since the last call, and reports when each such transfer ends now;
 * UINT64_MAX: never. */
typedef void flow_report(void *context, uint32_t conn, uint64_t end_ps);
void flow_settle(struct flow_set *set, uint64_t now_ps, flow_report *tell, void *context);

#endif
