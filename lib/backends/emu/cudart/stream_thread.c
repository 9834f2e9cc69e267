/* stream_thread.c: in threads mode each stream that has had work has a thread that executes its operations. A
 * thread ends when its stream is destroyed and empty, and is joined by a later call. The remaining threads
 * are stopped and joined when the process ends, except for one inside a kernel or a host function that does
 * not end. */
#include "backends/emu/cudart/stream_impl.h"
#include "backends/emu/world_impl.h"

/* how long the end of the process waits for kernels and host functions that still run */
enum { EXIT_PATIENCE_MS = 200 };

static bool stopping, threads_used;
static struct emu_stream *retired; /* streams whose threads are ending; linked by next_on_device */

/* ---- which streams have work ---- */

static struct emu_stream *active; /* all streams with work on them */

/* Threads are identified by a number, because addresses are reused. */
static uint64_t thread_number(void) {
  static uint32_t last;
  static _Thread_local uint32_t mine;
  if (mine == 0) mine = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  return mine;
}

void stream_adopt(struct emu_stream *stream) { stream->helper = thread_number(); }

void stream_activate(struct emu_stream *stream) {
  stream->looks += 1; /* the thread that enqueues may be about to wait for it */
  stream_adopt(stream);
  if (stream->active_link == NULL) {
    stream->next_active = active;
    stream->active_link = &active;
    if (active != NULL) active->active_link = &stream->next_active;
    active = stream;
  }
  if (stream->thread_asleep || stream_op_is_own(stream->head)) stream_thread_wake(stream);
}

void stream_deactivate(struct emu_stream *stream) {
  *stream->active_link = stream->next_active;
  if (stream->next_active != NULL) stream->next_active->active_link = stream->active_link;
  stream->active_link = NULL;
}

/* ---- helping ---- */

#define HELP_STREAMS 16
/* Polls of one stream's kernel before the thread turns to another stream: some ten microseconds. */
#define HELP_PATIENCE 1000u

/* Collects the calling thread's streams; if there are more than fit, others the next time. */
static uint32_t help_collect(struct emu_stream *streams[HELP_STREAMS]) {
  static _Thread_local uint32_t turn;
  const uint64_t mine = thread_number();
  uint32_t count = 0, all = 0;
  for (struct emu_stream *stream = active; stream != NULL; stream = stream->next_active)
    all += stream->helper == mine && !stream->driven;
  uint32_t skip = all > HELP_STREAMS ? turn++ * HELP_STREAMS % all : 0;
  for (struct emu_stream *stream = active; stream != NULL && count < HELP_STREAMS;
       stream = stream->next_active) {
    if (stream->helper != mine || stream->driven) continue;
    if (skip > 0) skip -= 1;
    else streams[count++] = stream;
  }
  return count;
}

bool emu_streams_help(void) {
  struct emu_stream *streams[HELP_STREAMS];
  const uint32_t count = help_collect(streams);
  bool moved = false;
  for (uint32_t i = 0; i < count; i++) emu_stream_hold(streams[i]);
  for (uint32_t i = 0; i < count; i++) {
    moved = stream_drive(streams[i], count == 1 ? HELP_PATIENCE : 0, false) || moved;
    emu_stream_drop(streams[i]);
  }
  return moved;
}

/* ---- a stream's own thread ---- */

/* The thread polls for this many milliseconds after the last work before it sleeps until it is woken. */
enum { AWAKE_TICKS = 100 };
void stream_thread_wake(struct emu_stream *stream) {
  if (stream->thread_started) os_cond_broadcast(&stream->wake);
}

/* Only this thread may execute the head, or no other thread has driven the stream since this one last did. */
static bool thread_wanted(const struct emu_stream *stream, uint64_t seen_looks) {
  if (stream->head == NULL || stream->driven) return false;
  return (stream_op_is_own(stream->head) && stream_head_enabled(stream)) || stream->looks == seen_looks;
}

static void *thread_body(void *argument) {
  struct emu_stream *stream = (struct emu_stream *)argument;
  uint64_t seen_looks = 0;
  uint32_t idle_ticks = 0, patience = EMU_PATIENCE;
  emu_lock();
  while (!stopping && !stream->thread_ended) {
    bool moved = false;
    if (thread_wanted(stream, seen_looks)) {
      stream->thread_outside = true;
      moved = stream_drive(stream, patience, true);
      stream->thread_outside = false;
      patience = emu_patience_next(patience, moved);
      emu_changed();
    }
    seen_looks = stream->looks;
    idle_ticks = stream->head != NULL ? 0 : idle_ticks + 1;
    if (moved || stopping || stream->thread_ended) continue;
    stream->thread_asleep = idle_ticks > AWAKE_TICKS;
    emu_sleep(&stream->wake, stream->thread_asleep ? 1000 : 1);
    stream->thread_asleep = false;
  }
  stream->thread_outside = false;
  stream->thread_ended = true;
  emu_changed();
  emu_unlock();
  return NULL;
}

bool stream_thread_need(struct emu_stream *stream) {
  threads_used = true;
  if (!stream->thread_started)
    stream->thread_started = os_thread_start_named(&stream->thread, "tutti-stream", thread_body, stream);
  return stream->thread_started;
}

void stream_thread_retire(struct emu_stream *stream) {
  stream->thread_ended = true; /* the thread checks this before it reads anything else of the stream */
  stream->next_on_device = retired;
  retired = stream;
  stream_thread_wake(stream);
  emu_changed();
}

/* A thread on the retired list ends without waiting for anything, so joining it is short; but it needs the
 * lock. */
void stream_threads_collect(void) {
  while (retired != NULL) {
    struct emu_stream *stream = retired;
    retired = stream->next_on_device;
    emu_unlock();
    os_thread_join(stream->thread);
    emu_lock();
    stream_free(stream);
  }
}

static bool all_inside(void *argument) {
  (void)argument;
  for (uint32_t i = 0; i < emu_options()->device_count; i++) {
    for (struct emu_stream *stream = emu_device_streams(i); stream != NULL; stream = stream->next_on_device) {
      if (stream->thread_outside) return false;
    }
  }
  return emu_graph_workers_inside();
}

/* A thread that does not end still uses its stream, which therefore is not freed. */
static bool thread_stop(struct emu_stream *stream) {
  if (!stream->thread_started) return true;
  stream->thread_started = false;
  if (stream->thread_outside) {
    pthread_detach(stream->thread);
    return false;
  }
  emu_unlock();
  os_thread_join(stream->thread);
  emu_lock();
  stream->thread_ended = false;
  return true;
}

bool stream_threads_stop(uint64_t patience_ms) {
  bool all = true;
  stopping = true;
  emu_graph_workers_stop(true);
  for (uint32_t i = 0; i < emu_options()->device_count; i++)
    for (struct emu_stream *stream = emu_device_streams(i); stream != NULL; stream = stream->next_on_device)
      stream_thread_wake(stream);
  emu_wait(all_inside, NULL, patience_ms);
  for (uint32_t i = 0; i < emu_options()->device_count; i++) {
    for (struct emu_stream *stream = emu_device_streams(i); stream != NULL; stream = stream->next_on_device) {
      if (!thread_stop(stream)) all = false;
    }
  }
  stream_threads_collect();
  emu_graph_workers_join();
  emu_graph_workers_stop(false);
  stopping = false;
  return all;
}

void emu_streams_forked(void) {
  const uint32_t device_count = threads_used ? emu_options()->device_count : 0;
  for (uint32_t i = 0; i < device_count; i++) {
    for (struct emu_stream *stream = emu_device_streams(i); stream != NULL; stream = stream->next_on_device)
      stream->thread_started = stream->thread_ended = stream->thread_outside = false;
  }
  while (retired != NULL) {
    struct emu_stream *stream = retired;
    retired = stream->next_on_device;
    stream_free(stream);
  }
  emu_graph_workers_forked();
  emu_memory_forked();
  stopping = threads_used = false;
}

/* The stop flag stays set: threads that did not end must not begin anything new. */
__attribute__((destructor)) static void process_end(void) {
  if (!threads_used) return;
  emu_lock();
  stream_threads_stop(EXIT_PATIENCE_MS);
  stopping = true;
  emu_unlock();
}
