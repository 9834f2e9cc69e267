/* world.c: the lock, the guarded scheduler and the waiting of host threads (see world.h). The ready set is an
 * unordered array of the actors that may be enabled. An actor leaves it when it is found stuck; a change of
 * what it waits for wakes it, which adds it again. An event costs one random number, one call of enabled()
 * and the event itself. */
#include "backends/emu/world.h"

#include <stdlib.h>
#include <string.h>

#include "backends/emu/order.h"
#include "backends/emu/world_impl.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/turns.h"

/* The size of the arrays below; only the pages in use take memory. */
#define EMU_ACTORS_MAX (1u << 20)

#define LOCK_SPINS 512u

struct emu_owner {
  uint32_t rank_count; /* slots that name this thread */
  uint32_t waiting;    /* depth of waiting calls */
  bool ended, absent;
  bool is_main; /* the process's first thread */
  uint64_t away_since_ns;
  struct emu_owner *next;
};

struct emu_waiter {
  bool (*done)(void *argument);
  void *argument;
  uint64_t event_limit; /* a poll gives up at this event; UINT64_MAX for a wait */
  bool released;
  struct emu_owner *owner;
  struct emu_waiter *next;
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int taken;         /* atomic: a hint for threads that want the lock */
  int prepared;      /* atomic */
  uint32_t sleepers; /* threads that sleep until something changes */
  struct emu_actor **ready, **pending;
  uint32_t ready_count, pending_count;
  struct emu_actor *placeholders; /* no more than the ready set has places */
  uint32_t placeholder_count, placeholder_free;
  bool pumping, inside; /* a thread runs events; it is within an event, and not in user code */
  bool change;          /* a waiter's condition may have become true */
  bool hopeless;        /* nothing can move in any process of the order, and no kernel waits */
  bool turn_sleeper;    /* a thread sleeps until the turn comes (order.h) */
  bool passed;          /* the last events ended because the turn was passed on */
  uint32_t naps;        /* sleeps of it since something moved */
  uint32_t turn_word;   /* emu_order_word() when a thread last looked whether it can go on */
  bool outside;         /* no actor can run until something comes from outside the world */
  bool in_turns;        /* tutti_emu_take_turns() */
  int outside_waits;    /* host threads that wait for other processes, which may unblock kernels */
  uint64_t generation;  /* counts emu_changed() and wakes, to notice changes between two runs of events */
  uint64_t random[2];
  struct emu_waiter *waiters;
  struct emu_owner *owners;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t emu_events;

static pthread_key_t owner_key;
static pthread_once_t world_once = PTHREAD_ONCE_INIT;

/* xoroshiro128+: two words of state, a few cycles a draw. */
static inline uint64_t random_next(void) {
  const uint64_t a = world.random[0];
  uint64_t b = world.random[1];
  const uint64_t result = a + b;
  b ^= a;
  world.random[0] = ((a << 24) | (a >> 40)) ^ b ^ (b << 16);
  world.random[1] = (b << 37) | (b >> 27);
  return result;
}

static inline uint32_t random_below(uint32_t bound) {
  return (uint32_t)(((random_next() >> 32) * bound) >> 32);
}

uint64_t emu_random(void) { return random_next(); }

uint64_t emu_clock_ns(void) { return emu_options()->mode == EMU_GUARDED ? emu_events * 100 : os_time_ns(); }

static void owner_thread_ended(void *value);

static void world_make_condition(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&world.changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* ---- forks: the child has only the thread that forked ---- */

#define FORK_PATIENCE_MS 1000

static bool fork_locked; /* the forking thread has the lock */

/* Another thread may hold this lock while it waits for one that the forking thread has, so the wait for it is
 * limited.
 */
static void fork_before(void) {
  fork_locked = false;
  for (unsigned tries = 0; !fork_locked && tries < FORK_PATIENCE_MS; tries++) {
    fork_locked = pthread_mutex_trylock(&world.lock) == 0;
    if (!fork_locked) os_sleep_ms(1);
  }
}

static void fork_parent(void) {
  if (fork_locked) pthread_mutex_unlock(&world.lock);
}

static void fork_child(void) {
  static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  const struct emu_owner *self = (const struct emu_owner *)pthread_getspecific(owner_key);
  world.lock = fresh;
  world_make_condition();
  world.pumping = world.inside = false;
  world.waiters = NULL;
  world.outside_waits = 0;
  for (struct emu_owner *owner = world.owners; owner != NULL; owner = owner->next) {
    owner->waiting = 0;
    if (owner != self) owner->ended = true;
  }
  emu_order_forked();
  emu_streams_forked();
  emu_pool_forked();
}

static void world_prepare(void) {
  world_make_condition();
  pthread_key_create(&owner_key, owner_thread_ended);
  pthread_atfork(fork_before, fork_parent, fork_child);
  world.ready = (struct emu_actor **)os_pages_map(EMU_ACTORS_MAX * sizeof *world.ready);
  world.pending = (struct emu_actor **)os_pages_map(EMU_ACTORS_MAX * sizeof *world.pending);
  world.placeholders = (struct emu_actor *)os_pages_map(EMU_ACTORS_MAX * sizeof *world.placeholders);
  if (world.ready == NULL || world.pending == NULL || world.placeholders == NULL) {
    log_urgent("the emulator cannot map %zu MiB of address space, and ends the program: raise `ulimit -v`",
               EMU_ACTORS_MAX * (2 * sizeof *world.ready + sizeof *world.placeholders) >> 20);
    abort();
  }
  __atomic_store_n(&world.prepared, 1, __ATOMIC_RELEASE);
}

/* Also called around sleeps, which release the lock. */
static void lock_note(int taken) { __atomic_store_n(&world.taken, taken, __ATOMIC_RELAXED); }

static inline bool world_try(void) {
  if (__atomic_load_n(&world.taken, __ATOMIC_RELAXED) || pthread_mutex_trylock(&world.lock) != 0)
    return false;
  lock_note(1);
  return true;
}

static void world_take(void) {
  if (!__atomic_load_n(&world.prepared, __ATOMIC_ACQUIRE)) pthread_once(&world_once, world_prepare);
  /* The lock is held for microseconds, and waking a sleeping thread takes longer. */
  for (uint32_t i = 0; i < LOCK_SPINS; i++) {
    if (world_try()) return;
    os_spin();
  }
  pthread_mutex_lock(&world.lock);
  lock_note(1);
}

static void world_give(void) {
  lock_note(0);
  pthread_mutex_unlock(&world.lock);
}

/* The lock is recursive: a service's turn holds it and calls functions that take it, and so does comm_fail().
 */
static _Thread_local uint32_t lock_depth;

static void order_come_back(void);

void emu_lock(void) {
  uint32_t *depth = &lock_depth; /* finding a thread-local variable takes a call */
  if (*depth == 0) world_take();
  *depth += 1;
  if (*depth == 1 && emu_order_excused()) order_come_back();
}

void emu_unlock(void) {
  uint32_t *depth = &lock_depth;
  *depth -= 1;
  if (*depth == 0) world_give();
}

void emu_world_restart(uint64_t seed) {
  uint64_t state = seed;
  world.random[0] = hash_draw(&state);
  world.random[1] = hash_draw(&state);
  emu_events = 0;
}

void emu_changed(void) {
  world.change = true;
  world.generation += 1;
  if (world.inside) return;
  if (world.sleepers > 0) pthread_cond_broadcast(&world.changed);
  if (world.turn_sleeper) emu_order_wake();
}

/* ---- actors ---- */

static void ready_add(struct emu_actor *actor) {
  world.ready[world.ready_count] = actor;
  world.ready_count += 1;
  actor->ready_index = world.ready_count;
}

/* Stands in the ready set for an actor that was removed. */
static bool placeholder_enabled(struct emu_actor *actor) {
  (void)actor;
  return false;
}
static const struct emu_actor_ops placeholder_ops = {placeholder_enabled, NULL};

/* Free placeholders form a list; the key of each is the next one's index plus one. */
static struct emu_actor *placeholder_take(void) {
  struct emu_actor *taken = &world.placeholders[world.placeholder_count];
  if (world.placeholder_free != 0) {
    taken = &world.placeholders[world.placeholder_free - 1];
    world.placeholder_free = (uint32_t)taken->key;
  } else world.placeholder_count += 1;
  taken->ops = &placeholder_ops;
  return taken;
}

static void placeholder_give(struct emu_actor *actor) {
  actor->key = world.placeholder_free;
  world.placeholder_free = (uint32_t)(actor - world.placeholders) + 1;
}

static void ready_drop(struct emu_actor *actor) {
  struct emu_actor *last = world.ready[world.ready_count - 1];
  world.ready[actor->ready_index - 1] = last;
  last->ready_index = actor->ready_index;
  world.ready_count -= 1;
  actor->ready_index = 0;
  if (actor->ops == &placeholder_ops) placeholder_give(actor);
}

/* A host thread removes an actor at a time that the operating system chooses, perhaps while others remove
 * theirs. So that later draws do not depend on it, a placeholder stays, as the stuck actor would have: it
 * leaves the ready set when it is drawn. */
static void ready_replace(struct emu_actor *actor) {
  struct emu_actor *placeholder = placeholder_take();
  placeholder->priority = actor->priority;
  placeholder->ready_index = actor->ready_index;
  world.ready[actor->ready_index - 1] = placeholder;
  actor->ready_index = 0;
}

/* Outside events the random numbers may be those of another process, which has the turn. */
static uint64_t priority_draw(uint64_t key) {
  if (emu_options()->rule != EMU_RULE_PRIORITY) return 0;
  if (world.inside || !emu_order_on()) return random_next();
  uint64_t state = emu_options()->seed ^ key * HASH_STEP;
  return hash_draw(&state);
}

void emu_actor_init(struct emu_actor *actor, const struct emu_actor_ops *ops, uint64_t key) {
  actor->ops = ops;
  actor->key = key;
  actor->ready_index = 0;
  actor->pending = 0;
  actor->priority = priority_draw(key);
}

void emu_actor_wake(struct emu_actor *actor) {
  if (actor->ready_index != 0 || actor->pending != 0) return;
  if (world.inside) {
    if (actor->ops->enabled(actor)) ready_add(actor);
    return;
  }
  if (emu_options()->mode != EMU_GUARDED) return;
  world.pending[world.pending_count] = actor;
  world.pending_count += 1;
  actor->pending = world.pending_count;
  emu_changed();
}

void emu_actor_remove(struct emu_actor *actor) {
  if (actor->ready_index != 0 && world.inside) ready_drop(actor);
  else if (actor->ready_index != 0) ready_replace(actor);
  if (actor->pending != 0) {
    struct emu_actor *last = world.pending[world.pending_count - 1];
    world.pending[actor->pending - 1] = last;
    last->pending = actor->pending;
    world.pending_count -= 1;
    actor->pending = 0;
  }
}

static int actor_compare(const void *left, const void *right) {
  const struct emu_actor *a = *(struct emu_actor *const *)left, *b = *(struct emu_actor *const *)right;
  return a->key < b->key ? -1 : a->key > b->key;
}

/* Actors that host threads woke enter the ready set in the order of their keys, so that the run does not
 * depend on the order of arrival. */
static void pending_enter(void) {
  const uint32_t count = world.pending_count;
  if (count == 0) return;
  if (count > 1) qsort(world.pending, count, sizeof *world.pending, actor_compare);
  world.pending_count = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct emu_actor *actor = world.pending[i];
    actor->pending = 0;
    if (actor->ready_index == 0 && actor->ops->enabled(actor)) ready_add(actor);
  }
}

/* Actors that are stuck may still be in the ready set: removes them first. */
bool emu_world_idle(void) {
  pending_enter();
  for (uint32_t i = world.ready_count; i-- > 0;)
    if (!world.ready[i]->ops->enabled(world.ready[i])) ready_drop(world.ready[i]);
  return world.ready_count == 0 && !world.pumping;
}

static struct emu_actor *pick_by_priority(void) {
  struct emu_actor *best = world.ready[0];
  for (uint32_t i = 1; i < world.ready_count; i++)
    if (world.ready[i]->priority > best->priority) best = world.ready[i];
  if (random_below(32) == 0) best->priority = random_next() >> 1; /* a change point of the priority rule */
  return best;
}

static inline struct emu_actor *pick(enum emu_rule rule) {
  if (rule == EMU_RULE_RANDOM) return world.ready[random_below(world.ready_count)];
  if (rule == EMU_RULE_PRIORITY) return pick_by_priority();
  return world.ready[emu_events % world.ready_count];
}

/* ---- waiting ---- */

static uint64_t waiters_event_limit(void) {
  uint64_t limit = UINT64_MAX;
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next)
    if (!waiter->released && waiter->event_limit < limit) limit = waiter->event_limit;
  return limit;
}

/* A thread is outside waiting calls. */
static void owner_left(struct emu_owner *owner) {
  owner->away_since_ns = os_time_ns();
  if (owner->rank_count > 0 && !owner->ended) emu_order_busy();
}

static void waiter_release(struct emu_waiter *waiter) {
  waiter->released = true;
  if (waiter->owner != NULL) {
    waiter->owner->waiting -= 1;
    if (waiter->owner->waiting == 0) owner_left(waiter->owner);
  }
}

static bool may_go_on(const struct emu_waiter *waiter) {
  return !waiter->released && (emu_events >= waiter->event_limit || waiter->done(waiter->argument));
}

/* The one that has waited longest; the others stay until it waits again. */
static bool waiters_release_one(void) {
  struct emu_waiter *oldest = NULL;
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next) {
    if (!may_go_on(waiter)) continue;
    world.change = world.change || oldest != NULL;
    oldest = waiter;
  }
  if (oldest != NULL) waiter_release(oldest);
  return oldest != NULL;
}

/* Releases every waiter whose condition holds; true if there was one. Then no event runs until they wait
 * again. */
static bool waiters_release(void) {
  bool any = false;
  world.change = false;
  if (world.in_turns) return waiters_release_one();
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next) {
    if (!may_go_on(waiter)) continue;
    waiter_release(waiter);
    any = true;
  }
  return any;
}

void emu_world_take_turns(bool in_turns) {
  emu_lock();
  world.in_turns = in_turns;
  emu_changed();
  emu_unlock();
}

void emu_world_release(void) {
  if (emu_options()->mode == EMU_GUARDED && !world.in_turns) waiters_release();
}

/* True if every thread that owns a rank is in a waiting call. */
static bool owners_wait(void) {
  for (struct emu_owner *owner = world.owners; owner != NULL; owner = owner->next)
    if (owner->rank_count > 0 && !owner->ended && !owner->absent && owner->waiting == 0) return false;
  return true;
}

/* ---- one order of several processes (order.h) ---- */

static uint64_t best_priority(void) {
  uint64_t best = 0;
  for (uint32_t i = 0; emu_options()->rule == EMU_RULE_PRIORITY && i < world.ready_count; i++)
    if (world.ready[i]->priority > best) best = world.ready[i]->priority;
  return best;
}

/* Polls of threads that drive no rank do not count: they come at any time. */
static uint64_t owners_event_limit(void) {
  uint64_t limit = UINT64_MAX;
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next)
    if (!waiter->released && waiter->owner != NULL && waiter->event_limit < limit)
      limit = waiter->event_limit;
  return limit;
}

static struct emu_order_report order_report(void) {
  return (struct emu_order_report){.ready = world.ready_count,
                                   .best = best_priority(),
                                   .event_limit = owners_event_limit(),
                                   .waiting = emu_lanes_waiting(),
                                   .outside = world.outside};
}

static struct emu_order_state order_state(void) {
  return (struct emu_order_state){{world.random[0], world.random[1]}, emu_events, 0};
}

/* True if the next event is of this process; else the turn may have been passed on. */
static bool order_stays(uint32_t *picked) {
  if (!emu_order_free()) return false;
  const bool ours = *picked > 0 && world.ready_count > 0;
  *picked = ours ? *picked - 1 : 0;
  if (ours) return true;
  const struct emu_order_report report = order_report();
  const uint32_t slot = emu_order_choose(&report, emu_events, random_below, picked);
  if (slot == emu_order_own()) {
    *picked -= *picked > 0;
    return true;
  }
  if (slot == EMU_ORDER_NOBODY) return false;
  const struct emu_order_state state = order_state();
  emu_order_pass(slot, *picked, &report, &state);
  world.passed = true;
  return false;
}

static void order_settle(void) {
  if (world.passed || !emu_order_on()) return;
  const struct emu_order_report report = order_report();
  const struct emu_order_state state = order_state();
  emu_order_settle(&report, &state);
}

/* Runs events until a waiter's condition holds (true), no actor can run, or the turn is another process's
 * (false). `picked`: see struct emu_order_state. */
static bool pump_from(uint32_t picked) {
  const enum emu_rule rule = emu_options()->rule;
  const bool ordered = emu_order_on();
  world.passed = false;
  uint64_t limit = waiters_event_limit();
  bool any = false;
  world.pumping = true;
  world.change = true;
  for (;;) {
    if (world.change || emu_events >= limit) {
      if ((any = waiters_release())) break;
      limit = waiters_event_limit();
    }
    /* Only after the release: actors that the released threads wake must enter together with these. */
    if (world.pending_count > 0) pending_enter();
    if (ordered && !order_stays(&picked)) break;
    if (world.ready_count == 0) break;
    struct emu_actor *actor = pick(rule);
    if (!actor->ops->enabled(actor)) {
      ready_drop(actor);
      continue;
    }
    emu_events += 1;
    world.inside = true;
    actor->ops->run(actor);
    world.inside = false;
  }
  world.pumping = false;
  if (ordered) order_settle();
  pthread_cond_broadcast(&world.changed);
  return any;
}

static bool pump(void) { return pump_from(0); }

void emu_call_out(void (*function)(void *argument), void *argument) {
  const bool inside = world.inside;
  const uint32_t depth = lock_depth;
  world.inside = false;
  lock_depth = 0;
  world_give();
  function(argument);
  world_take();
  lock_depth = depth;
  world.inside = inside;
}

static void wait_for_change_us(uint64_t timeout_us) {
  const uint64_t until = os_time_ns() + timeout_us * 1000u;
  const struct timespec deadline = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
  world.sleepers += 1;
  lock_note(0);
  pthread_cond_timedwait(&world.changed, &world.lock, &deadline);
  lock_note(1);
  world.sleepers -= 1;
}

static void wait_for_change(uint64_t timeout_ms) { wait_for_change_us(timeout_ms * 1000); }

static uint32_t callers; /* tutti_emu_callers(); atomic */

void emu_world_callers(uint32_t count) { __atomic_store_n(&callers, count, __ATOMIC_RELAXED); }

/* Threads that could change anything; one that polls goes on, and may make the missing call. */
static bool threads_beyond_waiters(void) {
  const uint32_t told = __atomic_load_n(&callers, __ATOMIC_RELAXED);
  uint32_t waiting = 0;
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next)
    waiting += !waiter->released && waiter->event_limit == UINT64_MAX;
  return (told > 0 ? told : os_threads_at_work()) > waiting;
}

#define TURN_NS UINT64_C(100000)

/* What a clock rests on that gives something up: `key` changes with whatever would show progress. */
struct chance {
  struct turns turns;
  uint64_t key, at_ns; /* 0: not noted */
};

/* For a quarter of a stall every thread ran or slept, so none was kept from running, as on a busy machine. */
static bool all_had_a_chance(struct chance *chance, uint64_t key) {
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u, now_ns = os_time_ns();
  if (chance->at_ns == 0 || chance->key != key || now_ns - chance->at_ns > stall_ns) {
    turns_note(&chance->turns);
    chance->key = key;
    chance->at_ns = now_ns;
  }
  if (now_ns - chance->at_ns < stall_ns / 4) return false;
  const bool passed = turns_passed(&chance->turns, TURN_NS);
  if (!passed) chance->at_ns = 0;
  return passed;
}

/* A thread that makes a communicator joins threads of the library, for less. */
#define JOIN_NS UINT64_C(1000000000)

/* Outside waiting calls for too long. */
static bool owner_is_away(const struct emu_owner *owner, uint64_t stall_ns) {
  if (owner->rank_count == 0 || owner->ended || owner->absent || owner->waiting != 0) return false;
  return os_time_ns() - owner->away_since_ns >= stall_ns;
}

/* Stops waiting for the main thread if it waits for threads that all wait here, and for owners that are away,
 * with a warning for each. */
static void owners_mark_absent(void) {
  static struct chance chance; /* locked; `key` is when the last of them left */
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u;
  uint64_t last_ns = 0;
  for (struct emu_owner *owner = world.owners; owner != NULL; owner = owner->next) {
    if (owner->is_main && owner_is_away(owner, JOIN_NS) && os_main_thread_joins() &&
        !threads_beyond_waiters())
      owner->absent = true;
    if (owner_is_away(owner, stall_ns) && owner->away_since_ns > last_ns) last_ns = owner->away_since_ns;
  }
  if (last_ns == 0 || !all_had_a_chance(&chance, last_ns)) return;
  for (struct emu_owner *owner = world.owners; owner != NULL; owner = owner->next) {
    if (!owner_is_away(owner, stall_ns)) continue;
    owner->absent = true;
    log_warn(
        "guarded emulator: a thread that drives %u rank(s) has made no waiting call for %llu s; going on "
        "without it, so this "
        "run is not deterministic; let it call cudaStreamSynchronize, or raise TUTTI_STALL_SECONDS",
        owner->rank_count, (unsigned long long)emu_options()->stall_seconds);
  }
}

/* How long a waiter has seen no change. Waits with a deadline and polls share it, so that a loop of them
 * detects a deadlock as one long wait does. It is reset after a pause in which no thread waited. */
struct quiet {
  uint64_t since_ns, seen_ns, generation;
  bool polls; /* the thread will continue, and may make the missing call */
};

/* No actor can run and every owner waits. That is a deadlock at once if no other thread could change it, else
 * after a while without a change. */
static bool quiet_is_final(struct quiet *quiet) {
  static struct chance chance; /* locked */
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u;
  if (!quiet->polls && !threads_beyond_waiters()) return true;
  const uint64_t now_ns = os_time_ns();
  if (quiet->generation != world.generation || now_ns - quiet->seen_ns > stall_ns / 2) {
    quiet->since_ns = now_ns;
    quiet->generation = world.generation;
  }
  quiet->seen_ns = now_ns;
  return now_ns - quiet->since_ns >= stall_ns && all_had_a_chance(&chance, world.generation);
}

/* Lanes wait for another process, and nothing happens here: warns once, after a long time. */
static void outside_complain(uint64_t moved) {
  static struct quiet still; /* locked; `generation` holds the progress */
  static bool said;
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u, now_ns = os_time_ns();
  if (moved != still.generation || now_ns - still.seen_ns > stall_ns / 2) {
    still.since_ns = now_ns;
    said = false;
  }
  still.generation = moved;
  still.seen_ns = now_ns;
  if (said || now_ns - still.since_ns < stall_ns) return;
  said = true;
  emu_report_slow();
}

/* A wait for another process first yields the core this many times. Then it sleeps, longer each time, up to a
 * limit that grows with the number of ranks per core, because polling takes time from the other ranks. */
#define NAP_SPINS 100
#define NAP_US_MOST 1000
#define NAP_US_CROWD 30

static uint64_t nap_count, nap_events; /* locked */

void emu_world_outside_moved(void) { nap_count = 0; }

void emu_world_outside_wait(int more) {
  world.outside_waits += more;
  if (world.outside_waits < 0)
    world.outside_waits = 0; /* the waits of a fork's parent do not exist in the child */
  emu_changed();
}

/* Another process cannot wake threads of this one: sleeps before the next poll, longer each time. */
static void outside_nap(void) {
  if (nap_events != emu_events) nap_count = 0;
  nap_events = emu_events;
  nap_count += 1;
  const uint32_t crowd = emu_lanes_crowd();
  const uint64_t spins = NAP_SPINS / crowd, most = crowd * NAP_US_CROWD;
  if (nap_count <= spins) {
    emu_unlock();
    os_yield();
    emu_lock();
    return;
  }
  const uint64_t nap_us = (nap_count - spins) * 10 * crowd;
  const uint64_t limit_us = most > NAP_US_MOST ? most : NAP_US_MOST;
  wait_for_change_us(nap_us < limit_us ? nap_us : limit_us);
}

/* Stops the waiting kernels if the deadlock is final; true if this changed anything. */
static bool stuck_declare(struct quiet *quiet) {
  if (!emu_lanes_waiting()) return false;
  const bool outside = world.outside || world.outside_waits > 0;
  /* The progress of lanes, because events do not show any: polling services run events, too. */
  if (outside) outside_complain(emu_lanes_progress());
  if (outside || !quiet_is_final(quiet)) return false;
  emu_lanes_stop_stuck();
  return true;
}

static struct emu_owner *owner_current(void) { return (struct emu_owner *)pthread_getspecific(owner_key); }

static void waiter_enter(struct emu_waiter *waiter) {
  waiter->owner = owner_current();
  if (waiter->owner != NULL) {
    waiter->owner->waiting += 1;
    waiter->owner->absent = false;
  }
  waiter->next = world.waiters;
  world.waiters = waiter;
}

static void waiter_leave(struct emu_waiter *waiter) {
  struct emu_waiter **place = &world.waiters;
  while (*place != waiter) place = &(*place)->next;
  *place = waiter->next;
  if (!waiter->released) waiter_release(waiter);
  if (emu_order_on()) pthread_cond_broadcast(&world.changed); /* another thread waits for the turn now */
}

static uint64_t world_turns; /* turns of waiting threads that could run events; locked */

/* All threads of this process wait: says so to the others, unless one of them is about to go on. */
static void order_park(void) {
  if (!emu_order_is_busy() || waiters_release()) return;
  pending_enter();
  world.outside = emu_services_are_outside() || emu_lanes_outside() || world.outside_waits > 0;
  const struct emu_order_report report = order_report();
  emu_order_park(&report);
}

static uint32_t order_load(void) {
  struct emu_order_state state;
  emu_order_load(&state);
  world.random[0] = state.random[0];
  world.random[1] = state.random[1];
  emu_events = state.events;
  return state.picked;
}

/* While this process is busy, so that the state is the same in every run. */
void emu_world_leave_order(void) {
  if (emu_order_on()) order_load();
  emu_order_leave();
}

/* Takes over the state from the process that had the turn. Returns struct emu_order_state.picked. */
static uint32_t order_take(void) {
  const uint32_t picked = order_load();
  if (emu_order_touched()) emu_lanes_look();
  const enum emu_order_task task = emu_order_task();
  if (task == EMU_ORDER_REPORT && emu_lanes_waiting()) {
    emu_lanes_report_stuck();
    emu_lanes_trace_stop();
  }
  if (task == EMU_ORDER_STOP) emu_lanes_stop();
  return picked;
}

/* Nothing has moved in any process for long. */
static bool order_still(void) {
  static uint64_t events, since_ns; /* locked */
  const uint64_t now_ns = os_time_ns();
  if (since_ns == 0 || events != emu_events) since_ns = now_ns;
  events = emu_events;
  return now_ns - since_ns >= emu_options()->stall_seconds * 1000000000u;
}

/* Ends the polls of this process, after a moment, so that a loop of them does not take a core. The turn goes
 * to the next process that polls: this one may poll for what that one does once its poll has ended. */
static bool order_end_polls(void) {
  bool any = false;
  wait_for_change(1);
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next) {
    if (waiter->released || waiter->owner == NULL || waiter->event_limit == UINT64_MAX) continue;
    waiter_release(waiter);
    any = true;
  }
  if (any && emu_order_mine()) {
    const struct emu_order_report report = order_report();
    const struct emu_order_state state = order_state();
    emu_order_pass_to_poll(&report, &state);
  }
  return any;
}

/* Nothing can move in any process, and all threads wait. True if that has changed. */
static bool order_quiet(void) {
  struct emu_order_report report = order_report();
  const struct emu_order_state state = order_state();
  const bool still = order_still();
  report.alone = !threads_beyond_waiters();
  const enum emu_order_quiet found = emu_order_quiet(&report, &state);
  const bool polls = report.event_limit != UINT64_MAX;
  if (found == EMU_ORDER_CHANGED) return true;
  if (found == EMU_ORDER_WAITS) {
    world.outside = emu_services_look_outside() || emu_lanes_outside() || world.outside_waits > 0;
    if (emu_lanes_waiting()) outside_complain(emu_lanes_progress());
    return emu_lanes_look() || (polls && order_end_polls());
  }
  if (!still && polls) return order_end_polls();
  if (!still && found == EMU_ORDER_THREADS) return false;
  world.hopeless = !emu_order_kernels_wait(&report);
  if (!world.hopeless) emu_order_stop();
  return !world.hopeless || (polls && order_end_polls());
}

/* One turn of a guarded wait whose process shares its order of events with others. */
static bool ordered_turn(void) {
  world.hopeless = false; /* what an earlier turn found may have changed */
  if (owners_wait()) order_park();
  if (!emu_order_mine()) {
    if (world.pending_count > 0) emu_order_ask();
    return false;
  }
  if (!emu_order_free()) return false;
  if (pump_from(order_take())) return true;
  return !world.passed && emu_order_free() && order_quiet();
}

/* One turn of a guarded wait: runs events, or sleeps until something changes. */
static bool guarded_turn(struct quiet *quiet) {
  if (emu_order_on()) world.turn_word = emu_order_word();
  if (!world.pumping && (owners_wait() || emu_order_excused())) {
    world_turns += 1;
    if (emu_order_on()) return ordered_turn();
    if ((world.ready_count > 0 || world.pending_count > 0 || world.change) && pump()) return true;
    if (emu_lanes_look()) { /* a long operation with another process must not hold the lock all the time */
      emu_unlock();
      os_yield();
      emu_lock();
      return true;
    }
    world.outside = emu_services_look_outside() || emu_lanes_outside();
    if (stuck_declare(quiet)) return true;
  }
  return false;
}

/* Each sleep ends with a look at the other processes: often at first, so that one that waits for something
 * else is soon excused, and rarely later, because many processes may sleep so. */
#define TURN_NAP_MS 25
#define TURN_NAPS_SHORT 6
#define TURN_NAP_LONG_MS 100

/* Sleeps until the turn comes. One thread of the process does; the others sleep until something changes. */
static void turn_nap(uint64_t timeout_ms) {
  if (world.turn_sleeper || world.pumping) {
    wait_for_change(timeout_ms);
    return;
  }
  const uint64_t nap_ms = world.naps < TURN_NAPS_SHORT ? TURN_NAP_MS : TURN_NAP_LONG_MS;
  world.turn_sleeper = true;
  emu_order_asleep();
  const uint32_t depth = lock_depth;
  lock_depth = 0;
  world_give();
  const bool woken = emu_order_sleep(world.turn_word, nap_ms < timeout_ms ? nap_ms : timeout_ms);
  world_take();
  lock_depth = depth;
  world.turn_sleeper = false;
  world.naps = woken ? 0 : world.naps + 1;
  if (world.naps == 1) emu_lanes_record();
  emu_lanes_record_awaited(woken ? 0 : emu_order_awaited());
  if (!woken && emu_order_on() && owners_wait()) emu_order_tell_alone(!threads_beyond_waiters());
  emu_order_awake(woken);
}

static void nap(uint64_t timeout_ms) {
  if (world.outside && !world.pumping && (!emu_order_on() || emu_order_mine())) outside_nap();
  else if (emu_order_on()) turn_nap(timeout_ms);
  else wait_for_change(timeout_ms);
}

static bool nothing_can_come(uint64_t deadline_ms, struct quiet *quiet) {
  if (emu_order_on()) return deadline_ms == 0 && world.hopeless;
  return deadline_ms == 0 && !world.pumping && !world.outside && world.outside_waits == 0 && owners_wait() &&
         world.ready_count == 0 && world.pending_count == 0 && !emu_lanes_waiting() && quiet_is_final(quiet);
}

static ncclResult_t guarded_wait(struct emu_waiter *waiter, uint64_t deadline_ms) {
  const uint64_t begin_ns = os_time_ns();
  static struct quiet timed; /* locked */
  struct quiet endless = {0, 0, 0, false}, *quiet = deadline_ms != 0 ? &timed : &endless;
  while (!waiter->released) {
    if (!world.in_turns && waiter->done(waiter->argument)) return ncclSuccess;
    if (guarded_turn(quiet)) continue;
    if (waiter->released) break;
    if (nothing_can_come(deadline_ms, quiet))
      return log_fail(
          ncclInternalError,
          "guarded emulator: this wait cannot end: nothing is left that could move; is an event or a "
          "rank missing that only another thread could bring?");
    if (deadline_ms != 0 && os_time_ns() - begin_ns >= deadline_ms * 1000000u) return ncclInProgress;
    nap(deadline_ms != 0 && deadline_ms < 100 ? deadline_ms : 100);
    owners_mark_absent();
  }
  return ncclSuccess;
}

/* Threads mode: no lane has made progress for too long while some waited. All waits share the state, so that
 * a loop of short waits detects a deadlock as one long wait does. It is reset after a pause in which no
 * thread waited. */
static bool lanes_are_stuck(void) {
  static struct quiet still;   /* locked; `generation` holds the lanes' progress */
  static struct chance chance; /* locked */
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u;
  const uint64_t now_ns = os_time_ns(), progress = emu_lanes_progress();
  if (progress != still.generation || !emu_lanes_waiting() || emu_lanes_reach_out() ||
      now_ns - still.seen_ns > stall_ns / 2)
    still.since_ns = now_ns;
  still.generation = progress;
  still.seen_ns = now_ns;
  return now_ns - still.since_ns >= stall_ns && all_had_a_chance(&chance, still.since_ns);
}

void emu_sleep(os_cond *wake, uint64_t timeout_ms) {
  lock_note(0);
  os_cond_wait_until(wake, &world.lock, os_time_ns() + timeout_ms * 1000000u);
  lock_note(1);
}

/* How long a waiter polls before it sleeps: waking up takes as long as many short operations. */
#define LOOK_NS 2000000u

/* Pauses until something may have changed: first it polls, later it sleeps, but briefly, because another
 * process cannot wake it. */
static void threads_pause(uint64_t idle_ns, uint64_t deadline_ms) {
  if (idle_ns >= LOOK_NS) {
    wait_for_change(deadline_ms == 1 || idle_ns < 100 * (uint64_t)LOOK_NS ? 1 : 10);
    return;
  }
  emu_unlock();
  os_yield();
  emu_lock();
}

/* Threads mode: the waiter executes the operations that it waits for, if it may, and detects kernels that
 * make no progress. */
static ncclResult_t threads_wait(bool (*done)(void *argument), void *argument, uint64_t deadline_ms) {
  uint64_t begin_ns = 0, idle_since_ns = 0;
  while (!done(argument)) {
    if (emu_streams_help()) {
      idle_since_ns = 0;
      continue;
    }
    const uint64_t now_ns = os_time_ns();
    if (begin_ns == 0) begin_ns = now_ns;
    if (idle_since_ns == 0) idle_since_ns = now_ns;
    if (done(argument)) break;
    if (deadline_ms != 0 && now_ns - begin_ns >= deadline_ms * 1000000u) return ncclInProgress;
    if (world.outside_waits > 0 || emu_lanes_outside() || emu_lanes_reach_out())
      outside_complain(emu_lanes_progress());
    else if (lanes_are_stuck()) emu_lanes_stop_stuck();
    threads_pause(now_ns - idle_since_ns, deadline_ms);
  }
  return ncclSuccess;
}

ncclResult_t emu_wait(bool (*done)(void *argument), void *argument, uint64_t deadline_ms) {
  if (done(argument)) return ncclSuccess;
  if (emu_options()->mode == EMU_THREADS) return threads_wait(done, argument, deadline_ms);
  struct emu_waiter waiter = {done, argument, UINT64_MAX, false, NULL, NULL};
  waiter_enter(&waiter);
  const ncclResult_t result = guarded_wait(&waiter, deadline_ms);
  waiter_leave(&waiter);
  return result;
}

/* Ends when the turn comes back after that many events of all processes, or nothing can move in any. */
static void ordered_poll(bool (*done)(void *argument), void *argument, uint32_t event_count) {
  struct emu_order_state state;
  emu_order_load(&state);
  struct emu_waiter waiter = {done, argument, state.events + event_count, false, NULL, NULL};
  waiter_enter(&waiter);
  const bool drives = waiter.owner != NULL && waiter.owner->rank_count > 0;
  while (!guarded_turn(NULL) && !waiter.released) {
    if (!drives || !emu_order_on()) {
      nap(1);
      break;
    }
    turn_nap(100);
  }
  waiter_leave(&waiter);
}

/* The poll that has waited longest; NULL: none. */
static const struct emu_waiter *poll_oldest(void) {
  const struct emu_waiter *oldest = NULL;
  for (const struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next)
    if (!waiter->released && waiter->event_limit != UINT64_MAX) oldest = waiter;
  return oldest;
}

/* Lasts a number of events that the seed draws, so that a program sees what it polls for early or late. If
 * nothing can move the polls end one after the other. */
static void poll_in_turns(struct emu_waiter *waiter, struct quiet *quiet) {
  waiter->event_limit = emu_events + 1 + random_below((uint32_t)(waiter->event_limit - emu_events));
  while (!waiter->released) {
    if (guarded_turn(quiet)) continue;
    if (!waiter->released && !world.pumping && owners_wait() && poll_oldest() == waiter)
      waiter_release(waiter);
    if (!waiter->released) nap(1);
  }
}

void emu_poll(bool (*done)(void *argument), void *argument, uint32_t event_count) {
  if (done(argument)) return;
  if (emu_options()->mode == EMU_THREADS) {
    if (!emu_streams_help()) threads_pause(0, 0);
    return;
  }
  if (emu_order_on()) {
    ordered_poll(done, argument, event_count);
    return;
  }
  struct emu_waiter waiter = {done, argument, emu_events + event_count, false, NULL, NULL};
  static struct quiet quiet = {0, 0, 0, true}; /* locked */
  waiter_enter(&waiter);
  if (world.in_turns) poll_in_turns(&waiter, &quiet);
  else if (!guarded_turn(&quiet) && !waiter.released) nap(1);
  waiter_leave(&waiter);
}

/* ---- other processes wait for this one, and no thread of it waits ---- */

#define DRIVE_IDLE_MS 20
#define DRIVE_IDLE_EVENTS 20000u

static bool never(void *argument) {
  (void)argument;
  return false;
}

/* Without a warning, because runs with several processes are not deterministic anyway. */
static void owners_excuse(void) {
  for (struct emu_owner *owner = world.owners; owner != NULL; owner = owner->next)
    owner->absent = owner->absent || owner->waiting == 0;
}

bool emu_world_settle(uint64_t event_count) {
  struct emu_waiter waiter = {never, NULL, emu_events + event_count, false, NULL, NULL};
  waiter_enter(&waiter);
  const bool settled = !pump();
  waiter_leave(&waiter);
  return settled;
}

/* One turn, without a report of deadlocks; true if an event ran or can run. */
static bool drive_idle_turn(void) {
  const uint64_t events_before = emu_events;
  emu_world_settle(DRIVE_IDLE_EVENTS);
  emu_services_look_outside();
  return emu_lanes_look() || emu_events != events_before;
}

bool emu_keeps_time(void) { return emu_options()->mode == EMU_THREADS; }

/* In threads mode the lanes' threads write the records themselves. */
uint64_t emu_records_progress(void) {
  if (emu_options()->mode != EMU_GUARDED) return 0;
  emu_lock();
  const uint64_t progress = emu_lanes_progress();
  emu_unlock();
  return progress;
}

/* The threads of this process are away, and others may wait for its actors. They excuse it before: a thread
 * that is closing its last communicator drives no rank, but is not away. */
static bool order_drive_idle(void) {
  struct emu_waiter waiter = {never, NULL, UINT64_MAX, false, NULL, NULL};
  const uint64_t until_ns = os_time_ns() + DRIVE_IDLE_MS * 1000000u;
  waiter_enter(&waiter);
  bool drives = true;
  while (drives && os_time_ns() < until_ns) {
    drives =
        emu_order_on() && (emu_order_excused() || (emu_order_only() && owners_wait() && waiter.next == NULL));
    if (drives && !guarded_turn(NULL)) turn_nap(DRIVE_IDLE_MS);
  }
  waiter_leave(&waiter);
  return drives;
}

uint32_t emu_drive_idle(void) {
  static uint64_t seen_turns; /* locked */
  if (emu_options()->mode != EMU_GUARDED) return UINT32_MAX;
  emu_lock();
  if (emu_order_on()) {
    const bool drives = order_drive_idle();
    emu_unlock();
    return drives ? 0 : DRIVE_IDLE_MS;
  }
  bool busy = false;
  if (world_turns == seen_turns && !world.pumping) {
    owners_excuse();
    busy = drive_idle_turn();
  }
  seen_turns = world_turns;
  emu_unlock();
  return busy ? 0 : DRIVE_IDLE_MS;
}

/* ---- owners ---- */

static void owner_unlink(struct emu_owner *owner) {
  struct emu_owner **place = &world.owners;
  while (*place != owner) place = &(*place)->next;
  *place = owner->next;
  os_free(owner);
}

/* A thread that has ended owns no ranks; their slots still point to it until they are set or cleared. */
static void owner_thread_ended(void *value) {
  struct emu_owner *owner = (struct emu_owner *)value;
  emu_lock();
  owner->ended = true;
  if (owner->rank_count == 0) owner_unlink(owner);
  emu_changed();
  emu_unlock();
}

void emu_owner_clear(struct emu_owner **slot) {
  struct emu_owner *owner = *slot;
  *slot = NULL;
  if (owner == NULL) return;
  owner->rank_count -= 1;
  if (owner->rank_count > 0) return;
  if (owner->ended) {
    owner_unlink(owner);
  } else if (owner == owner_current()) {
    pthread_setspecific(owner_key, NULL);
    if (owner->waiting == 0) owner_unlink(owner);
    else owner->ended = true;
  }
}

void emu_owner_set(struct emu_owner **slot) {
  struct emu_owner *owner = owner_current();
  if (owner != NULL && *slot == owner) return;
  emu_owner_clear(slot);
  if (owner == NULL) {
    owner = (struct emu_owner *)os_alloc(sizeof *owner);
    if (owner == NULL) return; /* the rank then has no owner: deadlocks are detected later, still correctly */
    owner->next = world.owners;
    world.owners = owner;
    owner->away_since_ns = os_time_ns();
    owner->is_main = os_tid() == os_pid();
    pthread_setspecific(owner_key, owner);
  }
  owner->rank_count += 1;
  *slot = owner;
  if (owner->waiting == 0) emu_order_busy();
  emu_changed();
}

/* ---- an excused process ---- */

static bool not_excused(void *argument) {
  (void)argument;
  return !emu_order_excused();
}

/* Others went on without this thread, and do so until nothing can move. */
static void order_come_back(void) {
  const struct emu_owner *owner = owner_current();
  if (owner == NULL || owner->rank_count == 0 || owner->ended || owner->waiting > 0) return;
  emu_wait(not_excused, NULL, 0);
}
