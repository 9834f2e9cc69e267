/* block.cc (simt): fibres, warps and barriers of simt_block.h. A sweep runs all fibres once, in order, and
 * skips those that wait. A fibre that becomes ready in one sweep runs in the next, so that a warp continues
 * lane by lane. */
#include "simt_block.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include <initializer_list>

#include "copy_engine.h"
#include "order.h"
#include "reset.h"
#include "random.h"
#include "watch.h"

enum {
  STACK_BYTES = 128 << 10,
  STACK_STRIDE = STACK_BYTES + 9 * 64, /* so that their ends are in different sets of the caches */
  THREADS_MOST = 1024,
  BARRIERS = 16,
  FETCHES_MOST = 16,
  STIR_ONE_IN = 16,
  TEAR_ONE_IN = 3,
  SLOW_SWEEPS = 64
};

/* A condition that fibres wait for: how often it has occurred, and from which sweep on the last one
 * counts. */
struct gate {
  uint64_t phase, sweep;
  uint32_t arrived;
};

struct warp {
  struct gate gate;
  uint64_t values[2][SIMT_WARP]; /* of this synchronization and the previous one, which some fibres may not
                                    have read */
};

struct fibre {
  const struct gate *gate; /* the gate it waits for; NULL: ready */
  uint64_t phase;          /* of the gate, when the wait began */
  bool ended;
  uint32_t fetches; /* copies that were begun */
  void *stack_top;  /* address of its saved registers */
  struct {
    uint64_t *place;
    const void *from;
  } fetched[FETCHES_MOST];
};

struct block {
  void *scheduler;
  struct fibre fibres[THREADS_MOST];
  struct warp warps[THREADS_MOST / SIMT_WARP];
  struct gate barriers[BARRIERS];
  uint32_t thread_count, ended_count;
  uint32_t slow_warp; /* runs in one sweep of SLOW_SWEEPS */
  uint64_t sweep, random;
  struct fibre *now;
  uint8_t *stacks;
  void (*body)(void *);
  void *argument;
  struct order_block *order;
  struct block *next; /* of those that no kernel uses */
};

thread_local simt_index threadIdx, blockIdx, blockDim;
static thread_local struct block *here;
static thread_local const bool *stop; /* NULL: no reset is heeded */

static void __attribute__((noreturn)) give_up(const char *what) {
  fprintf(stderr, "simt: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
  abort();
}

/* ---- turns ---- */

#ifdef __x86_64__

/* Saves only the registers that a call preserves: swapcontext would make a system call for the signal mask
 * each time. */
extern "C" void simt_switch(void **from, void *to);
__asm__(
    ".text\n.globl simt_switch\n.hidden simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size simt_switch,.-simt_switch\n");

static void fibre_prepare(struct fibre *fibre, uint8_t *stack, void (*entry)(void)) {
  void **top = (void **)(stack + STACK_BYTES) - 1; /* aligned as after a call: 8 bytes off 16 */
  *--top = (void *)entry;
  top -= 6;
  memset(top, 0, 6 * sizeof *top);
  fibre->stack_top = top;
}

#else

static void simt_switch(void **from, void *to) {
  ucontext_t here_now;
  *from = &here_now;
  swapcontext(&here_now, (ucontext_t *)to);
}

static void fibre_prepare(struct fibre *fibre, uint8_t *stack, void (*entry)(void)) {
  ucontext_t *context = (ucontext_t *)stack; /* at the far end of the stack, away from its calls */
  getcontext(context);
  context->uc_stack.ss_sp = stack + sizeof *context;
  context->uc_stack.ss_size = STACK_BYTES - sizeof *context;
  context->uc_link = NULL;
  makecontext(context, entry, 0);
  fibre->stack_top = context;
}

#endif

static void fibre_leave(void) { simt_switch(&here->now->stack_top, here->scheduler); }

static void fibre_main(void) {
  here->body(here->argument);
  copy_engine_thread_end();
  here->now->ended = true;
  here->ended_count += 1;
  fibre_leave();
  give_up("a thread continued after its end");
}

void simt_yield(void) { fibre_leave(); }

void simt_stir(void) {
  if (!simt_chance(STIR_ONE_IN)) return;
  copy_engine_stir();
  fibre_leave();
}

bool simt_chance(uint32_t one_in) { return here->random != 0 && random_below(&here->random, one_in) == 0; }
uint32_t simt_draw(uint32_t bound) { return random_below(&here->random, bound); }

/* ---- waits ---- */

static void gate_pass(struct gate *gate) {
  gate->arrived = 0;
  gate->phase += 1;
  gate->sweep = here->sweep + 1;
}

static void gate_await(const struct gate *gate, uint64_t phase) {
  here->now->gate = gate;
  here->now->phase = phase;
  fibre_leave();
}

static const uint64_t *warp_meet(uint64_t value, bool orders) {
  struct warp *warp = &here->warps[threadIdx.x / SIMT_WARP];
  const uint64_t phase = warp->gate.phase;
  uint64_t *values = warp->values[phase % 2];
  values[threadIdx.x % SIMT_WARP] = value;
  if (++warp->gate.arrived == SIMT_WARP) {
    if (order_is_on) (orders ? order_meet : order_vote)();
    gate_pass(&warp->gate);
  }
  gate_await(&warp->gate, phase);
  return values;
}

const uint64_t *simt_meet(uint64_t value) { return warp_meet(value, false); }
void simt_sync(void) { (void)warp_meet(0, true); }

void simt_barrier(uint32_t id, uint32_t threads, bool waits) {
  struct gate *gate = &here->barriers[id % BARRIERS];
  const uint64_t phase = gate->phase;
  if (order_is_on) order_arrive(id, phase);
  if (++gate->arrived == threads) gate_pass(gate);
  if (!waits) return;
  gate_await(gate, phase);
  if (order_is_on) order_pass(id, phase);
}

uint64_t simt_time_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- memory ---- */

/* A GPU refuses addresses that are not multiples of an access's bytes; the host does not. */
static void align_check(const void *address, uint32_t bytes) {
  if (((uintptr_t)address & (bytes - 1)) == 0) return;
  fprintf(stderr, "simt: misaligned access of %u bytes at %p\n", bytes, address);
  abort();
}

static const uint32_t kind_flags[] = {0,
                                      ORDER_STRONG,
                                      ORDER_STRONG | ORDER_LINE,
                                      ORDER_STRONG | ORDER_POST,
                                      ORDER_STRONG | ORDER_ACQUIRE,
                                      ORDER_STRONG | ORDER_ACQUIRE};
/* Of an acquire, or of the release that has the same number. */
static enum order_scope kind_scope(enum simt_kind kind) {
  return kind == SIMT_ACQUIRE_BLOCK ? ORDER_BLOCK : ORDER_SYSTEM;
}

static uint64_t memory_read(const void *address, uint32_t bytes) {
  switch (bytes) {
    case 1: return __atomic_load_n((const uint8_t *)address, __ATOMIC_ACQUIRE);
    case 2: return __atomic_load_n((const uint16_t *)address, __ATOMIC_ACQUIRE);
    case 4: return __atomic_load_n((const uint32_t *)address, __ATOMIC_ACQUIRE);
    default: return __atomic_load_n((const uint64_t *)address, __ATOMIC_ACQUIRE);
  }
}

static uint64_t memory_load(const void *address, uint32_t bytes, enum simt_kind kind, const void *place) {
  if (order_is_on) order_access(address, bytes, kind_flags[kind], kind_scope(kind), place);
  const uint64_t value = memory_read(address, bytes);
  if (watch_is_on) watch_access(address, bytes, false, &value);
  return value;
}

static void memory_store(void *address, uint32_t bytes, uint64_t value, enum simt_kind kind,
                         const void *place) {
  uint32_t flags = ORDER_WRITE | (kind_flags[kind] & (ORDER_STRONG | ORDER_LINE | ORDER_POST));
  if (kind >= SIMT_ACQUIRE) flags |= ORDER_RELEASE;
  if (order_is_on) order_access(address, bytes, flags, kind_scope(kind), place);
  if (watch_is_on) watch_access(address, bytes, true, &value);
  switch (bytes) {
    case 1: __atomic_store_n((uint8_t *)address, (uint8_t)value, __ATOMIC_RELEASE); break;
    case 2: __atomic_store_n((uint16_t *)address, (uint16_t)value, __ATOMIC_RELEASE); break;
    case 4: __atomic_store_n((uint32_t *)address, (uint32_t)value, __ATOMIC_RELEASE); break;
    default: __atomic_store_n((uint64_t *)address, value, __ATOMIC_RELEASE); break;
  }
}

uint64_t simt_load(const void *address, uint32_t bytes, enum simt_kind kind) {
  simt_stir();
  align_check(address, bytes);
  return memory_load(address, bytes, kind, __builtin_return_address(0));
}

void simt_store(void *address, uint32_t bytes, uint64_t value, enum simt_kind kind) {
  align_check(address, bytes);
  if (kind != SIMT_WEAK) simt_stir();
  memory_store(address, bytes, value, kind, __builtin_return_address(0));
}

static ulonglong2 pair_load(const void *address, enum simt_kind kind, const void *place) {
  const uint64_t *words = (const uint64_t *)address;
  ulonglong2 pair;
  simt_stir();
  align_check(address, 16);
  pair.x = memory_load(&words[0], 8, kind, place);
  if (order_is_on) simt_stir(); /* each half is whole, the pair is not */
  pair.y = memory_load(&words[1], 8, kind, place);
  return pair;
}

ulonglong2 simt_load_pair(const void *address, enum simt_kind kind) {
  return pair_load(address, kind, __builtin_return_address(0));
}

void simt_store_pair(void *address, uint64_t low, uint64_t high, enum simt_kind kind, bool whole) {
  const void *place = __builtin_return_address(0);
  uint64_t *words = (uint64_t *)address;
  const bool back = order_is_on && !whole && here->random != 0 && random_below(&here->random, 2) != 0;
  align_check(address, 16);
  memory_store(&words[back ? 1 : 0], 8, back ? high : low, kind, place);
  if (order_is_on && !whole && simt_chance(TEAR_ONE_IN)) fibre_leave();
  memory_store(&words[back ? 0 : 1], 8, back ? low : high, kind, place);
}

uint64_t simt_load_together(const void *address, uint32_t bytes, enum simt_kind kind) {
  simt_stir();
  align_check(address, bytes);
  const uint64_t value = simt_meet(memory_load(address, bytes, kind, __builtin_return_address(0)))[0];
  if (order_is_on) order_read_with_first(kind >= SIMT_ACQUIRE);
  return value;
}

ulonglong2 simt_load_pair_together(const void *address, enum simt_kind kind) {
  ulonglong2 pair = pair_load(address, kind, __builtin_return_address(0));
  pair.x = simt_meet(pair.x)[0];
  pair.y = simt_meet(pair.y)[0];
  if (order_is_on) order_read_with_first(kind >= SIMT_ACQUIRE);
  return pair;
}

static uint64_t add_in(uint64_t *address, uint64_t value, enum order_scope scope, void *place) {
  if (order_is_on)
    order_access(address, 8, ORDER_WRITE | ORDER_STRONG | ORDER_ADDS | ORDER_POST, scope, place);
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

uint64_t simt_add(uint64_t *address, uint64_t value) {
  return add_in(address, value, ORDER_DEVICE, __builtin_return_address(0));
}

uint64_t simt_add_system(uint64_t *address, uint64_t value) {
  return add_in(address, value, ORDER_SYSTEM, __builtin_return_address(0));
}

void simt_fetch(uint64_t *place, const void *from) {
  struct fibre *fibre = here->now;
  if (fibre->fetches == FETCHES_MOST) give_up("too many copies at once");
  memset(place, 0xa5, sizeof *place);
  fibre->fetched[fibre->fetches++] = {place, from};
}

void simt_fetch_end(void) {
  struct fibre *fibre = here->now;
  for (uint32_t i = 0; i < fibre->fetches; i++) {
    simt_stir();
    align_check(fibre->fetched[i].from, 8);
    *fibre->fetched[i].place = memory_load(fibre->fetched[i].from, 8, SIMT_WEAK, __builtin_return_address(0));
  }
  fibre->fetches = 0;
}

void simt_take(const void *address, uint32_t bytes) {
  if (order_is_on) order_take(address, bytes, __builtin_return_address(0));
}

void simt_fence(enum simt_scope scope) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (order_is_on) order_fence((enum order_scope)scope);
}

void simt_await_previous(void) {
  if (order_is_on) order_await_previous();
}

/* ---- blocks ---- */

/* Prints what the threads of each warp wait for, if a program's lanes diverge and the block hangs. */
static void block_tell(const struct block *block) {
  for (uint32_t first = 0; first < block->thread_count; first += SIMT_WARP) {
    const struct warp *warp = &block->warps[first / SIMT_WARP];
    uint32_t ended = 0, meets = 0, at_barriers = 0;
    for (uint32_t lane = 0; lane < SIMT_WARP; lane++) {
      const struct fibre *fibre = &block->fibres[first + lane];
      if (fibre->ended) ended += 1;
      else if (fibre->gate == &warp->gate) meets += 1;
      else at_barriers += 1;
    }
    fprintf(stderr, "simt: warp %u: %u threads have ended, %u wait for their warp, %u at a barrier\n",
            first / SIMT_WARP, ended, meets, at_barriers);
  }
}

static bool fibre_is_ready(const struct block *block, const struct fibre *fibre) {
  if (fibre->ended) return false;
  return fibre->gate == NULL || (fibre->gate->phase != fibre->phase && fibre->gate->sweep <= block->sweep);
}

/* False if no fibre was ready. */
static bool block_sweep(struct block *block) {
  bool any = false;
  block->sweep += 1;
  for (uint32_t index = 0; index < block->thread_count; index++) {
    struct fibre *fibre = &block->fibres[index];
    if (!fibre_is_ready(block, fibre)) continue;
    any = true;
    if (index / SIMT_WARP == block->slow_warp && block->sweep % SLOW_SWEEPS != 0) continue;
    fibre->gate = NULL;
    block->now = fibre;
    threadIdx.x = index;
    simt_switch(&block->scheduler, fibre->stack_top);
  }
  return any;
}

/* Bytes of a block: its threads' stacks, then the struct. */
static size_t block_bytes(uint32_t thread_count) {
  return (size_t)thread_count * STACK_STRIDE + sizeof(struct block);
}

/* Blocks are kept for later kernels, because the pages of so many stacks take longer than a short kernel. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *kept;

static void block_keep(struct block *block) {
  pthread_mutex_lock(&kept_lock);
  block->next = kept;
  kept = block;
  pthread_mutex_unlock(&kept_lock);
}

/* A kept block of so many threads, or NULL. */
static struct block *block_kept(uint32_t thread_count) {
  pthread_mutex_lock(&kept_lock);
  struct block **place = &kept;
  while (*place != NULL && (*place)->thread_count != thread_count) place = &(*place)->next;
  struct block *block = *place;
  if (block != NULL) *place = block->next;
  pthread_mutex_unlock(&kept_lock);
  return block;
}

static struct block *block_make(uint32_t thread_count) {
  struct block *block = block_kept(thread_count);
  uint8_t *stacks = block == NULL ? NULL : block->stacks;
  if (block == NULL) {
    stacks = (uint8_t *)mmap(NULL, block_bytes(thread_count), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) give_up("no memory for a block");
    block = (struct block *)(stacks + (size_t)thread_count * STACK_STRIDE);
  }
  memset(block, 0, sizeof *block);
  block->stacks = stacks;
  block->thread_count = thread_count;
  return block;
}

static uint64_t seed_of(uint32_t index) {
  const char *text = getenv("SIMT_SEED");
  const uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : 0;
  return seed == 0 ? 0 : (seed + index + 1) * 0x9e3779b97f4a7c15u;
}

void simt_block_heeds(const bool *killed) { stop = killed; }

void simt_block_run(struct order_launch *launch, uint32_t index, uint32_t thread_count,
                    size_t requested_bytes, int slow_warp, void (*body)(void *), void *argument) {
  if (thread_count > THREADS_MOST || thread_count % SIMT_WARP != 0)
    give_up("a block does not consist of whole warps");
  struct block *block = block_make(thread_count);
  block->body = body;
  block->argument = argument;
  block->random = seed_of(index);
  block->slow_warp = slow_warp < 0 ? thread_count / SIMT_WARP + (uint32_t)slow_warp : (uint32_t)slow_warp;
  blockIdx.x = index;
  blockDim.x = thread_count;
  here = block;
  for (uint32_t thread = 0; thread < thread_count; thread++)
    fibre_prepare(&block->fibres[thread], block->stacks + (size_t)thread * STACK_STRIDE, fibre_main);
  block->order = order_block_begin(launch, thread_count, block->stacks, block_bytes(thread_count));
  for (const simt_index *each : {&threadIdx, &blockIdx, &blockDim}) watch_ignore(each, sizeof *each);
  watch_ignore(block->stacks, block_bytes(thread_count));
  copy_engine_block_begin(thread_count, requested_bytes);
  while (block->ended_count < thread_count && (stop == NULL || !__atomic_load_n(stop, __ATOMIC_RELAXED))) {
    order_turn_begin();
    /* Fibres behind a gate that has just opened are ready in the next sweep. */
    if (!block_sweep(block) && !block_sweep(block) && block->ended_count < thread_count) {
      block_tell(block);
      give_up("all threads of a block wait for each other");
    }
    order_turn_end();
    sched_yield();
  }
  copy_engine_block_end();
  watch_block_end();
  order_block_end(block->order);
  here = NULL;
  block_keep(block);
}
