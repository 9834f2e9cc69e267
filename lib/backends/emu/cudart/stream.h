/* stream.h: emulated streams, CUDA events, captures and graphs. In guarded mode a stream is an actor whose
 * event executes the operation at its head; in threads mode it is a thread that does the same, blocking.
 * Kernels are known only as a table of functions. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_STREAM_H
#define TUTTI_BACKENDS_EMU_CUDART_STREAM_H

#include <stddef.h>

#include "backends/emu/cudart/race.h"
#include "backends/emu/world.h"

struct emu_stream;
struct emu_event;
struct emu_graph;
struct emu_graph_exec;

/* A kernel as streams and graphs see it. Shared by all launches of it (a graph launches it many times). */
struct emu_kernel;
struct emu_kernel_run; /* one launch of a kernel */
enum emu_advance { EMU_RUN_STUCK, EMU_RUN_MOVED, EMU_RUN_OVER };
struct emu_kernel_ops {
  /* Takes the next place in the rank's launch order. Called, locked, when the launch is enqueued on a stream
   * (for a graph: for each of its kernel nodes, in node order, when the graph is launched). NULL if out of
   * memory. */
  struct emu_kernel_run *(*enqueue)(struct emu_kernel *kernel);
  /* guarded: has its turn come? Locked, no side effect. */
  bool (*ready)(struct emu_kernel_run *run);
  /* guarded: makes the blocks actors and returns; a later event calls ended(argument, error) once. Locked. */
  void (*start)(struct emu_kernel_run *run, void (*ended)(void *argument, int error), void *argument);
  /* threads: wait for its turn and run to the end on the calling thread and others; NOT locked. Returns
   * the error, 0 = none. */
  int (*execute)(struct emu_kernel_run *run);
  /* Frees the launch, which has ended or was dropped. Locked. */
  void (*retire)(struct emu_kernel_run *run);
  /* True if it can no longer be launched: the log has the sentence that says why. Asked before a graph that
   * holds the kernel is launched. Locked. NULL: it always can. */
  bool (*refuses)(const struct emu_kernel *kernel);
  /* Frees the kernel after its last reference. Locked. */
  void (*release)(struct emu_kernel *kernel);
  /* threads: advances the run until it ends, or until `patience` polls in a row made no progress. One thread
   * at a time, NOT locked. NULL: the kernel has only execute(). */
  enum emu_advance (*advance)(struct emu_kernel_run *run, uint32_t patience);
  /* threads: advance() takes only microseconds. */
  bool (*brief)(const struct emu_kernel_run *run);
  /* threads: does a whole launch at once, from enqueue() to retire(); true if it has ended. Else *run is the
   * launch, which has begun and continues with advance(), or NULL if the kernel cannot be launched this way
   * and nothing has happened. Locked. */
  bool (*whole)(struct emu_kernel *kernel, struct emu_kernel_run **run);
  /* threads: after EMU_RUN_OVER, before retire(): returns the error. Locked. */
  int (*finish)(struct emu_kernel_run *run);
};
struct emu_kernel {
  const struct emu_kernel_ops *ops;
  uint32_t reference_count; /* starts at 1, owned by the creator */
  /* What the next launch accesses (all launches, if graphs hold it). No rank: nothing is known. */
  struct race_rank *race;
  const struct race_use *uses;
  uint32_t use_count;
  bool apart;        /* not in the order of its rank's launches */
  bool race_checked; /* emu_stream_launch_whole() has checked the next launch */
};
void emu_kernel_drop(struct emu_kernel *kernel);
/* guarded: wakes the streams and graph nodes that wait for their turn, because ready() may have become true
 * for another reason than the end of a launch, for example an abort. Locked. */
void emu_kernel_runs_wake(void);

/* Keys of actors. The top byte is the kind; lanes, services and others have kinds of their own. A stream's
 * key is its device and the number of streams that the device had before, so that runs with one thread per
 * device are deterministic. */
enum { EMU_KEY_STREAM = 1 };
static inline uint64_t emu_key(uint64_t kind, uint64_t device_index, uint64_t second, uint64_t third) {
  return kind << 56 | (device_index & 0xfff) << 44 | (second & 0xfffff) << 24 | (third & 0xffffff);
}

static inline uint32_t emu_key_device(uint64_t key) { return (uint32_t)(key >> 44) & 0xfff; }

/* Errors below are CUDA's numbers (cudaError_t): 0, 1 invalid value, 2 out of memory, 400 invalid handle,
 * 600 not ready, 702 launch timed out (a kernel that the hang report stopped), 719 launch failure, 900..
 * capture errors. */

/* Resolves a stream handle (NULL/1 legacy default, 2 per-thread default, else an emu_stream) for the calling
 * thread's current device. NULL if the handle is invalid. Locked. */
struct emu_stream *emu_stream_find(void *handle);
/* Enqueues a kernel, or adds it as a node if the stream captures. Joins `others` as
 * device_ops->device->launch describes. Locked. */
int emu_stream_launch(struct emu_stream *stream, struct emu_kernel *kernel, struct emu_stream *const *others,
                      uint32_t other_count);
/* threads: the same on a stream that does not capture, for a kernel that will probably end within the call.
 * True: it is launched, or *error says why not. False: use emu_stream_launch(). Locked. */
bool emu_stream_launch_whole(struct emu_stream *stream, struct emu_kernel *kernel, int *error);
/* Locked. */
uint32_t emu_stream_device(const struct emu_stream *stream);
/* Capture id: 0 if the stream does not capture, else a number unique to the capture. Locked. */
uint64_t emu_stream_capture_id(const struct emu_stream *stream);

/* Before the emulator's settings change: false if a stream has work left or captures. Else ends the streams'
 * threads, frees default streams, and restarts the numbering on devices without other streams. Locked. */
bool emu_streams_restart(void);

/* The calling thread's current device. */
uint32_t emu_device_current(void);
int emu_device_select(uint32_t device_index);
/* "0000:01:00.0"; no two devices share one. */
void emu_device_bus_id(uint32_t device_index, char *text, size_t text_bytes);

/* The memory size that an emulated device reports. */
#define EMU_DEVICE_MEMORY_BYTES (UINT64_C(80) << 30)

/* Emulated device memory: zero-filled pages, recorded by address so that pointers can be queried. These
 * functions take the table's own lock. */
int emu_memory_alloc(uint32_t device_index, size_t bytes, void **pointer);
int emu_memory_free(void *pointer);
struct emu_allocation {
  void *base;
  size_t bytes;
  uint32_t device_index;
  int kind;              /* 1 host pinned, 2 device, 3 managed */
  uint64_t serial;       /* tells it from others at the same address */
  struct race_call call; /* that made it */
};
bool emu_memory_find(const void *pointer, struct emu_allocation *allocation);
/* Changes with each allocation that is freed; never 0. */
uint64_t emu_memory_generation(void);
/* It was in one of the last allocations that were freed. */
bool emu_memory_was_freed(const void *pointer);

#endif
