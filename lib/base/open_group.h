/* open_group.h: what the calling thread's open group (ncclGroupStart) holds, for a runtime whose waits would
 * wait for calls that have not been launched. */
#ifndef TUTTI_BASE_OPEN_GROUP_H
#define TUTTI_BASE_OPEN_GROUP_H

#include <stdbool.h>
#include <stdint.h>

void open_group_begin(const void *caller);
void open_group_end(void);
/* A call of the group was queued on a stream; handles up to 2 name default streams of the device. */
void open_group_add(const void *stream, uint32_t device_index);
uint32_t open_group_calls(void);
const void *open_group_caller(void);

/* True, with a warning that names `call`, if the group holds calls on this stream; on any stream of the
 * device if `whole_device`. */
bool open_group_blocks(const char *call, const void *stream, uint32_t device_index, bool whole_device);

#endif
