/* proxy_progress_idle.c: progress on idle connections. Connections with work are progressed at every turn.
 * For the others a network can request a check ten times a second: if the other end reconnects, or the device
 * has an event. */
#include "base/os.h"
#include "core/proxy/proxy_impl.h"

static void comm_look(struct proxy_comm *comm, bool due) {
  comm->idle_look = NET_LOOK_NEVER;
  for (struct proxy_conn *conn = comm->first; conn != NULL && !comm->failed; conn = conn->next) {
    if (conn->idle_look == NET_LOOK_SOON || (due && conn->idle_look == NET_LOOK_LATER))
      proxy_conn_progress_idle(conn);
    if (conn->idle_look > comm->idle_look) comm->idle_look = conn->idle_look;
  }
}

enum net_look proxy_comm_progress_idle(struct proxy_comm *comm) {
  if (comm->idle_look == NET_LOOK_NEVER || comm->failed) return NET_LOOK_NEVER;
  const uint64_t now_ns = os_time_ns();
  const bool due = now_ns - comm->idle_looked_ns >= PROXY_PROGRESS_IDLE_US * UINT64_C(1000);
  if (due) comm->idle_looked_ns = now_ns;
  if (due || comm->idle_look == NET_LOOK_SOON) comm_look(comm, due);
  return comm->idle_look;
}
