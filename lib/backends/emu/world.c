/* world.c: the lock, the guarded scheduler and the waiting of host threads. See world.h for the rules of the
 * game. The ready set is an array without order: an actor is in it when it was enabled at the time it was
 * last looked at; it leaves when it is found stuck, and whoever changes what it waits for wakes it. A move
 * costs one draw, one predicate, one event. */
#include "backends/emu/world.h"

#include <stdlib.h>
#include <string.h>

#include "backends/emu/world_impl.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"

/* A bound for the arrays below; pages are taken only as they are touched. */
#define EMU_ACTORS_MAX (1u << 20)

#define LOCK_SPINS 512u

struct emu_owner {
  uint32_t rank_count; /* slots that name this thread */
  uint32_t waiting;    /* depth of waiting calls */
  bool ended, absent;
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
  int taken;         /* atomic: a hint for those who would take the lock */
  int prepared;      /* atomic */
  uint32_t sleepers; /* threads that sleep until something changes */
  struct emu_actor **ready, **pending;
  uint32_t ready_count, pending_count;
  bool pumping, inside; /* a thread runs events; and it is within one, not within a call-out */
  bool change;          /* a waiter's condition may have become true */
  bool outside;         /* nothing can move but what comes from outside of the world */
  int outside_waits;    /* of the host, for other processes: they may bring what kernels wait for */
  uint64_t generation;  /* counts emu_changed() and wakes: something happened while nobody pumped */
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

/* ---- forks: the child has the thread that forked and no other ---- */

#define FORK_PATIENCE_MS 1000

static bool fork_locked; /* of the thread that forks, from before to after */

/* Others may hold this lock while they wait for one that the forking thread has already; so no longer than
 * this. */
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
  emu_streams_forked();
  emu_pool_forked();
}

static void world_prepare(void) {
  world_make_condition();
  pthread_key_create(&owner_key, owner_thread_ended);
  pthread_atfork(fork_before, fork_parent, fork_child);
  world.ready = (struct emu_actor **)os_pages_map(EMU_ACTORS_MAX * sizeof *world.ready);
  world.pending = (struct emu_actor **)os_pages_map(EMU_ACTORS_MAX * sizeof *world.pending);
  if (world.ready == NULL || world.pending == NULL)
    abort(); /* 16 MiB of address space: nothing could work without */
  __atomic_store_n(&world.prepared, 1, __ATOMIC_RELEASE);
}

/* Also around sleeps, which give the lock away. */
static void lock_note(int taken) { __atomic_store_n(&world.taken, taken, __ATOMIC_RELAXED); }

static inline bool world_try(void) {
  if (__atomic_load_n(&world.taken, __ATOMIC_RELAXED) || pthread_mutex_trylock(&world.lock) != 0)
    return false;
  lock_note(1);
  return true;
}

static void world_take(void) {
  if (!__atomic_load_n(&world.prepared, __ATOMIC_ACQUIRE)) pthread_once(&world_once, world_prepare);
  /* It is held for moments only, and to wake a sleeper takes longer. */
  for (uint32_t i = 0; i < LOCK_SPINS; i++) {
    if (world_try()) return;
    __builtin_ia32_pause();
  }
  pthread_mutex_lock(&world.lock);
  lock_note(1);
}

static void world_give(void) {
  lock_note(0);
  pthread_mutex_unlock(&world.lock);
}

/* A service's turn has the lock and may call what takes it, as may comm_fail(). */
static _Thread_local uint32_t lock_depth;

void emu_lock(void) {
  uint32_t *depth = &lock_depth; /* to find it takes a call */
  if (*depth == 0) world_take();
  *depth += 1;
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
  if (!world.inside && world.sleepers > 0) pthread_cond_broadcast(&world.changed);
}

/* ---- actors ---- */

static void ready_add(struct emu_actor *actor) {
  world.ready[world.ready_count] = actor;
  world.ready_count += 1;
  actor->ready_index = world.ready_count;
}

static void ready_drop(struct emu_actor *actor) {
  struct emu_actor *last = world.ready[world.ready_count - 1];
  world.ready[actor->ready_index - 1] = last;
  last->ready_index = actor->ready_index;
  world.ready_count -= 1;
  actor->ready_index = 0;
}

void emu_actor_init(struct emu_actor *actor, const struct emu_actor_ops *ops, uint64_t key) {
  actor->ops = ops;
  actor->key = key;
  actor->ready_index = 0;
  actor->pending = 0;
  actor->priority = emu_options()->rule == EMU_RULE_PRIORITY ? random_next() : 0;
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
  if (actor->ready_index != 0) ready_drop(actor);
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

/* What host threads woke enters the ready set in the order of keys, so that arrival order leaves no mark. */
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

/* An actor may stand in the ready set until it is picked and found stuck: such ones leave it here. */
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
  if (random_below(32) == 0)
    best->priority = random_next() >> 1; /* a change point: it may fall behind from here on */
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

static void waiter_release(struct emu_waiter *waiter) {
  waiter->released = true;
  if (waiter->owner != NULL) {
    waiter->owner->waiting -= 1;
    if (waiter->owner->waiting == 0) waiter->owner->away_since_ns = os_time_ns();
  }
}

/* Releases every waiter whose condition holds; true when there was one. From then on the world makes no
 * progress until they wait again. */
static bool waiters_release(void) {
  bool any = false;
  world.change = false;
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next) {
    if (waiter->released) continue;
    if (emu_events >= waiter->event_limit || waiter->done(waiter->argument)) {
      waiter_release(waiter);
      any = true;
    }
  }
  return any;
}

/* True when no thread that drives a rank is outside of a waiting call. */
static bool owners_wait(void) {
  for (struct emu_owner *owner = world.owners; owner != NULL; owner = owner->next)
    if (owner->rank_count > 0 && !owner->ended && !owner->absent && owner->waiting == 0) return false;
  return true;
}

/* Runs events until a waiter's condition holds (true) or nothing can move (false). */
static bool pump(void) {
  const enum emu_rule rule = emu_options()->rule;
  uint64_t limit = waiters_event_limit();
  bool any = false;
  world.pumping = true;
  world.change = true;
  for (;;) {
    if (world.change || emu_events >= limit) {
      if ((any = waiters_release())) break;
      limit = waiters_event_limit();
    }
    /* Behind the release: what the freed threads are about to wake must enter together with what is here. */
    if (world.pending_count > 0) pending_enter();
    if (world.ready_count == 0) break;
    struct emu_actor *actor = pick(rule);
    if (!actor->ops->enabled(actor)) {
      ready_drop(actor);
      continue;
    }
    emu_events += 1;
    world.inside = true;
    actor->ops->move(actor);
    world.inside = false;
  }
  world.pumping = false;
  pthread_cond_broadcast(&world.changed);
  return any;
}

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

/* The owners that stay away longer than allowed are no longer waited for; said once each. */
static void owners_mark_absent(void) {
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u;
  for (struct emu_owner *owner = world.owners; owner != NULL; owner = owner->next) {
    if (owner->rank_count == 0 || owner->ended || owner->absent || owner->waiting != 0) continue;
    if (os_time_ns() - owner->away_since_ns < stall_ns) continue;
    owner->absent = true;
    log_warn(
        "guarded emulator: a thread that drives %u rank(s) has made no waiting call for %llu s; going on "
        "without it, so this "
        "run is not deterministic; let it call cudaStreamSynchronize, or raise TUTTI_STALL_SECONDS",
        owner->rank_count, (unsigned long long)emu_options()->stall_seconds);
  }
}

static bool threads_beyond_waiters(void) {
  uint32_t waiting = 0;
  for (struct emu_waiter *waiter = world.waiters; waiter != NULL; waiter = waiter->next) waiting += 1;
  return os_thread_count() > waiting;
}

/* How long a waiter has seen nothing happen. Waits with a deadline and polls come back to it, so that a loop
 * of them gets its verdict as one long wait does; after a pause in which nobody looked it begins anew. */
struct quiet {
  uint64_t since_ns, seen_ns, generation;
  bool polls; /* the thread is about to go on, maybe to call what is missing */
};

/* Nothing can move and every owner waits: final at once when no thread is left that could change that, else
 * after a while without change. */
static bool quiet_is_final(struct quiet *quiet) {
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u;
  if (!quiet->polls && !threads_beyond_waiters()) return true;
  const uint64_t now_ns = os_time_ns();
  if (quiet->generation != world.generation || now_ns - quiet->seen_ns > stall_ns / 2) {
    quiet->since_ns = now_ns;
    quiet->generation = world.generation;
  }
  quiet->seen_ns = now_ns;
  return now_ns - quiet->since_ns >= stall_ns;
}

/* Lanes wait for another process, and nothing moves here: said once, when it has lasted long. */
static void outside_complain(uint64_t moved) {
  static struct quiet still; /* locked; its generation is what moved */
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

/* A wait for another process only gives the core away for so many turns; then it sleeps, each time longer, up
 * to a limit, which is the crowd's for each rank that a core serves: who looks takes time from the others. */
#define NAP_SPINS 100
#define NAP_US_MOST 1000
#define NAP_US_CROWD 30

static uint64_t nap_count, nap_events; /* locked */

void emu_world_outside_moved(void) { nap_count = 0; }

void emu_world_outside_wait(int more) {
  world.outside_waits += more;
  if (world.outside_waits < 0)
    world.outside_waits = 0; /* the child of a fork gives up what its parent began */
  emu_changed();
}

/* What another process does wakes nobody here: looks again after a while that grows as nothing happens. */
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

/* Declares kernels that wait stuck when that is final. True when this changed anything. */
static bool stuck_declare(struct quiet *quiet) {
  if (!emu_lanes_waiting()) return false;
  const bool outside = world.outside || world.outside_waits > 0;
  if (outside) outside_complain(emu_lanes_progress()); /* services that look around run events too */
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
}

static uint64_t world_turns; /* of waiting threads that could move whatever can move; locked */

/* One turn of a guarded wait: lends the thread to the world, or sleeps until something changes. */
static bool guarded_turn(struct quiet *quiet) {
  if (!world.pumping && owners_wait()) {
    world_turns += 1;
    if ((world.ready_count > 0 || world.pending_count > 0 || world.change) && pump()) return true;
    if (emu_lanes_look()) { /* a long operation with another process must not keep everybody out */
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

static void nap(uint64_t timeout_ms) {
  if (world.outside && !world.pumping) outside_nap();
  else wait_for_change(timeout_ms);
}

static bool nothing_can_come(uint64_t deadline_ms, struct quiet *quiet) {
  return deadline_ms == 0 && !world.pumping && !world.outside && world.outside_waits == 0 && owners_wait() &&
         world.ready_count == 0 && world.pending_count == 0 && !emu_lanes_waiting() && quiet_is_final(quiet);
}

static ncclResult_t guarded_wait(struct emu_waiter *waiter, uint64_t deadline_ms) {
  const uint64_t begin_ns = os_time_ns();
  static struct quiet timed; /* locked */
  struct quiet endless = {0, 0, 0, false}, *quiet = deadline_ms != 0 ? &timed : &endless;
  while (!waiter->released) {
    if (waiter->done(waiter->argument)) return ncclSuccess;
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

/* Threads mode: since when no lane has made progress while some waited. One for all waits, so that a loop of
 * short ones sees what a long one would; after a pause in which nobody looked it begins anew. */
static bool lanes_are_stuck(void) {
  static struct quiet still; /* locked; its generation is the lanes' progress */
  const uint64_t stall_ns = emu_options()->stall_seconds * 1000000000u;
  const uint64_t now_ns = os_time_ns(), progress = emu_lanes_progress();
  if (progress != still.generation || !emu_lanes_waiting() || emu_lanes_reach_out() ||
      now_ns - still.seen_ns > stall_ns / 2)
    still.since_ns = now_ns;
  still.generation = progress;
  still.seen_ns = now_ns;
  return now_ns - still.since_ns >= stall_ns;
}

void emu_sleep(os_cond *wake, uint64_t timeout_ms) {
  lock_note(0);
  os_cond_wait_until(wake, &world.lock, os_time_ns() + timeout_ms * 1000000u);
  lock_note(1);
}

/* How long a waiter looks before it sleeps: waking up takes as long as many short operations. */
#define LOOK_NS 2000000u

/* Until something may have changed: at once at first, later asleep, but not for long, because what comes from
 * another process wakes nobody. */
static void threads_pause(uint64_t idle_ns, uint64_t deadline_ms) {
  if (idle_ns >= LOOK_NS) {
    wait_for_change(deadline_ms == 1 || idle_ns < 100 * (uint64_t)LOOK_NS ? 1 : 10);
    return;
  }
  emu_unlock();
  os_yield();
  emu_lock();
}

/* Threads mode: the waiter carries out what it waits for, as far as it is its own to carry out; a watch over
 * progress finds kernels that make no progress. */
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

void emu_poll(bool (*done)(void *argument), void *argument, uint32_t event_count) {
  if (done(argument)) return;
  if (emu_options()->mode == EMU_THREADS) {
    if (!emu_streams_help()) threads_pause(0, 0);
    return;
  }
  struct emu_waiter waiter = {done, argument, emu_events + event_count, false, NULL, NULL};
  static struct quiet quiet = {0, 0, 0, true}; /* locked */
  waiter_enter(&waiter);
  if (!guarded_turn(&quiet) && !waiter.released) nap(1);
  waiter_leave(&waiter);
}

/* ---- other processes wait, and no thread of this one does ---- */

#define DRIVE_IDLE_MS 20
#define DRIVE_IDLE_EVENTS 20000u

static bool never(void *argument) {
  (void)argument;
  return false;
}

/* Without a warning: where there are several processes no run is deterministic. */
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

/* One turn, without a verdict; true when something moved, or can. */
static bool drive_idle_turn(void) {
  const uint64_t moves = emu_events;
  emu_world_settle(DRIVE_IDLE_EVENTS);
  emu_services_look_outside();
  return emu_lanes_look() || emu_events != moves;
}

bool emu_keeps_time(void) { return emu_options()->mode == EMU_THREADS; }

uint32_t emu_drive_idle(void) {
  static uint64_t seen_turns; /* locked */
  if (emu_options()->mode != EMU_GUARDED) return UINT32_MAX;
  emu_lock();
  bool moves = false;
  if (world_turns == seen_turns && !world.pumping) {
    owners_excuse();
    moves = drive_idle_turn();
  }
  seen_turns = world_turns;
  emu_unlock();
  return moves ? 0 : DRIVE_IDLE_MS;
}

/* ---- owners ---- */

static void owner_unlink(struct emu_owner *owner) {
  struct emu_owner **place = &world.owners;
  while (*place != owner) place = &(*place)->next;
  *place = owner->next;
  os_free(owner);
}

/* A thread that ended drives nothing any more; its slots still point here until they are set or cleared. */
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
    if (owner == NULL)
      return; /* the rank is then driven by nobody in particular: less strict, still correct */
    owner->next = world.owners;
    world.owners = owner;
    owner->away_since_ns = os_time_ns();
    pthread_setspecific(owner_key, owner);
  }
  owner->rank_count += 1;
  *slot = owner;
  emu_changed();
}
