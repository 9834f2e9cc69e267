/* bulk.h: how compute warps carry out copies by bulk copies (compute capability 9.0). A bulk-copy warp has
 * its own stages in shared memory; one of its threads has a copy engine load tiles into them and store them
 * from there. A tile is loaded before the tiles ahead of it are stored, also across descriptors, so that the
 * end of a slice does not drain the pipeline. Sums, edges, and spans whose ends are aligned differently use
 * compute_warp.h. It promises the same results to the bit, and that no copy is in flight when a compute warp
 * returns. It knows nothing of lanes or connections. */
#ifndef TUTTI_KERNELS_BULK_H
#define TUTTI_KERNELS_BULK_H

#include "kernels/compute_warp.h"

/* Bulk-copy warps of a whole block; a warp group has its share of them, and of the memory. */
#define BULK_COPY_WARPS 8
/* Stages of a bulk-copy warp: one is being stored, the others are being loaded or wait. */
#define BULK_STAGES 3
/* Tiles that are stored before the warp checks a descriptor for completion, so that it is complete by
 * then. */
#define BULK_LAG 2

#define BULK_TILE_UNIT 512u       /* bytes: tiles of short spans are multiples of it */
#define BULK_IDLE_NS 200          /* polling interval of a warp without bulk copies */
#define BULK_SPAN_BYTES_MIN 2048u /* shorter spans are faster through registers */

/* A bulk-copy warp's position in the sequence of all tiles of all descriptors. It has two of them: what it
 * loads next, and what it stores next. */
struct bulk_cursor {
  uint32_t descriptor; /* number of the descriptor */
  uint32_t before;     /* tiles of the descriptors before, modulo the bulk-copy warps */
  uint32_t tile_bytes;
  bool entered;           /* the descriptor was read: the next members belong to it */
  bool fresh;             /* no tile of it has been taken yet */
  uint64_t offset, bytes; /* offset of the warp's next tile; bytes of all tiles of the descriptor */
};

struct bulk {
  const struct prim_queue *queue;
  uint32_t index, copy_warps; /* index among the bulk-copy warps; index >= copy_warps: not one of them */
  uint32_t memory, barriers;  /* its stages and their barriers, in shared memory */
  uint32_t stage_bytes;
  uint32_t issued;                  /* descriptors read so far */
  uint32_t loaded, stored;          /* tiles so far */
  uint32_t load_stage, store_stage; /* the next ones */
  const uint8_t *first;             /* the descriptor being loaded, from its first whole vector on */
  uint32_t parities;                /* of the stages' barriers, one bit each */
  uint32_t declared;                /* descriptors that this warp has reported as done */
  uint32_t next, next_stored;       /* descriptors to be reported next, and `stored` when they were stored */
  bool ended;                       /* no more descriptors follow */
};

__shared__ uint64_t bulk_barriers[PRIM_WARPS_MAX][BULK_STAGES];

/* ---- descriptors as tiles ---- */

PRIM_FN const struct prim_descriptor *bulk_descriptor(const struct bulk *bulk, uint32_t descriptor) {
  return &bulk->queue->descriptors[descriptor % PRIM_DESCRIPTORS];
}

/* Bytes before a span's first whole vector. */
PRIM_FN uint32_t bulk_skip(const struct prim_descriptor *span) {
  return (16 - (uint32_t)((uintptr_t)span->first % 16)) % 16;
}

/* Bytes of a span that copy engines move: the whole vectors of a copy, if all addresses have the same offset
 * within a vector. */
PRIM_FN uint64_t bulk_span_bytes(const struct prim_descriptor *span) {
  const uint64_t bytes = span->count * word_element_bytes(span->dtype);
  uintptr_t places = (uintptr_t)span->first ^ (uintptr_t)span->out;
  SPAN_EACH_OTHER(k, span) places |= (uintptr_t)span->first ^ (uintptr_t)span->other[k];
  if (places % 16 != 0 || bytes < BULK_SPAN_BYTES_MIN || !span_is_copy(span)) return 0;
  return (bytes - bulk_skip(span)) / 16 * 16;
}

/* Bytes of a stage; less for short spans, so that all bulk-copy warps have a share. */
PRIM_FN uint32_t bulk_tile_bytes(const struct bulk *bulk, uint64_t bytes) {
  if (bytes >= (uint64_t)bulk->stage_bytes * bulk->copy_warps) return bulk->stage_bytes;
  const uint32_t share = ((uint32_t)bytes / bulk->copy_warps / BULK_TILE_UNIT + 1) * BULK_TILE_UNIT;
  return (uint32_t)size_min(share, bulk->stage_bytes);
}

PRIM_FN void bulk_enter(const struct bulk *bulk, struct bulk_cursor *cursor) {
  const struct prim_descriptor *span = bulk_descriptor(bulk, cursor->descriptor);
  cursor->entered = cursor->fresh = true;
  cursor->bytes = bulk->stage_bytes < BULK_TILE_UNIT ? 0 : bulk_span_bytes(span);
  cursor->offset = cursor->bytes;
  if (cursor->bytes == 0) return;
  cursor->tile_bytes = bulk_tile_bytes(bulk, cursor->bytes);
  if (bulk->index >= bulk->copy_warps) return;
  const uint32_t turn = bulk->index >= cursor->before ? bulk->index - cursor->before
                                                      : bulk->index + bulk->copy_warps - cursor->before;
  cursor->offset = (uint64_t)turn * cursor->tile_bytes;
}

PRIM_FN void bulk_leave(const struct bulk *bulk, struct bulk_cursor *cursor) {
  if (cursor->bytes > 0) {
    const uint64_t tiles = (cursor->bytes + cursor->tile_bytes - 1) / cursor->tile_bytes;
    cursor->before = (uint32_t)((cursor->before + tiles) % bulk->copy_warps);
  }
  cursor->entered = false;
  cursor->descriptor += 1;
}

PRIM_FN uint32_t bulk_tile_length(const struct bulk_cursor *cursor) {
  return (uint32_t)size_min(cursor->bytes - cursor->offset, cursor->tile_bytes);
}

PRIM_FN void bulk_next_tile(const struct bulk *bulk, struct bulk_cursor *cursor) {
  cursor->offset += (uint64_t)bulk->copy_warps * cursor->tile_bytes;
}

/* ---- what copy engines do not move ---- */

/* All compute warps take part, whether or not they are bulk-copy warps. */
PRIM_FN void bulk_rest(const struct bulk *bulk, const struct compute_warp *compute,
                       const struct bulk_cursor *cursor) {
  const struct prim_descriptor *span = bulk_descriptor(bulk, cursor->descriptor);
  compute_span(compute, span, cursor->bytes > 0);
  prim_converge();
}

/* ---- tiles ---- */

PRIM_FN uint32_t bulk_stage(const struct bulk *bulk, uint32_t index) {
  return bulk->memory + index * bulk->stage_bytes;
}

PRIM_FN uint32_t bulk_turn(uint32_t index) { return index + 1 == BULK_STAGES ? 0 : index + 1; }

PRIM_FN void bulk_load_tile(struct bulk *bulk, struct bulk_cursor *cursor) {
  if (cursor->fresh) {
    const struct prim_descriptor *span = bulk_descriptor(bulk, cursor->descriptor);
    bulk->first = span->first + bulk_skip(span);
    cursor->fresh = false;
    prim_bulk_fence(); /* what a peer, or this block, stored by instructions comes before the loads */
  }
  if (prim_lane() == 0) {
    const uint32_t bytes = bulk_tile_length(cursor), barrier = bulk->barriers + 8 * bulk->load_stage;
    prim_arrivals_expect(barrier, bytes);
    prim_bulk_load(bulk_stage(bulk, bulk->load_stage), bulk->first + cursor->offset, bytes, barrier);
  }
  prim_converge();
  bulk->load_stage = bulk_turn(bulk->load_stage);
  bulk->loaded += 1;
}

/* Each tile is one group of stores. */
PRIM_FN void bulk_store_tile(struct bulk *bulk, const struct bulk_cursor *cursor) {
  const struct prim_descriptor *span = bulk_descriptor(bulk, cursor->descriptor);
  const uint32_t barrier = bulk->barriers + 8 * bulk->store_stage;
  while (prim_arrivals_ended(barrier, bulk->parities >> bulk->store_stage & 1) == 0) {}
  if (prim_lane() == 0) {
    const uint32_t bytes = bulk_tile_length(cursor), stage = bulk_stage(bulk, bulk->store_stage);
    const uint64_t offset = bulk_skip(span) + cursor->offset;
    prim_bulk_store(span->out + offset, stage, bytes);
    SPAN_EACH_OTHER(k, span) prim_bulk_store(span->other[k] + offset, stage, bytes);
    prim_bulk_group_end();
    PRIM_BULK_AWAIT_READ(1); /* all tiles but this one have left their stages */
  }
  prim_converge();
  bulk->parities ^= 1u << bulk->store_stage;
  bulk->store_stage = bulk_turn(bulk->store_stage);
  bulk->stored += 1;
}

/* ---- the main loop of a compute warp ---- */

PRIM_FN void bulk_declare(struct bulk *bulk, uint32_t descriptors) {
  bulk->declared = descriptors;
  if (prim_lane() == 0) prim_post(&prim_shared.done[threadIdx.x / PRIM_WARP], descriptors);
}

/* Reports descriptors whose last tile was stored a while ago, so that there is little or nothing to wait
 * for. */
PRIM_FN void bulk_declare_late(struct bulk *bulk, uint32_t passed) {
  if (bulk->next != bulk->declared && bulk->stored - bulk->next_stored >= BULK_LAG) {
    if (prim_lane() == 0) PRIM_BULK_AWAIT_STORED(BULK_LAG);
    bulk_declare(bulk, bulk->next);
  }
  if (bulk->next == bulk->declared && passed != bulk->declared) {
    bulk->next = passed;
    bulk->next_stored = bulk->stored;
  }
}

PRIM_FN void bulk_declare_all(struct bulk *bulk, uint32_t passed) {
  if (passed == bulk->declared) return;
  if (prim_lane() == 0) PRIM_BULK_AWAIT_STORED(0);
  bulk_declare(bulk, passed);
  bulk->next = passed;
}

/* Advances a cursor to its next tile, past descriptors that have none left. False if it is past all
 * descriptors read so far. The storing cursor also carries out what is not moved in tiles, and reports at
 * once a descriptor without tiles. */
PRIM_FN bool bulk_seek(struct bulk *bulk, struct bulk_cursor *cursor, const struct compute_warp *compute) {
  for (;;) {
    if (!cursor->entered && cursor->descriptor == bulk->issued) return false;
    if (!cursor->entered) bulk_enter(bulk, cursor);
    if (cursor->offset < cursor->bytes) return true;
    const bool declares = compute != 0 && cursor->bytes == 0 && bulk->loaded == bulk->stored;
    if (compute != 0) bulk_rest(bulk, compute, cursor);
    bulk_leave(bulk, cursor);
    if (declares) bulk_declare_all(bulk, cursor->descriptor);
  }
}

/* Reads the number of descriptors; true if the issue warp has written more. */
PRIM_FN bool bulk_look(struct bulk *bulk) {
  if (bulk->ended) return false;
  const uint32_t seen = prim_peek(&bulk->queue->issued);
  const uint32_t issued = __shfl_sync(PRIM_ALL_LANES, seen, 0);
  prim_converge_reads(); /* descriptors are read after it */
  if (issued == bulk->issued) return false;
  bulk->ended = bulk_descriptor(bulk, issued - 1)->kind == PRIM_END;
  bulk->issued = bulk->ended ? issued - 1 : issued;
  return true;
}

/* A warp group's share of the block's stages is proportional to its warps. */
PRIM_FN void bulk_open(struct bulk *bulk, const struct compute_warp *compute) {
  const struct prim *prim = &compute->prim;
  const uint32_t warps = blockDim.x / PRIM_WARP, bytes = prim_requested_bytes();
  const uint32_t first = prim->first_compute_warp - 1, behind = first + 1 + prim->compute_warps;
  const uint32_t begin = bytes * first / warps / 128 * 128;
  const uint32_t end = behind + 1 >= warps ? bytes : bytes * behind / warps / 128 * 128;
  const uint32_t share = BULK_COPY_WARPS * (behind - first + 1) / warps;
  bulk->queue = prim->queue;
  bulk->index = compute->index / PRIM_WARP;
  bulk->copy_warps = (uint32_t)size_min(prim->compute_warps, size_max(1, share));
  bulk->stage_bytes = (end - begin) / bulk->copy_warps / BULK_STAGES / 256 * 256;
  bulk->memory = prim_requested_place() + begin;
  bulk->memory += bulk->index * BULK_STAGES * bulk->stage_bytes;
  bulk->barriers = prim_shared_place(bulk_barriers[threadIdx.x / PRIM_WARP]);
  bulk->issued = bulk->loaded = bulk->stored = bulk->declared = bulk->next = bulk->next_stored = 0;
  bulk->load_stage = bulk->store_stage = bulk->parities = 0;
  bulk->ended = false;
  if (prim_lane() == 0) {
    for (uint32_t i = 0; i < BULK_STAGES; i++) prim_arrivals_open(bulk->barriers + 8 * i);
    prim_arrivals_fence();
  }
  prim_converge();
}

PRIM_FN void bulk_close(const struct bulk *bulk) {
  prim_converge();
  if (prim_lane() == 0)
    for (uint32_t i = 0; i < BULK_STAGES; i++) prim_arrivals_close(bulk->barriers + 8 * i);
}

/* Returns with no copy in flight, at the end of descriptors and after an abort. */
PRIM_FN void compute_run(struct compute_warp *compute) {
  struct bulk bulk;
  struct bulk_cursor loads = {0, 0, 0, false, false, 0, 0}, stores = {0, 0, 0, false, false, 0, 0};
  bulk_open(&bulk, compute);
  for (;;) {
    while (bulk.loaded - bulk.stored < BULK_STAGES - 1) {
      if (!bulk_seek(&bulk, &loads, 0) && (!bulk_look(&bulk) || !bulk_seek(&bulk, &loads, 0))) break;
      bulk_load_tile(&bulk, &loads);
      bulk_next_tile(&bulk, &loads);
    }
    if (bulk_seek(&bulk, &stores, compute)) {
      bulk_declare_late(&bulk, stores.descriptor);
      bulk_store_tile(&bulk, &stores);
      bulk_next_tile(&bulk, &stores);
      continue;
    }
    bulk_declare_all(&bulk, stores.descriptor);
    if (bulk.ended || prim_aborted(&compute->prim)) break;
    if (bulk.index >= bulk.copy_warps) __nanosleep(BULK_IDLE_NS);
  }
  bulk_close(&bulk);
}

#endif
