/* block.cc (simt): fibres, warps and barriers of simt_block.h. A sweep runs all fibres once, in order, and
 * skips those that wait. A fibre that becomes ready in one sweep runs in the next, so that a warp continues
 * lane by lane. */
#include "simt_block.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "random.h"

enum { STACK_BYTES = 128 << 10, THREADS_MOST = 1024, BARRIERS = 16, STIR_ONE_IN = 16, SLOW_SWEEPS = 64 };

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
  void *stack_top; /* address of its saved registers */
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
};

thread_local simt_index threadIdx, blockIdx, blockDim;
static thread_local struct block *here;

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
  here->now->ended = true;
  here->ended_count += 1;
  fibre_leave();
  give_up("a thread continued after its end");
}

void simt_yield(void) { fibre_leave(); }

void simt_stir(void) {
  struct block *block = here;
  if (block->random == 0) return;
  if (random_below(&block->random, STIR_ONE_IN) == 0) fibre_leave();
}

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

const uint64_t *simt_meet(uint64_t value) {
  struct warp *warp = &here->warps[threadIdx.x / SIMT_WARP];
  const uint64_t phase = warp->gate.phase;
  uint64_t *values = warp->values[phase % 2];
  values[threadIdx.x % SIMT_WARP] = value;
  if (++warp->gate.arrived == SIMT_WARP) gate_pass(&warp->gate);
  gate_await(&warp->gate, phase);
  return values;
}

void simt_barrier(uint32_t id, uint32_t threads, bool waits) {
  struct gate *gate = &here->barriers[id % BARRIERS];
  const uint64_t phase = gate->phase;
  if (++gate->arrived == threads) gate_pass(gate);
  if (waits) gate_await(gate, phase);
}

uint64_t simt_time_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void simt_misaligned(const void *address, uint32_t bytes) {
  fprintf(stderr, "simt: misaligned access of %u bytes at %p\n", bytes, address);
  abort();
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

static struct block *block_make(uint32_t thread_count) {
  struct block *block = (struct block *)calloc(1, sizeof *block);
  void *stacks = mmap(NULL, (size_t)thread_count * STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == NULL || stacks == MAP_FAILED) give_up("no memory for a block");
  block->stacks = (uint8_t *)stacks;
  block->thread_count = thread_count;
  return block;
}

static uint64_t seed_of(uint32_t index) {
  const char *text = getenv("SIMT_SEED");
  const uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : 0;
  return seed == 0 ? 0 : (seed + index + 1) * 0x9e3779b97f4a7c15u;
}

void simt_block_run(uint32_t index, uint32_t thread_count, int slow_warp, void (*body)(void *),
                    void *argument) {
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
    fibre_prepare(&block->fibres[thread], block->stacks + (size_t)thread * STACK_BYTES, fibre_main);
  while (block->ended_count < thread_count) {
    /* Fibres behind a gate that has just opened are ready in the next sweep. */
    if (!block_sweep(block) && !block_sweep(block) && block->ended_count < thread_count) {
      block_tell(block);
      give_up("all threads of a block wait for each other");
    }
    sched_yield();
  }
  here = NULL;
  munmap(block->stacks, (size_t)thread_count * STACK_BYTES);
  free(block);
}
