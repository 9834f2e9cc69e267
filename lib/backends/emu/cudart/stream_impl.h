/* stream_impl.h: the structs and internal functions of emulated streams, CUDA events, captures and graphs.
 * All of it is protected by the world's lock. Only the files of streams, graphs and the emulated runtime
 * include it.
 *
 * A stream is a queue of operations. Each operation takes a ticket from its device when it is enqueued. The
 * legacy default stream and the blocking streams of its device are ordered by comparing tickets: a legacy
 * operation waits for older tickets on every blocking stream, and an operation of a blocking stream for older
 * legacy tickets. A point is a place in a stream that others may wait for; an event holds the point of its
 * last record. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_STREAM_IMPL_H
#define TUTTI_BACKENDS_EMU_CUDART_STREAM_IMPL_H

#include <stddef.h>

/* These come first, so that nccl.h finds the CUDA names declared and does not include a toolkit's headers. */
#include "backends/emu/cudart/include/cuda_runtime.h"
#include "backends/emu/cudart/include/cuda_fp16.h"
#include "backends/emu/cudart/include/cuda_bf16.h"

#include "backends/emu/cudart/memory_impl.h"
#include "backends/emu/cudart/stream.h"
#include "backends/emu/world_impl.h"
#include "base/os.h"

/* Actors are not used in threads mode. */
static inline void stream_wake(struct emu_actor *actor) {
  if (emu_options()->mode == EMU_GUARDED) emu_actor_wake(actor);
}

/* The table of live handles and their kinds. Embedded at the start of each object. */
enum emu_handle_kind { HANDLE_NONE, HANDLE_STREAM, HANDLE_EVENT, HANDLE_GRAPH, HANDLE_EXEC };
struct emu_handle {
  struct emu_handle *next;
  enum emu_handle_kind kind; /* HANDLE_NONE while not in the table */
};
void emu_handle_insert(struct emu_handle *handle, enum emu_handle_kind kind);
void emu_handle_remove(struct emu_handle *handle);
bool emu_handle_live(const void *pointer, enum emu_handle_kind kind);

/* Work that does not wait, of a stream operation or a graph node. */
enum emu_work_kind { WORK_EMPTY, WORK_COPY, WORK_FILL, WORK_HOST, WORK_FREE, WORK_KERNEL };
struct emu_work {
  enum emu_work_kind kind;
  struct race_call call; /* that submits it */
  union {
    /* bytes */
    struct {
      void *to;
      const void *from;
      size_t to_pitch, from_pitch, width, height;
      void *staging;
    } copy;
    /* width in elements */
    struct {
      void *to;
      size_t pitch, width, height;
      uint32_t value, element_bytes;
    } fill;
    struct {
      void (*function)(void *argument);
      void *argument;
      struct race_point behind; /* what has ended when it runs; a stream's, else empty */
    } host;
    struct {
      void *pointer;
    } release;
    struct emu_kernel *kernel;
  } as;
};
/* Does the work, except for kernels. Releases the lock around host functions, and in threads mode while it
 * copies. */
void emu_work_perform(const struct emu_work *work);
/* Takes and drops a reference to the work's kernel and staging copy. */
void emu_work_keep(const struct emu_work *work);
void emu_work_drop(const struct emu_work *work);

/* A kernel launch that waits for its turn, at the head of its stream or as a ready graph node. */
struct emu_turn {
  struct emu_actor *actor;
  const struct emu_kernel_ops *ops;
  struct emu_kernel_run *run;
  struct emu_turn *next, **link; /* link is NULL while not listed */
};
void emu_turn_list(struct emu_turn *turn);
void emu_turn_unlist(struct emu_turn *turn);

enum stream_op_kind { OP_WORK, OP_RECORD, OP_WAIT, OP_GRAPH };

struct stream_point {
  uint32_t reference_count;
  bool reached;
  int error; /* the stream's unreported error when the point was reached */
  uint64_t time_ns;
  struct race_point race;
  /* in the order of their streams' keys, so that wakes have the same order on every run */
  struct stream_op *waiters;
};

struct stream_op {
  struct stream_op *next;
  struct emu_stream *stream;
  uint64_t ticket;
  enum stream_op_kind kind;
  bool begun; /* a kernel that began within its launch call */
  struct emu_work work;
  struct emu_turn turn;       /* kernels */
  struct stream_point *point; /* records and waits */
  struct stream_op *next_waiter;
  struct emu_graph_run *graph_run;
};

struct node_list {
  struct graph_node **items;
  uint32_t count, capacity;
};
/* a set: duplicates are skipped; false if out of memory */
bool node_list_add(struct node_list *list, struct graph_node *node);
bool node_list_copy(struct node_list *list, const struct node_list *other);
void node_list_clear(struct node_list *list);

struct emu_stream {
  struct emu_handle handle;
  struct emu_actor actor;
  struct emu_stream *next_on_device;
  struct emu_device *device;
  uint32_t device_index, stream_index; /* stream_index: number of streams that the device had before */
  unsigned flags;
  int priority;
  bool legacy, blocking;
  bool closing;             /* destroyed by the program; freed when its queue is empty */
  bool busy;                /* the head has begun */
  uint32_t reference_count; /* host threads that use it, and the handle */
  struct stream_op *head, *tail;
  struct race_stream race;
  struct stream_op *idle; /* operations that have ended, for reuse */
  uint32_t idle_count, queued_count;
  int error; /* first one since the last report */
  /* Capture. */
  struct emu_capture *capture;
  struct emu_stream *next_in_capture;
  struct node_list frontier; /* what the next captured node depends on */
  /* threads mode. */
  os_thread thread;
  /* outside: in code that does not look at the stop flag */
  bool thread_started, thread_ended, thread_outside;
  bool thread_asleep; /* it sleeps until it is woken; else it polls every millisecond */
  bool driven;        /* a thread executes its operations */
  /* number of launches that are enqueued without a try at once, and that number after the next try in vain */
  uint32_t at_once_pause, at_once_vain;
  uint64_t looks;                                /* how often any thread drove it */
  uint64_t helper;                               /* the thread that last enqueued to it, or waits for it */
  os_cond wake;                                  /* wakes its thread */
  struct emu_stream *next_active, **active_link; /* while it has work; else active_link is NULL */
};

struct emu_device {
  uint64_t ticket_count;
  uint32_t stream_count, capture_count; /* created so far */
  struct emu_stream *streams;           /* alive, oldest first */
  struct emu_stream *legacy;
  struct race_device race;
};
struct emu_device *emu_device(uint32_t device_index); /* NULL if out of memory or the index is invalid */
struct emu_stream *emu_device_streams(uint32_t device_index); /* the oldest; NULL if it has none */

struct emu_event {
  struct emu_handle handle;
  uint32_t device_index;
  unsigned flags;
  struct stream_point *point; /* of the last record, NULL before the first */
  uint64_t capture_id;        /* of the capture in which it was last recorded; 0 = not captured */
  struct node_list nodes;     /* what the capturing stream had reached */
};

/* Streams. All locked; all return cudaError_t numbers. */
int emu_stream_create(uint32_t device_index, unsigned flags, int priority, struct emu_stream **stream);
/* returns at once; its work is still executed */
void emu_stream_destroy(struct emu_stream *stream);
void emu_stream_hold(struct emu_stream *stream); /* a host thread uses it without the lock */
void emu_stream_drop(struct emu_stream *stream);
int emu_stream_work(struct emu_stream *stream, const struct emu_work *work); /* enqueue or capture */
int emu_stream_enqueue(struct emu_stream *stream, const struct emu_work *work); /* checked work, at once */
int emu_stream_record(struct emu_stream *stream, struct emu_event *event);
int emu_stream_wait_event(struct emu_stream *stream, struct emu_event *event);
/* These enqueue without regard to captures. */
int stream_push_wait(struct emu_stream *stream, struct stream_point *point);
int stream_push_record(struct emu_stream *stream, struct stream_point **point); /* *point: a new reference */
int stream_push_graph(struct emu_stream *stream, struct emu_graph_run *run);
/* The head has ended; called from an event, a thread or a graph's last node. */
void stream_head_ended(struct emu_stream *stream, int error);
bool stream_idle(const struct emu_stream *stream);
/* Waits for the work that is now on the stream, on all streams of a device, or up to a point; returns and
 * clears the stream's error. */
int emu_stream_synchronize(struct emu_stream *stream);
/* The same for calls that do not order the host behind the work, although they wait here. */
int emu_stream_wait_end(struct emu_stream *stream);
int emu_device_synchronize(uint32_t device_index);
int emu_point_synchronize(struct stream_point *point);
int emu_stream_query(struct emu_stream *stream);
int emu_point_query(struct stream_point *point);
bool emu_device_idle(uint32_t device_index);
bool emu_in_host_function(void);

void stream_point_drop(struct stream_point *point);

/* threads mode (stream_thread.c). */
bool stream_thread_need(struct emu_stream *stream); /* starts its thread; false: the system gave none */
/* the stream is closing: its thread ends, is joined, frees it */
void stream_thread_retire(struct emu_stream *stream);
void stream_threads_collect(void); /* joins what has ended */
/* stops all threads; false if some did not end */
bool stream_threads_stop(uint64_t patience_ms);
/* The stream now has work, or none any more. */
void stream_activate(struct emu_stream *stream);
void stream_deactivate(struct emu_stream *stream);
/* The calling thread enqueues to the stream, or waits for it: while it waits it executes the stream's
 * operations. */
void stream_adopt(struct emu_stream *stream);
/* Wakes the stream's own thread for an operation that no other thread may execute. */
void stream_thread_wake(struct emu_stream *stream);
/* Only the stream's own thread may execute this operation, because it may take long or is user code. */
bool stream_op_is_own(const struct stream_op *op);
/* Executes the stream's operations without blocking; with `own`, also those that only its own thread may
 * execute. True if one ended. */
bool stream_drive(struct emu_stream *stream, uint32_t patience, bool own);
bool stream_head_enabled(const struct emu_stream *stream);
void stream_free(struct emu_stream *stream);

/* Captures (capture.c). Each returns 0 or the error of the capture, which is then invalid. */
struct emu_capture;
int emu_capture_begin(struct emu_stream *stream, int mode);
/* ends it whatever it returns, but for 401, 903 */
int emu_capture_end(struct emu_stream *stream, struct emu_graph **graph);
int emu_capture_work(struct emu_stream *stream, const struct emu_work *work);
int emu_capture_record(struct emu_stream *stream, struct emu_event *event);
int emu_capture_wait(struct emu_stream *stream, struct emu_event *event);
/* Invalidates the stream's capture, if it has one, and returns `error`; else returns 0. */
int emu_capture_spoil(struct emu_stream *stream, int error);
/* The host queries an event: 907 if it was last recorded in a capture, 1 if that capture has ended, else 0.
 */
int emu_capture_event_spoil(const struct emu_event *event);
/* A call that CUDA forbids while this thread's or a global capture is under way: 0, or 900 and those
 * captures are invalid. */
int emu_capture_unsafe_call(void);
/* A use of the legacy stream: 906 when a blocking stream of the device captures. */
int emu_capture_legacy_use(uint32_t device_index);
bool emu_capture_touches_legacy(uint32_t device_index); /* the same question, without consequence */
/* cudaDeviceSynchronize: 900 when any stream of the device captures. */
int emu_capture_device_wait(uint32_t device_index);
void emu_capture_leave(struct emu_stream *stream); /* the stream is being destroyed */
/* sets the calling thread's mode, returns the old one */
int emu_capture_thread_mode(int mode);
int emu_capture_status(const struct emu_stream *stream); /* 0 none, 1 active, 2 invalidated */
struct emu_graph *emu_capture_graph(const struct emu_stream *stream);

/* Graphs (graph.c). */
struct graph_node {
  uint32_t node_index; /* place in its graph */
  bool marked;         /* scratch space for traversals of the graph; locked */
  struct emu_work work;
  struct node_list dependencies;
};
struct emu_graph {
  struct emu_handle handle;
  struct node_list nodes;
  bool capturing; /* a capture adds nodes */
};
struct emu_graph *emu_graph_new(void);
void emu_graph_free(struct emu_graph *graph);
/* Adds a node and takes references for its work. NULL if out of memory. */
struct graph_node *emu_graph_add(struct emu_graph *graph, const struct emu_work *work,
                                 const struct node_list *dependencies);
bool emu_graph_has(const struct emu_graph *graph, const struct graph_node *node);

struct exec_node {
  struct emu_work work;
  uint32_t dependency_count, first_dependent, dependent_count;
};
struct emu_graph_exec {
  struct emu_handle handle;
  uint32_t reference_count; /* the handle and each launch in flight */
  uint32_t node_count;
  struct exec_node *nodes;
  uint32_t *dependents;      /* node indices, grouped by node */
  struct stream_point *last; /* end of the newest launch: launches of one exec do not overlap */
};
int emu_graph_instantiate(struct emu_graph *graph, struct emu_graph_exec **exec);
void emu_graph_exec_drop(struct emu_graph_exec *exec);
int emu_graph_launch(struct emu_graph_exec *exec, struct emu_stream *stream);

/* One launch in flight (graph_run.c). */
struct emu_graph_run;
int emu_graph_run_new(struct emu_graph_exec *exec, struct emu_stream *stream, struct emu_graph_run **run);
/* guarded: ready nodes become actors; ends the stream's head later */
void emu_graph_run_start(struct emu_graph_run *run);
/* threads: on this thread and on workers, to the end */
int emu_graph_run_execute(struct emu_graph_run *run);
void emu_graph_run_free(struct emu_graph_run *run);
bool emu_graph_run_over(const struct emu_graph_run *run);
/* Workers: stop(true) asks them all to end, inside() says whether all can, join() waits for those;
 * stop(false) allows new ones. */
void emu_graph_workers_stop(bool stop);
bool emu_graph_workers_inside(void);
void emu_graph_workers_join(void);
void emu_graph_workers_forked(void); /* in the child of a fork: there are none */

#endif
