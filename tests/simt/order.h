/* order.h (simt): SIMT_RACES=1 checks that kernels order their accesses as PTX's memory model demands: two
 * threads that access the same bytes, one of them to write, must be ordered by fences, acquires, releases and
 * barriers, in scopes that include both. Only pairs of strong accesses (volatile, relaxed) need no order, as
 * such words carry their own flag; but a line that nobody has used must be ordered before the next one there.
 * A race ends the program with both places. Two rules are weaker than PTX's, as GPUs are (lib/README.md,
 * "Memory order of the kernels"): what has been read before a counter is posted, or before a block counts its
 * end, has been read for whoever stores because of that counter, without fence and acquire; and what earlier
 * launches of a stream have done is done in the whole system.
 *
 * Plain accesses are seen because kernels are compiled with -fsanitize=thread, whose calls arrive here.
 * Blocks run in turns then, and pairs of words that need not be whole are torn at random (SIMT_SEED).
 * Accesses of other processes, and of the host's threads but for its copies, are not seen. */
#ifndef TUTTI_TESTS_SIMT_ORDER_H
#define TUTTI_TESTS_SIMT_ORDER_H

#include <stddef.h>
#include <stdint.h>

enum order_scope { ORDER_BLOCK, ORDER_DEVICE, ORDER_SYSTEM, ORDER_SCOPES };
enum order_access {
  ORDER_READ = 0,
  ORDER_WRITE = 1,
  ORDER_STRONG = 2,  /* volatile or relaxed */
  ORDER_ACQUIRE = 4, /* in the scope that is given, as the next one */
  ORDER_RELEASE = 8,
  ORDER_ADDS = 16, /* reads and writes: what was released to its readers stays so */
  ORDER_POST = 32, /* a strong write; its readers know that what was read before it has been read */
  ORDER_LINE = 64  /* a strong write of a line: another one that nobody has used must have come before */
};

struct order_launch;
struct order_block;

extern bool order_is_on; /* SIMT_RACES is set and not 0 */

/* A launch on a stream whose earlier launches have begun; `overlaps`: it may begin before they have ended,
 * and awaits them by order_await_previous(). */
struct order_launch *order_launch_begin(const void *stream, int device, bool overlaps);
void order_launch_end(struct order_launch *launch);

/* A block of the launch, on this host thread. Accesses to `own` are not the kernel's: its threads' stacks. */
struct order_block *order_block_begin(struct order_launch *launch, uint32_t thread_count, const void *own,
                                      size_t own_bytes);
void order_block_end(struct order_block *block);
/* One block at a time runs between these. */
void order_turn_begin(void);
void order_turn_end(void);

/* By the running thread; `place`: the caller's code. */
void order_access(const void *address, uint32_t bytes, uint32_t how, enum order_scope scope,
                  const void *place);
/* The running thread has used what it read there by a strong access: nobody may overwrite it before. */
void order_take(const void *address, uint32_t bytes, const void *place);
void order_fence(enum order_scope scope);
/* All threads of the running thread's warp have met at a barrier. */
void order_meet(void);
/* The same at a vote or a shuffle, which order no accesses but decide what the warp stores next. */
void order_vote(void);
/* The running thread has read the same word with lane 0 of its warp, by one load. */
void order_read_with_first(bool acquires);
/* The running thread arrives at, and later passes, barrier `id` for the `phase`th time. */
void order_arrive(uint32_t id, uint64_t phase);
void order_pass(uint32_t id, uint64_t phase);
void order_await_previous(void);

/* ---- copy engines ----
 *
 * Their accesses occur at any time between the copy's beginning and the end that a thread sees. They are
 * ordered behind what the thread that begins the copy has read, behind the writes that it had seen at its
 * last order_fence_engines(), and behind copies whose ends it has seen itself. PTX would also count a fence
 * of another thread, which the kernels do not rely on. `engine`: below ORDER_ENGINES, chosen by the caller;
 * the copies of an engine end in the order of their times, as far as their ends are seen. */
enum { ORDER_ENGINES = 64 };

/* The running thread begins a copy; returns its time. */
uint32_t order_engine_copy(uint32_t engine, const void *from, const void *to, uint32_t bytes,
                           const void *place);
/* It has seen that the engine's copies up to that time have ended, or have read all that they read. */
void order_engine_ended(uint32_t engine, uint32_t time, bool only_reads);
void order_fence_engines(void);

/* The host has copied from or to that memory when all launches on its device had ended. */
void order_copy(int device, const void *memory, size_t bytes, bool writes);
/* A stream of the device has waited for the count: what was released to it has happened before. */
void order_stream_awaits(const void *stream, int device, const uint64_t *count);

/* The memory is new: nobody has accessed it. */
void order_forget(const void *memory, size_t bytes);

#endif
