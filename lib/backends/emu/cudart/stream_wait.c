/* stream_wait.c: host threads that wait for streams, devices and CUDA events, or query them. A wait takes the
 * device's newest ticket when it begins, so that work enqueued later by other threads does not prolong it. In
 * guarded mode these calls run the events. Everything locked. */
#include "backends/emu/cudart/stream_impl.h"

/* how many events a query runs in guarded mode, so that a polling loop ends */
enum { QUERY_EVENT_COUNT = 64 };

struct wait_target {
  const struct emu_device *device;
  const struct emu_stream *stream; /* NULL: all of the device's */
  uint64_t ticket;
};

static bool stream_passed(const struct emu_stream *stream, uint64_t ticket) {
  return stream->head == NULL || stream->head->ticket > ticket;
}

/* Waiting for the legacy stream includes the blocking streams. */
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

/* A CUDA program sees a deadlock as a kernel that the watchdog stopped (cudaErrorLaunchTimeout). */
static int host_wait(bool (*done)(void *argument), void *argument) {
  if (emu_in_host_function()) return cudaErrorNotPermitted;
  const ncclResult_t result = emu_wait(done, argument, 0);
  /* The report must be complete before the caller sees the error. */
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

/* The host knows what it asked about to have ended, or gave up waiting for it: what it does afterwards is no
 * race. */
static int host_knows(int error, struct race_point *mark, struct emu_device *device) {
  if (error != cudaErrorNotReady && error != cudaErrorNotPermitted) {
    const int late = emu_race_take_error();
    emu_race_host_knows(mark);
    if (error == 0) error = late;
    if (device != NULL) emu_race_tidy(device);
  }
  emu_race_point_drop(mark);
  return error;
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

int emu_stream_wait_end(struct emu_stream *stream) { return stream_ask(stream, host_wait); }

int emu_stream_synchronize(struct emu_stream *stream) {
  struct emu_device *device = stream->device;
  struct race_point mark = emu_race_mark(stream);
  return host_knows(stream_ask(stream, host_wait), &mark, device);
}

int emu_stream_query(struct emu_stream *stream) {
  struct race_point mark = emu_race_mark(stream);
  return host_knows(stream_ask(stream, host_query), &mark, NULL);
}

int emu_device_synchronize(uint32_t device_index) {
  const struct emu_device *device = emu_device(device_index);
  if (device == NULL) return cudaErrorMemoryAllocation;
  struct wait_target target = {device, NULL, device->ticket_count};
  struct race_point mark = emu_race_mark_device(device);
  int error = host_wait(target_passed, &target);
  stream_threads_collect();
  int own_error = device_take_error(device);
  return host_knows(error != 0 ? error : own_error, &mark, emu_device(device_index));
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
  struct race_point mark = {NULL, 0, 0};
  emu_race_point_copy(&mark, &point->race);
  stream_point_drop(point);
  return host_knows(error, &mark, NULL);
}

int emu_point_synchronize(struct stream_point *point) { return point_ask(point, host_wait); }

int emu_point_query(struct stream_point *point) { return point_ask(point, host_query); }
