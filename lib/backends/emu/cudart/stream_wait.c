/* stream_wait.c: host threads that wait for streams, devices and events, or ask about them. A wait names
 * the device's newest ticket when it begins, so that work enqueued meanwhile by others does not prolong
 * it. In guarded mode these are the calls in which the world moves. Everything locked. */
#include "backends/emu/cudart/stream_impl.h"

/* how far a query lets the guarded world move, so that a polling loop comes to an end */
enum { QUERY_EVENT_COUNT = 64 };

struct wait_target {
  const struct emu_device *device;
  const struct emu_stream *stream; /* NULL: all of the device's */
  uint64_t ticket;
};

static bool stream_passed(const struct emu_stream *stream, uint64_t ticket) {
  return stream->head == NULL || stream->head->ticket > ticket;
}

/* The legacy stream stands for the blocking streams too. */
static bool target_covers(const struct wait_target *target, const struct emu_stream *stream) {
  if (target->stream == NULL || target->stream == stream) return true;
  return target->stream->legacy && stream->blocking;
}

static bool target_passed(void *argument) {
  const struct wait_target *target = (const struct wait_target *)argument;
  if (target->stream != NULL && !target->stream->legacy) return stream_passed(target->stream, target->ticket);
  for (const struct emu_stream *stream = target->device->streams; stream != NULL;
       stream = stream->next_on_device) {
    if (target_covers(target, stream) && !stream_passed(stream, target->ticket)) return false;
  }
  return true;
}

static bool point_reached(void *argument) { return ((const struct stream_point *)argument)->reached; }

/* A verdict that nothing can move any more reads, to a CUDA program, as a kernel that was stopped by the
 * watchdog. */
static int host_wait(bool (*done)(void *argument), void *argument) {
  if (emu_in_host_function()) return cudaErrorNotPermitted;
  const ncclResult_t result = emu_wait(done, argument, 0);
  /* Whoever hears of an error finds the whole report. */
  if (emu_options()->mode == EMU_THREADS) emu_wait(emu_report_complete, NULL, 0);
  return result == ncclSuccess ? 0 : cudaErrorLaunchTimeout;
}

static int host_query(bool (*done)(void *argument), void *argument) {
  if (emu_in_host_function()) return cudaErrorNotPermitted;
  if (!done(argument)) emu_poll(done, argument, QUERY_EVENT_COUNT);
  return done(argument) ? 0 : cudaErrorNotReady;
}

static int stream_take_error(struct emu_stream *stream) {
  int error = stream->error;
  stream->error = 0;
  return error;
}

static int device_take_error(const struct emu_device *device) {
  int first = 0;
  for (struct emu_stream *stream = device->streams; stream != NULL; stream = stream->next_on_device) {
    int error = stream_take_error(stream);
    if (first == 0) first = error;
  }
  return first;
}

static int stream_ask(struct emu_stream *stream, int (*ask)(bool (*done)(void *argument), void *argument)) {
  const struct emu_device *device = stream->device;
  struct wait_target target = {device, stream, device->ticket_count};
  stream_adopt(stream);
  emu_stream_hold(stream);
  int error = ask(target_passed, &target);
  if (error == 0 || error == cudaErrorLaunchTimeout) {
    int own_error = stream_take_error(stream);
    if (error == 0) error = own_error;
  }
  emu_stream_drop(stream);
  return error;
}

int emu_stream_synchronize(struct emu_stream *stream) { return stream_ask(stream, host_wait); }

int emu_stream_query(struct emu_stream *stream) { return stream_ask(stream, host_query); }

int emu_device_synchronize(uint32_t device_index) {
  const struct emu_device *device = emu_device(device_index);
  if (device == NULL) return cudaErrorMemoryAllocation;
  struct wait_target target = {device, NULL, device->ticket_count};
  int error = host_wait(target_passed, &target);
  stream_threads_collect();
  int own_error = device_take_error(device);
  return error != 0 ? error : own_error;
}

bool emu_device_idle(uint32_t device_index) {
  const struct emu_device *device = emu_device(device_index);
  struct wait_target target = {device, NULL, UINT64_MAX};
  return device == NULL || target_passed(&target);
}

static int point_ask(struct stream_point *point, int (*ask)(bool (*done)(void *argument), void *argument)) {
  point->reference_count++;
  int error = ask(point_reached, point);
  if (error == 0) error = point->error;
  stream_point_drop(point);
  return error;
}

int emu_point_synchronize(struct stream_point *point) { return point_ask(point, host_wait); }

int emu_point_query(struct stream_point *point) { return point_ask(point, host_query); }
