/* clang-format off */
/* prim.h: the device seam. The executors in this folder use these primitives and nothing else of the machine;
 * the include path binds them: lib/backends/emu/prim_impl.h over C11 atomics, lib/kernels/prim_impl.h
 * over PTX.
 *
 * A lane (run.h) is carried out by one or more workers (a CPU thread; warps), each of which runs the same
 * functions over its own struct lane and comes to the same decisions, though not at the same time. One of
 * them, the leader, speaks for all: what it stores to a connection's counters says that all workers have done
 * their part (prim_join). Stores to counters and tagged words by other workers do nothing.
 *
 * What a backend's prim_impl.h defines, with the contract of each:
 *
 *   PRIM_FN                  storage class of shared functions
 *   PRIM_LINKS, PRIM_DEPTH   most links a side of a lane (1..STEP_LINKS_MAX), most slices in flight
 *   PRIM_PROTO               optional: the one protocol that is compiled, an enum work_proto
 *   PRIM_ALGOS               optional: the algorithms that are compiled (schedule/step.h)
 *   PRIM_SHIFTS              optional: links have a difference between the receiver's addresses and ours
 *   PRIM_OFFER_SHIFTS        optional: they have one between our addresses and the sender's
 *   PRIM_COHERENT            optional: what lies in one cache line comes together, and what the other end has
 *                            written costs a miss to look at: see fifo.h
 *   PRIM_OUTLINE             optional: storage class of a function that is better called than inlined
 *   PRIM_UNROLL              optional: in front of a loop, asks for its turns side by side
 *   struct prim              a worker's context: who am I, of how many, abort flag; filled by the backend
 *
 *   bool     prim_leader(p)                  this worker posts for all, and compares sizes
 *   void     prim_join(p)                    this worker's part of a slice or of an LL step is over; the
 *                                            leader returns when that of every worker is
 *   uint64_t prim_load_tail(address)         sender's counter; reads behind it do not move before it
 *   uint64_t prim_load_head(address)         receiver's counter; writes behind it do not move before it
 *   void     prim_store_tail(p, address, v)  writes of all joined workers do not move behind it
 *   void     prim_store_head(p, address, v)  reads of all joined workers do not move behind it
 *   void     prim_tagged_store(p, word, tag, v)  value and tag of a tagged word become visible together,
 *   bool     prim_tagged_load(word, tag, &v)     in no order with anything else; false while the tag differs
 *   bool     prim_aborted(p)                 the communicator was aborted: waits end, moves become empty
 *   void     prim_pause(p)                   nothing is possible now: spin, yield
 *
 *   void     prim_move_begin(p, move)        start moving a span; sources may be read and destinations
 *                                            written from now ...
 *   void     prim_move_finish(p, move)       ... until this returns; then this worker has joined
 *
 *   struct prim_fragment                     the workers' registers for one group of LL lines
 *   bool     prim_line_ready(p, kind, line, n, flag)            n lines from here carry this flag; a backend
 *                                                               may leave the wait to whoever loads them
 *   void     prim_group_begin(p)                                what follows is done to one group of LL lines
 *   void     prim_fragment_zero / _load / _store / _combine / _post   between user memory and registers, and
 *                                                               the operator
 *   void     prim_line_load(p, kind, line, n, flag, fragment)   take the data of lines that were ready
 *   void     prim_line_store(p, kind, line, n, flag, fragment)  a line's data and flag become visible
 *                                                               together (see ll.h)
 *   void     prim_group_end(p, kind, n, bytes, work)            all of it at the latest when prim_join
 *                                                               returns */
/* clang-format on */
#ifndef TUTTI_PROTOCOL_PRIM_H
#define TUTTI_PROTOCOL_PRIM_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum line_kind { LINE_LL = 0, LINE_LL128 = 1 };

struct prim_fragment;
struct tagged_word;

/* First, because it may define PRIM_FN, which every header of schedule/ uses. */
#include "prim_impl.h"

#ifndef PRIM_UNROLL
#define PRIM_UNROLL
#endif
#ifndef PRIM_OUTLINE
#define PRIM_OUTLINE PRIM_FN
#endif

#include "protocol/move.h"

#endif
