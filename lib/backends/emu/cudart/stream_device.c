/* stream_device.c: the streams of each emulated device, the calling thread's current device, and the
 * resolution of stream handles. The legacy and the per-thread default streams are made at first use. */
#include "base/array.h"
#include "backends/emu/cudart/stream_impl.h"

#include <stdio.h>

enum { DEVICE_COUNT_MAX = 4096 }; /* as many as an actor's key can tell apart */
/* each made at first use and kept until the process ends */
static struct emu_device *devices[DEVICE_COUNT_MAX];
static _Thread_local uint32_t current_device_index;

struct emu_device *emu_device(uint32_t device_index) {
  if (device_index >= emu_options()->device_count || device_index >= DEVICE_COUNT_MAX) return NULL;
  struct emu_device **device = &devices[device_index];
  if (*device == NULL) *device = (struct emu_device *)os_alloc(sizeof **device);
  return *device;
}

struct emu_stream *emu_device_streams(uint32_t device_index) {
  return device_index < DEVICE_COUNT_MAX && devices[device_index] != NULL ? devices[device_index]->streams
                                                                          : NULL;
}

uint32_t emu_device_current(void) { return current_device_index; }

int emu_device_select(uint32_t device_index) {
  if (device_index >= emu_options()->device_count) return cudaErrorInvalidDevice;
  current_device_index = device_index;
  return 0;
}

void emu_device_bus_id(uint32_t device_index, char *text, size_t text_bytes) {
  snprintf(text, text_bytes, "%04x:%02x:00.0", device_index / 255 & 0xffff, 1 + device_index % 255);
}

/* Per-thread default streams, destroyed when their thread ends. */
struct thread_streams {
  uint32_t device_count;
  struct emu_stream **streams; /* by device index */
};
static _Thread_local struct thread_streams thread_streams;
static pthread_key_t thread_streams_key;
static bool thread_streams_key_made;

static void thread_streams_end(void *argument) {
  struct thread_streams *mine = (struct thread_streams *)argument;
  emu_lock();
  for (uint32_t i = 0; i < mine->device_count; i++) {
    if (mine->streams[i] != NULL) emu_stream_destroy(mine->streams[i]);
  }
  emu_unlock();
  os_free(mine->streams);
  mine->streams = NULL;
  mine->device_count = 0;
}

/* Space for the current device; the number of devices may have grown since the last time. */
static bool thread_streams_reserve(void) {
  if (!thread_streams_key_made) {
    thread_streams_key_made = pthread_key_create(&thread_streams_key, thread_streams_end) == 0;
    if (!thread_streams_key_made) return false;
  }
  if (current_device_index < thread_streams.device_count) return true;
  const uint32_t count = (uint32_t)current_device_index + 1;
  if (!array_resize(&thread_streams.streams, count, sizeof *thread_streams.streams)) return false;
  for (uint32_t i = thread_streams.device_count; i < count; i++) thread_streams.streams[i] = NULL;
  thread_streams.device_count = count;
  pthread_setspecific(thread_streams_key, &thread_streams);
  return true;
}

static struct emu_stream *per_thread_stream(void) {
  if (!thread_streams_reserve()) return NULL;
  struct emu_stream **slot = &thread_streams.streams[current_device_index];
  if (*slot == NULL && emu_stream_create(current_device_index, 0, 0, slot) != 0) return NULL;
  return *slot;
}

static struct emu_stream *legacy_stream(void) {
  struct emu_device *device = emu_device(current_device_index);
  if (device == NULL) return NULL;
  if (device->legacy != NULL) return device->legacy;
  struct emu_stream *stream;
  if (emu_stream_create(current_device_index, 0, 0, &stream) != 0) return NULL;
  stream->legacy = true;
  stream->blocking = false;
  return device->legacy = stream;
}

struct emu_stream *emu_stream_find(void *handle) {
  uintptr_t number = (uintptr_t)handle;
  if (number <= 1) return legacy_stream();
  if (number == 2) return per_thread_stream();
  return emu_handle_live(handle, HANDLE_STREAM) ? (struct emu_stream *)handle : NULL;
}

static bool device_in_use(const struct emu_device *device) {
  for (const struct emu_stream *stream = device->streams; stream != NULL; stream = stream->next_on_device) {
    if (stream->head != NULL || stream->capture != NULL) return true;
  }
  return false;
}

bool emu_streams_restart(void) {
  for (uint32_t i = 0; i < DEVICE_COUNT_MAX; i++) {
    if (devices[i] != NULL && device_in_use(devices[i])) return false;
  }
  if (!stream_threads_stop(0)) return false;
  for (uint32_t i = 0; i < DEVICE_COUNT_MAX; i++) {
    struct emu_device *device = devices[i];
    if (device == NULL) continue;
    struct emu_stream *legacy = device->legacy;
    device->legacy = NULL;
    if (legacy != NULL) emu_stream_destroy(legacy);
    if (device->streams == NULL) device->ticket_count = device->stream_count = device->capture_count = 0;
    emu_race_device_restart(device);
  }
  emu_race_restart();
  return true;
}
