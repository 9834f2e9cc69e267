/* remote_lease.c: the thread that returns memory to its owners. What a process maps of another one's program
 * is a lease: it keeps the memory in use after the program has freed it. The thread finds out what this
 * process's program has freed, tells the processes that have it mapped, and ends this process's mappings of
 * what others have freed. Both may wait, for the driver, for kernels and for an answer, so no other thread of
 * the library does it, and no lock is held. It sleeps while there are no leases. */
#include "backends/backend.h"
#include "base/log.h"
#include "base/os.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"

#define LOOK_NS 4000000u  /* while memory is shown */
#define SWEEP_NS 1000000u /* while a mapping is to be ended, but kernels run */

/* A communicator's; guarded by the lock. */
struct remote_lease {
  struct remote_lease *next;
  struct remote *remote;
  uint32_t called_off; /* atomic */
  bool in_use;
  uint64_t pass;
};

static struct {
  struct remote_lease *first; /* guarded by the lock, as all members below */
  uint64_t pass;
  bool stop, woken;
  uint32_t fork_count;
  os_thread thread;
} leases;
static os_mutex leases_lock = OS_MUTEX_INITIALIZER;
static os_cond leases_changed;
static os_mutex life_lock = OS_MUTEX_INITIALIZER; /* for starting and ending the thread; taken first */

/* ---- the thread ---- */

static struct remote_lease *lease_next(void) {
  struct remote_lease *lease = leases.first;
  while (lease && lease->pass == leases.pass) lease = lease->next;
  return lease;
}

static void tell_peers(void) {
  leases.pass += 1;
  for (struct remote_lease *lease = lease_next(); lease && !leases.stop; lease = lease_next()) {
    lease->pass = leases.pass;
    lease->in_use = true;
    os_mutex_unlock(&leases_lock);
    const uint32_t rank_count = lease->remote->shared->rank_count;
    for (uint32_t rank = 0; rank < rank_count; rank++)
      remote_regions_return(lease->remote, rank, &lease->called_off);
    os_mutex_lock(&leases_lock);
    lease->in_use = false;
    os_cond_broadcast(&leases_changed);
  }
}

static void rest(bool shown, bool left) {
  const uint64_t until_ns = os_time_ns() + (left ? SWEEP_NS : LOOK_NS);
  while (!leases.stop && !leases.woken) {
    if (!shown && !left) os_cond_wait(&leases_changed, &leases_lock);
    else if (!os_cond_wait_until(&leases_changed, &leases_lock, until_ns)) return;
  }
}

static void *leases_body(void *argument) {
  const struct process_ops *ops = backend_ops()->process;
  (void)argument;
  os_mutex_lock(&leases_lock);
  while (!leases.stop) {
    leases.woken = false;
    os_mutex_unlock(&leases_lock);
    const bool shown = ops->regions_look();
    os_mutex_lock(&leases_lock);
    tell_peers();
    os_mutex_unlock(&leases_lock);
    const bool left = ops->region_sweep();
    os_mutex_lock(&leases_lock);
    rest(shown, left);
  }
  os_mutex_unlock(&leases_lock);
  return NULL;
}

void remote_lease_wake(void) {
  os_mutex_lock(&leases_lock);
  leases.woken = true;
  os_cond_broadcast(&leases_changed);
  os_mutex_unlock(&leases_lock);
}

/* ---- its beginning and end ---- */

/* A forked child has none of its parent's communicators, nor the thread. */
static void leases_forget(void) {
  static bool prepared;
  if (prepared && leases.fork_count == os_fork_count()) return;
  prepared = true;
  leases.first = NULL;
  leases.fork_count = os_fork_count();
  os_mutex_init(&leases_lock);
  os_cond_init(&leases_changed);
}

static ncclResult_t leases_start(void) {
  leases.stop = false;
  if (os_thread_start_named(&leases.thread, "tutti-leases", leases_body, NULL)) {
    os_thread_note(1);
    return ncclSuccess;
  }
  return log_fail(
      ncclSystemError,
      "no thread that returns memory to other processes; raise ulimit -u, or the limit of memory");
}

ncclResult_t remote_lease_open(struct remote *remote) {
  struct remote_lease *lease = (struct remote_lease *)os_alloc(sizeof *lease);
  if (!lease) return log_no_memory("noting a communicator that shows memory");
  lease->remote = remote;
  os_mutex_lock(&life_lock);
  leases_forget();
  const ncclResult_t started = leases.first ? ncclSuccess : leases_start();
  if (started == ncclSuccess) {
    os_mutex_lock(&leases_lock);
    lease->next = leases.first;
    leases.first = lease;
    os_mutex_unlock(&leases_lock);
    remote->lease = lease;
  }
  os_mutex_unlock(&life_lock);
  if (started != ncclSuccess) os_free(lease);
  return started;
}

/* True if it was the last one. */
static bool lease_unlist(struct remote_lease *lease) {
  os_mutex_lock(&leases_lock);
  while (lease->in_use) os_cond_wait(&leases_changed, &leases_lock);
  struct remote_lease **link = &leases.first;
  while (*link && *link != lease) link = &(*link)->next;
  if (*link) *link = lease->next;
  leases.stop = leases.first == NULL;
  leases.woken = true; /* the communicator's mappings are to be ended */
  os_cond_broadcast(&leases_changed);
  os_mutex_unlock(&leases_lock);
  return leases.first == NULL;
}

void remote_lease_close(struct remote *remote) {
  struct remote_lease *lease = remote->lease;
  if (!lease) return;
  __atomic_store_n(&lease->called_off, 1, __ATOMIC_RELEASE);
  os_mutex_lock(&life_lock);
  if (leases.fork_count == os_fork_count() && lease_unlist(lease)) {
    os_thread_join(leases.thread);
    os_thread_note(-1);
  }
  os_mutex_unlock(&life_lock);
  os_free(lease);
}
