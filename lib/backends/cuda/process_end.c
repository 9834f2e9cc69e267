/* process_end.c: a process that ends while communicators are open. The CUDA runtime gives back what it has
 * when the process ends: no thread of the library may ask it for anything from then on, and it waits for
 * kernels, which may wait for other ranks for ever. */
#include "backends/cuda/device.h"
#include "base/log.h"

#define LOOKS_WAIT_MS 1000   /* for a look that does not return, as when a device does not answer */
#define LOCK_WAIT_MS 1000    /* for a thread in a call */
#define KERNELS_WAIT_MS 1000 /* for kernels that other ranks let end */

static bool process_ends;
static uint32_t looks_running, fork_count;

bool cuda_look_begin(void) {
  __atomic_fetch_add(&looks_running, 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&process_ends, __ATOMIC_SEQ_CST)) return true;
  cuda_look_end();
  return false;
}

void cuda_look_end(void) { __atomic_fetch_sub(&looks_running, 1, __ATOMIC_SEQ_CST); }

static void looks_end(void) {
  __atomic_store_n(&process_ends, true, __ATOMIC_SEQ_CST);
  for (int i = 0; i < LOOKS_WAIT_MS && __atomic_load_n(&looks_running, __ATOMIC_SEQ_CST) > 0; i++)
    os_sleep_ms(1);
}

static bool lock_taken(void) {
  for (int i = 0; i < LOCK_WAIT_MS; i++) {
    if (cuda_try_lock()) return true;
    os_sleep_ms(1);
  }
  return false;
}

static bool comms_idle(void) {
  for (struct device_comm *comm = cuda_comms(); comm != NULL; comm = comm->next)
    if (!cuda_comm_idle(comm)) return false;
  return true;
}

static void comms_give_up(void) {
  for (struct device_comm *comm = cuda_comms(); comm != NULL; comm = comm->next) {
    if (cuda_comm_idle(comm)) continue;
    log_urgent(
        "comm %s: rank %u: the process ends while its kernels wait for other ranks, and gives them up; "
        "wait for streams, or call ncclCommAbort, before the program ends",
        comm->name, comm->config.rank);
    __atomic_store_n(&comm->control->abort, 1, __ATOMIC_RELEASE);
    cuda_rma_abort(comm);
  }
}

/* Runs before the runtime's own handler, because it is registered after the runtime was loaded. A forked
 * child has no devices, and the kernels are its parent's. */
static void process_end(void) {
  if (fork_count != os_fork_count()) return;
  looks_end();
  if (!lock_taken()) return;
  for (int i = 0; i < KERNELS_WAIT_MS && !comms_idle(); i++) os_sleep_ms(1);
  comms_give_up();
  cuda_unlock();
}

void cuda_end_watch(void) {
  static bool watched;
  if (__atomic_exchange_n(&watched, true, __ATOMIC_ACQ_REL)) return;
  fork_count = os_fork_count();
  os_at_exit(process_end);
}
