/* stream_impl.h: what the files that make up emulated streams, events, captures and graphs share: their
 * structs and the calls between them. Everything here is guarded by the world's lock. Nobody else includes
 * this file.
 *
 * A stream is a queue of operations. Each operation takes a ticket from its device when it is enqueued;
 * the ordering of the legacy default stream against the blocking streams of its device is a comparison of
 * tickets, with no object to keep: a legacy operation waits for older tickets on every blocking stream,
 * and a blocking stream's for older legacy tickets. A point is a place in a stream that others may wait
 * for; an event holds the point of its last record. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_STREAM_IMPL_H
#define TUTTI_BACKENDS_EMU_CUDART_STREAM_IMPL_H

#include <stddef.h>

/* First of all, so that nccl.h finds the CUDA names already declared and does not go looking for a
 * toolkit's. */
#include "backends/emu/cudart/include/cuda_runtime.h"
#include "backends/emu/cudart/include/cuda_fp16.h"
#include "backends/emu/cudart/include/cuda_bf16.h"

#include "backends/emu/cudart/stream.h"
#include "backends/emu/world_impl.h"
#include "base/os.h"

/* Actors are not used in threads mode. */
static inline void stream_wake(struct emu_actor *actor) {
  if (emu_options()->mode == EMU_GUARDED) emu_actor_wake(actor);
}

/* Handles: which of the addresses that callers pass in are alive, and what they are. Embedded at the start
 * of each object. */
enum emu_handle_kind { HANDLE_NONE, HANDLE_STREAM, HANDLE_EVENT, HANDLE_GRAPH, HANDLE_EXEC };
struct emu_handle {
  struct emu_handle *next;
  enum emu_handle_kind kind; /* HANDLE_NONE while not in the table */
};
void emu_handle_insert(struct emu_handle *handle, enum emu_handle_kind kind);
void emu_handle_remove(struct emu_handle *handle);
bool emu_handle_live(const void *pointer, enum emu_handle_kind kind);

/* Work with no waiting in it: what a graph node and a stream operation may both do. */
enum emu_work_kind { WORK_EMPTY, WORK_COPY, WORK_FILL, WORK_HOST, WORK_FREE, WORK_KERNEL };
struct emu_work {
  enum emu_work_kind kind;
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
    } host;
    struct {
      void *pointer;
    } release;
    struct emu_kernel *kernel;
  } as;
};
/* Does the work; drops the lock while it moves bytes in threads mode, and around host functions. Not for
 * kernels. */
void emu_work_perform(const struct emu_work *work);
/* Takes and gives back what the work refers to: its kernel and its staging copy. */
void emu_work_keep(const struct emu_work *work);
void emu_work_drop(const struct emu_work *work);

/* A kernel's launch that waits, at the head of its stream or as a ready node, for its turn. */
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
  int error; /* that its stream had not yet reported when the point was reached */
  uint64_t time_ns;
  /* in the order of their streams' keys, so that wakes have the same order on every run */
  struct stream_op *waiters;
};

struct stream_op {
  struct stream_op *next;
  struct emu_stream *stream;
  uint64_t ticket;
  enum stream_op_kind kind;
  bool begun; /* a kernel that began with its launch */
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
/* a set: duplicates are skipped; false: no memory */
bool node_list_add(struct node_list *list, struct graph_node *node);
bool node_list_copy(struct node_list *list, const struct node_list *other);
void node_list_clear(struct node_list *list);

struct emu_stream {
  struct emu_handle handle;
  struct emu_actor actor;
  struct emu_stream *next_on_device;
  struct emu_device *device;
  uint32_t device_index, stream_index; /* index: how many streams its device had before */
  unsigned flags;
  int priority;
  bool legacy, blocking;
  bool closing;             /* destroyed by its owner; goes when its queue is empty */
  bool busy;                /* the head has begun */
  uint32_t reference_count; /* host threads that look at it, and the handle */
  struct stream_op *head, *tail;
  struct stream_op *idle; /* operations that are over, to be used again */
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
  bool thread_asleep; /* until it is woken; else it looks around every millisecond */
  bool driven;        /* a thread carries out what is on it */
  /* launches that will not be tried at once, and how many after the next one that had to wait */
  uint32_t at_once_pause, at_once_vain;
  uint64_t looks;     /* how often anyone drove it */
  uint64_t helper;    /* the thread that fed it last, or waits for it */
  os_cond wake;       /* its thread's */
  struct emu_stream *next_active, **active_link; /* while there is work on it; else the link is NULL */
};

struct emu_device {
  uint64_t ticket_count;
  uint32_t stream_count, capture_count; /* created so far */
  struct emu_stream *streams;           /* alive, oldest first */
  struct emu_stream *legacy;
};
struct emu_device *emu_device(uint32_t device_index); /* NULL when memory is out or the index is none */
struct emu_stream *emu_device_streams(uint32_t device_index); /* the oldest; NULL when it has none */

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
/* at once for the caller; its work is still carried out */
void emu_stream_destroy(struct emu_stream *stream);
void emu_stream_hold(struct emu_stream *stream); /* a host thread looks at it without the lock */
void emu_stream_drop(struct emu_stream *stream);
int emu_stream_work(struct emu_stream *stream, const struct emu_work *work); /* enqueue or capture */
int emu_stream_record(struct emu_stream *stream, struct emu_event *event);
int emu_stream_wait_event(struct emu_stream *stream, struct emu_event *event);
/* Enqueue without looking at captures. */
int stream_push_wait(struct emu_stream *stream, struct stream_point *point);
int stream_push_record(struct emu_stream *stream, struct stream_point **point); /* *point: a new reference */
int stream_push_graph(struct emu_stream *stream, struct emu_graph_run *run);
/* The head has ended, from a move, a thread or a graph's last node. */
void stream_head_ended(struct emu_stream *stream, int error);
bool stream_idle(const struct emu_stream *stream);
/* Waits for what is on the stream, all streams of a device, or a point, by now; returns and clears the
 * stream's error. */
int emu_stream_synchronize(struct emu_stream *stream);
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
/* all of them; false: some did not end and were left behind */
bool stream_threads_stop(uint64_t patience_ms);
/* Has work on it, or none any more. */
void stream_activate(struct emu_stream *stream);
void stream_deactivate(struct emu_stream *stream);
/* The calling thread feeds the stream, or waits for it: it carries out what is on it while it waits. */
void stream_adopt(struct emu_stream *stream);
/* The stream's own thread has something to do that nobody else will. */
void stream_thread_wake(struct emu_stream *stream);
/* Only the stream's own thread carries this out: it takes as long as it likes, or is the user's code. */
bool stream_op_is_own(const struct stream_op *op);
/* Carries out what is on the stream as far as it goes; own operations too where `own` says so. True when
 * something ended. */
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
/* The stream's capture, if any, becomes invalid: returns `error` then, else 0. */
int emu_capture_spoil(struct emu_stream *stream, int error);
/* The host asks about an event that was last recorded in a capture: 907, or 1 when that capture has ended.
 * Else 0. */
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
  bool marked;         /* scratch of whoever traverses the graph, under the lock */
  struct emu_work work;
  struct node_list dependencies;
};
struct emu_graph {
  struct emu_handle handle;
  struct node_list nodes;
};
struct emu_graph *emu_graph_new(void);
void emu_graph_free(struct emu_graph *graph);
/* Adds a node; keeps what the work refers to. NULL when memory is out. */
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
