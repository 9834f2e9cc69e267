/* proxy_iter.h: what one work hands over one of its links, slice by slice: the steps that a slice takes, and
 * its bytes. Runs the very iterators that the kernel runs, so both ends of a connection know every message
 * before it comes. Needs the same memory for any count. Knows no connection and no network. */
#ifndef TUTTI_CORE_PROXY_ITER_H
#define TUTTI_CORE_PROXY_ITER_H

#include "schedule/algo.h"
#include "schedule/plan.h"

struct proxy_iter {
  const struct work *work; /* the first of its parts, where it is fused */
  const struct work *part; /* the operation of the slices that come next */
  uint32_t link_index;
  bool sends, agreed; /* agreed: the operation's size went with an earlier slice */
  struct algo_iter steps;
  uint64_t next_step; /* of the connection */
  uint32_t slice_index, slice_count;
  size_t slice_elements, slice_capacity, held; /* held: elements of the slots, or of the chunk */
  bool shared;
  bool zero_copy;    /* the chunk goes to the output as it comes, ... */
  size_t out_offset; /* ... to here */
};

/* Steps [begin, end) of a connection, which travel as one message. */
struct proxy_slice {
  uint64_t begin, end;
  size_t bytes; /* of data */
  const struct work *part;
  uint64_t agreed_bytes; /* of the operation on its channel */
  bool announces;        /* the first of its operation */
  bool skipped;          /* both ends know that it has nothing: no message */
  bool ll;               /* LL: between kernels and proxies; the message is data as any other */
  bool shared;           /* several schedule steps use it: a receiver may leave out what lies at its end */
  bool zero_copy;    /* a receiver's: it goes to its part's output as it comes, and nobody minds when, ... */
  size_t out_offset; /* ... so many elements behind its begin */
};

/* `saved_step` is where the work before has ended on the connection. */
void proxy_iter_begin(struct proxy_iter *iter, const struct work *work, uint32_t link_index, bool sends,
                      uint64_t saved_step, const struct plan_limits *limits);
/* False behind the last; iter->next_step is then where the next work finds the connection. */
bool proxy_iter_next(struct proxy_iter *iter, struct proxy_slice *slice);

#endif
