/* order.cc (simt): happens-before between the threads of all blocks, as PTX's memory model defines it, by
 * vector clocks. A thread's clock says for each thread up to which of its times it happens before. What
 * carries clocks: a release pattern (a fence, then a strong write; or a release) that an acquire pattern (a
 * strong read of it, then a fence; or an acquire) observes, if the scope of each includes the other thread;
 * barriers of warps and blocks; the end of a launch and the launches after it on its stream. */
#include "order.h"

#include <memory>
#include <unordered_map>
#include <vector>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>
#include <unistd.h>

#include "simt_block.h"
#include "watch.h"

enum { GRAIN = 4, PAGE = 4096, BARRIERS = 16, RESTING_BLOCKS = 8, READS_LOOKED_AT = 64, REPEATED = 8 };
enum { COPY_ENGINE = 1 << 15 }; /* in a thread's name: a copy engine that works for it */

typedef std::vector<uint32_t> times;
typedef std::shared_ptr<const times> clock_ref; /* null: nothing is known */

/* What happens before something. */
struct known {
  clock_ref all;   /* up to these times all accesses of each thread, */
  clock_ref reads; /* up to these its reads; includes the other */
  bool operator==(const known &other) const { return all == other.all && reads == other.reads; }
};

struct known_times {
  times all, reads;
};

/* An access to a grain: its thread and time, the bytes in it, and the code. */
struct epoch {
  uint32_t thread, time;
  uint8_t bytes; /* a bit each */
  bool strong;
  const void *place;
};

/* What is known of a grain of memory. */
struct grain {
  std::vector<epoch> writes, reads; /* that later ones may race with */
  std::vector<epoch> takes;         /* of what the last write left there */
  known released[ORDER_SCOPES];     /* by the last strong write, to readers in that scope */
  uint32_t block, device;           /* of that write */
};

struct page {
  struct grain *grains[PAGE / GRAIN];
};

/* A strong read that a thread repeats while it waits adds nothing but what it acquires. */
struct repeated {
  uintptr_t address;
  uint32_t bytes, how, time, forgotten;
  struct grain *grains[2];
  known taken[2]; /* of each grain, the last time */
};

struct order_thread {
  uint32_t id;
  known knows;                /* without its own time */
  known fenced[ORDER_SCOPES]; /* what a strong write releases to readers in that scope */
  known seen[ORDER_SCOPES];   /* released by writes there that it has read; a fence acquires it */
  clock_ref engines;          /* the accesses that its copy engines' next copies follow */
  struct repeated repeated[REPEATED];
};

struct barrier {
  known_times gathered[2]; /* by phase: of those that have arrived */
  known passed[2];
};

struct order_launch {
  const void *stream;
  int device;
  known begin, previous, ended;
};

struct order_block {
  struct order_launch *launch;
  uint32_t number, first_id, thread_count;
  uintptr_t own; /* memory of the fibres themselves */
  size_t own_bytes;
  std::vector<order_thread> threads;
  struct barrier barriers[BARRIERS];
  uint32_t first_engine; /* its number, or 0: no copy was begun; a thread is the first one */
};

/* Launches of a stream: what has ended, and what had ended before the first of those that overlap. */
struct stream_state {
  int device;
  known ended, before;
};

/* Threads of blocks that have ended, whose numbers later blocks of the device may use again, the oldest
 * first. */
struct resting {
  uint32_t first_id, thread_count;
  int device;
};

bool order_is_on;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static std::unordered_map<uintptr_t, page *> pages;
static std::unordered_map<const void *, stream_state> streams;
static std::unordered_map<int, known> copied; /* by device: what the host's last copy there follows */
static std::vector<resting> rests;
static times now_of;                                  /* by thread */
static std::vector<std::pair<uint32_t, int>> name_of; /* by thread: its block, its index; and its device */
static uint32_t block_count, forgotten;               /* times that memory was forgotten */
static thread_local struct order_block *current;

static_assert((int)SIMT_BLOCK == (int)ORDER_BLOCK && (int)SIMT_SYSTEM == (int)ORDER_SYSTEM, "one order");

static struct switch_on {
  switch_on() {
    const char *text = getenv("SIMT_RACES");
    order_is_on = text != NULL && strcmp(text, "0") != 0;
  }
} switch_on;

void order_turn_begin(void) {
  if (order_is_on) pthread_mutex_lock(&turn);
}

void order_turn_end(void) {
  if (order_is_on) pthread_mutex_unlock(&turn);
}

/* ---- clocks ---- */

static void times_join(times *into, const clock_ref &clock) {
  if (!clock) return;
  const size_t count = clock->size();
  if (into->size() < count) into->resize(count);
  uint32_t *__restrict to = into->data();
  const uint32_t *__restrict from = clock->data();
  for (size_t i = 0; i < count; i++) to[i] = to[i] < from[i] ? from[i] : to[i];
}

static void times_set(times *into, uint32_t thread, uint32_t time) {
  if (into->size() <= thread) into->resize(thread + 1);
  (*into)[thread] = time;
}

static clock_ref clock_of(times &&filled) { return std::make_shared<const times>(std::move(filled)); }

static bool clock_covers(const clock_ref &clock, uint32_t thread, uint32_t time) {
  return clock && thread < clock->size() && (*clock)[thread] >= time;
}

static bool clock_includes(const clock_ref &clock, const clock_ref &other) {
  if (!other || clock == other) return true;
  if (!clock || clock->size() < other->size()) return false;
  const uint32_t *has = clock->data(), *asked = other->data();
  uint32_t more = 0;
  for (size_t i = 0; i < other->size(); i++) more |= has[i] < asked[i];
  return more == 0;
}

static void clock_join(clock_ref *clock, const clock_ref &other) {
  if (clock_includes(*clock, other)) return;
  if (clock_includes(other, *clock)) {
    *clock = other;
    return;
  }
  times joined = **clock;
  times_join(&joined, other);
  *clock = clock_of(std::move(joined));
}

static void known_join(known *into, const known &other) {
  clock_join(&into->all, other.all);
  clock_join(&into->reads, other.reads);
}

/* Adds what happens before the thread's next access, its own accesses included; they have later times from
 * now on. `last`: whose knowledge has just been added. */
static void known_add_thread(known_times *into, const order_thread *thread, const order_thread *last) {
  if (last == NULL || !(thread->knows == last->knows)) {
    times_join(&into->all, thread->knows.all);
    times_join(&into->reads, thread->knows.reads);
  }
  times_set(&into->all, thread->id, now_of[thread->id]);
  times_set(&into->reads, thread->id, now_of[thread->id]++);
}

static known known_of(known_times &&filled) {
  return {clock_of(std::move(filled.all)), clock_of(std::move(filled.reads))};
}

static known thread_snapshot(const order_thread *thread) {
  known_times known;
  known_add_thread(&known, thread, NULL);
  return known_of(std::move(known));
}

static order_thread *thread_now(void) { return &current->threads[threadIdx.x]; }

/* ---- races ---- */

static void place_print(const void *place) {
  Dl_info where;
  char command[600];
  fprintf(stderr, "simt:     at %p\n", place);
  if (dladdr(place, &where) == 0 || where.dli_fname == NULL) return;
  snprintf(command, sizeof command, "addr2line -Cipe '%s' %#tx | sed 's/^/simt:       /' >&2",
           where.dli_fname, (const char *)place - 1 - (const char *)where.dli_fbase);
  fflush(stderr);
  if (system(command) != 0) fprintf(stderr, "simt:     (no addr2line)\n");
}

static void epoch_print(const char *when, const struct epoch *epoch, bool writes) {
  const uint32_t name = name_of[epoch->thread].first;
  fprintf(stderr, "simt:   %s: block %u of device %d, %sthread %u (%s%s)\n", when, name >> 16,
          name_of[epoch->thread].second, (name & COPY_ENGINE) != 0 ? "a copy engine for " : "",
          name & (COPY_ENGINE - 1), epoch->strong ? "strong " : "", writes ? "write" : "read");
  place_print(epoch->place);
}

[[noreturn]] static void race_report(uintptr_t address, const struct epoch *before, bool wrote,
                                     const struct epoch *after, bool writes) {
  fprintf(stderr, "simt: race at address %#zx: nothing orders\n", (size_t)address);
  epoch_print("first", before, wrote);
  epoch_print("then", after, writes);
  fflush(stderr);
  _exit(99);
}

/* Copies of an engine do not follow each other. */
static bool is_engine(const struct epoch *epoch) { return (name_of[epoch->thread].first & COPY_ENGINE) != 0; }

/* One instruction of a warp, by which all its lanes write the same value. */
static bool is_same_store(const struct epoch *before, bool wrote, const struct epoch *now, bool writes) {
  return wrote && writes && before->place == now->place && !is_engine(before) &&
         name_of[before->thread].second == name_of[now->thread].second &&
         name_of[before->thread].first / SIMT_WARP == name_of[now->thread].first / SIMT_WARP;
}

/* `strict`: pairs of strong accesses are compared, too. */
static void epochs_check(const std::vector<epoch> &before, bool wrote, const struct epoch *now, bool writes,
                         const order_thread *thread, uintptr_t address, bool strict) {
  const clock_ref &clock = wrote ? thread->knows.all : thread->knows.reads;
  for (const struct epoch &each : before)
    if ((each.thread != now->thread || is_engine(now)) && (each.bytes & now->bytes) != 0 &&
        (strict || !(each.strong && now->strong)) && !is_same_store(&each, wrote, now, writes) &&
        !clock_covers(clock, each.thread, each.time))
      race_report(address, &each, wrote, now, writes);
}

/* Adds an epoch, in place of those that it follows in the thread or in happens-before. */
static void epochs_add(std::vector<epoch> *list, const struct epoch *now, const order_thread *thread) {
  size_t kept = 0;
  if (list->size() >= READS_LOOKED_AT && (list->size() & (list->size() - 1)) != 0) {
    list->push_back(*now);
    return;
  }
  for (size_t i = 0; i < list->size(); i++) {
    const struct epoch each = (*list)[i];
    const bool covered = (each.bytes & ~now->bytes) == 0;
    const bool follows = (each.thread == now->thread && !is_engine(now)) ||
                         clock_covers(thread->knows.all, each.thread, each.time);
    const bool weaker = each.strong || !now->strong; /* a weak access races with more than a strong one */
    if (!(covered && follows && weaker)) (*list)[kept++] = each;
  }
  list->resize(kept);
  list->push_back(*now);
}

static struct grain *grain_at(uintptr_t address) {
  struct page *&found = pages[address / PAGE];
  if (found == NULL) found = (struct page *)calloc(1, sizeof *found);
  struct grain *&grain = found->grains[address % PAGE / GRAIN];
  if (grain == NULL) grain = new struct grain();
  return grain;
}

/* How far a thread of this block is from the one that wrote last. */
static enum order_scope distance_to(const struct grain *grain) {
  if (grain->block == current->number) return ORDER_BLOCK;
  return grain->device == (uint32_t)current->launch->device ? ORDER_DEVICE : ORDER_SYSTEM;
}

static void grain_read(struct grain *grain, order_thread *thread, uint32_t how, enum order_scope scope) {
  const enum order_scope distance = distance_to(grain);
  if ((how & ORDER_STRONG) == 0) return;
  const bool acquires = (how & ORDER_ACQUIRE) != 0 && distance <= scope;
  const known &released = grain->released[distance];
  known_join(acquires ? &thread->knows : &thread->seen[distance], released);
  clock_join(&thread->knows.reads, released.reads); /* for the stores that it decides */
}

static void grain_write(struct grain *grain, order_thread *thread, uint32_t how) {
  known posted;
  if ((how & ORDER_POST) != 0) posted.reads = thread_snapshot(thread).reads;
  for (uint32_t scope = 0; scope < ORDER_SCOPES; scope++) {
    known *released = &grain->released[scope];
    if ((how & ORDER_ADDS) == 0) *released = known();
    if ((how & ORDER_STRONG) != 0) known_join(released, thread->fenced[scope]);
    known_join(released, posted);
  }
  grain->block = current->number;
  grain->device = (uint32_t)current->launch->device;
}

/* `repeated`: where to note the grains, or NULL. */
static void grains_access(uintptr_t begin, uintptr_t end, uint32_t how, enum order_scope scope,
                          const void *place, order_thread *thread, struct repeated *repeated) {
  const bool writes = (how & ORDER_WRITE) != 0;
  for (uintptr_t at = begin / GRAIN * GRAIN; at < end; at += GRAIN) {
    struct grain *grain = grain_at(at);
    const uint32_t first = at < begin ? (uint32_t)(begin - at) : 0,
                   last = end - at < GRAIN ? (uint32_t)(end - at) : (uint32_t)GRAIN;
    const struct epoch now = {thread->id, now_of[thread->id], (uint8_t)((1u << last) - (1u << first)),
                              (how & ORDER_STRONG) != 0, place};
    if (repeated != NULL) repeated->grains[(at - begin) / GRAIN % 2] = grain;
    if (!writes || (how & ORDER_ADDS) != 0) grain_read(grain, thread, how, scope);
    epochs_check(grain->writes, true, &now, writes, thread, at,
                 (how & ORDER_LINE) != 0 && grain->takes.empty());
    if (writes) {
      epochs_check(grain->reads, false, &now, writes, thread, at, false);
      epochs_check(grain->takes, false, &now, writes, thread, at, false);
      grain->takes.clear();
      epochs_add(&grain->writes, &now, thread);
      grain_write(grain, thread, how);
    } else {
      epochs_add(&grain->reads, &now, thread);
    }
  }
}

void order_access(const void *address, uint32_t bytes, uint32_t how, enum order_scope scope,
                  const void *place) {
  const uintptr_t begin = (uintptr_t)address, end = begin + bytes;
  if (current == NULL || begin - current->own < current->own_bytes) return;
  order_thread *thread = thread_now();
  const bool writes = (how & ORDER_WRITE) != 0;
  if ((how & ORDER_RELEASE) != 0) order_fence(scope);
  struct repeated *repeated = &thread->repeated[begin / GRAIN % REPEATED];
  const bool may_repeat = !writes && (how & ORDER_STRONG) != 0 && bytes <= 8;
  if (may_repeat && repeated->address == begin && repeated->bytes == bytes && repeated->how == how &&
      repeated->time == now_of[thread->id] && repeated->forgotten == forgotten) {
    for (uint32_t i = 0; i * GRAIN < bytes; i++) {
      const known &released = repeated->grains[i]->released[distance_to(repeated->grains[i])];
      if (released == repeated->taken[i]) continue;
      repeated->taken[i] = released;
      grain_read(repeated->grains[i], thread, how, scope);
    }
    return;
  }
  if (may_repeat) *repeated = {begin, bytes, how, now_of[thread->id], forgotten, {}, {}};
  grains_access(begin, end, how, scope, place, thread, may_repeat ? repeated : NULL);
}

void order_take(const void *address, uint32_t bytes, const void *place) {
  if (current == NULL) return;
  const order_thread *thread = thread_now();
  for (uintptr_t at = (uintptr_t)address; at < (uintptr_t)address + bytes; at += GRAIN)
    grain_at(at)->takes.push_back({thread->id, now_of[thread->id], (1u << GRAIN) - 1, false, place});
}

/* ---- what orders ---- */

void order_fence(enum order_scope scope) {
  if (current == NULL) return;
  order_thread *thread = thread_now();
  for (uint32_t within = 0; within <= (uint32_t)scope; within++) {
    known_join(&thread->knows, thread->seen[within]);
    thread->seen[within] = known();
  }
  const known covered = thread_snapshot(thread);
  for (uint32_t within = 0; within <= (uint32_t)scope; within++) thread->fenced[within] = covered;
}

void order_meet(void) {
  if (current == NULL) return;
  order_thread *threads = &current->threads[threadIdx.x / SIMT_WARP * SIMT_WARP];
  known_times gathered;
  for (uint32_t lane = 0; lane < SIMT_WARP; lane++)
    known_add_thread(&gathered, &threads[lane], lane > 0 ? &threads[lane - 1] : NULL);
  const known met = known_of(std::move(gathered));
  for (uint32_t lane = 0; lane < SIMT_WARP; lane++) threads[lane].knows = met;
}

void order_vote(void) {
  if (current == NULL) return;
  order_thread *threads = &current->threads[threadIdx.x / SIMT_WARP * SIMT_WARP];
  clock_ref reads = threads[0].knows.reads;
  for (uint32_t lane = 1; lane < SIMT_WARP; lane++) clock_join(&reads, threads[lane].knows.reads);
  for (uint32_t lane = 0; lane < SIMT_WARP; lane++) threads[lane].knows.reads = reads;
}

void order_read_with_first(bool acquires) {
  if (current == NULL) return;
  order_thread *thread = thread_now(), *first = &current->threads[threadIdx.x / SIMT_WARP * SIMT_WARP];
  if (acquires) known_join(&thread->knows, first->knows);
  for (uint32_t scope = 0; scope < ORDER_SCOPES; scope++)
    known_join(&thread->seen[scope], first->seen[scope]);
}

void order_arrive(uint32_t id, uint64_t phase) {
  if (current == NULL) return;
  order_thread *thread = thread_now();
  struct barrier *barrier = &current->barriers[id % BARRIERS];
  barrier->passed[phase % 2] = known();
  known_add_thread(&barrier->gathered[phase % 2], thread, NULL);
}

void order_pass(uint32_t id, uint64_t phase) {
  if (current == NULL) return;
  struct barrier *barrier = &current->barriers[id % BARRIERS];
  known *passed = &barrier->passed[phase % 2];
  if (!passed->all) {
    *passed = known_of(std::move(barrier->gathered[phase % 2]));
    barrier->gathered[phase % 2] = known_times();
  }
  known_join(&thread_now()->knows, *passed);
}

void order_await_previous(void) {
  if (current == NULL) return;
  known_join(&thread_now()->knows, current->launch->previous);
  clock_join(&thread_now()->engines, current->launch->previous.all);
  for (known &fenced : thread_now()->fenced) known_join(&fenced, current->launch->previous);
}

static uint32_t ids_take(uint32_t thread_count, int device) {
  for (size_t i = 0; i + RESTING_BLOCKS < rests.size(); i++) {
    if (rests[i].thread_count != thread_count || rests[i].device != device) continue;
    const uint32_t first_id = rests[i].first_id;
    rests.erase(rests.begin() + (long)i);
    return first_id;
  }
  const uint32_t first_id = (uint32_t)now_of.size();
  now_of.resize(first_id + thread_count, 1);
  name_of.resize(first_id + thread_count);
  return first_id;
}

/* ---- copy engines ---- */

uint32_t order_engine_copy(uint32_t engine, const void *from, const void *to, uint32_t bytes,
                           const void *place) {
  if (current == NULL) return 0;
  if (current->first_engine == 0) current->first_engine = ids_take(ORDER_ENGINES, current->launch->device);
  if (engine >= ORDER_ENGINES) abort();
  const order_thread *thread = thread_now();
  order_thread copies = {};
  copies.id = current->first_engine + engine;
  copies.knows = {thread->engines, thread_snapshot(thread).reads};
  name_of[copies.id] = name_of[thread->id];
  name_of[copies.id].first |= COPY_ENGINE;
  const uintptr_t source = (uintptr_t)from, target = (uintptr_t)to;
  grains_access(source, source + bytes, ORDER_READ, ORDER_SYSTEM, place, &copies, NULL);
  grains_access(target, target + bytes, ORDER_WRITE, ORDER_SYSTEM, place, &copies, NULL);
  return now_of[copies.id]++;
}

void order_engine_ended(uint32_t engine, uint32_t time, bool only_reads) {
  if (current == NULL || time == 0) return;
  order_thread *thread = thread_now();
  const uint32_t id = current->first_engine + engine;
  times ended;
  times_set(&ended, id, time);
  const clock_ref clock = clock_of(std::move(ended));
  clock_join(&thread->knows.reads, clock);
  if (only_reads) return;
  clock_join(&thread->knows.all, clock);
  clock_join(&thread->engines, clock);
}

void order_fence_engines(void) {
  if (current != NULL) thread_now()->engines = thread_snapshot(thread_now()).all;
}

/* ---- launches and blocks ---- */

static const void *stream_of_copies(int device) { return (const void *)(uintptr_t)(1 + device); }

struct order_launch *order_launch_begin(const void *stream, int device, bool overlaps) {
  if (!order_is_on) return NULL;
  order_turn_begin();
  struct order_launch *launch = new order_launch();
  struct stream_state *state = &streams[stream];
  state->device = device;
  known_join(&state->ended, copied[device]);
  known_join(&state->before, copied[device]);
  if (!overlaps) state->before = state->ended;
  launch->stream = stream;
  launch->device = device;
  launch->begin = state->before;
  launch->previous = state->ended;
  order_turn_end();
  return launch;
}

void order_launch_end(struct order_launch *launch) {
  if (launch == NULL) return;
  order_turn_begin();
  known_join(&streams[launch->stream].ended, launch->ended);
  order_turn_end();
  delete launch;
}

struct order_block *order_block_begin(struct order_launch *launch, uint32_t thread_count, const void *own,
                                      size_t own_bytes) {
  if (launch == NULL) return NULL;
  order_turn_begin();
  struct order_block *block = new order_block();
  block->launch = launch;
  block->number = ++block_count;
  block->thread_count = thread_count;
  block->own = (uintptr_t)own;
  block->own_bytes = own_bytes;
  block->first_id = ids_take(thread_count, launch->device);
  block->threads.resize(thread_count);
  for (uint32_t i = 0; i < thread_count; i++) {
    block->threads[i].id = block->first_id + i;
    block->threads[i].knows = launch->begin;
    block->threads[i].engines = launch->begin.all;
    for (known &fenced : block->threads[i].fenced) fenced = launch->begin;
    name_of[block->first_id + i] = {blockIdx.x << 16 | i, launch->device};
  }
  current = block;
  order_turn_end();
  return block;
}

void order_block_end(struct order_block *block) {
  if (block == NULL) return;
  order_turn_begin();
  known_times gathered;
  for (uint32_t i = 0; i < block->thread_count; i++)
    known_add_thread(&gathered, &block->threads[i], i > 0 ? &block->threads[i - 1] : NULL);
  known_join(&block->launch->ended, known_of(std::move(gathered)));
  rests.push_back({block->first_id, block->thread_count, block->launch->device});
  if (block->first_engine != 0) rests.push_back({block->first_engine, ORDER_ENGINES, block->launch->device});
  current = NULL;
  order_turn_end();
  delete block;
}

/* A launch of one thread. */
static void copy_access(const void *stream, int device, const void *memory, size_t bytes, bool writes) {
  uint64_t own = 0;
  struct order_launch *launch = order_launch_begin(stream, device, false);
  const simt_index index = threadIdx;
  struct order_block *block = order_block_begin(launch, 1, &own, sizeof own);
  order_turn_begin();
  threadIdx.x = 0;
  for (size_t at = 0; at < bytes; at += GRAIN)
    order_access((const uint8_t *)memory + at, bytes - at < GRAIN ? (uint32_t)(bytes - at) : (uint32_t)GRAIN,
                 writes ? ORDER_WRITE : ORDER_READ, ORDER_SYSTEM, __builtin_return_address(0));
  threadIdx = index;
  order_turn_end();
  order_block_end(block);
  order_launch_end(launch);
}

/* On a stream of its own that others of the device follow and precede. */
void order_copy(int device, const void *memory, size_t bytes, bool writes) {
  if (!order_is_on) return;
  order_turn_begin();
  struct stream_state *state = &streams[stream_of_copies(device)];
  for (const auto &other : streams)
    if (other.second.device == device) known_join(&state->ended, other.second.ended);
  order_turn_end();
  copy_access(stream_of_copies(device), device, memory, bytes, writes);
  order_turn_begin();
  known_join(&copied[device], streams[stream_of_copies(device)].ended);
  order_turn_end();
}

void order_stream_awaits(const void *stream, int device, const uint64_t *count) {
  if (!order_is_on) return;
  order_turn_begin();
  struct stream_state *state = &streams[stream];
  state->device = device;
  known_join(&state->ended, grain_at((uintptr_t)count)->released[ORDER_DEVICE]);
  order_turn_end();
}

void order_forget(const void *memory, size_t bytes) {
  if (!order_is_on) return;
  order_turn_begin();
  forgotten += 1;
  for (uintptr_t at = (uintptr_t)memory / GRAIN * GRAIN; at < (uintptr_t)memory + bytes;) {
    const auto found = pages.find(at / PAGE);
    if (found == pages.end()) {
      at = (at / PAGE + 1) * PAGE;
      continue;
    }
    struct grain *&grain = found->second->grains[at % PAGE / GRAIN];
    delete grain;
    grain = NULL;
    at += GRAIN;
  }
  order_turn_end();
}

/* ---- plain and volatile accesses: the calls that -fsanitize=thread adds to kernels ---- */

#define ADDED(name, bytes, how)                                                                    \
  extern "C" void name(void *address) {                                                            \
    if (order_is_on) order_access(address, bytes, how, ORDER_SYSTEM, __builtin_return_address(0)); \
    if (watch_is_on) watch_access(address, bytes, ((how)&ORDER_WRITE) != 0, NULL);                 \
  }
#define ADDED_BOTH(kind, bytes, strong)                           \
  ADDED(__tsan_##kind##read##bytes, bytes, ORDER_READ | (strong)) \
  ADDED(__tsan_##kind##write##bytes, bytes, ORDER_WRITE | (strong))
#define ADDED_ALL(bytes)                     \
  ADDED_BOTH(, bytes, 0)                     \
  ADDED_BOTH(unaligned_, bytes, 0)           \
  ADDED_BOTH(volatile_, bytes, ORDER_STRONG) \
  ADDED_BOTH(unaligned_volatile_, bytes, ORDER_STRONG)
ADDED_ALL(1)
ADDED_ALL(2)
ADDED_ALL(4)
ADDED_ALL(8)
ADDED_ALL(16)

extern "C" void __tsan_read_range(void *address, size_t bytes) {
  if (order_is_on)
    order_access(address, (uint32_t)bytes, ORDER_READ, ORDER_SYSTEM, __builtin_return_address(0));
  if (watch_is_on) watch_access(address, (uint32_t)bytes, false, NULL);
}
extern "C" void __tsan_write_range(void *address, size_t bytes) {
  if (order_is_on)
    order_access(address, (uint32_t)bytes, ORDER_WRITE, ORDER_SYSTEM, __builtin_return_address(0));
  if (watch_is_on) watch_access(address, (uint32_t)bytes, true, NULL);
}
/* Of the host code of programs that are watched as kernels are: it is no access of a kernel. */
#define WORD(name, type) extern "C" int __tsan_atomic32_##name(volatile int *word, type value, int)
WORD(fetch_add, int) { return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST); }
WORD(fetch_sub, int) { return __atomic_fetch_sub(word, value, __ATOMIC_SEQ_CST); }
WORD(store, int) { return __atomic_store_n(word, value, __ATOMIC_SEQ_CST), value; }
extern "C" int __tsan_atomic32_load(const volatile int *word, int) {
  return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void) {}
extern "C" void __tsan_init(void) {}
