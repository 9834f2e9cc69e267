/* clang-format off */
/* prim.h: the device interface. The executors in this folder use the machine only through these primitives;
 * the include path binds them: lib/backends/emu/prim_impl.h over C11 atomics, lib/kernels/prim_impl.h
 * over PTX.
 *
 * One or more workers (a CPU thread; warps) execute a lane (run.h). Each runs the same functions over its own
 * struct lane and makes the same decisions, though not at the same time. One of them, the leader, posts for
 * all: it stores to a connection's counters after all workers have done their part (prim_join). Stores to
 * counters and tagged words by other workers do nothing.
 *
 * A backend's prim_impl.h defines, with these contracts:
 *
 *   PRIM_FN                  storage class of shared functions
 *   PRIM_LINKS, PRIM_DEPTH   most links per side of a lane (1..STEP_LINKS_MAX), most slices in flight
 *   PRIM_PROTO               optional: the only protocol that is compiled, an enum work_proto
 *   PRIM_ALGOS               optional: the algorithms that are compiled (schedule/step.h)
 *   PRIM_SHIFTS              optional: links have an offset from the receiver's addresses to ours
 *   PRIM_OFFER_SHIFTS        optional: links have an offset from our addresses to the sender's
 *   PRIM_COHERENT            optional: one cache line arrives as a whole, and reading what the other end
 *                            wrote costs a cache miss: see fifo.h
 *   PRIM_FREES_LATE          optional: an operation may leave slots that it read to the next one, which frees
 *                            them when it begins
 *   PRIM_COMPACT             optional: one thread runs a great number of lanes: a lane names its links and
 *                            slices in flight by pointers, and ends of connections have no padding
 *   PRIM_NEXT_STEP           optional: called in place of algo_next (schedule/algo.h), to change steps
 *   PRIM_OUTLINE             optional: storage class of functions that should not be inlined
 *   PRIM_UNROLL              optional: before a loop, asks the compiler to unroll it
 *   struct prim              a worker's context, filled by the backend: its index, their number, abort flag
 *
 *   bool     prim_leader(p)                  this worker posts for all and compares sizes
 *   void     prim_join(p)                    this worker has done its part of a slice or LL step; for the
 *                                            leader it returns when all workers have
 *   void     prim_await_readers(p)           for the leader, when all workers have read the counters that it
 *                                            stores next
 *   uint64_t prim_load_tail(address)         sender's counter; later reads are not reordered before it
 *   uint64_t prim_load_head(address)         receiver's counter; later writes are not reordered before it
 *   void     prim_store_tail(p, address, v)  earlier writes of all joined workers are ordered before it, for
 *                                            the receiver, also those to the sender's own memory (slots that
 *                                            are read at the sender)
 *   void     prim_store_head(p, address, v)  earlier reads of all joined workers are ordered before it, also
 *                                            those from the sender's memory
 *   void     prim_tagged_store(p, word, tag, v)  value and tag of a tagged word become visible together,
 *                                                after all that earlier operations of the rank did
 *   bool     prim_tagged_load(word, tag, &v)     false while the tag differs; later accesses are not
 *                                                reordered before it
 *   bool     prim_aborted(p)                 the communicator was aborted: waits end, moves do nothing
 *   void     prim_pause(p)                   called while the lane waits: spin or yield
 *
 *   void     prim_move_begin(p, move)        start moving a span; sources may be read and destinations
 *                                            written from now ...
 *   void     prim_move_finish(p, move)       ... until this returns; includes this worker's join
 *
 *   struct prim_fragment                     the workers' registers for one group of LL lines
 *   bool     prim_line_ready(p, kind, line, n, flag)            n lines from here have this flag; a backend
 *                                                               may leave the wait to prim_line_load
 *   void     prim_group_begin(p)                                the next calls process one group of LL lines
 *   void     prim_fragment_zero / _load / _store / _combine / _post   between user memory and registers, and
 *                                                               the operator
 *   void     prim_line_load(p, kind, line, n, flag, fragment)   read the data of lines that were ready
 *   void     prim_line_store(p, kind, line, n, flag, fragment)  a line's data and flag become visible
 *                                                               together (see ll.h)
 *   void     prim_group_end(p, kind, n, bytes, work)            the group is done, or will be when
 *                                                               prim_join returns */
/* clang-format on */
#ifndef TUTTI_PROTOCOL_PRIM_H
#define TUTTI_PROTOCOL_PRIM_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prim_fragment;
struct tagged_word;

/* Included first, because it may define PRIM_FN, which all headers of schedule/ use. */
#include "prim_impl.h"

#ifndef PRIM_UNROLL
#define PRIM_UNROLL
#endif
#ifndef PRIM_OUTLINE
#define PRIM_OUTLINE PRIM_FN
#endif

#include "protocol/line.h"
#include "protocol/move.h"

#endif
