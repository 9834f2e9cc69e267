/* conn_kept.c: memory of connections that its owner has closed while the other end, in another process, may
 * still use it: a receiver's FIFO and slots, or a sender's slots. It is freed once the other end has left, or
 * its process has ended; later calls that open, close or allocate something check that, so that no thread
 * waits for it. While the communicator has not failed, none is freed before the other end has left, and none
 * is kept after the other end's process has ended, if this process can see that. After a failure it is kept
 * for at most TUTTI_PEER_TIMEOUT_SECONDS. */
#include "backends/emu/block.h"
#include "base/os.h"
#include "base/param.h"

#define LOOK_NS UINT64_C(50000000) /* least time between two checks of which processes live */

static struct {
  os_mutex lock;
  struct emu_conn *first;
  uint64_t looked_ns;
} kept = {.lock = OS_MUTEX_INITIALIZER};

void emu_conn_free_exported(struct emu_conn *conn) {
  for (uint8_t slots = 0; slots < SLOTS_COUNT; slots++)
    if (conn->buffer[slots] != NULL) emu_arena_free(conn->buffer[slots] - emu_conn_buffer_shift(conn, slots));
  emu_arena_free(conn->fifo_memory);
  os_free(conn);
}

/* The other end may still be about to map the memory if it has the handle. */
static bool guest_present(const struct emu_conn *conn, uint64_t now_ns, bool look) {
  const struct emu_guest *guest = &conn->fifo->guest;
  if (__atomic_load_n(&guest->left, __ATOMIC_ACQUIRE) != 0 || now_ns >= conn->kept_until_ns) return false;
  return !look || __atomic_load_n(&guest->came, __ATOMIC_ACQUIRE) == 0 || !os_process_gone(&guest->process);
}

/* Removes the connections that can be freed from the list. */
static struct emu_conn *kept_take(void) {
  struct emu_conn *taken = NULL;
  const uint64_t now_ns = os_time_ns();
  const bool look = now_ns - kept.looked_ns >= LOOK_NS;
  if (look) kept.looked_ns = now_ns;
  for (struct emu_conn **place = &kept.first, *conn; (conn = *place) != NULL;) {
    if (guest_present(conn, now_ns, look)) {
      place = &conn->next_kept;
      continue;
    }
    *place = conn->next_kept;
    conn->next_kept = taken;
    taken = conn;
  }
  return taken;
}

void emu_kept_sweep(void) {
  if (__atomic_load_n(&kept.first, __ATOMIC_RELAXED) == NULL) return;
  os_mutex_lock(&kept.lock);
  struct emu_conn *taken = kept_take();
  os_mutex_unlock(&kept.lock);
  for (struct emu_conn *next; taken != NULL; taken = next) {
    next = taken->next_kept;
    emu_conn_free_exported(taken);
  }
}

void emu_conn_keep(struct emu_conn *conn, bool failed) {
  const uint64_t seconds = (uint64_t)param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  conn->kept_until_ns = failed && seconds > 0 ? os_time_ns() + seconds * UINT64_C(1000000000) : UINT64_MAX;
  os_mutex_lock(&kept.lock);
  conn->next_kept = kept.first;
  __atomic_store_n(&kept.first, conn, __ATOMIC_RELAXED);
  os_mutex_unlock(&kept.lock);
  emu_kept_sweep();
}
