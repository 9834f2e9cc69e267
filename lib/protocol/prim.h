/* prim.h: the device seam. The executors in this folder use these primitives and nothing else of the machine;
 * the include path binds them: lib/backends/emu/prim_impl.h over C11 atomics, lib/backends/cuda/prim_impl.h
 * over PTX.
 *
 * A lane (run.h) is carried out by one or more workers (a CPU thread; the warps of a group) that all call the
 * same functions with the same arguments. Primitives that touch counters are for the leader alone unless said
 * otherwise.
 *
 * What a backend's prim_impl.h defines, with the contract of each:
 *
 *   PRIM_FN                                    storage class of shared functions
 *   struct prim                                the workers' context: who am I, of how many, abort flag;
 * filled by the backend
 *
 *   bool     prim_leader(p)                    this worker waits and posts for all
 *   void     prim_barrier(p)                   all workers of the lane meet; orders their memory accesses
 *   uint64_t prim_load_acquire(address)        a counter or a pointer cell; later reads do not move before it
 *   void     prim_store_release(address, v)    earlier reads and writes do not move behind it
 *   bool     prim_aborted(p)                   the communicator was aborted: waits end, moves become empty
 *   void     prim_move_begin(p, move)          start moving a span; sources may be read and destinations
 * written from now ... void     prim_move_finish(p, move)         ... until this returns; then all of it has
 * happened, for all workers void     prim_pause(p)                     nothing is possible now: spin, yield
 *   struct prim_fragment, PRIM_FRAGMENT_LINES  the worker's registers of one group of lines, and how many
 * lines that is bool     prim_line_ready(kind, line, n, flag)            n lines from here carry this flag
 *   void     prim_line_load(kind, line, n, fragment)         take the data of n ready lines
 *   void     prim_line_store(kind, line, n, flag, fragment)  a line's data and flag become visible together
 * (see lines.h) void     prim_fragment_zero / _load / _store / _combine / _post   between user memory and
 * registers, and the operator
 */
#ifndef TUTTI_PROTOCOL_PRIM_H
#define TUTTI_PROTOCOL_PRIM_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum line_kind { LINE_LL = 0, LINE_LL128 = 1 };

struct prim_fragment;

/* First, because it may define PRIM_FN, which every header of schedule/ uses. */
#include "prim_impl.h"

#include "protocol/move.h"

#endif
