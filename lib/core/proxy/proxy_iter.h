/* proxy_iter.h: what one work transfers over one of its links, slice by slice: the steps of each slice, and
 * its bytes. Uses the same iterators as the kernel, so both ends of a connection know every message in
 * advance. Uses constant memory for any count. Knows no connection and no network. */
#ifndef TUTTI_CORE_PROXY_ITER_H
#define TUTTI_CORE_PROXY_ITER_H

#include "schedule/algo.h"
#include "schedule/plan.h"

struct proxy_iter {
  const struct work *work; /* the first of its parts, if it is fused */
  const struct work *part; /* the operation of the next slices */
  uint32_t link_index;
  bool sends, agreed; /* agreed: an earlier slice has carried the operation's size */
  struct algo_iter steps;
  uint64_t next_step; /* of the connection */
  uint32_t slice_index, slice_count;
  size_t slice_elements, slice_capacity;
  size_t held, cut; /* elements of the slots, or of the chunk; the same for the link that has most, by which
                       all links' slices are cut */
  bool shared;
  bool zero_copy;    /* the chunk is received directly into the output, ... */
  size_t out_offset; /* ... at this offset */
};

/* Steps [begin, end) of a connection, transferred as one message. */
struct proxy_slice {
  uint64_t begin, end;
  size_t bytes; /* of data */
  const struct work *part;
  uint64_t agreed_bytes; /* of the operation on its channel */
  bool announces;        /* the first of its operation */
  bool skipped;          /* both ends know that it is empty: no message */
  bool ll;               /* kernels and proxies use LL; the message on the network is plain data */
  bool shared;           /* several schedule steps use it: a receiver may omit its last part */
  bool zero_copy;        /* of a receiver: it goes directly to its part's output, in any order, ... */
  size_t out_offset;     /* ... at this offset in elements */
};

/* `saved_step` is the connection's step after the previous work. */
void proxy_iter_begin(struct proxy_iter *iter, const struct work *work, uint32_t link_index, bool sends,
                      uint64_t saved_step, const struct plan_limits *limits);
/* False after the last slice; iter->next_step is then the first step of the next work on the connection. */
bool proxy_iter_next(struct proxy_iter *iter, struct proxy_slice *slice);

#endif
