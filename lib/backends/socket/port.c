/* port.c: accepts connections. A device has one listening socket while any of its listeners is open. Each
 * client is authenticated; its key says for which listener, and as which socket of a connection, it comes.
 * Foreign clients cannot delay a connection: the number in handshake is bounded, and the oldest is closed
 * when it is reached. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backends/socket/socket.h"
#include "base/handshake.h"
#include "base/log.h"

#define GUESTS_MAX 64  /* clients of a device in handshake */
#define ACCEPTS_MAX 64 /* clients accepted in one call */
#define EVENTS_MAX 32
#define EVENT_LISTEN UINT32_MAX
#define EVENT_READY (UINT32_MAX - 1)

struct listener {
  enum end_kind kind; /* END_LISTENER; first, as in struct end */
  uint32_t device, have;
  struct listener *next;
  uint64_t comm_key, key;
  struct secret secret;
  uint32_t rank, peer;
  char comm_name[64];
  struct sock_interface interface;
  struct endpoint endpoint;
  bool claimed, complete;
  int fds[SOCKETS_MAX];
};

struct port {
  int fd, epoll, ready; /* ready: an eventfd that counts complete connections not yet accepted */
  struct sock_address at;
  struct listener *listeners;
  uint32_t guest_count;
  struct handshake guests[GUESTS_MAX];
  bool guest_used[GUESTS_MAX];
};

/* Different connections may be used by different threads. */
static os_mutex mutex = OS_MUTEX_INITIALIZER;
static struct port *ports[SOCK_INTERFACES_MAX];

static void guest_drop(struct port *port, uint32_t index, bool closes) {
  if (closes) sock_close(port->guests[index].fd);
  port->guest_used[index] = false;
  port->guest_count--;
}

static void port_free(struct port *port) {
  for (uint32_t i = 0; i < GUESTS_MAX; i++) {
    if (port->guest_used[i]) guest_drop(port, i, true);
  }
  sock_close(port->fd);
  sock_close(port->epoll);
  sock_close(port->ready);
  os_free(port);
}

static bool port_watch(struct port *port, int fd, uint32_t index) {
  struct epoll_event event = {EPOLLIN, {NULL}};
  event.data.u32 = index;
  return epoll_ctl(port->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static ncclResult_t port_create(const struct sock_interface *interface, struct port **out) {
  struct port *port = (struct port *)os_alloc(sizeof *port);
  if (port == NULL) return log_no_memory("socket net: listening at %s", interface->name);
  port->fd = -1;
  port->epoll = epoll_create1(EPOLL_CLOEXEC);
  port->ready = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE);
  ncclResult_t result = sock_listen(&interface->address, &port->fd, &port->at);
  if (result == ncclSuccess) {
    socket_options(port->fd); /* accepted sockets inherit the buffer sizes */
    if (port->epoll < 0 || port->ready < 0 || !port_watch(port, port->fd, EVENT_LISTEN) ||
        !port_watch(port, port->ready, EVENT_READY)) {
      result = log_fail(ncclSystemError, "socket net: no descriptors to listen at %s: %s", interface->name,
                        socket_error_text(errno));
    }
  }
  if (result == ncclSuccess) *out = port;
  else port_free(port);
  return result;
}

static void listener_names(struct listener *listener, uint32_t device, const struct net_peer *peer) {
  listener->kind = END_LISTENER;
  listener->device = device;
  listener->comm_key = peer->comm_key;
  listener->rank = peer->rank;
  listener->peer = peer->peer;
  if (peer->comm_name != NULL) strncpy(listener->comm_name, peer->comm_name, sizeof listener->comm_name - 1);
  for (uint32_t i = 0; i < SOCKETS_MAX; i++) listener->fds[i] = -1;
}

/* Under the mutex. */
static ncclResult_t listener_add(struct listener *listener, const struct net_peer *peer) {
  struct port **port = &ports[listener->device];
  if (*port == NULL) TRY(port_create(&listener->interface, port));
  listener->endpoint.address = (*port)->at;
  listener->endpoint.number = os_entropy();
  listener->key = endpoint_key(&listener->endpoint, listener->comm_key, 0);
  net_peer_secret(peer, listener->key, &listener->secret);
  listener->next = (*port)->listeners;
  (*port)->listeners = listener;
  return ncclSuccess;
}

ncclResult_t port_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                         void **out) {
  struct sock_interface interface;
  TRY(socket_interface(device, &interface));
  TRY(handshake_check());
  struct listener *listener = (struct listener *)os_alloc(sizeof *listener);
  if (listener == NULL) return log_no_memory("socket net: a listener");
  listener_names(listener, device, peer);
  listener->interface = interface;
  socket_settings(interface.name, &listener->endpoint);
  os_mutex_lock(&mutex);
  const ncclResult_t result = listener_add(listener, peer);
  os_mutex_unlock(&mutex);
  if (result != ncclSuccess) {
    os_free(listener);
    return result;
  }
  endpoint_write(&listener->endpoint, handle);
  *out = listener;
  return ncclSuccess;
}

/* The lowest byte of a key is the number of the socket. */
static struct listener *listener_find(const struct port *port, uint64_t key) {
  struct listener *listener = port->listeners;
  while (listener != NULL && listener->key != (key & ~0xffull)) listener = listener->next;
  return listener;
}

static bool secret_find(void *argument, enum handshake_kind kind, uint64_t key, struct secret *secret) {
  const struct listener *listener = listener_find((const struct port *)argument, key);
  if (kind != HANDSHAKE_DATA || listener == NULL) return false;
  *secret = listener->secret;
  return true;
}

/* An authenticated client: gives its socket to the listener of its key. */
static void guest_accept(struct port *port, uint32_t index) {
  struct handshake *guest = &port->guests[index];
  const uint32_t socket_index = (uint32_t)(guest->key & 0xff);
  struct listener *listener = listener_find(port, guest->key);
  const char *refusal = NULL;
  if (listener == NULL) refusal = "no such listener: its communicator has ended, or has another key";
  else if (socket_index >= SOCKET_DATA + listener->endpoint.data_sockets) refusal = "no such socket";
  else if (listener->fds[socket_index] >= 0 || listener->complete) refusal = "connected already";
  epoll_ctl(port->epoll, EPOLL_CTL_DEL, guest->fd, NULL);
  const bool accepted = handshake_answer(guest, refusal) && refusal == NULL;
  if (accepted) {
    const uint64_t one = 1;
    socket_options(guest->fd);
    listener->fds[socket_index] = guest->fd;
    listener->have++;
    listener->complete = listener->have == SOCKET_DATA + listener->endpoint.data_sockets;
    if (listener->complete && write(port->ready, &one, sizeof one) < 0) log_info(LOG_NET, "eventfd is full");
  }
  guest_drop(port, index, !accepted);
}

static void guest_step(struct port *port, uint32_t index) {
  if (!port->guest_used[index]) return;
  switch (handshake_step(&port->guests[index])) {
    case HANDSHAKE_DONE: guest_accept(port, index); break;
    case HANDSHAKE_GONE: guest_drop(port, index, true); break;
    default: break;
  }
}

/* A free place; if there is none, that of the oldest client, which is dropped. */
static uint32_t guest_place(struct port *port) {
  uint32_t eldest = 0;
  for (uint32_t i = 0; i < GUESTS_MAX; i++) {
    if (!port->guest_used[i]) return i;
    if (port->guests[i].begin_ns < port->guests[eldest].begin_ns) eldest = i;
  }
  guest_step(port, eldest); /* its bytes may just have arrived */
  if (port->guest_used[eldest]) guest_drop(port, eldest, true);
  return eldest;
}

/* Returns -2 if out of descriptors, as sock_accept() does. */
static int guests_admit(struct port *port) {
  struct sock_address from;
  int fd = -1;
  for (int i = 0; i < ACCEPTS_MAX && (fd = sock_accept(port->fd, &from)) >= 0; i++) {
    const uint32_t index = guest_place(port);
    handshake_begin(&port->guests[index], fd, secret_find, port);
    port->guest_used[index] = true;
    port->guest_count++;
    if (!port_watch(port, fd, index)) guest_drop(port, index, true);
    else guest_step(port, index);
  }
  return fd;
}

static void guests_late(struct port *port) {
  const uint64_t now = os_time_ns();
  for (uint32_t i = 0; i < GUESTS_MAX && port->guest_count > 0; i++) {
    const bool late =
        port->guest_used[i] && now - port->guests[i].begin_ns > HANDSHAKE_SECONDS * 1000000000ull;
    if (late) guest_drop(port, i, true);
  }
}

/* Handles all events that are pending at a device. */
static ncclResult_t port_look(struct port *port, const struct listener *listener) {
  struct epoll_event events[EVENTS_MAX];
  const int count = epoll_wait(port->epoll, events, EVENTS_MAX, 0);
  int admitted = 0;
  for (int i = 0; i < count; i++) {
    if (events[i].data.u32 < GUESTS_MAX) guest_step(port, events[i].data.u32);
  }
  for (int i = 0; i < count; i++) {
    if (events[i].data.u32 == EVENT_LISTEN) admitted = guests_admit(port);
  }
  if (port->guest_count > 0) guests_late(port);
  if (admitted != -2) return ncclSuccess;
  return log_fail(
      ncclSystemError,
      "%s: rank %u cannot take the connection of rank %u over %s: out of descriptors; `ulimit -n` "
      "raises their number",
      listener->comm_name, listener->rank, listener->peer, listener->interface.name);
}

/* A complete connection has been accepted: decrements the eventfd. */
static void ready_take(struct port *port) {
  uint64_t one;
  if (read(port->ready, &one, sizeof one) < 0) log_info(LOG_NET, "eventfd is empty");
}

ncclResult_t port_accept(void *at, void **connection) {
  struct listener *listener = (struct listener *)at;
  *connection = NULL;
  if (listener->claimed) return ncclSuccess;
  os_mutex_lock(&mutex);
  struct port *port = ports[listener->device];
  const ncclResult_t result = listener->complete ? ncclSuccess : port_look(port, listener);
  const bool complete = listener->complete;
  if (complete) ready_take(port);
  os_mutex_unlock(&mutex);
  if (!complete) return result;
  const struct net_peer peer = {.comm_key = listener->comm_key,
                                .rank = listener->rank,
                                .peer = listener->peer,
                                .comm_name = listener->comm_name};
  int fds[SOCKETS_MAX];
  memcpy(fds, listener->fds, sizeof fds);
  for (uint32_t i = 0; i < SOCKETS_MAX; i++) listener->fds[i] = -1;
  listener->claimed = true;
  return receive_open(&peer, &listener->interface, &listener->endpoint, fds, connection);
}

int port_descriptor(void *at) {
  const struct listener *listener = (const struct listener *)at;
  os_mutex_lock(&mutex);
  const int fd = ports[listener->device]->epoll;
  os_mutex_unlock(&mutex);
  return fd;
}

ncclResult_t port_close(void *at) {
  struct listener *listener = (struct listener *)at;
  os_mutex_lock(&mutex);
  struct port *port = ports[listener->device];
  struct listener **link = &port->listeners;
  while (*link != listener) link = &(*link)->next;
  *link = listener->next;
  if (listener->complete && !listener->claimed) ready_take(port);
  if (port->listeners == NULL) {
    ports[listener->device] = NULL;
    port_free(port);
  }
  os_mutex_unlock(&mutex);
  for (uint32_t i = 0; i < SOCKETS_MAX; i++) sock_close(listener->fds[i]);
  secret_wipe(&listener->secret);
  os_free(listener);
  return ncclSuccess;
}
