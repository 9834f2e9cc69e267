/* test_ipc.c: IPC handles between processes with GPUs, tested without a GPU: which parts of a piece of memory
 * are allocated, which handles are refused, and which peers have mapped a region of the program. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/extent.h"
#include "backends/cuda/ipc_handle.h"
#include "backends/cuda/region.h"
#include "base/hash.h"
#include "base/os.h"

/* ---- pieces ---- */

#define PIECE (64 * EXTENT_ALIGN)

static struct extent take(struct extents *extents, uint64_t bytes, bool wants_fresh) {
  struct extent taken = {0, 0};
  bool fresh = false;
  assert_true(extents_take(extents, bytes, &taken, &fresh));
  assert_int_equal(taken.offset % EXTENT_ALIGN, 0);
  assert_true(taken.bytes >= bytes && taken.bytes < bytes + EXTENT_ALIGN);
  assert_true(taken.offset + taken.bytes <= extents->bytes);
  assert_int_equal(fresh, wants_fresh);
  return taken;
}

static void test_take_and_give(void **state) {
  struct extents extents;
  struct extent none;
  bool fresh;
  (void)state;
  assert_true(extents_open(&extents, PIECE));
  const struct extent a = take(&extents, 1, true), b = take(&extents, 3 * EXTENT_ALIGN, true);
  const struct extent c = take(&extents, PIECE - 4 * EXTENT_ALIGN, true);
  assert_false(extents_take(&extents, 1, &none, &fresh));
  extents_give(&extents, &a);
  extents_give(&extents, &c);
  assert_false(extents_take(&extents, PIECE, &none, &fresh));
  extents_give(&extents, &b); /* closes the gap between the two */
  assert_int_equal(extents.taken_bytes, 0);
  assert_int_equal(extents.count, 1);
  take(&extents, PIECE, false);
  assert_false(extents_take(&extents, 0, &none, &fresh));
  assert_false(extents_take(&extents, PIECE + 1, &none, &fresh));
  assert_false(extents_take(&extents, UINT64_MAX, &none, &fresh));
  extents_close(&extents);
}

/* Unallocated parts are distinguished from allocated ones, also in a block with both. */
static void test_fresh(void **state) {
  struct extents extents;
  (void)state;
  assert_true(extents_open(&extents, PIECE));
  const struct extent a = take(&extents, EXTENT_ALIGN, true);
  extents_give(&extents, &a);
  const struct extent both = take(&extents, 2 * EXTENT_ALIGN, false);
  assert_int_equal(both.offset, 0);
  take(&extents, EXTENT_ALIGN, true);
  extents_close(&extents);
}

/* No two blocks overlap after any sequence of allocations, and everything is freed at the end. */
static void test_many(void **state) {
  enum { BLOCKS = 200, TURNS = 20000, ALIGNED = 4096 };
  static struct extent blocks[BLOCKS];
  static uint8_t owner[ALIGNED];
  struct extents extents;
  uint64_t draw = 7, taken = 0;
  (void)state;
  memset(blocks, 0, sizeof blocks);
  memset(owner, 0, sizeof owner);
  assert_true(extents_open(&extents, (uint64_t)ALIGNED * EXTENT_ALIGN));
  for (int turn = 0; turn < TURNS; turn++) {
    draw = hash_mix(draw, (uint64_t)turn);
    const uint32_t i = draw % BLOCKS;
    struct extent *block = &blocks[i];
    bool fresh;
    if (block->bytes > 0) {
      for (uint64_t k = 0; k < block->bytes / EXTENT_ALIGN; k++)
        assert_int_equal(owner[block->offset / EXTENT_ALIGN + k]--, 1);
      taken -= block->bytes;
      extents_give(&extents, block);
      block->bytes = 0;
    } else if (extents_take(&extents, 1 + (draw >> 32) % (40 * EXTENT_ALIGN), block, &fresh)) {
      for (uint64_t k = 0; k < block->bytes / EXTENT_ALIGN; k++)
        assert_int_equal(owner[block->offset / EXTENT_ALIGN + k]++, 0);
      taken += block->bytes;
    }
    assert_int_equal(extents.taken_bytes, taken);
  }
  for (uint32_t i = 0; i < BLOCKS; i++)
    if (blocks[i].bytes > 0) extents_give(&extents, &blocks[i]);
  assert_int_equal(extents.count, 1);
  assert_int_equal(extents.free_parts[0].bytes, extents.bytes);
  extents_close(&extents);
}

/* Without memory nothing is allocated, and allocated blocks can still be freed. */
static void test_no_memory(void **state) {
  enum { BLOCKS = 40 };
  struct extents extents;
  struct extent blocks[BLOCKS];
  uint32_t count = 0;
  bool fresh;
  (void)state;
  os_alloc_fail_at(1);
  assert_false(extents_open(&extents, PIECE));
  os_alloc_fail_at(0);
  assert_true(extents_open(&extents, PIECE));
  os_alloc_fail_at(1);
  while (count < BLOCKS && extents_take(&extents, 1, &blocks[count], &fresh)) count += 1;
  os_alloc_fail_at(0);
  assert_in_range(count, 1, BLOCKS - 1);
  for (uint32_t i = 0; i < count; i += 2) extents_give(&extents, &blocks[i]);
  for (uint32_t i = 1; i < count; i += 2) extents_give(&extents, &blocks[i]);
  assert_int_equal(extents.count, 1);
  extents_close(&extents);
}

/* ---- handles ---- */

static struct ipc_comm_handle good_handle(void) {
  struct ipc_comm_handle handle;
  memset(&handle, 0, sizeof handle);
  handle.piece.owner = 5;
  handle.piece.number = 1;
  handle.piece.bytes = 4 << 20;
  handle.probe = 1024;
  handle.token = 99;
  handle.level = PATH_SYS;
  snprintf(handle.bus_id, sizeof handle.bus_id, "0000:18:00.0");
  return handle;
}

static bool handle_passes(const struct ipc_comm_handle *handle) {
  struct device_comm_handle sent;
  struct ipc_comm_handle read;
  ipc_comm_handle_write(handle, &sent);
  return ipc_comm_handle_read(&sent, &read);
}

static void test_handles(void **state) {
  struct device_comm_handle sent;
  struct ipc_comm_handle handle = good_handle(), read;
  (void)state;
  ipc_comm_handle_write(&handle, &sent);
  assert_true(ipc_comm_handle_read(&sent, &read));
  assert_string_equal(read.bus_id, "0000:18:00.0");
  assert_int_equal(read.token, 99);
  memset(read.bus_id, 'x', sizeof read.bus_id);
  ipc_comm_handle_write(&read, &sent);
  assert_true(ipc_comm_handle_read(&sent, &handle));
  assert_int_equal(strlen(handle.bus_id), sizeof handle.bus_id - 1);
  sent.bytes[0] ^= 1;
  assert_false(ipc_comm_handle_read(&sent, &read)); /* from another build, or from the emulator */
  memset(&sent, 0, sizeof sent);
  assert_false(ipc_comm_handle_read(&sent, &read));
}

static void test_bad_handles(void **state) {
  struct ipc_comm_handle handle;
  (void)state;
  handle = good_handle(), handle.level = PATH_SYS + 1;
  assert_false(handle_passes(&handle));
  handle = good_handle(), handle.piece.owner = 0;
  assert_false(handle_passes(&handle));
  handle = good_handle(), handle.probe = handle.piece.bytes;
  assert_false(handle_passes(&handle));
  handle = good_handle(), handle.probe = UINT64_MAX - 127;
  assert_false(handle_passes(&handle));
  handle = good_handle(), handle.probe = 4;
  assert_false(handle_passes(&handle));
  handle = good_handle(), handle.piece.bytes = UINT64_MAX;
  assert_false(handle_passes(&handle));
  memset(&handle.piece, 0, sizeof handle.piece);
  handle.flags = IPC_NO_SHARING; /* the only information: sharing is off */
  assert_true(handle_passes(&handle));
}

static const struct plan_limits limits = {.slots = 8, .step_bytes = {65536, 614400, 524288}};

static struct ipc_conn_handle good_conn(bool sends, uint8_t proto) {
  struct ipc_conn_handle handle;
  memset(&handle, 0, sizeof handle);
  handle.end_piece.owner = 5;
  handle.end_piece.number = 1;
  handle.end_piece.bytes = 4 << 20;
  handle.end = (4 << 20) - IPC_END_BYTES;
  handle.sends = sends;
  handle.proto = proto;
  if (!ipc_conn_has_slots(sends, proto)) return handle;
  handle.buffer_number = 2;
  handle.buffer_bytes = 64 << 20;
  handle.slots = limits.slots;
  handle.step_bytes = limits.step_bytes[slots_proto(proto)];
  handle.buffer = handle.buffer_bytes - (uint64_t)handle.slots * handle.step_bytes;
  return handle;
}

static bool conn_passes(const struct ipc_conn_handle *handle, bool own_sends, uint8_t proto) {
  const struct device_conn_name name = {1, 0, 0, proto, own_sends, false};
  struct device_conn_handle sent;
  struct ipc_conn_handle read;
  ipc_conn_handle_write(handle, &sent);
  return ipc_conn_handle_read(&sent, &name, &limits, &read);
}

static void test_conns(void **state) {
  (void)state;
  for (uint8_t proto = 0; proto < SLOTS_COUNT; proto++) {
    const struct ipc_conn_handle receiver = good_conn(false, proto), sender = good_conn(true, proto);
    const uint8_t other = (uint8_t)((proto + 1) % SLOTS_COUNT);
    struct ipc_piece piece;
    assert_true(conn_passes(&receiver, true, proto));
    assert_true(conn_passes(&sender, false, proto));
    assert_false(conn_passes(&receiver, false, proto)); /* two ends of the same kind */
    assert_false(conn_passes(&sender, true, proto));
    assert_false(conn_passes(&receiver, true, other));
    ipc_conn_buffer_piece(proto == SLOTS_AT_SENDER ? &sender : &receiver, &piece);
    assert_int_equal(piece.owner, 5);
    assert_int_equal(piece.number, 2);
    assert_int_equal(piece.bytes, 64 << 20);
  }
}

static void test_bad_conns(void **state) {
  const uint8_t proto = PROTO_SIMPLE;
  struct ipc_conn_handle handle;
  (void)state;
  handle = good_conn(true, proto), handle.end += EXTENT_ALIGN;
  assert_false(conn_passes(&handle, false, proto));
  handle = good_conn(true, proto), handle.end = UINT64_MAX - 511;
  assert_false(conn_passes(&handle, false, proto));
  handle = good_conn(true, proto), handle.end = 8;
  assert_false(conn_passes(&handle, false, proto));
  handle = good_conn(true, proto), handle.end_piece.owner = 0;
  assert_false(conn_passes(&handle, false, proto));
  handle = good_conn(false, proto), handle.buffer += EXTENT_ALIGN;
  assert_false(conn_passes(&handle, true, proto));
  handle = good_conn(false, proto), handle.buffer_bytes = 1 << 20;
  assert_false(conn_passes(&handle, true, proto));
  handle = good_conn(false, proto), handle.slots += 1;
  assert_false(conn_passes(&handle, true, proto));
  handle = good_conn(false, proto), handle.step_bytes /= 2;
  assert_false(conn_passes(&handle, true, proto));
  handle = good_conn(true, SLOTS_AT_SENDER), handle.buffer += EXTENT_ALIGN;
  assert_false(conn_passes(&handle, false, SLOTS_AT_SENDER));
  handle = good_conn(true, SLOTS_AT_SENDER), handle.step_bytes /= 2;
  assert_false(conn_passes(&handle, false, SLOTS_AT_SENDER));
}

/* The same with both pieces in memory of the host: each as long as its ticket says, at most. */
static struct ipc_conn_handle host_conn(bool sends, uint64_t end_bytes, uint64_t buffer_bytes) {
  struct ipc_conn_handle handle = good_conn(sends, PROTO_SIMPLE);
  const struct share_ticket end = {1, {2, 3}, 4, end_bytes}, buffer = {1, {2, 3}, 5, buffer_bytes};
  handle.end_piece.number |= IPC_NUMBER_OF_SHM;
  memcpy(handle.end_piece.handle, &end, sizeof end);
  if (!ipc_conn_has_slots(sends, PROTO_SIMPLE)) return handle;
  handle.buffer_number |= IPC_NUMBER_OF_SHM;
  memcpy(handle.buffer_handle, &buffer, sizeof buffer);
  return handle;
}

static bool host_conn_passes(const struct ipc_conn_handle *handle, bool on_host) {
  const struct device_conn_name name = {1, 0, 0, PROTO_SIMPLE, handle->sends == 0, on_host};
  struct device_conn_handle sent;
  struct ipc_conn_handle read;
  ipc_conn_handle_write(handle, &sent);
  return ipc_conn_handle_read(&sent, &name, &limits, &read);
}

static void test_host_conns(void **state) {
  const uint64_t end_bytes = 4 << 20, buffer_bytes = 64 << 20;
  struct ipc_conn_handle handle;
  (void)state;
  for (int sends = 0; sends < 2; sends++) {
    handle = host_conn(sends != 0, end_bytes, buffer_bytes);
    assert_true(host_conn_passes(&handle, true));
    assert_false(host_conn_passes(&handle, false)); /* the two agree which pairs share what */
    handle = good_conn(sends != 0, PROTO_SIMPLE);
    assert_false(host_conn_passes(&handle, true));
    handle = host_conn(sends != 0, end_bytes - 1, buffer_bytes);
    assert_false(host_conn_passes(&handle, true));
  }
  handle = host_conn(false, end_bytes, buffer_bytes - 1);
  assert_false(host_conn_passes(&handle, true));
  handle = host_conn(false, end_bytes, buffer_bytes), handle.buffer_number = 2;
  assert_false(host_conn_passes(&handle, true));
}

/* Any bytes get an answer, and an accepted handle lies within its pieces. */
static void test_any_bytes(void **state) {
  const struct device_conn_name name = {1, 0, 0, PROTO_SIMPLE, true, false};
  struct device_conn_handle sent;
  struct ipc_conn_handle handle = good_conn(false, PROTO_SIMPLE), read;
  uint64_t draw = 3;
  (void)state;
  for (int turn = 0; turn < 100000; turn++) {
    ipc_conn_handle_write(&handle, &sent);
    draw = hash_mix(draw, (uint64_t)turn);
    sent.bytes[draw % sizeof handle] ^= (uint8_t)(draw >> 32);
    if (!ipc_conn_handle_read(&sent, &name, &limits, &read)) continue;
    assert_true(read.end <= read.end_piece.bytes - IPC_END_BYTES);
    assert_true(read.buffer <= read.buffer_bytes - (uint64_t)read.slots * read.step_bytes);
  }
}

/* ---- regions ---- */

static struct region *add(struct regions *regions, uint64_t base, uint64_t bytes, uint64_t id) {
  struct region *region = region_add(regions, base, bytes, id, false);
  assert_non_null(region);
  region->offered = true;
  region->piece.number = id;
  return region;
}

static void test_regions(void **state) {
  struct regions regions = {.rank_count = 3};
  (void)state;
  struct region *low = add(&regions, 1000, 100, 1), *high = add(&regions, 2000, 100, 2);
  assert_ptr_equal(regions.first, high);
  assert_ptr_equal(region_find(&regions, 1000), low);
  assert_ptr_equal(regions.first, low); /* most recently used */
  assert_ptr_equal(region_find(&regions, 1099), low);
  assert_null(region_find(&regions, 1100));
  assert_null(region_find(&regions, 999));
  assert_null(region_find(&regions, 0));
  assert_null(region_find(&regions, UINT64_MAX));
  assert_ptr_equal(region_find(&regions, 2099), high);
  assert_ptr_equal(region_of_piece(&regions, 1), low);
  assert_null(region_of_piece(&regions, 3));
  region_retire(&regions, low); /* no peer had it mapped */
  assert_null(regions.gone);
  assert_null(region_find(&regions, 1000));
  assert_int_equal(regions.count, 1);
  regions_free(&regions);
}

static bool next_gone(struct regions *regions, uint32_t peer_wanted, uint64_t number_wanted) {
  struct ipc_piece piece;
  uint32_t peer = 9;
  if (!region_next_gone(regions, &peer, &piece)) return false;
  assert_int_equal(peer, peer_wanted);
  assert_int_equal(piece.number, number_wanted);
  return true;
}

/* No launched kernel offers what is gone. */
static void settle(struct regions *regions) { regions_settle(regions, false, 0, 0); }

/* Each peer that has a region mapped is notified once that it was freed, and no other peer. */
static void test_gone(void **state) {
  struct regions regions = {.rank_count = 4};
  (void)state;
  struct region *region = add(&regions, 1000, 100, 7);
  region->answers[1] = 0x10000;
  region->answers[2] = REGION_REFUSED;
  region->answers[3] = 0x20000;
  assert_false(next_gone(&regions, 0, 0));
  region_retire(&regions, region);
  settle(&regions);
  assert_true(next_gone(&regions, 1, 7));
  assert_true(next_gone(&regions, 3, 7));
  assert_false(next_gone(&regions, 0, 0));
  assert_null(regions.gone);
  assert_null(region_of_piece(&regions, 7));
  regions_free(&regions);
}

/* A peer that answers after the memory was freed is notified, too. */
static void test_late_answer(void **state) {
  struct regions regions = {.rank_count = 2};
  (void)state;
  struct region *region = add(&regions, 1000, 100, 7);
  region->answers[1] = REGION_ASKED;
  region_retire(&regions, region);
  settle(&regions);
  assert_false(next_gone(&regions, 0, 0));
  assert_ptr_equal(region_of_piece(&regions, 7), region);
  region->answers[1] = 0x10000;
  assert_true(next_gone(&regions, 1, 7));
  assert_false(next_gone(&regions, 0, 0));
  assert_null(regions.gone);
}

/* Peers are notified when the kernels that were launched before have ended. */
static void test_fence(void **state) {
  struct regions regions = {.rank_count = 1};
  (void)state;
  add(&regions, 1000, 100, 7)->answers[0] = 0x10000;
  assert_false(regions_unsettled(&regions));
  region_retire(&regions, regions.first);
  assert_true(regions_unsettled(&regions));
  regions_settle(&regions, true, 5, 5); /* a launch that is in progress may offer it */
  assert_false(next_gone(&regions, 0, 0));
  regions_settle(&regions, false, 8, 7);
  assert_false(next_gone(&regions, 0, 0));
  assert_true(regions_unsettled(&regions));
  regions_settle(&regions, true, 9, 8); /* later launches do not */
  assert_false(regions_unsettled(&regions));
  assert_true(next_gone(&regions, 0, 7));
  assert_false(next_gone(&regions, 0, 0));
  regions_free(&regions);
}

/* ... and when the graphs that use the memory are destroyed, be it after the region. */
static void test_graph_hold(void **state) {
  struct regions regions = {.rank_count = 1};
  (void)state;
  struct region *region = add(&regions, 1000, 100, 7);
  region->answers[0] = 0x10000;
  struct region_hold *first = region_hold(region), *second = region_hold(region);
  region_retire(&regions, region);
  settle(&regions);
  assert_false(next_gone(&regions, 0, 0));
  region_release(first);
  assert_false(next_gone(&regions, 0, 0));
  region_release(second);
  assert_true(next_gone(&regions, 0, 7));
  assert_false(next_gone(&regions, 0, 0));
  first = region_hold(add(&regions, 1000, 100, 8));
  regions_free(&regions);
  region_release(first);
  region = add(&regions, 1000, 100, 9);
  os_alloc_fail_at(1);
  assert_null(region_hold(region));
  os_alloc_fail_at(0);
  regions_free(&regions);
}

static void recall(struct regions *regions, uint32_t looks) {
  for (uint32_t look = 0; look < looks; look++) regions_recall(regions);
}

/* Of two pieces, one behind the other, in two windows of which the second covers both. */
static void test_windows(void **state) {
  struct regions regions = {.rank_count = 2};
  struct ipc_piece piece;
  uint32_t peer = 9;
  (void)state;
  struct region *first = add(&regions, 1000, 100, 7), *second = add(&regions, 1100, 100, 8);
  first->answers[1] = second->answers[1] = 0x10000;
  regions_hold(&regions, 1010, 50, true);
  regions_hold(&regions, 1050, 100, true);
  recall(&regions, 2 * REGION_IDLE_LOOKS);
  regions_hold(&regions, 1010, 50, false);
  assert_int_equal(regions.generation, 0);
  regions_hold(&regions, 1050, 100, false);
  assert_int_equal(regions.generation, 2);
  first = region_find(&regions, 1000);
  assert_non_null(first);
  assert_int_equal(first->answers[1], REGION_UNASKED);
  regions_settle(&regions, false, 0, 0);
  assert_true(region_next_gone(&regions, &peer, &piece));
  assert_int_equal(peer, 1);
  regions_hold(&regions, 1000, 200, false); /* memory that is not known as a window's */
  regions_free(&regions);
}

/* What a launch shows changes no more, unless a region is retired. */
static void test_decided(void **state) {
  struct regions regions = {.rank_count = 2};
  (void)state;
  struct region *first = add(&regions, 1000, 100, 7), *second = add(&regions, 1100, 100, 8);
  assert_true(region_decided(&regions, 1000, 100, 1)); /* never to be shown */
  first->mappable = second->mappable = true;
  assert_false(region_decided(&regions, 1000, 100, 1));
  first->answers[1] = REGION_ASKED;
  assert_false(region_decided(&regions, 1000, 100, 1));
  first->answers[1] = 0x10000;
  assert_true(region_decided(&regions, 1000, 100, 1));
  assert_false(region_decided(&regions, 1000, 100, 0));
  assert_false(region_decided(&regions, 1050, 100, 1));
  second->answers[1] = REGION_REFUSED;
  assert_true(region_decided(&regions, 1050, 100, 1));
  second->answers[1] = 0x10064;
  assert_true(region_decided(&regions, 1050, 100, 1));
  assert_false(region_decided(&regions, 1050, 200, 1)); /* what is behind is not known */
  assert_false(region_decided(&regions, 5000, 1, 1));
  first->answers[1] = REGION_UNASKED;
  assert_false(region_decided(&regions, 1050, 100, 1));
  assert_int_equal(regions.generation, 0);
  region_retire(&regions, first);
  region_retire(&regions, second);
  assert_int_equal(regions.generation, 2);
  regions_free(&regions);
}

/* What is shown but was not used for a while is returned, and noted, so that it is shown at its next use. */
static void test_recalled(void **state) {
  struct regions regions = {.rank_count = 2};
  (void)state;
  struct region *idle = add(&regions, 1000, 100, 7), *asked = add(&regions, 2000, 100, 8);
  struct region *in_graph = add(&regions, 3000, 100, 9), *unseen = add(&regions, 4000, 100, 10);
  struct region_hold *hold = region_hold(in_graph);
  idle->answers[1] = asked->answers[1] = in_graph->answers[1] = 0x10000;
  asked->answers[0] = REGION_ASKED;
  unseen->answers[1] = REGION_REFUSED;
  idle->use_count = 2;
  recall(&regions, REGION_IDLE_LOOKS - 1);
  region_used(&regions, 1050);
  region_used(&regions, 5000); /* not in any */
  const uint64_t generation = regions.generation;
  recall(&regions, REGION_IDLE_LOOKS - 1);
  assert_null(regions.gone);
  os_alloc_fail_at(1);
  recall(&regions, 1);
  os_alloc_fail_at(0);
  assert_null(regions.gone);
  recall(&regions, 1);
  assert_ptr_equal(regions.gone, idle);
  assert_int_equal(regions.generation, generation + 1);
  assert_null(idle->next);
  assert_int_equal(regions.count, 4);
  struct region *fresh = region_find(&regions, 1050);
  assert_ptr_not_equal(fresh, idle);
  assert_int_equal(fresh->id, 0x7);
  assert_int_equal(fresh->use_count, 2);
  assert_int_equal(fresh->answers[1], REGION_UNASKED);
  assert_false(fresh->offered);
  settle(&regions);
  assert_true(next_gone(&regions, 1, 7));
  assert_false(next_gone(&regions, 0, 0));
  recall(&regions, 3 * REGION_IDLE_LOOKS); /* nobody has it mapped */
  assert_null(regions.gone);
  region_release(hold);
  recall(&regions, REGION_IDLE_LOOKS);
  assert_ptr_equal(regions.gone, in_graph);
  regions_free(&regions);
}

/* The number of regions is bounded: the least recently used one is dropped, and its peers are notified. */
static void test_pushed_out(void **state) {
  struct regions regions = {.rank_count = 1};
  (void)state;
  for (uint64_t i = 0; i < REGIONS_MOST; i++) add(&regions, 1000 * (i + 1), 100, i + 1)->answers[0] = 0x1000;
  assert_non_null(region_find(&regions, 1000));
  add(&regions, 1000 * (REGIONS_MOST + 1), 100, REGIONS_MOST + 1);
  assert_int_equal(regions.count, REGIONS_MOST);
  assert_non_null(region_find(&regions, 1000));
  assert_null(region_find(&regions, 2000));
  settle(&regions);
  assert_true(next_gone(&regions, 0, 2));
  assert_false(next_gone(&regions, 0, 0));
  os_alloc_fail_at(1);
  assert_null(region_add(&regions, 1, 1, 1, false));
  os_alloc_fail_at(0);
  assert_in_range(regions.count, REGIONS_MOST - 1, REGIONS_MOST);
  regions_free(&regions);
}

/* Regions known to graphs stay until they are freed, however many others are added. */
static void test_lasting(void **state) {
  struct regions regions = {.rank_count = 1};
  (void)state;
  for (uint64_t i = 0; i < 2 * REGIONS_MOST; i++) {
    struct region *region = add(&regions, 1000 * (i + 1), 100, i + 1);
    region->lasts = true;
    region->answers[0] = 0x1000;
  }
  assert_int_equal(regions.count, 2 * REGIONS_MOST);
  struct region *last = add(&regions, 1000 * (2 * REGIONS_MOST + 1), 100, 999);
  assert_int_equal(regions.count, 2 * REGIONS_MOST + 1);
  add(&regions, 1, 1, 1000);
  assert_ptr_not_equal(region_of_piece(&regions, 999), last);
  settle(&regions);
  assert_false(next_gone(&regions, 0, 0));
  region_retire(&regions, region_find(&regions, 1000));
  settle(&regions);
  assert_true(next_gone(&regions, 0, 1));
  regions_free(&regions);
}

/* ---- pieces of mapped ranges ---- */

static struct region *add_piece(struct regions *regions, uint64_t base, uint64_t bytes, uint64_t id,
                                uint64_t answer) {
  struct region *region = region_add(regions, base, bytes, id, true);
  assert_non_null(region);
  region->offered = region->mappable = true;
  region->piece.number = id;
  region->answers[0] = answer;
  return region;
}

static bool shift_is(struct regions *regions, uint64_t address, uint64_t bytes, uint64_t wanted) {
  uint64_t shift = 0;
  return region_shift(regions, address, bytes, 0, &shift) && shift == wanted;
}

/* A buffer is mapped where all of its pieces are, at one shift. */
static void test_pieces(void **state) {
  struct regions regions = {.rank_count = 1};
  uint64_t shift = 0;
  (void)state;
  add_piece(&regions, 1200, 200, 2, 91200);
  struct region *low = add_piece(&regions, 1000, 200, 1, 91000);
  struct region *high = add_piece(&regions, 1400, 100, 3, REGION_ASKED);
  assert_int_equal(regions.piece_count, 3);
  assert_int_equal(regions.count, 0);
  assert_true(shift_is(&regions, 1000, 200, 90000));
  assert_true(shift_is(&regions, 1100, 300, 90000));
  assert_false(region_shift(&regions, 1100, 301, 0, &shift)); /* not yet in the last one */
  region_answer(high, 0, 91400);
  assert_true(shift_is(&regions, 1100, 400, 90000));
  assert_true(shift_is(&regions, 1499, 1, 90000));
  assert_false(region_shift(&regions, 1100, 401, 0, &shift)); /* nothing is mapped there */
  assert_false(region_shift(&regions, 900, 10, 0, &shift));
  assert_ptr_equal(region_beside(&regions, low), region_of_piece(&regions, 2));
  region_retire(&regions, region_of_piece(&regions, 2));
  assert_false(region_shift(&regions, 1100, 300, 0, &shift));
  add_piece(&regions, 1200, 200, 4, 71200); /* in another place of the peer */
  assert_false(region_shift(&regions, 1100, 300, 0, &shift));
  assert_true(shift_is(&regions, 1200, 200, 70000));
  assert_false(region_shift(&regions, 1300, 200, 0, &shift));
  regions_free(&regions);
}

/* A peer that cannot map a piece yet is asked again later, and less often each time. */
static void test_later(void **state) {
  struct regions regions = {.rank_count = 1};
  (void)state;
  struct region *region = add_piece(&regions, 1000, 200, 1, REGION_ASKED);
  uint32_t before = 0;
  for (int turn = 0; turn < 4; turn++) {
    region_answer(region, 0, DEVICE_REGION_LATER);
    assert_int_equal(region->answers[0], REGION_UNASKED);
    assert_true(region->later_uses > before);
    before = region->later_uses;
  }
  for (int turn = 0; turn < 40; turn++) region_answer(region, 0, DEVICE_REGION_LATER);
  assert_in_range(region->later_uses, before, 1000);
  region_answer(region, 0, 0);
  assert_int_equal(region->answers[0], REGION_REFUSED);
  region_retire(&regions, region);
  assert_null(regions.gone);
}

/* Many pieces do not displace other memory, nor it them. */
static void test_pieces_pushed_out(void **state) {
  struct regions regions = {.rank_count = 1};
  (void)state;
  struct region *first = add(&regions, 1, 1, 1);
  for (uint64_t i = 0; i <= REGION_PIECES_MOST; i++)
    add_piece(&regions, 1000 * (i + 1), 1000, i + 2, REGION_UNASKED);
  assert_int_equal(regions.piece_count, REGION_PIECES_MOST);
  assert_ptr_equal(region_find(&regions, 1), first);
  assert_null(region_find(&regions, 1000));
  assert_non_null(region_find(&regions, 2000));
  regions_free(&regions);
}

static bool memory_handle_passes(const struct ipc_memory_handle *handle) {
  struct ipc_memory_handle read;
  struct device_memory_handle sent;
  ipc_memory_handle_write(handle, &sent);
  return ipc_memory_handle_read(&sent, &read);
}

static void test_range_handles(void **state) {
  const struct ipc_memory_handle good = {
      .piece = {.owner = 5, .bytes = 2 << 20, .number = 3 | IPC_NUMBER_OF_REGION},
      .range = {.base = 1 << 30, .bytes = 8 << 20, .offset = 6 << 20, .kind = IPC_DESCRIPTOR}};
  struct ipc_memory_handle handle = good;
  (void)state;
  assert_true(memory_handle_passes(&handle));
  handle.range.kind = IPC_FABRIC;
  assert_true(memory_handle_passes(&handle));
  handle.range.kind = IPC_KINDS;
  assert_false(memory_handle_passes(&handle));
  handle = good, handle.range.offset += 1; /* beyond the end of the range */
  assert_false(memory_handle_passes(&handle));
  handle = good, handle.range.offset = UINT64_MAX;
  assert_false(memory_handle_passes(&handle));
  handle = good, handle.range.bytes = 1 << 20;
  assert_false(memory_handle_passes(&handle));
  handle = good, handle.range.bytes = IPC_RANGE_BYTES_MOST + 1;
  assert_false(memory_handle_passes(&handle));
  handle.piece.number = IPC_NUMBER_OF_SHM | 3;
  assert_true(ipc_piece_on_host(&handle.piece));
  handle.piece.number |= IPC_NUMBER_OF_REGION; /* a hash, of which any bits may be set */
  assert_false(ipc_piece_on_host(&handle.piece));
}

/* What a work reads and writes, from the addresses that it is given. */
static void test_buffer_bytes(void **state) {
  struct work work = {.count = 10, .element_bytes = 4, .rank_count = 3};
  (void)state;
  work.func = FUNC_ALL_REDUCE;
  assert_int_equal(work_in_bytes(&work), 40);
  assert_int_equal(work_out_bytes(&work), 40);
  work.func = FUNC_ALL_GATHER;
  assert_int_equal(work_in_bytes(&work), 40);
  assert_int_equal(work_out_bytes(&work), 120);
  work.func = FUNC_REDUCE_SCATTER;
  assert_int_equal(work_in_bytes(&work), 120);
  assert_int_equal(work_out_bytes(&work), 40);
  work.func = FUNC_ALL_TO_ALL;
  assert_int_equal(work_in_bytes(&work), 120);
  assert_int_equal(work_out_bytes(&work), 120);
}

static void test_memory_handles(void **state) {
  struct ipc_memory_handle handle, read;
  struct device_memory_handle sent;
  (void)state;
  memset(&handle, 0, sizeof handle);
  handle.piece.owner = 5;
  handle.piece.bytes = 2 << 20;
  handle.piece.number = 3 | IPC_NUMBER_OF_REGION;
  ipc_memory_handle_write(&handle, &sent);
  assert_true(ipc_memory_handle_read(&sent, &read));
  sent.bytes[0] ^= 1;
  assert_false(ipc_memory_handle_read(&sent, &read));
  handle.piece.number = 3; /* of an arena */
  ipc_memory_handle_write(&handle, &sent);
  assert_false(ipc_memory_handle_read(&sent, &read));
  handle.piece.number |= IPC_NUMBER_OF_REGION;
  handle.piece.bytes = 0;
  ipc_memory_handle_write(&handle, &sent);
  assert_false(ipc_memory_handle_read(&sent, &read));
  handle.piece.bytes = UINT64_MAX;
  ipc_memory_handle_write(&handle, &sent);
  assert_false(ipc_memory_handle_read(&sent, &read));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_take_and_give),
      cmocka_unit_test(test_fresh),
      cmocka_unit_test(test_many),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_handles),
      cmocka_unit_test(test_bad_handles),
      cmocka_unit_test(test_conns),
      cmocka_unit_test(test_bad_conns),
      cmocka_unit_test(test_any_bytes),
      cmocka_unit_test(test_regions),
      cmocka_unit_test(test_gone),
      cmocka_unit_test(test_late_answer),
      cmocka_unit_test(test_fence),
      cmocka_unit_test(test_graph_hold),
      cmocka_unit_test(test_windows),
      cmocka_unit_test(test_decided),
      cmocka_unit_test(test_recalled),
      cmocka_unit_test(test_pushed_out),
      cmocka_unit_test(test_lasting),
      cmocka_unit_test(test_memory_handles),
      cmocka_unit_test(test_pieces),
      cmocka_unit_test(test_later),
      cmocka_unit_test(test_pieces_pushed_out),
      cmocka_unit_test(test_range_handles),
      cmocka_unit_test(test_buffer_bytes),
      cmocka_unit_test(test_host_conns),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
