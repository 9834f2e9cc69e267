/* proxy_status.c: the state of connections over networks, for stall detection: what their networks have
 * pending, and for how long each has been quiet. Quiet time is counted in intervals between examinations, not
 * by the clock, so that a process that was stopped does not take its own pause for silence of others. */
#include "core/proxy/proxy_impl.h"
#include "core/proxy/proxy_pxn.h"

/* Of a sender: slices that the kernel has filled; of a receiver: slices that have space. */
static uint64_t conn_ready(const struct proxy_conn *conn) {
  if (!conn->name.sends)
    return conn->n_posted + (conn->has_next && conn->next_slice.end <= conn->steps.done + conn->end.slots);
  uint64_t ready = conn->n_transmitted;
  while (ready < conn->n_posted && proxy_conn_is_filled(conn, &conn->flights[ready % PROXY_SLICES_MAX]))
    ready++;
  return ready;
}

static struct proxy_state conn_state(const struct proxy_conn *conn) {
  struct proxy_state state = {conn->connection != NULL, conn_ready(conn), conn->n_received, conn->n_done, 0};
  if (conn->name.sends) state.moved = conn->n_transmitted;
  if (conn->pxn_client != NULL) {
    state.connected = __atomic_load_n(&conn->pxn_client->connected, __ATOMIC_RELAXED) != 0;
    state.moved = __atomic_load_n(&conn->pxn_client->transmitted, __ATOMIC_RELAXED);
  }
  return state;
}

static bool same_state(const struct proxy_state *a, const struct proxy_state *b) {
  return a->connected == b->connected && a->ready == b->ready && a->moved == b->moved && a->done == b->done;
}

static bool conn_is_owed(const struct proxy_conn *conn) {
  const struct proxy_state *state = &conn->looked;
  if (!state->connected) return conn->first != NULL;
  return state->ready > (conn->name.sends ? state->done : state->moved);
}

/* The operation of the next message; NULL if nothing is pending. */
static const struct work *conn_work(const struct proxy_conn *conn) {
  const uint64_t next = conn->name.sends ? conn->n_done : conn->n_received;
  if (next < conn->n_posted) return conn->flights[next % PROXY_SLICES_MAX].slice.part;
  if (conn->has_next) return conn->next_slice.part;
  return conn->first != NULL ? conn->first->work : NULL;
}

static bool debt_take(const struct proxy_conn *conn, struct proxy_debt *debt) {
  const struct work *work = conn_work(conn);
  if (work == NULL || !conn_is_owed(conn)) return false;
  debt->name = conn->name;
  debt->state = conn->looked;
  debt->func = work->func;
  debt->operation = work->op_sequence;
  return true;
}

uint64_t proxy_comm_status(struct proxy_comm *comm, uint64_t passed_ms, struct proxy_debt *debts,
                           uint32_t capacity, uint32_t *count) {
  uint64_t sum = 0;
  *count = 0;
  proxy_lock();
  for (struct proxy_conn *conn = comm->first; conn != NULL && !comm->failed; conn = conn->next) {
    struct proxy_state state = conn_state(conn);
    if (same_state(&state, &conn->looked)) state.quiet_ms = conn->looked.quiet_ms + passed_ms;
    conn->looked = state;
    sum = sum * 31 + state.ready + state.moved + conn->n_transmitted + state.done;
    if (*count < capacity) *count += debt_take(conn, &debts[*count]);
  }
  proxy_unlock();
  return sum;
}

bool proxy_comm_state(struct proxy_comm *comm, const struct device_conn_name *name,
                      struct proxy_state *state) {
  proxy_lock();
  const struct proxy_conn *conn = proxy_conn_find(comm, name);
  if (conn != NULL) *state = conn->looked;
  proxy_unlock();
  return conn != NULL;
}
