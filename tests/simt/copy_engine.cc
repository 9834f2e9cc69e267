/* copy_engine.cc (simt): bulk copies of the block that a host thread runs. A copy first reads its source,
 * then stores it: both as late as the program allows, a load when its barrier is awaited, a store when its
 * group is. With a seed, any copy in flight may also take a step whenever a thread accesses memory, or waits.
 * Until a load has ended, garbage is in its place. */
#include "copy_engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <vector>

#include "order.h"
#include "simt_block.h"
#include "watch.h"

enum {
  DECLARED_PLACE = 1 << 16,  /* addresses of what kernels declare in shared memory, */
  REQUESTED_PLACE = 1 << 24, /* and of what the launch requests */
  BULK_UNIT = 16,
  BARRIER_BYTES = 8,
  EXPECTED_MOST = (1 << 20) - 1,
  STEP_ONE_IN = 3
};

struct arrivals {
  bool is_open, is_fenced;
  bool arrived; /* a thread has said what this phase expects */
  uint32_t opener, parity, engine;
  int64_t bytes;                    /* expected, less those that have arrived */
  uint32_t loaded_time, ended_time; /* of order.h: of all loads that have ended, and of phases */
};

struct bulk_copy {
  uint32_t thread, bytes;
  uint32_t engine, time; /* of order.h */
  uint32_t barrier;      /* of a load */
  uint64_t group;        /* of a store */
  bool loads, is_read;
  uint8_t *to;
  const uint8_t *from;
  std::vector<uint8_t> data; /* what was read */
};

/* What a thread has stored. */
struct storing {
  bool has_engine;
  uint32_t engine, time;
  std::vector<uint32_t> group_times; /* of the groups that have ended: of their last stores */
};

static thread_local struct {
  uint8_t *declared, *requested;
  uint32_t declared_bytes, requested_bytes, engine_count;
  std::vector<struct bulk_copy> copies; /* in flight, the oldest first */
  std::vector<struct storing> threads;
  std::map<uint32_t, struct arrivals> barriers; /* by address */
} here;

[[noreturn]] static void __attribute__((format(printf, 1, 2))) give_up(const char *format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  fprintf(stderr, "simt: %s (block %u, thread %u)\n", text, blockIdx.x, threadIdx.x);
  abort();
}

/* ---- shared memory ---- */

void copy_engine_declared(void *memory, size_t bytes) {
  here.declared = (uint8_t *)memory;
  here.declared_bytes = (uint32_t)bytes;
}

void copy_engine_block_begin(uint32_t thread_count, size_t requested_bytes) {
  here.requested_bytes = (uint32_t)requested_bytes;
  here.engine_count = 0;
  here.barriers.clear();
  here.threads.assign(thread_count, {});
  here.requested = NULL;
  if (requested_bytes == 0) return;
  void *memory = mmap(NULL, requested_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory for a block's shared memory");
  memset(memory, 0xd1, requested_bytes);
  order_forget(memory, requested_bytes);
  watch_ignore(memory, requested_bytes);
  here.requested = (uint8_t *)memory;
}

void copy_engine_block_end(void) {
  if (here.requested != NULL) munmap(here.requested, here.requested_bytes);
  here.requested = NULL;
}

uint32_t simt_requested_bytes(void) { return here.requested_bytes; }
uint32_t simt_requested_place(void) { return REQUESTED_PLACE; }

uint32_t simt_shared_place(const void *shared) {
  const size_t offset = (size_t)((const uint8_t *)shared - here.declared);
  if (offset >= here.declared_bytes) give_up("%p is not an address in shared memory", shared);
  return DECLARED_PLACE + (uint32_t)offset;
}

/* Copies use only what the launch requests. */
static uint8_t *requested_at(uint32_t place, uint32_t bytes) {
  const uint32_t offset = place - REQUESTED_PLACE;
  if (place < REQUESTED_PLACE || offset > here.requested_bytes || bytes > here.requested_bytes - offset)
    give_up("a bulk copy of %u bytes at byte %d of the %u bytes of shared memory that the launch requests",
            bytes, (int)offset, here.requested_bytes);
  return here.requested + offset;
}

/* ---- barriers ---- */

/* The place of a barrier; the access is the running thread's. */
static const void *barrier_access(uint32_t barrier, uint32_t how, const void *place) {
  const uint32_t offset = barrier - DECLARED_PLACE;
  if (barrier < DECLARED_PLACE || offset + BARRIER_BYTES > here.declared_bytes ||
      barrier % BARRIER_BYTES != 0)
    give_up("there is no barrier at address %#x of shared memory", barrier);
  if (order_is_on) order_access(here.declared + offset, BARRIER_BYTES, how, ORDER_BLOCK, place);
  return here.declared + offset;
}

static struct arrivals *barrier_at(uint32_t barrier) {
  const auto found = here.barriers.find(barrier);
  if (found == here.barriers.end() || !found->second.is_open)
    give_up("a barrier of loads is used while it is not open");
  return &found->second;
}

void simt_arrivals_open(uint32_t barrier) {
  barrier_access(barrier, ORDER_WRITE, __builtin_return_address(0));
  const bool is_new = here.barriers.count(barrier) == 0;
  struct arrivals *arrivals = &here.barriers[barrier];
  if (arrivals->is_open) give_up("a barrier of loads is opened twice");
  *arrivals = {true, false, false, threadIdx.x, 0, is_new ? here.engine_count++ : arrivals->engine, 0, 0, 0};
}

void simt_arrivals_fence(void) {
  for (auto &each : here.barriers) each.second.is_fenced |= each.second.opener == threadIdx.x;
}

void simt_arrivals_close(uint32_t barrier) {
  barrier_access(barrier, ORDER_WRITE, __builtin_return_address(0));
  barrier_at(barrier)->is_open = false;
  for (const struct bulk_copy &copy : here.copies)
    if (copy.loads && copy.barrier == barrier) give_up("a barrier is closed while a bulk load is in flight");
}

static void phase_end(struct arrivals *arrivals) {
  if (!arrivals->arrived || arrivals->bytes != 0) return;
  arrivals->ended_time = arrivals->loaded_time;
  arrivals->parity ^= 1;
  arrivals->arrived = false;
}

void simt_arrivals_expect(uint32_t barrier, uint32_t bytes) {
  barrier_access(barrier, ORDER_WRITE | ORDER_STRONG, __builtin_return_address(0));
  struct arrivals *arrivals = barrier_at(barrier);
  if (arrivals->arrived) give_up("bulk loads are expected at a barrier whose phase has not ended");
  arrivals->arrived = true;
  arrivals->bytes += bytes;
  if (arrivals->bytes > EXPECTED_MOST) give_up("a barrier expects too many bytes");
  phase_end(arrivals);
}

/* ---- copies ---- */

static void copy_read(struct bulk_copy *copy) {
  copy->data.assign(copy->from, copy->from + copy->bytes);
  if (copy->loads && watch_is_on) watch_access(copy->from, copy->bytes, false, NULL);
  copy->is_read = true;
}

static void copy_write(struct bulk_copy *copy) {
  if (!copy->loads && watch_is_on) watch_access(copy->to, copy->bytes, true, NULL);
  memcpy(copy->to, copy->data.data(), copy->bytes);
  if (!copy->loads) return;
  struct arrivals *arrivals = barrier_at(copy->barrier);
  arrivals->bytes -= copy->bytes;
  if (copy->time > arrivals->loaded_time) arrivals->loaded_time = copy->time;
  phase_end(arrivals);
}

/* Ends the copy at that index. */
static void copy_end(size_t index) {
  struct bulk_copy *copy = &here.copies[index];
  if (!copy->is_read) copy_read(copy);
  copy_write(copy);
  here.copies.erase(here.copies.begin() + (long)index);
}

void copy_engine_stir(void) {
  if (here.copies.empty() || !simt_chance(STEP_ONE_IN)) return;
  const size_t index = simt_draw((uint32_t)here.copies.size());
  if (here.copies[index].is_read) copy_end(index);
  else copy_read(&here.copies[index]);
}

void copy_engine_thread_end(void) {
  for (const struct bulk_copy &copy : here.copies)
    if (copy.thread == threadIdx.x) give_up("a thread ends while one of its bulk copies is in flight");
}

static void copy_begin(struct bulk_copy *copy, const void *place) {
  if (((uintptr_t)copy->to | (uintptr_t)copy->from | copy->bytes) % BULK_UNIT != 0 || copy->bytes == 0)
    give_up("a bulk copy of %u bytes from %p to %p: not multiples of %d", copy->bytes, copy->from, copy->to,
            (int)BULK_UNIT);
  copy->thread = threadIdx.x;
  if (order_is_on) copy->time = order_engine_copy(copy->engine, copy->from, copy->to, copy->bytes, place);
  here.copies.push_back(*copy);
}

void simt_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  struct bulk_copy copy = {};
  simt_stir();
  barrier_access(barrier, ORDER_READ | ORDER_STRONG, __builtin_return_address(0));
  if (!barrier_at(barrier)->is_fenced) give_up("copy engines use a barrier that was opened without a fence");
  copy.loads = true;
  copy.engine = barrier_at(barrier)->engine;
  copy.barrier = barrier;
  copy.from = (const uint8_t *)from;
  copy.to = requested_at(to, bytes);
  copy.bytes = bytes;
  copy_begin(&copy, __builtin_return_address(0));
  memset(copy.to, 0xa5, bytes);
}

void simt_bulk_store(void *to, uint32_t from, uint32_t bytes) {
  struct storing *storing = &here.threads[threadIdx.x];
  struct bulk_copy copy = {};
  simt_stir();
  if (!storing->has_engine) storing->engine = here.engine_count++;
  storing->has_engine = true;
  copy.engine = storing->engine;
  copy.group = storing->group_times.size();
  copy.from = requested_at(from, bytes);
  copy.to = (uint8_t *)to;
  copy.bytes = bytes;
  copy_begin(&copy, __builtin_return_address(0));
  storing->time = copy.time;
}

void simt_bulk_group_end(void) {
  struct storing *storing = &here.threads[threadIdx.x];
  storing->group_times.push_back(storing->time);
}

uint32_t simt_arrivals_ended(uint32_t barrier, uint32_t parity) {
  struct arrivals *arrivals = barrier_at(barrier);
  if (arrivals->parity == parity && !simt_chance(STEP_ONE_IN))
    for (size_t i = here.copies.size(); i-- > 0;)
      if (here.copies[i].loads && here.copies[i].barrier == barrier) copy_end(i);
  copy_engine_stir();
  if (arrivals->parity == parity) {
    simt_yield();
    return 0;
  }
  barrier_access(barrier, ORDER_READ | ORDER_STRONG, __builtin_return_address(0));
  if (order_is_on) order_engine_ended(arrivals->engine, arrivals->ended_time, false);
  return 1;
}

void simt_bulk_await(uint32_t but, bool only_reads) {
  const struct storing *storing = &here.threads[threadIdx.x];
  const uint64_t groups = storing->group_times.size();
  copy_engine_stir();
  if (groups <= but) return;
  for (size_t i = here.copies.size(); i-- > 0;) {
    struct bulk_copy *copy = &here.copies[i];
    if (copy->loads || copy->thread != threadIdx.x || copy->group + but >= groups) continue;
    if (!only_reads) copy_end(i);
    else if (!copy->is_read) copy_read(copy);
  }
  if (order_is_on) order_engine_ended(storing->engine, storing->group_times[groups - but - 1], only_reads);
}

void simt_bulk_fence(void) {
  if (order_is_on) order_fence_engines();
}
