/* program.h: random group programs: their definition, how they are generated from a seed, the memory that
 * they must leave (computed naively, in program order, without the library), how they run on the emulator,
 * and how a failing one is shrunk. A program is a plain value; after any change, program_repair() makes it
 * legal again.
 *
 * Memory: each device has PROGRAM_REGISTERS registers of PROGRAM_REGISTER_BYTES bytes. Within a group no call
 * touches a register that another one writes; groups run one after another on every device. Reductions are of
 * integers, so that any order gives the same bits; moves are of all types.
 *
 * Communicators: 0 is all devices in order, 1 all devices in reverse, 2 and 3 are a split of 0 into even and
 * odd devices, each in reverse. */
#ifndef TUTTI_TESTS_PROGRAM_H
#define TUTTI_TESTS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "oracle.h"

enum {
  PROGRAM_RANKS_MAX = 6,
  PROGRAM_COMMS = 4,
  PROGRAM_GROUPS_MAX = 6,
  PROGRAM_OPS_MAX = 8,
  PROGRAM_REGISTERS = 12,
  PROGRAM_REGISTER_BYTES = 2048,
  PROGRAM_STREAMS = 3, /* of a device and communicator */
  PROGRAM_TEXT_BYTES = 512
};

/* After the collectives of oracle.h: a message from one rank to another, and an uneven all-to-all. */
enum { PROGRAM_MESSAGE = COLLECTIVE_COUNT, PROGRAM_ALL_TO_ALL_V, PROGRAM_KINDS };

/* How a group waits for the one before it on its device: by the host, by events among all streams, or by the
 * streams alone. The last needs shared streams: each communicator's calls of group g use stream g modulo
 * their number and maybe others, and an event orders that stream before the next group's; the rest follows
 * because a kernel waits for all of its streams, and they for it. */
enum program_ordering { PROGRAM_BY_HOST, PROGRAM_BY_EVENTS, PROGRAM_BY_STREAMS };

struct program_op {
  uint8_t kind;         /* enum collective_id, PROGRAM_MESSAGE or PROGRAM_ALL_TO_ALL_V */
  uint8_t comm, stream; /* numbers */
  uint8_t type, op;     /* ncclDataType_t, enum oracle_op */
  uint8_t in, out;      /* registers, the same on all devices; in place: `out` is both */
  bool in_place;
  uint32_t root, peer;          /* of a message: from, to */
  uint32_t count;               /* elements, as in the API call; of an all-to-all-v: no message is longer */
  uint32_t shift_in, shift_out; /* elements before the buffer in its register */
  uint32_t salt; /* seed for sizes of an all-to-all-v, order of its calls, location of a scalar */
};

struct program_group {
  uint32_t op_count;
  struct program_op ops[PROGRAM_OPS_MAX];
  bool bare;           /* no ncclGroupStart around it; every call is its own launch */
  bool messages_first; /* odd devices issue sends and receives before collectives */
};

struct program {
  uint64_t seed;
  uint32_t rank_count, group_count;
  bool free_threads;    /* the emulator's threads mode */
  bool thread_per_rank; /* otherwise one host thread drives all */
  uint8_t ordering;     /* enum program_ordering */
  bool shared_streams;  /* all communicators use the same streams */
  uint32_t stream_count, slots, chunk_bytes, channel_count, flag_bits, depth, lag_percent, span, rule;
  uint32_t protocols; /* bits: LL, LL128, Simple */
  uint32_t reads;     /* NCCL_P2P_READ_ENABLE */
  struct program_group groups[PROGRAM_GROUPS_MAX];
};

void program_generate(struct program *program, uint64_t seed);

/* Repairs a program after a change: ranks that no longer exist, buffers beyond their register. */
void program_repair(struct program *program);

/* Runs it and compares the memory of all devices. False: `text` describes the error. *trace_hash is set for
 * guarded programs and may be NULL. */
bool program_run(const struct program *program, uint64_t *trace_hash, char text[PROGRAM_TEXT_BYTES]);

/* The smallest program found for which `fails` is still true, after at most `tries_max` tries. */
typedef bool (*program_check)(const struct program *program, void *argument);
void program_shrink(struct program *program, program_check fails, void *argument, uint32_t tries_max);

/* C-like text; returns its length as snprintf does. */
size_t program_print(const struct program *program, char *out, size_t out_bytes);

/* What other files need of a communicator: ranks, and which device a rank is on. */
uint32_t program_comm_size(const struct program *program, uint32_t comm);
uint32_t program_comm_device(const struct program *program, uint32_t comm, uint32_t rank);

#endif
