/* crew.c: the strands of one end, and the helper threads that move them. A strand is a queue with one
 * producer, the end's thread, and one consumer, its helper (or the end's thread where there are none). A
 * helper that has nothing to do sleeps in poll(). Promises that crew_close() comes back only when no helper
 * touches user memory any more. Knows nothing of frames. */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/socket/socket.h"
#include "base/log.h"

#define SLEEP_MS 1000   /* a helper looks around now and then even when nobody wakes it */
#define IDLE_ROUNDS 200 /* looks of an idle helper before it sleeps */

struct crew_member {
  struct crew *crew;
  uint32_t first, count; /* its strands */
  int wake;              /* eventfd */
  atomic_bool asleep, stop;
  bool started;
  os_thread thread;
};

enum strand_state { STRAND_IDLE, STRAND_MOVED, STRAND_BLOCKED, STRAND_FAILED };

static atomic_uint helpers; /* of the process */

uint32_t crew_helpers(void) { return atomic_load(&helpers); }

static void crew_fail(struct crew *crew, int error) {
  int none = 0;
  atomic_compare_exchange_strong(&crew->failure, &none, error);
}

/* Moves some of the first piece. */
static enum strand_state strand_move(struct crew *crew, struct strand *strand) {
  const uint32_t done = atomic_load_explicit(&strand->done, memory_order_relaxed);
  if (done == atomic_load_explicit(&strand->pushed, memory_order_acquire)) return STRAND_IDLE;
  struct piece *piece = &strand->pieces[done % NET_REQUESTS_MAX];
  uint8_t *data = piece->data + strand->moved;
  const size_t rest = piece->bytes - strand->moved;
  const ssize_t moved = crew->writes ? send(strand->fd, data, rest, MSG_DONTWAIT | MSG_NOSIGNAL)
                                     : recv(strand->fd, data, rest, MSG_DONTWAIT);
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return STRAND_BLOCKED;
  if (moved <= 0) {
    crew_fail(crew, moved == 0 ? -1 : errno);
    return STRAND_FAILED;
  }
  strand->moved += (size_t)moved;
  if (strand->moved == piece->bytes) {
    strand->moved = 0;
    struct request *request = piece->request;
    atomic_store_explicit(&strand->done, done + 1, memory_order_release);
    atomic_fetch_sub_explicit(&request->tasks, 1, memory_order_release);
  }
  return STRAND_MOVED;
}

/* One turn over some strands; `blocked` (may be NULL) gets those that wait for their socket. */
static bool strands_move(struct crew *crew, uint32_t first, uint32_t count, struct pollfd *blocked,
                         nfds_t *blocked_count) {
  bool moved = false;
  for (uint32_t i = first; i < first + count; i++) {
    struct strand *strand = &crew->strands[i];
    const enum strand_state state = strand_move(crew, strand);
    moved |= state == STRAND_MOVED;
    if (state == STRAND_BLOCKED && blocked != NULL) {
      blocked[*blocked_count] = (struct pollfd){strand->fd, crew->writes ? POLLOUT : POLLIN, 0};
      ++*blocked_count;
    }
  }
  return moved;
}

/* Strands that have something to move. */
static nfds_t member_work(const struct crew_member *member) {
  nfds_t count = 0;
  for (uint32_t i = member->first; i < member->first + member->count; i++) {
    const struct strand *strand = &member->crew->strands[i];
    if (atomic_load(&strand->pushed) != atomic_load(&strand->done)) count++;
  }
  return count;
}

/* Until one of the blocked sockets may move, somebody wakes the member, or a while has passed. What was
 * pushed before `asleep` was seen is found here; whoever pushes later wakes. */
static void member_sleep(struct crew_member *member, bool failed, struct pollfd *polled, nfds_t count) {
  uint64_t woken;
  atomic_store(&member->asleep, true);
  const bool sleeps = failed || member_work(member) < count; /* all that have work are blocked */
  if (sleeps && !atomic_load(&member->stop)) poll(polled, count, SLEEP_MS);
  atomic_store(&member->asleep, false);
  if (read(member->wake, &woken, sizeof woken) < 0) return; /* nobody had woken it */
}

static void *member_run(void *argument) {
  struct crew_member *member = (struct crew_member *)argument;
  struct pollfd polled[STRANDS_MAX + 1];
  for (uint32_t idle = 0; !atomic_load_explicit(&member->stop, memory_order_relaxed);) {
    nfds_t count = 1;
    polled[0] = (struct pollfd){member->wake, POLLIN, 0};
    const bool failed = atomic_load_explicit(&member->crew->failure, memory_order_relaxed) != 0;
    if (!failed && strands_move(member->crew, member->first, member->count, polled, &count)) {
      idle = 0;
    } else if (count > 1 || failed || ++idle > IDLE_ROUNDS) {
      member_sleep(member, failed, polled, count);
      idle = 0;
    }
  }
  return NULL;
}

static void member_wake(struct crew_member *member) {
  const uint64_t one = 1;
  if (!atomic_load(&member->asleep)) return;
  if (write(member->wake, &one, sizeof one) < 0) return; /* full: it is awake soon enough */
}

/* The members' shares of the strands differ by one at most. */
static ncclResult_t members_start(struct crew *crew, uint32_t count) {
  crew->members = (struct crew_member *)os_alloc(count * sizeof *crew->members);
  if (crew->members == NULL) return log_fail(ncclSystemError, "socket net: no memory for %u threads", count);
  for (uint32_t i = 0; i < count; i++) {
    struct crew_member *member = &crew->members[i];
    member->crew = crew;
    member->first = i * crew->strand_count / count;
    member->count = (i + 1) * crew->strand_count / count - member->first;
    member->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    crew->member_count = i + 1;
    if (member->wake < 0) {
      return log_fail(ncclSystemError,
                      "socket net: no descriptor for a helper thread (%s); `ulimit -n` raises "
                      "their number, NCCL_SOCKET_NTHREADS=0 needs no threads",
                      socket_error_text(errno));
    }
    member->started = os_thread_start(&member->thread, member_run, member);
    if (!member->started) {
      return log_fail(ncclSystemError,
                      "socket net: a helper thread cannot be started; `ulimit -u` raises their "
                      "number, NCCL_SOCKET_NTHREADS=0 needs none");
    }
    atomic_fetch_add(&helpers, 1);
  }
  return ncclSuccess;
}

ncclResult_t crew_open(struct crew *crew, bool writes, const struct card *card, const int *fds) {
  crew->writes = writes;
  if (card->strands == 0) return ncclSuccess;
  crew->strands = (struct strand *)os_alloc(card->strands * sizeof *crew->strands);
  if (crew->strands == NULL) {
    for (uint32_t i = 0; i < card->strands; i++) sock_close(fds[i]);
    return log_fail(ncclSystemError, "socket net: no memory for %u data sockets", card->strands);
  }
  crew->strand_count = card->strands;
  for (uint32_t i = 0; i < card->strands; i++) crew->strands[i].fd = fds[i];
  return card->threads > 0 ? members_start(crew, card->threads) : ncclSuccess;
}

static struct crew_member *member_of(struct crew *crew, uint32_t strand) {
  for (uint32_t i = 0; i < crew->member_count; i++) {
    struct crew_member *member = &crew->members[i];
    if (strand - member->first < member->count) return member;
  }
  return NULL;
}

void crew_push(struct crew *crew, struct request *request, size_t offset, const struct cut *cut) {
  atomic_store_explicit(&request->tasks, cut->tasks, memory_order_relaxed);
  for (uint32_t i = 0; i < cut->tasks; i++) {
    struct strand *strand = &crew->strands[crew->turn];
    struct crew_member *member = member_of(crew, crew->turn);
    const uint32_t pushed = atomic_load_explicit(&strand->pushed, memory_order_relaxed);
    const size_t rest = request->bytes - offset;
    const size_t bytes = rest < cut->task_bytes ? rest : cut->task_bytes;
    strand->pieces[pushed % NET_REQUESTS_MAX] = (struct piece){request->data + offset, bytes, request};
    atomic_store(&strand->pushed, pushed + 1);
    if (member != NULL) member_wake(member);
    offset += bytes;
    crew->turn = (crew->turn + 1) % crew->strand_count;
  }
}

void crew_move(struct crew *crew) {
  if (crew->member_count > 0 || crew->strand_count == 0 || atomic_load(&crew->failure) != 0) return;
  strands_move(crew, 0, crew->strand_count, NULL, NULL);
}

bool crew_idle(const struct crew *crew) {
  for (uint32_t i = 0; i < crew->strand_count; i++) {
    const struct strand *strand = &crew->strands[i];
    if (atomic_load(&strand->pushed) != atomic_load(&strand->done)) return false;
  }
  return true;
}

void crew_close(struct crew *crew) {
  const uint64_t one = 1;
  for (uint32_t i = 0; i < crew->member_count; i++) {
    struct crew_member *member = &crew->members[i];
    atomic_store(&member->stop, true);
    if (member->wake >= 0 && write(member->wake, &one, sizeof one) < 0) continue; /* full: it wakes anyway */
  }
  for (uint32_t i = 0; i < crew->member_count; i++) {
    struct crew_member *member = &crew->members[i];
    if (member->started) {
      os_thread_join(member->thread);
      atomic_fetch_sub(&helpers, 1);
    }
    sock_close(member->wake);
  }
  for (uint32_t i = 0; i < crew->strand_count; i++) sock_close(crew->strands[i].fd);
  os_free(crew->members);
  os_free(crew->strands);
  crew->members = NULL;
  crew->strands = NULL;
  crew->member_count = crew->strand_count = 0;
}
