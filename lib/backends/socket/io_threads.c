/* io_threads.c: the data sockets of one end, and the helper threads that drive them. A data socket has a
 * queue with one producer, the end's thread, and one consumer, its helper (or the end's thread if there are
 * no helpers). An idle helper sleeps in poll(). Once io_threads_close() returns, no helper accesses user
 * memory. */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/socket/socket.h"
#include "base/log.h"

#define SLEEP_MS 1000   /* a helper polls at this interval even if it is not woken */
#define IDLE_ROUNDS 200 /* rounds without work before a helper sleeps */

struct io_thread {
  struct io_threads *io;
  uint32_t first, count; /* its data sockets */
  int wake;              /* eventfd */
  atomic_bool asleep, stop;
  bool started;
  os_thread thread;
};

enum data_socket_state { DATA_SOCKET_IDLE, DATA_SOCKET_MOVED, DATA_SOCKET_BLOCKED, DATA_SOCKET_FAILED };

static atomic_uint helpers; /* running in this process */

uint32_t io_threads_running(void) { return atomic_load(&helpers); }

static void io_threads_fail(struct io_threads *io, int error) {
  int none = 0;
  atomic_compare_exchange_strong(&io->failure, &none, error);
}

/* Sends or receives as much of the first piece as the socket takes. */
static enum data_socket_state data_socket_move(struct io_threads *io, struct data_socket *data_socket) {
  const uint32_t done = atomic_load_explicit(&data_socket->done, memory_order_relaxed);
  if (done == atomic_load_explicit(&data_socket->pushed, memory_order_acquire)) return DATA_SOCKET_IDLE;
  struct piece *piece = &data_socket->pieces[done % NET_REQUESTS_MAX];
  uint8_t *data = piece->data + data_socket->moved;
  const size_t rest = piece->bytes - data_socket->moved;
  const ssize_t moved = io->writes ? send(data_socket->fd, data, rest, MSG_DONTWAIT | MSG_NOSIGNAL)
                                   : recv(data_socket->fd, data, rest, MSG_DONTWAIT);
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return DATA_SOCKET_BLOCKED;
  if (moved <= 0) {
    io_threads_fail(io, moved == 0 ? -1 : errno);
    return DATA_SOCKET_FAILED;
  }
  data_socket->moved += (size_t)moved;
  if (data_socket->moved == piece->bytes) {
    data_socket->moved = 0;
    struct request *request = piece->request;
    atomic_store_explicit(&data_socket->done, done + 1, memory_order_release);
    atomic_fetch_sub_explicit(&request->tasks, 1, memory_order_release);
  }
  return DATA_SOCKET_MOVED;
}

/* One round over the given data sockets. `blocked` (may be NULL) gets those whose socket is full or empty. */
static bool data_sockets_move(struct io_threads *io, uint32_t first, uint32_t count, struct pollfd *blocked,
                              nfds_t *blocked_count) {
  bool moved = false;
  for (uint32_t i = first; i < first + count; i++) {
    struct data_socket *data_socket = &io->data_sockets[i];
    const enum data_socket_state state = data_socket_move(io, data_socket);
    moved |= state == DATA_SOCKET_MOVED;
    if (state == DATA_SOCKET_BLOCKED && blocked != NULL) {
      blocked[*blocked_count] = (struct pollfd){data_socket->fd, io->writes ? POLLOUT : POLLIN, 0};
      ++*blocked_count;
    }
  }
  return moved;
}

/* The number of the member's data sockets that have work. */
static nfds_t member_work(const struct io_thread *member) {
  nfds_t count = 0;
  for (uint32_t i = member->first; i < member->first + member->count; i++) {
    const struct data_socket *data_socket = &member->io->data_sockets[i];
    if (atomic_load(&data_socket->pushed) != atomic_load(&data_socket->done)) count++;
  }
  return count;
}

/* Sleeps until a blocked socket is ready, the member is woken, or SLEEP_MS have passed. A piece that was
 * pushed before the producer could see `asleep` is found by member_work(); a later push wakes the member. */
static void member_sleep(struct io_thread *member, bool failed, struct pollfd *polled, nfds_t count) {
  uint64_t woken;
  atomic_store(&member->asleep, true);
  const bool sleeps = failed || member_work(member) < count; /* all that have work are blocked */
  if (sleeps && !atomic_load(&member->stop)) poll(polled, count, SLEEP_MS);
  atomic_store(&member->asleep, false);
  if (read(member->wake, &woken, sizeof woken) < 0) return; /* it was not woken */
}

static void *member_run(void *argument) {
  struct io_thread *member = (struct io_thread *)argument;
  struct pollfd polled[DATA_SOCKETS_MAX + 1];
  for (uint32_t idle = 0; !atomic_load_explicit(&member->stop, memory_order_relaxed);) {
    nfds_t count = 1;
    polled[0] = (struct pollfd){member->wake, POLLIN, 0};
    const bool failed = atomic_load_explicit(&member->io->failure, memory_order_relaxed) != 0;
    if (!failed && data_sockets_move(member->io, member->first, member->count, polled, &count)) {
      idle = 0;
    } else if (count > 1 || failed || ++idle > IDLE_ROUNDS) {
      member_sleep(member, failed, polled, count);
      idle = 0;
    }
  }
  return NULL;
}

static void member_wake(struct io_thread *member) {
  const uint64_t one = 1;
  if (!atomic_load(&member->asleep)) return;
  if (write(member->wake, &one, sizeof one) < 0) return; /* full: a wake-up is pending already */
}

/* Distributes the data sockets evenly over the members. */
static ncclResult_t members_start(struct io_threads *io, uint32_t count) {
  io->members = (struct io_thread *)os_alloc(count * sizeof *io->members);
  if (io->members == NULL) return log_no_memory("socket net: %u threads", count);
  for (uint32_t i = 0; i < count; i++) {
    struct io_thread *member = &io->members[i];
    member->io = io;
    member->first = i * io->data_socket_count / count;
    member->count = (i + 1) * io->data_socket_count / count - member->first;
    member->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    io->member_count = i + 1;
    if (member->wake < 0) {
      return log_fail(ncclSystemError,
                      "socket net: no descriptor for a helper thread (%s); `ulimit -n` raises "
                      "their number, NCCL_SOCKET_NTHREADS=0 needs no threads",
                      socket_error_text(errno));
    }
    member->started = os_thread_start_named(&member->thread, "tutti-socket", member_run, member);
    if (!member->started) {
      return log_fail(ncclSystemError,
                      "socket net: a helper thread cannot be started; `ulimit -u` raises their "
                      "number, NCCL_SOCKET_NTHREADS=0 needs none");
    }
    atomic_fetch_add(&helpers, 1);
  }
  return ncclSuccess;
}

ncclResult_t io_threads_open(struct io_threads *io, bool writes, const struct endpoint *endpoint,
                             const int *fds) {
  io->writes = writes;
  if (endpoint->data_sockets == 0) return ncclSuccess;
  io->data_sockets = (struct data_socket *)os_alloc(endpoint->data_sockets * sizeof *io->data_sockets);
  if (io->data_sockets == NULL) {
    for (uint32_t i = 0; i < endpoint->data_sockets; i++) sock_close(fds[i]);
    return log_no_memory("socket net: %u data sockets", endpoint->data_sockets);
  }
  io->data_socket_count = endpoint->data_sockets;
  for (uint32_t i = 0; i < endpoint->data_sockets; i++) io->data_sockets[i].fd = fds[i];
  return endpoint->threads > 0 ? members_start(io, endpoint->threads) : ncclSuccess;
}

static struct io_thread *member_of(struct io_threads *io, uint32_t data_socket) {
  for (uint32_t i = 0; i < io->member_count; i++) {
    struct io_thread *member = &io->members[i];
    if (data_socket - member->first < member->count) return member;
  }
  return NULL;
}

void io_threads_push(struct io_threads *io, struct request *request, size_t offset, const struct cut *cut) {
  atomic_store_explicit(&request->tasks, cut->tasks, memory_order_relaxed);
  for (uint32_t i = 0; i < cut->tasks; i++) {
    struct data_socket *data_socket = &io->data_sockets[io->turn];
    struct io_thread *member = member_of(io, io->turn);
    const uint32_t pushed = atomic_load_explicit(&data_socket->pushed, memory_order_relaxed);
    const size_t rest = request->bytes - offset;
    const size_t bytes = rest < cut->task_bytes ? rest : cut->task_bytes;
    data_socket->pieces[pushed % NET_REQUESTS_MAX] = (struct piece){request->data + offset, bytes, request};
    atomic_store(&data_socket->pushed, pushed + 1);
    if (member != NULL) member_wake(member);
    offset += bytes;
    io->turn = (io->turn + 1) % io->data_socket_count;
  }
}

void io_threads_move(struct io_threads *io) {
  if (io->member_count > 0 || io->data_socket_count == 0 || atomic_load(&io->failure) != 0) return;
  data_sockets_move(io, 0, io->data_socket_count, NULL, NULL);
}

bool io_threads_idle(const struct io_threads *io) {
  for (uint32_t i = 0; i < io->data_socket_count; i++) {
    const struct data_socket *data_socket = &io->data_sockets[i];
    if (atomic_load(&data_socket->pushed) != atomic_load(&data_socket->done)) return false;
  }
  return true;
}

void io_threads_close(struct io_threads *io) {
  const uint64_t one = 1;
  for (uint32_t i = 0; i < io->member_count; i++) {
    struct io_thread *member = &io->members[i];
    atomic_store(&member->stop, true);
    if (member->wake >= 0 && write(member->wake, &one, sizeof one) < 0)
      continue; /* full: a wake-up is pending */
  }
  for (uint32_t i = 0; i < io->member_count; i++) {
    struct io_thread *member = &io->members[i];
    if (member->started) {
      os_thread_join(member->thread);
      atomic_fetch_sub(&helpers, 1);
    }
    sock_close(member->wake);
  }
  for (uint32_t i = 0; i < io->data_socket_count; i++) sock_close(io->data_sockets[i].fd);
  os_free(io->members);
  os_free(io->data_sockets);
  io->members = NULL;
  io->data_sockets = NULL;
  io->member_count = io->data_socket_count = 0;
}
