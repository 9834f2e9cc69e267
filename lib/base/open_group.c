/* open_group.c: the streams of the open group. The first ones stand in the thread's own memory, which has to
 * be little (a library that is loaded late gets few bytes of it), the others in a block until the group ends.
 */
#include "base/open_group.h"

#include "base/array.h"
#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"

#define STREAMS_HELD 3

struct queued_on {
  const void *stream;
  uint32_t device_index;
};

static _Thread_local struct {
  const void *caller;
  uint32_t call_count, stream_count, more_capacity;
  struct queued_on streams[STREAMS_HELD], *more;
} open_group;

void open_group_begin(const void *caller) {
  open_group.caller = caller;
  open_group.call_count = open_group.stream_count = 0;
}

void open_group_end(void) {
  open_group.call_count = open_group.stream_count = open_group.more_capacity = 0;
  os_free(open_group.more);
  open_group.more = NULL;
}

uint32_t open_group_calls(void) { return open_group.call_count; }
const void *open_group_caller(void) { return open_group.caller; }

static struct queued_on *queued(uint32_t i) {
  return i < STREAMS_HELD ? &open_group.streams[i] : &open_group.more[i - STREAMS_HELD];
}

static bool is_default(const void *stream) { return (uintptr_t)stream <= 2; }

static bool holds(const void *stream, uint32_t device_index) {
  for (uint32_t i = 0; i < open_group.stream_count; i++) {
    const struct queued_on *on = queued(i);
    if (on->stream == stream && (!is_default(stream) || on->device_index == device_index)) return true;
  }
  return false;
}

/* Without memory for it the stream is left out: its waits are not warned of. */
void open_group_add(const void *stream, uint32_t device_index) {
  open_group.call_count += 1;
  if (holds(stream, device_index)) return;
  if (open_group.stream_count >= STREAMS_HELD &&
      !array_grow(&open_group.more, &open_group.more_capacity,
                  (uint64_t)open_group.stream_count + 1 - STREAMS_HELD, sizeof *open_group.more))
    return;
  *queued(open_group.stream_count++) = (struct queued_on){stream, device_index};
}

static bool holds_device(uint32_t device_index) {
  for (uint32_t i = 0; i < open_group.stream_count; i++)
    if (queued(i)->device_index == device_index) return true;
  return false;
}

bool open_group_blocks(const char *call, const void *stream, uint32_t device_index, bool whole_device) {
  char site[160];
  if (open_group.call_count == 0) return false;
  if (!(whole_device ? holds_device(device_index) : holds(stream, device_index))) return false;
  callsite_text(open_group.caller, site, sizeof site);
  log_urgent(
      "%s: it would wait for a %s that calls of this thread's open group use, and they have not been "
      "launched (ncclGroupStart at %s, %u calls since); call ncclGroupEnd before",
      call, whole_device ? "device" : "stream", site, open_group.call_count);
  return true;
}
