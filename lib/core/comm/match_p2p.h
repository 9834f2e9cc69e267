/* match_p2p.h: the sends that no receive has been compared with yet, and the receives without a send. The
 * n-th send from one rank to another belongs to the n-th receive there. The caller locks. */
#ifndef TUTTI_CORE_MATCH_P2P_H
#define TUTTI_CORE_MATCH_P2P_H

#include "core/comm/match.h"

/* An all-zero table is empty. */
struct match_p2p {
  struct match_message **buckets;
  uint32_t bucket_count; /* a power of two, or 0 */
  uint32_t count;
};

/* The other end's call of the entry's message leaves the table: *other, *found. Else the entry is added; one
 * of the same rank and number is replaced. False if memory is out. */
bool match_p2p_take(struct match_p2p *p2p, const struct match_entry *entry, struct match_entry *other,
                    bool *found);
/* The rank's call of this message, if it waits in the table, was not made after all. */
void match_p2p_forget(struct match_p2p *p2p, const struct match_entry *entry);
/* A call of another rank that waits for this one; NULL: none. Of several, the one with the lowest number and
 * rank. */
const struct match_entry *match_p2p_waiting_for(const struct match_p2p *p2p, uint32_t rank);
/* Copies up to `capacity` entries behind the first `skip`; returns their number. */
uint32_t match_p2p_export(const struct match_p2p *p2p, uint64_t skip, struct match_entry *entries,
                          uint32_t capacity);
void match_p2p_clear(struct match_p2p *p2p);

#endif
