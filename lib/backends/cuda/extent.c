/* extent.c: see extent.h. A list of free parts, searched from its beginning. It stays short, because blocks
 * of one size are taken and freed repeatedly. */
#include "backends/cuda/extent.h"

#include <stddef.h>
#include <string.h>

#include "base/array.h"
#include "base/os.h"

#define PARTS_FIRST 16

bool extents_open(struct extents *extents, uint64_t bytes) {
  memset(extents, 0, sizeof *extents);
  extents->free_parts = (struct extent *)os_alloc(PARTS_FIRST * sizeof *extents->free_parts);
  if (extents->free_parts == NULL) return false;
  extents->capacity = PARTS_FIRST;
  extents->bytes = bytes;
  extents->free_parts[0].bytes = bytes;
  extents->count = bytes > 0 ? 1 : 0;
  return true;
}

void extents_close(struct extents *extents) {
  os_free(extents->free_parts);
  memset(extents, 0, sizeof *extents);
}

/* There is at most one more free part than there are used blocks. */
static bool parts_reserve(struct extents *extents) {
  return array_grow(&extents->free_parts, &extents->capacity, (uint64_t)extents->block_count + 2,
                    sizeof *extents->free_parts);
}

static void part_remove(struct extents *extents, uint32_t index) {
  extents->count -= 1;
  memmove(&extents->free_parts[index], &extents->free_parts[index + 1],
          (extents->count - index) * sizeof *extents->free_parts);
}

bool extents_take(struct extents *extents, uint64_t bytes, struct extent *taken, bool *fresh) {
  if (bytes == 0 || bytes > extents->bytes || !parts_reserve(extents)) return false;
  const uint64_t rounded = (bytes + EXTENT_ALIGN - 1) / EXTENT_ALIGN * EXTENT_ALIGN;
  for (uint32_t i = 0; i < extents->count; i++) {
    struct extent *part = &extents->free_parts[i];
    if (part->bytes < rounded) continue;
    taken->offset = part->offset;
    taken->bytes = rounded;
    *fresh = taken->offset >= extents->high;
    if (taken->offset + rounded > extents->high) extents->high = taken->offset + rounded;
    part->offset += rounded;
    part->bytes -= rounded;
    if (part->bytes == 0) part_remove(extents, i);
    extents->taken_bytes += rounded;
    extents->block_count += 1;
    return true;
  }
  return false;
}

void extents_give(struct extents *extents, const struct extent *taken) {
  const uint64_t end = taken->offset + taken->bytes;
  uint32_t i = 0;
  while (i < extents->count && extents->free_parts[i].offset < taken->offset) i++;
  struct extent *before = i > 0 ? &extents->free_parts[i - 1] : NULL;
  struct extent *behind = i < extents->count ? &extents->free_parts[i] : NULL;
  const bool joins_before = before != NULL && before->offset + before->bytes == taken->offset;
  const bool joins_behind = behind != NULL && behind->offset == end;
  extents->taken_bytes -= taken->bytes;
  extents->block_count -= 1;
  if (joins_before && joins_behind) {
    before->bytes += taken->bytes + behind->bytes;
    part_remove(extents, i);
  } else if (joins_before) {
    before->bytes += taken->bytes;
  } else if (joins_behind) {
    behind->offset = taken->offset;
    behind->bytes += taken->bytes;
  } else {
    memmove(&extents->free_parts[i + 1], &extents->free_parts[i],
            (extents->count - i) * sizeof *extents->free_parts);
    extents->free_parts[i] = *taken;
    extents->count += 1;
  }
}
