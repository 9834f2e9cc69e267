/* stream_thread.c: in threads mode each stream that has ever had work has a thread that carries its
 * operations out. A thread ends when its stream is destroyed and empty, and is joined by a later call;
 * those that are left when the process ends are stopped and joined then, except one that is inside a
 * kernel or a host function which does not end. */
#include "backends/emu/stream_impl.h"
#include "backends/emu/world_impl.h"

/* how long the end of the process waits for kernels and host functions that still run */
enum { EXIT_PATIENCE_MS = 200 };

static bool stopping, threads_used;
static struct emu_stream *retired; /* streams whose threads are ending; linked by next_on_device */

static bool thread_wanted(void *argument) {
  const struct emu_stream *stream = (const struct emu_stream *)argument;
  return stopping || stream->thread_ended || stream_head_enabled(stream);
}

static void *thread_body(void *argument) {
  struct emu_stream *stream = (struct emu_stream *)argument;
  emu_lock();
  while (!stopping && !stream->thread_ended) {
    if (stream_head_enabled(stream)) stream_head_perform(stream);
    else if (emu_wait(thread_wanted, stream, 0) != ncclSuccess) {
      /* Somebody's wait gave up on this world; this thread goes on, at leisure. */
      emu_unlock();
      os_sleep_ms(1);
      emu_lock();
    }
  }
  stream->thread_outside = false;
  stream->thread_ended = true;
  emu_changed();
  emu_unlock();
  return NULL;
}

bool stream_thread_need(struct emu_stream *stream) {
  threads_used = true;
  if (!stream->thread_started) stream->thread_started = os_thread_start(&stream->thread, thread_body, stream);
  return stream->thread_started;
}

void stream_thread_retire(struct emu_stream *stream) {
  stream->thread_ended = true; /* the thread looks at it before anything else of the stream */
  stream->next_on_device = retired;
  retired = stream;
  emu_changed();
}

/* A thread on the retired list runs to its end without waiting for anything, so joining it is short; but
 * it needs the lock. */
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

/* A thread that is left behind still uses its stream, which therefore stays. */
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
  stopping = threads_used = false;
}

/* The flag stays up: threads that were left behind must not begin anything new. */
__attribute__((destructor)) static void process_end(void) {
  if (!threads_used) return;
  emu_lock();
  stream_threads_stop(EXIT_PATIENCE_MS);
  stopping = true;
  emu_unlock();
}
