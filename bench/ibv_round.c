/* ibv_round.c: two processes over the ibv net, one that receives and one that always has the next message
 * ready to send: how long it takes from the call to irecv, which tells the sender where the message may go,
 * until the message is there. To be set beside the one-way time of perftest's ib_write_lat: one message more.
 *
 *   ibv_round MESSAGES BYTES
 *
 * Each process needs a core of its own. The receiver is at the last device, the sender at the first. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/ibv/ib.h"
#include "base/os.h"

static const struct net_ops *ops;
static void *data, *registration;

static void must(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "ibv_round: %s: %s\n", what, log_last_error());
  exit(1);
}

static bool is_done(void *request) {
  bool done = false;
  must(ops->test(request, &done, NULL) == ncclSuccess, "test");
  return done;
}

static void send_all(int handle_fd, uint32_t count, size_t bytes) {
  const struct net_peer peer = {1, 0, 1, "bench", NULL};
  struct net_handle handle;
  void *connection = NULL, *request = NULL;
  must(read(handle_fd, &handle, sizeof handle) == (ssize_t)sizeof handle, "the receiver's handle");
  must(ops->connect(0, &peer, &handle, &connection) == ncclSuccess, "connect");
  must(ops->register_memory(connection, data, bytes, NET_MEMORY_HOST, &registration) == ncclSuccess,
       "memory");
  for (uint32_t i = 0; i < count; i++) {
    for (request = NULL; request == NULL;)
      must(ops->isend(connection, data, bytes, 0, registration, &request) == ncclSuccess, "send");
    while (!is_done(request)) {}
  }
  must(ops->close_send(connection) == ncclSuccess, "close");
}

static int compare(const void *a, const void *b) {
  const uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
  return first < second ? -1 : first > second;
}

static void receive_all(uint32_t device, int handle_fd, uint32_t count, size_t bytes, uint64_t *times) {
  const struct net_peer peer = {1, 1, 0, "bench", NULL};
  struct net_handle handle;
  void *listener = NULL, *connection = NULL, *request = NULL;
  const int tag = 0;
  must(ops->listen(device, &peer, &handle, &listener) == ncclSuccess, "listen");
  must(write(handle_fd, &handle, sizeof handle) == (ssize_t)sizeof handle, "the handle");
  while (connection == NULL) must(ops->accept(listener, &connection) == ncclSuccess, "accept");
  must(ops->register_memory(connection, data, bytes, NET_MEMORY_HOST, &registration) == ncclSuccess,
       "memory");
  for (uint32_t i = 0; i < count; i++) {
    const uint64_t begin_ns = os_time_ns();
    for (request = NULL; request == NULL;)
      must(ops->irecv(connection, 1, &data, &bytes, &tag, &registration, &request) == ncclSuccess, "receive");
    while (!is_done(request)) {}
    times[i] = os_time_ns() - begin_ns;
  }
  must(ops->close_recv(connection) == ncclSuccess, "close");
  must(ops->close_listen(listener) == ncclSuccess, "close");
  qsort(times, count, sizeof *times, compare);
}

int main(int words, char **word) {
  int handles[2];
  uint32_t devices = 0;
  if (words != 3) return 2;
  const uint32_t count = (uint32_t)strtoul(word[1], NULL, 10);
  const size_t bytes = strtoul(word[2], NULL, 10);
  uint64_t *times = (uint64_t *)calloc(count, sizeof *times);
  if (count == 0 || bytes == 0 || times == NULL || pipe(handles) != 0) return 2;
  const pid_t sender = fork(); /* before either process opens a device */
  if (sender < 0) return 2;
  ops = ibv_net_ops();
  data = os_pages_map(bytes);
  must(data != NULL && ops->devices(&devices) == ncclSuccess && devices > 0, "devices");
  if (sender == 0) {
    send_all(handles[0], count, bytes);
    return 0;
  }
  receive_all(devices - 1, handles[1], count, bytes, times);
  waitpid(sender, NULL, 0);
  printf("%zu bytes: from irecv to the message: least %.2f us, median %.2f us, 90 of 100 within %.2f us\n",
         bytes, (double)times[0] / 1000, (double)times[count / 2] / 1000,
         (double)times[count * 9 / 10] / 1000);
  free(times);
  return 0;
}
