/* race.h: finds memory that is written by one stream and read or written by another stream, or by the host,
 * without an order. A happens-before check over streams, events, graphs, host synchronization and NCCL calls,
 * made when an operation is submitted, so that it does not depend on how operations interleave. Sees
 * what calls access, never what the program's own loads and stores do. TUTTI_RACE_CHECK=0 turns it off.
 *
 * Each stream numbers its operations (epochs) and has a vector clock: for other streams, up to which epoch
 * their operations end before its next one. An event's record copies the clock, a wait merges it. What the
 * host has waited for is before everything that is submitted from then on, by any thread: how threads of the
 * program order themselves cannot be seen. All of it locked (world.h). */
#ifndef TUTTI_BACKENDS_EMU_CUDART_RACE_H
#define TUTTI_BACKENDS_EMU_CUDART_RACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/callsite.h"

struct emu_stream;
struct emu_device;
struct emu_work;
struct emu_graph_exec;
struct emu_kernel;
struct race_clock;
struct race_rank;

/* What a call returns that would race: cudaErrorIllegalState. */
#define RACE_ERROR 401

/* A call of the program. */
struct race_call {
  const char *name;    /* "cudaMemcpyAsync"; lives for ever */
  const void *address; /* its CALL_PLACE */
};
extern _Thread_local struct race_call emu_race_call; /* the calling thread's last one */
/* In the functions that the program calls. */
#define RACE_CALL(what) (emu_race_call = (struct race_call){(what), CALL_PLACE})

/* A place in a stream: behind its operation of this epoch, and all that is before that. */
struct race_point {
  struct race_clock *clock; /* a reference; NULL: empty */
  uint64_t epoch;
  uint32_t stream;
};
void emu_race_point_drop(struct race_point *point);

/* A stream's part. All zero at first. */
struct race_stream {
  struct race_clock *clock;
  uint64_t version;                      /* changes with its clock and its epoch */
  uint64_t legacy_merged, merged_legacy; /* versions: of this one in the legacy stream, and the reverse */
  uint32_t id;                           /* from 1; 0: not numbered yet */
};

/* A device's: the streams that are gone. */
struct race_device {
  struct race_clock *gone, *gone_blocking;
};

/* ---- NCCL calls ---- */

/* Whose earlier operations an operation of a rank waits for: all ranks', the root's; or only the root waits,
 * for all. */
enum race_rule {
  RACE_ALL,
  RACE_FROM_ROOT,
  RACE_TO_ROOT,
  RACE_SEND,
  RACE_RECEIVE,
  RACE_SIGNAL, /* of a put: writes memory of the peer */
  RACE_AWAIT   /* of the signal of this number, and the earlier ones, of the peer */
};

/* One NCCL call of a kernel. */
struct race_use {
  struct race_call call;
  uint64_t sequence; /* of the call on its communicator */
  const void *in;
  void *out;
  const void *scalar;         /* read; NULL: none */
  size_t in_bytes, out_bytes; /* 0: not used */
  uint8_t scalar_bytes;
  enum race_rule rule;
  uint32_t peer;   /* the root, or the other rank of a message */
  uint64_t number; /* of the last signal, from 1 ... */
  uint32_t set;    /* ... in this set: the sets of a pair are counted apart */
  uint32_t order;  /* 0 or 1: collectives are matched by their number in each order */
};

/* A rank of a communicator, from before its first launch. `fail` ends the communicator when an operation of
 * the rank races. NULL if memory is out, which ends the check. */
struct race_rank *emu_race_rank_open(uint64_t comm_id, const char *name, uint32_t rank, uint32_t rank_count,
                                     void (*fail)(uint64_t comm_id));
/* Its kernels have ended; drops the opener's reference. NULL is allowed here and below. */
void emu_race_rank_close(struct race_rank *rank);
struct race_rank *emu_race_rank_keep(struct race_rank *rank);
void emu_race_rank_drop(struct race_rank *rank);

/* ---- operations ---- */

/* Checks and notes work that is about to be enqueued on a stream that does not capture: 0, or RACE_ERROR,
 * with the sentence in the log; then it must not be enqueued. */
int emu_race_work(struct emu_stream *stream, const struct emu_work *work);
int emu_race_graph(struct emu_stream *stream, const struct emu_graph_exec *exec);
/* Nodes of one graph that no edge orders: 0 or RACE_ERROR. */
int emu_race_graph_nodes(const struct emu_graph_exec *exec);
/* The program frees the allocation that starts at `base`: 0 or RACE_ERROR. */
int emu_race_free(const void *base);
/* Memory that was allocated in the order of a stream. */
void emu_race_allocated(struct emu_stream *stream, const void *base);
/* The last sentence, for ncclGetLastError. */
const char *emu_race_text(void);
uint64_t emu_race_count(void); /* of sentences so far */

/* ---- order ---- */

/* The end of what is on the stream now; for the legacy stream, also of what is on blocking streams. */
struct race_point emu_race_mark(struct emu_stream *stream);
struct race_point emu_race_mark_device(const struct emu_device *device);
void emu_race_point_copy(struct race_point *point, const struct race_point *from);
/* What follows on the stream comes after the point. */
void emu_race_wait(struct emu_stream *stream, const struct race_point *point);
/* The host knows that all up to the point has ended. */
void emu_race_host_knows(const struct race_point *point);
/* The host has waited for streams of the device: frees what they need not remember. */
void emu_race_tidy(struct emu_device *device);
/* A race that was found too late for the call that made it: RACE_ERROR, once. */
int emu_race_take_error(void);
void emu_race_stream_gone(struct emu_stream *stream);
/* A communicator has failed or was aborted: operations end early, in an order that nobody planned. Forgets
 * all. */
void emu_race_forget(void);
/* No stream or communicator is in use: forgets all, frees it, and reads its setting anew. */
void emu_race_restart(void);
void emu_race_device_restart(struct emu_device *device); /* each device, before that */

#endif
