/* test_socket_net.c: the socket network over loopback, only through its table: both ends driven by one
 * thread, by two, or by two processes. Every test ends with as many descriptors and blocks of memory as it
 * began with. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/socket/socket.h"
#include "base/handshake.h"
#include "base/os.h"
#include "base/param.h"
#include "skip.h"

enum { SECONDS_MOST = 30, DEPTH = 8 };
static const struct net_ops *ops;

static uint64_t deadline(void) { return os_time_ns() + SECONDS_MOST * 1000000000ull; }

static uint32_t descriptor_count(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  while (readdir(folder) != NULL) count++;
  closedir(folder);
  return count;
}

static uint64_t blocks_before;
static uint32_t descriptors_before;

static void settings(const char *threads, const char *sockets) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  if (threads != NULL) setenv("NCCL_SOCKET_NTHREADS", threads, 1);
  else unsetenv("NCCL_SOCKET_NTHREADS");
  if (sockets != NULL) setenv("NCCL_NSOCKS_PERTHREAD", sockets, 1);
  else unsetenv("NCCL_NSOCKS_PERTHREAD");
  param_reset();
}

static int setup(void **state) {
  uint32_t count = 0;
  (void)state;
  unsetenv("TUTTI_SECRET");
  setenv("NCCL_SOCKET_MIN_TASKSIZE", "4096", 1);
  setenv("NCCL_SOCKET_RETRY_SLEEP_MSEC", "1", 1);
  settings(NULL, NULL);
  ops = socket_net_ops();
  if (ops->devices(&count) != ncclSuccess || count == 0) return -1;
  log_last_error(); /* the first call allocates a text per thread, which is kept */
  handshake_check();
  blocks_before = os_alloc_live();
  descriptors_before = descriptor_count();
  return 0;
}

static int teardown(void **state) {
  (void)state;
  if (os_alloc_live() != blocks_before) {
    fprintf(stderr, "blocks: %llu before, %llu after\n", (unsigned long long)blocks_before,
            (unsigned long long)os_alloc_live());
    return -1;
  }
  return descriptor_count() == descriptors_before ? 0 : -1;
}

struct pair {
  struct net_handle handle;
  void *listener, *send, *receive;
};

static const struct net_peer to_one = {0x1234567890abcdefull, 0, 1, "pair", NULL, 0};
static const struct net_peer to_zero = {0x1234567890abcdefull, 1, 0, "pair", NULL, 0};

/* Both ends, by one thread. */
static void pair_open(struct pair *pair) {
  const uint64_t end = deadline();
  memset(pair, 0, sizeof *pair);
  assert_int_equal(ops->listen(0, &to_zero, &pair->handle, &pair->listener), ncclSuccess);
  assert_int_equal(ops->connect(0, &to_one, &pair->handle, &pair->send), ncclSuccess);
  assert_non_null(pair->send);
  while (pair->receive == NULL && os_time_ns() < end) {
    void *request;
    assert_int_equal(ops->accept(pair->listener, &pair->receive), ncclSuccess);
    assert_int_equal(ops->isend(pair->send, NULL, 0, 0, NULL, &request), ncclSuccess);
    assert_null(request); /* nothing is posted */
  }
  assert_non_null(pair->receive);
}

static void pair_close(struct pair *pair) {
  if (pair->send != NULL) assert_int_equal(ops->close_send(pair->send), ncclSuccess);
  if (pair->receive != NULL) assert_int_equal(ops->close_recv(pair->receive), ncclSuccess);
  assert_int_equal(ops->close_listen(pair->listener), ncclSuccess);
}

static ncclResult_t post(void *receive, void *data, size_t bytes, void **request) {
  int tag = 0;
  void *registration = NULL;
  return ops->irecv(receive, 1, &data, &bytes, &tag, &registration, request);
}

static uint8_t pattern(uint32_t message, size_t i) { return (uint8_t)(message * 31 + i * 7 + (i >> 8)); }

static void pattern_fill(uint8_t *data, uint32_t message, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) data[i] = pattern(message, i);
}

static void pattern_check(const uint8_t *data, uint32_t message, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (data[i] != pattern(message, i)) fail_msg("message %u of %zu bytes differs at %zu", message, bytes, i);
  }
}

static const size_t sizes[] = {0, 1, 17, 127, 128, 129, 4096, 4224, 4225, 16384, 65536, 100001, 3 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], MESSAGES = 100, BYTES_MOST = 3 << 20 };

/* Large messages are rare, and every message size has small ones before and after it. */
static size_t size_of(uint32_t message) {
  const uint32_t index = (message * 5) % SIZES;
  return index == SIZES - 1 && message % 3 != 0 ? 8 : sizes[index];
}

/* How a stream of two-part messages is split: differently at both ends. Now and then a receive expects
 * another message size, and gets the message in one piece. */
static size_t part_of(uint32_t message, bool sends) {
  const size_t bytes = size_of(message), rest = sends ? 32 : 500;
  if (message % 4 == 1) return bytes / (sends ? 3 : 2);
  return bytes > rest ? bytes - rest : 0;
}
static bool comes_whole(uint32_t message) { return message % 5 == 4; }

/* One end of a stream of MESSAGES messages, DEPTH in flight. */
struct stream {
  void *connection;
  bool sends, ends, parts;
  uint32_t begun, done;
  uint8_t *data[DEPTH], *first[DEPTH];
  void *requests[DEPTH];
  size_t extra; /* space beyond each message */
};

static void stream_open(struct stream *stream, void *connection, bool sends) {
  memset(stream, 0, sizeof *stream);
  stream->connection = connection;
  stream->sends = sends;
  stream->extra = sends ? 0 : 13;
  for (int i = 0; i < DEPTH; i++) {
    stream->data[i] = (uint8_t *)malloc(BYTES_MOST + 16);
    stream->first[i] = (uint8_t *)malloc(BYTES_MOST + 16);
    assert_non_null(stream->data[i]);
    assert_non_null(stream->first[i]);
  }
}

static void stream_close(struct stream *stream) {
  for (int i = 0; i < DEPTH; i++) free(stream->data[i]), free(stream->first[i]);
}

/* The same in two parts, if `data` has the whole message. */
static void stream_begin_parts(struct stream *stream, uint8_t *data, size_t bytes, void **request) {
  uint8_t *first = stream->first[stream->begun % DEPTH];
  const struct net_part part = {first, part_of(stream->begun, stream->sends), NULL};
  ncclResult_t result;
  if (stream->sends) {
    memcpy(first, data, part.bytes);
    memmove(data, data + part.bytes, bytes - part.bytes);
    result = ops->isend_parts(stream->connection, &part, data, bytes - part.bytes, NULL, request);
  } else {
    const size_t whole_bytes = comes_whole(stream->begun) ? bytes + 1 : bytes;
    result =
        ops->irecv_parts(stream->connection, &part, whole_bytes, data, bytes + stream->extra, NULL, request);
  }
  assert_int_equal(result, ncclSuccess);
}

/* Joins the two parts of a received message. */
static void stream_join_parts(struct stream *stream, uint8_t *data, size_t bytes) {
  const size_t first_bytes = comes_whole(stream->done) ? 0 : part_of(stream->done, false);
  memmove(data + first_bytes, data, bytes - first_bytes);
  memcpy(data, stream->first[stream->done % DEPTH], first_bytes);
  data[bytes] = 0xa5;
}

static void stream_begin(struct stream *stream) {
  const uint32_t slot = stream->begun % DEPTH;
  const size_t bytes = size_of(stream->begun);
  if (stream->sends) {
    pattern_fill(stream->data[slot], stream->begun, bytes);
  }
  if (stream->parts) {
    stream_begin_parts(stream, stream->data[slot], bytes, &stream->requests[slot]);
  } else if (stream->sends) {
    assert_int_equal(
        ops->isend(stream->connection, stream->data[slot], bytes, 0, NULL, &stream->requests[slot]),
        ncclSuccess);
  } else {
    stream->data[slot][bytes] = 0xa5;
    assert_int_equal(
        post(stream->connection, stream->data[slot], bytes + stream->extra, &stream->requests[slot]),
        ncclSuccess);
  }
  if (stream->requests[slot] != NULL) stream->begun++;
}

static void stream_step(struct stream *stream) {
  bool done = false;
  size_t got = 0;
  if (stream->begun < MESSAGES && stream->begun - stream->done < DEPTH) stream_begin(stream);
  if (stream->done == stream->begun) return;
  const uint32_t slot = stream->done % DEPTH;
  assert_int_equal(ops->test(stream->requests[slot], &done, &got), ncclSuccess);
  if (!done) return;
  assert_int_equal(got, size_of(stream->done));
  if (!stream->sends && stream->parts) stream_join_parts(stream, stream->data[slot], got);
  if (!stream->sends) {
    pattern_check(stream->data[slot], stream->done, got);
    assert_int_equal(stream->data[slot][got], 0xa5);
  }
  stream->done++;
}

static void stream_run(struct stream *stream) {
  const uint64_t end = deadline();
  while (stream->done < MESSAGES && os_time_ns() < end) stream_step(stream);
  assert_int_equal(stream->done, MESSAGES);
}

static void check_stream(const char *threads, const char *sockets, bool parts) {
  struct pair pair;
  struct stream send, receive;
  const uint64_t end = deadline();
  settings(threads, sockets);
  pair_open(&pair);
  stream_open(&send, pair.send, true);
  stream_open(&receive, pair.receive, false);
  send.parts = receive.parts = parts;
  while (receive.done < MESSAGES && os_time_ns() < end) {
    stream_step(&send);
    stream_step(&receive);
  }
  assert_int_equal(receive.done, MESSAGES);
  while (send.done < MESSAGES && os_time_ns() < end) stream_step(&send);
  stream_close(&send);
  stream_close(&receive);
  pair_close(&pair);
}

/* A frame is accepted only in its turn, and only as the kind that was written. */
static void test_frames(void **state) {
  const struct frame frame = {FRAME_MESSAGE, 5, 4711};
  uint8_t bytes[FRAME_BYTES];
  struct frame read;
  (void)state;
  frame_write(&frame, bytes);
  assert_null(frame_read(bytes, 5, &read));
  assert_int_equal(read.bytes, 4711);
  assert_non_null(frame_read(bytes, 6, &read));
  assert_non_null(frame_read(bytes, 4, &read));
  for (uint32_t bit = 0; bit < 64; bit++) { /* magic, kind, number */
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    const char *wrong = frame_read(bytes, 5, &read);
    assert_true(wrong != NULL || read.kind != FRAME_MESSAGE);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
}

static void check_one_socket(bool parts) {
  check_stream(NULL, NULL, parts);
  setenv("NCCL_SOCKET_SNDBUF", "16384", 1); /* messages are sent in parts */
  setenv("NCCL_SOCKET_RCVBUF", "16384", 1);
  check_stream(NULL, NULL, parts);
  unsetenv("NCCL_SOCKET_SNDBUF");
  unsetenv("NCCL_SOCKET_RCVBUF");
  param_reset();
}

/* A message's length as both ends compute it: short ones whole, others in contiguous pieces. */
static void test_cuts(void **state) {
  static const struct endpoint endpoints[] = {
      {.data_sockets = 0, .whole_bytes = 128, .inline_bytes = 128, .task_bytes = 1},
      {.data_sockets = 4, .whole_bytes = 65536, .inline_bytes = 128, .task_bytes = 32768},
      {.data_sockets = 3, .whole_bytes = 0, .inline_bytes = 0, .task_bytes = 1},
  };
  (void)state;
  for (uint32_t i = 0; i < sizeof endpoints / sizeof *endpoints; i++) {
    for (size_t bytes = 0; bytes < 1 << 20; bytes = bytes * 5 / 4 + 1) {
      const struct cut cut = message_cut(&endpoints[i], bytes);
      const bool whole = endpoints[i].data_sockets == 0 || bytes <= endpoints[i].whole_bytes;
      assert_true((cut.tasks == 0) == whole);
      assert_int_equal(cut.stream_bytes, whole ? bytes : endpoints[i].inline_bytes);
      assert_true(cut.tasks <= endpoints[i].data_sockets);
      assert_true(whole || (cut.tasks - 1) * cut.task_bytes < bytes - cut.stream_bytes);
      assert_true(whole || cut.tasks * cut.task_bytes >= bytes - cut.stream_bytes);
    }
  }
}

static void test_one_socket(void **state) {
  (void)state;
  check_one_socket(false);
}

static void test_parts(void **state) {
  (void)state;
  check_one_socket(true);
}

/* Both ends' arrays of parts change while the message is in flight: they must not be read again. */
static void test_parts_move(void **state) {
  enum { BYTES = 24 << 20, REST = 32 };
  struct pair pair;
  uint8_t *from[2] = {(uint8_t *)malloc(BYTES), (uint8_t *)malloc(BYTES)};
  uint8_t *to[2] = {(uint8_t *)calloc(1, BYTES), (uint8_t *)malloc(BYTES)};
  static uint8_t sent_rest[REST], got_rest[BYTES + REST];
  void *sent = NULL, *posted = NULL;
  const struct net_part out = {from[0], BYTES, NULL}, in = {to[0], BYTES, NULL};
  const uint64_t end = deadline();
  bool sent_all = false, got_all = false;
  size_t got = 0;
  (void)state;
  pair_open(&pair);
  assert_int_equal(ops->takes_parts(pair.send), NET_PARTS_ANYWHERE);
  assert_int_equal(ops->takes_parts(pair.receive), NET_PARTS_ANYWHERE);
  pattern_fill(from[0], 1, BYTES);
  pattern_fill(sent_rest, 2, REST);
  assert_int_equal(
      ops->irecv_parts(pair.receive, &in, BYTES + REST, got_rest, sizeof got_rest, NULL, &posted),
      ncclSuccess);
  while (sent == NULL && os_time_ns() < end)
    assert_int_equal(ops->isend_parts(pair.send, &out, sent_rest, REST, NULL, &sent), ncclSuccess);
  for (int i = 0; i < 20; i++) assert_int_equal(ops->test(sent, &sent_all, NULL), ncclSuccess);
  while (to[0][0] != pattern(1, 0) || to[0][1] != pattern(1, 1)) {
    assert_int_equal(ops->test(posted, &got_all, &got), ncclSuccess);
    assert_true(os_time_ns() < end);
  }
  assert_false(sent_all || got_all);
  memcpy(from[1], from[0], BYTES);
  ops->part_move(sent, from[1]);
  memset(from[0], 0xff, BYTES);
  memcpy(to[1], to[0], BYTES);
  ops->part_move(posted, to[1]);
  memset(to[0], 0xff, BYTES);
  while ((!sent_all || !got_all) && os_time_ns() < end) {
    if (!sent_all) assert_int_equal(ops->test(sent, &sent_all, NULL), ncclSuccess);
    if (!got_all) assert_int_equal(ops->test(posted, &got_all, &got), ncclSuccess);
  }
  assert_int_equal(got, BYTES + REST);
  pattern_check(to[1], 1, BYTES);
  pattern_check(got_rest, 2, REST);
  for (size_t i = 0; i < BYTES; i++)
    if (to[0][i] != 0xff) fail_msg("byte %zu was written where the part had been", i);
  for (int i = 0; i < 2; i++) free(from[i]), free(to[i]);
  pair_close(&pair);
}

static void test_striped(void **state) {
  (void)state;
  check_stream(NULL, "3", false);
  check_stream("0", "7", false);
}

static void test_striped_by_threads(void **state) {
  (void)state;
  check_stream("2", "2", false);
  check_stream("3", "1", false);
}

static void *stream_thread(void *argument) {
  stream_run((struct stream *)argument);
  return NULL;
}

static void test_two_threads(void **state) {
  struct pair pair;
  struct stream send, receive;
  os_thread thread;
  (void)state;
  settings("1", "2");
  pair_open(&pair);
  stream_open(&send, pair.send, true);
  stream_open(&receive, pair.receive, false);
  assert_true(os_thread_start(&thread, stream_thread, &send));
  stream_run(&receive);
  os_thread_join(thread);
  stream_close(&send);
  stream_close(&receive);
  pair_close(&pair);
}

/* A child process that sends, or receives, the stream; it exits with 0 on success. */
static pid_t child_start(const struct net_handle *handle, bool endless) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child != 0) return child;
  static uint8_t data[1 << 20];
  void *send = NULL, *request = NULL;
  struct net_handle own = *handle;
  struct stream stream;
  if (ops->connect(0, &to_one, &own, &send) != ncclSuccess) _exit(2);
  while (endless) {
    if (ops->isend(send, data, sizeof data, 0, NULL, &request) != ncclSuccess) _exit(3);
    for (bool done = request == NULL; !done;) {
      if (ops->test(request, &done, NULL) != ncclSuccess) _exit(4);
    }
  }
  stream_open(&stream, send, true);
  stream_run(&stream);
  ops->close_send(send); /* at once: data in the kernel's buffers must still arrive */
  _exit(0);
}

static void accept_child(struct pair *pair) {
  const uint64_t end = deadline();
  while (pair->receive == NULL && os_time_ns() < end) {
    assert_int_equal(ops->accept(pair->listener, &pair->receive), ncclSuccess);
  }
  assert_non_null(pair->receive);
}

static void test_two_processes(void **state) {
  static const char *const sockets[] = {NULL, "4"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    struct pair pair;
    struct stream receive;
    int status = -1;
    memset(&pair, 0, sizeof pair);
    settings(NULL, sockets[i]);
    assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
    const pid_t child = child_start(&pair.handle, false);
    os_sleep_ms(20); /* it connects before the listener accepts */
    accept_child(&pair);
    stream_open(&receive, pair.receive, false);
    stream_run(&receive);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    stream_close(&receive);
    pair_close(&pair);
  }
}

/* The sender closes at once while megabytes are in buffers and it has not read the announced receives. */
static void test_close_delivers(void **state) {
  struct pair pair;
  enum { BYTES = 1 << 20, POSTED = 6 };
  static uint8_t data[POSTED][BYTES], source[BYTES];
  void *requests[POSTED], *request = NULL;
  const uint64_t end = deadline();
  bool done = false;
  (void)state;
  pair_open(&pair);
  pattern_fill(source, 5, BYTES);
  assert_int_equal(post(pair.receive, data[0], BYTES, &requests[0]), ncclSuccess);
  while (!done && os_time_ns() < end) {
    if (request == NULL)
      assert_int_equal(ops->isend(pair.send, source, BYTES, 0, NULL, &request), ncclSuccess);
    if (request != NULL) assert_int_equal(ops->test(request, &done, NULL), ncclSuccess);
  }
  if (!done) fail_msg("%d bytes do not fit the kernel's buffers here", BYTES);
  for (int i = 1; i < POSTED; i++) {
    assert_int_equal(post(pair.receive, data[i], BYTES, &requests[i]), ncclSuccess);
  }
  ops->close_send(pair.send);
  pair.send = NULL;
  for (done = false; !done && os_time_ns() < end;) {
    assert_int_equal(ops->test(requests[0], &done, NULL), ncclSuccess);
  }
  pattern_check(data[0], 5, BYTES);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess && os_time_ns() < end) result = ops->test(requests[1], &done, NULL);
  assert_int_equal(result, ncclRemoteError);
  assert_non_null(strstr(log_last_error(), "pair: rank 1 receiving from rank 0 at 127.0.0.1:"));
  assert_non_null(strstr(log_last_error(), "closed the connection"));
  pair_close(&pair);
}

static void *send_until_begun(struct pair *pair, const void *data, size_t bytes) {
  const uint64_t end = deadline();
  void *request = NULL;
  while (request == NULL && os_time_ns() < end)
    assert_int_equal(ops->isend(pair->send, data, bytes, 0, NULL, &request), ncclSuccess);
  return request;
}

static size_t wait_done(void *request) {
  const uint64_t end = deadline();
  bool done = false;
  size_t got = 0;
  while (!done && os_time_ns() < end) assert_int_equal(ops->test(request, &done, &got), ncclSuccess);
  assert_true(done);
  return got;
}

/* The first message waits for its receive; then a fixed number is sent before their receives are posted, and
 * no more. */
static void test_credit_first(void **state) {
  struct pair pair;
  static uint8_t data[64], source[64];
  void *request = NULL, *posted = NULL;
  uint32_t ahead = 0;
  (void)state;
  pair_open(&pair);
  for (int i = 0; i < 2 * AHEAD_MAX; i++) {
    assert_int_equal(ops->isend(pair.send, source, 8, 0, NULL, &request), ncclSuccess);
    assert_null(request);
  }
  assert_int_equal(post(pair.receive, data, sizeof data, &posted), ncclSuccess);
  wait_done(send_until_begun(&pair, source, 8));
  assert_int_equal(wait_done(posted), 8);
  for (int i = 0; i < 2 * AHEAD_MAX; i++) {
    pattern_fill(source, ahead, 8);
    assert_int_equal(ops->isend(pair.send, source, 8, 0, NULL, &request), ncclSuccess);
    if (request == NULL) continue;
    wait_done(request);
    ahead += 1;
  }
  assert_int_equal(ahead, AHEAD_MAX);
  for (uint32_t k = 0; k < 4 * AHEAD_MAX; k++) { /* the messages sent ahead, then one by one */
    assert_int_equal(post(pair.receive, data, sizeof data, &posted), ncclSuccess);
    pattern_fill(source, k, 8);
    if (k >= AHEAD_MAX) wait_done(send_until_begun(&pair, source, 8));
    assert_int_equal(wait_done(posted), 8);
    pattern_check(data, k, 8);
  }
  pair_close(&pair);
}

/* The maximum number of receives is posted; one more is refused for now. */
static void test_most_requests(void **state) {
  struct pair pair;
  static uint8_t data[NET_REQUESTS_MAX + 1][8], source[8];
  void *posted[NET_REQUESTS_MAX + 1], *sent = NULL;
  const uint64_t end = deadline();
  (void)state;
  pair_open(&pair);
  for (int i = 0; i < NET_REQUESTS_MAX; i++) {
    assert_int_equal(post(pair.receive, data[i], 8, &posted[i]), ncclSuccess);
    assert_non_null(posted[i]);
  }
  assert_int_equal(post(pair.receive, data[NET_REQUESTS_MAX], 8, &posted[NET_REQUESTS_MAX]), ncclSuccess);
  assert_null(posted[NET_REQUESTS_MAX]);
  for (uint32_t sends = 0, receives = 0; receives < NET_REQUESTS_MAX && os_time_ns() < end;) {
    bool done = false;
    pattern_fill(source, sends, 8);
    if (sends < NET_REQUESTS_MAX) {
      assert_int_equal(ops->isend(pair.send, source, 8, 0, NULL, &sent), ncclSuccess);
      if (sent != NULL) assert_int_equal(ops->test(sent, &done, NULL), ncclSuccess);
      if (sent != NULL) assert_true(done);
      sends += sent != NULL;
    }
    done = false;
    assert_int_equal(ops->test(posted[receives], &done, NULL), ncclSuccess);
    if (done) pattern_check(data[receives], receives, 8);
    receives += done;
  }
  assert_true(os_time_ns() < end);
  pair_close(&pair);
}

static void assert_last_error(const char *part) {
  if (strstr(log_last_error(), part) == NULL) fail_msg("\"%s\" is not in \"%s\"", part, log_last_error());
}

/* A message longer than its receive: both sides report it, with both sizes. */
static void check_too_long(const char *sockets, size_t bytes, size_t capacity) {
  struct pair pair;
  uint8_t *data = (uint8_t *)calloc(1, bytes);
  void *request = NULL, *posted = NULL;
  const uint64_t end = deadline();
  bool done = false;
  ncclResult_t result = ncclSuccess;
  char sentence[128];
  settings(NULL, sockets);
  pair_open(&pair);
  assert_int_equal(post(pair.receive, data, capacity, &posted), ncclSuccess);
  while (result == ncclSuccess && os_time_ns() < end) {
    result = ops->isend(pair.send, data, bytes, 0, NULL, &request);
    assert_null(request);
  }
  assert_int_equal(result, ncclInvalidUsage);
  snprintf(sentence, sizeof sentence,
           "message 0 has %zu bytes, but the receive that was posted for it has space for %zu", bytes,
           capacity);
  assert_last_error("pair: rank 0 sending to rank 1 at 127.0.0.1:");
  assert_last_error(sentence);
  assert_int_equal(ops->isend(pair.send, data, 1, 0, NULL, &request), ncclInvalidUsage);
  for (result = ncclSuccess; result == ncclSuccess && os_time_ns() < end;) {
    result = ops->test(posted, &done, NULL);
    assert_false(done);
  }
  assert_int_equal(result, ncclInvalidUsage);
  assert_last_error("pair: rank 1 receiving from rank 0 at 127.0.0.1:");
  assert_last_error(sentence);
  free(data);
  pair_close(&pair);
}

static void test_too_long(void **state) {
  (void)state;
  check_too_long(NULL, 9, 8);
  check_too_long(NULL, 1 << 20, 4096);
  check_too_long("3", 1 << 20, 4096);
  check_too_long("3", 1, 0);
}

/* A message sent before its receive was posted, which is too short: both sides report it. */
static void test_too_long_ahead(void **state) {
  struct pair pair;
  static uint8_t data[16];
  void *request = NULL, *posted = NULL;
  const uint64_t end = deadline();
  ncclResult_t result = ncclSuccess;
  bool done = false;
  (void)state;
  pair_open(&pair);
  assert_int_equal(post(pair.receive, data, 8, &posted), ncclSuccess);
  wait_done(send_until_begun(&pair, data, 8));
  assert_int_equal(wait_done(posted), 8);
  wait_done(send_until_begun(&pair, data, 9));
  assert_int_equal(post(pair.receive, data, 8, &posted), ncclSuccess);
  while (result == ncclSuccess && os_time_ns() < end) result = ops->test(posted, &done, NULL);
  assert_int_equal(result, ncclInvalidUsage);
  assert_last_error("message 1 has 9 bytes, but the receive that was posted for it has space for 8");
  for (result = ncclSuccess; result == ncclSuccess && os_time_ns() < end;)
    result = ops->isend(pair.send, data, 1, 0, NULL, &request);
  assert_int_equal(result, ncclInvalidUsage);
  assert_last_error("pair: rank 0 sending to rank 1 at 127.0.0.1:");
  assert_last_error("message 1 has 9 bytes, but the receive that was posted for it has space for 8");
  pair_close(&pair);
}

static int raw_connect(const struct net_handle *handle) {
  struct endpoint endpoint;
  struct sockaddr_in to;
  assert_true(endpoint_read(handle, &endpoint));
  memset(&to, 0, sizeof to);
  to.sin_family = AF_INET;
  to.sin_port = htons(endpoint.address.port);
  memcpy(&to.sin_addr, endpoint.address.bytes, 4);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
  return fd;
}

/* Other connections before, between and after: silent ones, talking ones, closing ones. */
static void test_strangers(void **state) {
  enum { STRANGERS = 150 };
  struct pair pair;
  int fds[STRANGERS];
  const uint64_t end = deadline();
  const uint64_t counted = handshake_counted().strangers;
  uint8_t noise[200];
  (void)state;
  memset(&pair, 0, sizeof pair);
  memset(noise, 0xff, sizeof noise);
  assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
  for (int i = 0; i < STRANGERS; i++) {
    fds[i] = raw_connect(&pair.handle);
    if (i % 3 == 1) assert_int_equal(send(fds[i], noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
    if (i % 3 == 2 && i % 2 == 0) shutdown(fds[i], SHUT_RDWR);
  }
  assert_int_equal(ops->connect(0, &to_one, &pair.handle, &pair.send), ncclSuccess);
  while (pair.receive == NULL && os_time_ns() < end) {
    void *request;
    assert_int_equal(ops->accept(pair.listener, &pair.receive), ncclSuccess);
    assert_int_equal(ops->isend(pair.send, NULL, 0, 0, NULL, &request), ncclSuccess);
  }
  assert_non_null(pair.receive);
  assert_true(handshake_counted().strangers > counted);
  for (int i = 0; i < STRANGERS; i++) close(fds[i]);
  pair_close(&pair);
}

/* Connects with another key, and gets an answer. */
static ncclResult_t refused(struct pair *pair, const struct net_peer *peer) {
  const uint64_t end = deadline();
  void *request = NULL;
  ncclResult_t result = ops->connect(0, peer, &pair->handle, &pair->send);
  while (result == ncclSuccess && pair->receive == NULL && os_time_ns() < end) {
    assert_int_equal(ops->accept(pair->listener, &pair->receive), ncclSuccess);
    result = ops->isend(pair->send, NULL, 0, 0, NULL, &request);
  }
  assert_null(pair->receive);
  return result;
}

static void test_wrong_key(void **state) {
  struct pair pair;
  struct net_peer other = to_one;
  (void)state;
  memset(&pair, 0, sizeof pair);
  other.comm_key++;
  assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
  assert_int_equal(refused(&pair, &other), ncclRemoteError);
  assert_last_error("pair: rank 0 sending to rank 1 at 127.0.0.1:");
  assert_last_error("no such listener");
  pair_close(&pair);
}

/* The client is a process of its own, because a process has one secret. */
static void test_wrong_secret(void **state) {
  struct pair pair;
  int status = -1;
  const uint64_t end = deadline();
  (void)state;
  memset(&pair, 0, sizeof pair);
  setenv("TUTTI_SECRET", "ours", 1);
  param_reset();
  const uint64_t counted = handshake_counted().wrong_secret;
  assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
  const pid_t child = fork();
  if (child == 0) {
    void *send = NULL, *request;
    setenv("TUTTI_SECRET", "theirs", 1);
    param_reset();
    ncclResult_t result = ops->connect(0, &to_one, &pair.handle, &send);
    while (result == ncclSuccess && os_time_ns() < end) result = ops->isend(send, NULL, 0, 0, NULL, &request);
    _exit(result == ncclRemoteError ? 0 : 1);
  }
  while (waitpid(child, &status, WNOHANG) == 0 && os_time_ns() < end) {
    assert_int_equal(ops->accept(pair.listener, &pair.receive), ncclSuccess);
    assert_null(pair.receive);
  }
  assert_int_equal(status, 0);
  assert_true(handshake_counted().wrong_secret > counted);
  unsetenv("TUTTI_SECRET");
  param_reset();
  pair_close(&pair);
}

static void test_right_secret(void **state) {
  (void)state;
  setenv("TUTTI_SECRET", "ours", 1);
  check_stream(NULL, "2", false);
  unsetenv("TUTTI_SECRET");
  param_reset();
}

static void test_nobody_listens(void **state) {
  struct net_handle handle;
  void *listener = NULL, *send = NULL, *request = NULL;
  const uint64_t end = deadline();
  (void)state;
  setenv("NCCL_SOCKET_RETRY_CNT", "3", 1);
  param_reset();
  assert_int_equal(ops->listen(0, &to_zero, &handle, &listener), ncclSuccess);
  ops->close_listen(listener);
  ncclResult_t result = ops->connect(0, &to_one, &handle, &send);
  while (result == ncclSuccess && os_time_ns() < end) result = ops->isend(send, NULL, 0, 0, NULL, &request);
  assert_int_equal(result, ncclRemoteError);
  assert_last_error("connection refused: no process listens there");
  if (send != NULL) ops->close_send(send);
  memset(&handle, 0x5a, sizeof handle);
  send = NULL;
  assert_int_equal(ops->connect(0, &to_one, &handle, &send), ncclInvalidArgument);
  assert_null(send);
  unsetenv("NCCL_SOCKET_RETRY_CNT");
  param_reset();
}

/* The sender's process is killed at a moment drawn from the seed. */
static void test_killed(void **state) {
  static uint8_t data[DEPTH][1 << 20];
  (void)state;
  for (uint32_t seed = 0; seed < 8; seed++) {
    struct pair pair;
    void *requests[DEPTH];
    ncclResult_t result = ncclSuccess;
    const uint64_t end = deadline();
    memset(&pair, 0, sizeof pair);
    settings(seed % 2 == 0 ? NULL : "1", seed % 2 == 0 ? NULL : "2");
    assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
    const pid_t child = child_start(&pair.handle, true);
    accept_child(&pair);
    for (int i = 0; i < DEPTH; i++) {
      assert_int_equal(post(pair.receive, data[i], sizeof data[i], &requests[i]), ncclSuccess);
    }
    const uint64_t kill_at = os_time_ns() + (seed * 7919 % 13) * 1000000;
    bool killed = false;
    for (uint32_t k = 0; result == ncclSuccess && os_time_ns() < end;) {
      bool done = false;
      if (!killed && os_time_ns() >= kill_at) killed = kill(child, SIGKILL) == 0;
      result = ops->test(requests[k % DEPTH], &done, NULL);
      if (!done) continue;
      result = post(pair.receive, data[k % DEPTH], sizeof data[0], &requests[k % DEPTH]);
      k++;
    }
    assert_int_equal(result, ncclRemoteError);
    assert_last_error("pair: rank 1 receiving from rank 0 at 127.0.0.1:");
    waitpid(child, NULL, 0);
    pair_close(&pair);
  }
}

/* Requests in flight at both ends: no byte of their memory changes afterwards. */
static void test_close_under_way(void **state) {
  enum { BYTES = 8 << 20 };
  uint8_t *source = (uint8_t *)malloc(BYTES), *data = (uint8_t *)malloc(BYTES);
  (void)state;
  for (int round = 0; round < 6; round++) {
    struct pair pair;
    void *request = NULL, *posted = NULL;
    const uint64_t end = deadline();
    bool done = false;
    settings(round % 2 == 0 ? NULL : "2", round % 2 == 0 ? NULL : "2");
    pair_open(&pair);
    memset(source, 1, BYTES);
    assert_int_equal(post(pair.receive, data, BYTES, &posted), ncclSuccess);
    while (request == NULL && os_time_ns() < end) {
      assert_int_equal(ops->isend(pair.send, source, BYTES, 0, NULL, &request), ncclSuccess);
    }
    for (int i = 0; i < round; i++) assert_int_equal(ops->test(posted, &done, NULL), ncclSuccess);
    if (round < 3) {
      ops->close_recv(pair.receive);
      pair.receive = NULL;
      memset(data, 0x77, BYTES);
      for (int i = 0; i < 10; i++) ops->test(request, &done, NULL);
    } else {
      ops->close_send(pair.send);
      pair.send = NULL;
      memset(source, 9, BYTES);
    }
    pair_close(&pair);
    memset(data, 0x77, BYTES);
    os_sleep_ms(2);
    for (size_t i = 0; i < BYTES; i += 509) assert_int_equal(data[i], 0x77);
  }
  free(source);
  free(data);
}

/* A connection in progress, a listener with half a connection: nothing leaks. */
static void test_close_early(void **state) {
  struct pair pair;
  (void)state;
  settings(NULL, "5");
  for (int round = 0; round < 4; round++) {
    memset(&pair, 0, sizeof pair);
    assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
    assert_int_equal(ops->connect(0, &to_one, &pair.handle, &pair.send), ncclSuccess);
    for (int i = 0; i < round; i++) {
      void *request;
      assert_int_equal(ops->isend(pair.send, NULL, 0, 0, NULL, &request), ncclSuccess);
      os_sleep_ms(1);
      if (round > 2 && pair.receive == NULL)
        assert_int_equal(ops->accept(pair.listener, &pair.receive), ncclSuccess);
    }
    pair_close(&pair);
  }
}

/* With any number of free descriptors the calls fail with the fix in the message, or succeed. */
static void test_no_descriptors(void **state) {
  struct rlimit before, low;
  bool failed = false, worked = false;
  (void)state;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (uint32_t left = 0; left < 12 && !worked; left++) {
    struct pair pair;
    void *request = NULL;
    const uint64_t end = deadline();
    memset(&pair, 0, sizeof pair);
    low = before;
    low.rlim_cur = descriptor_count() - 1 + left; /* the opened directory was counted too */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    ncclResult_t result = ops->listen(0, &to_zero, &pair.handle, &pair.listener);
    if (result == ncclSuccess) result = ops->connect(0, &to_one, &pair.handle, &pair.send);
    while (result == ncclSuccess && pair.receive == NULL && os_time_ns() < end) {
      result = ops->accept(pair.listener, &pair.receive);
      if (result == ncclSuccess) result = ops->isend(pair.send, NULL, 0, 0, NULL, &request);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (result != ncclSuccess) {
      assert_int_equal(result, ncclSystemError);
      assert_last_error("ulimit -n");
      failed = true;
    }
    worked = result == ncclSuccess;
    if (pair.send != NULL) ops->close_send(pair.send);
    if (pair.receive != NULL) ops->close_recv(pair.receive);
    if (pair.listener != NULL) ops->close_listen(pair.listener);
  }
  assert_true(failed);
  assert_true(worked);
}

/* Many listeners of one device share one listening socket. */
/* The result of a handshake with this key. */
static enum handshake_state stranger_handshake(const struct pair *pair, enum handshake_kind kind,
                                               uint64_t key, int *fd, char *why, size_t why_bytes) {
  struct handshake_client client;
  const uint64_t end = deadline();
  void *connection;
  enum handshake_state state = HANDSHAKE_MORE;
  *fd = raw_connect(&pair->handle);
  struct secret secret;
  net_peer_secret(&to_zero, key & ~0xffull, &secret);
  handshake_client_begin(&client, *fd, kind, key, &secret);
  while (state == HANDSHAKE_MORE && os_time_ns() < end) {
    assert_int_equal(ops->accept(pair->listener, &connection), ncclSuccess);
    assert_null(connection);
    state = handshake_client_step(&client, why, why_bytes);
  }
  return state;
}

/* A connection's socket is accepted once, and only with its number and purpose. */
static void test_guests(void **state) {
  struct pair pair;
  struct endpoint endpoint;
  char why[128] = "";
  int fds[4];
  (void)state;
  memset(&pair, 0, sizeof pair);
  assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
  assert_true(endpoint_read(&pair.handle, &endpoint));
  const uint64_t key = endpoint_key(&endpoint, to_zero.comm_key, 0);
  assert_int_equal(stranger_handshake(&pair, HANDSHAKE_DATA, key, &fds[0], why, sizeof why), HANDSHAKE_DONE);
  assert_int_equal(stranger_handshake(&pair, HANDSHAKE_DATA, key, &fds[1], why, sizeof why), HANDSHAKE_GONE);
  assert_string_equal(why, "connected already");
  assert_int_equal(stranger_handshake(&pair, HANDSHAKE_DATA, key + 200, &fds[2], why, sizeof why),
                   HANDSHAKE_GONE);
  assert_string_equal(why, "no such socket");
  assert_int_equal(stranger_handshake(&pair, HANDSHAKE_LINK, key + 1, &fds[3], why, sizeof why),
                   HANDSHAKE_GONE);
  assert_non_null(strstr(why, "no communicator is being made there"));
  for (int i = 0; i < 4; i++) close(fds[i]);
  pair_close(&pair);
}

/* Whether a listener's descriptors are readable. */
static bool port_calls(void *listener) {
  int descriptors[4];
  uint32_t count = 0;
  struct pollfd polled = {-1, POLLIN, 0};
  assert_int_equal(ops->wait_descriptors(listener, descriptors, 4, &count), ncclSuccess);
  assert_int_equal(count, 1);
  polled.fd = descriptors[0];
  return poll(&polled, 1, 0) > 0;
}

/* A listener that is closed with a connection that was not accepted leaves no wake-up behind on its port. */
static void test_untaken(void **state) {
  struct pair untaken, other;
  const uint64_t end = deadline();
  uint32_t calls = 0;
  void *request;
  (void)state;
  memset(&untaken, 0, sizeof untaken);
  memset(&other, 0, sizeof other);
  assert_int_equal(ops->listen(0, &to_zero, &untaken.handle, &untaken.listener), ncclSuccess);
  assert_int_equal(ops->listen(0, &to_zero, &other.handle, &other.listener), ncclSuccess);
  assert_int_equal(ops->connect(0, &to_one, &untaken.handle, &untaken.send), ncclSuccess);
  while (calls < 20 && os_time_ns() < end) { /* a complete connection keeps its port readable */
    assert_int_equal(ops->isend(untaken.send, NULL, 0, 0, NULL, &request), ncclSuccess);
    assert_int_equal(ops->accept(other.listener, &other.receive), ncclSuccess);
    calls = port_calls(other.listener) ? calls + 1 : 0;
  }
  assert_int_equal(calls, 20);
  assert_null(other.receive);
  pair_close(&untaken);
  assert_int_equal(ops->accept(other.listener, &other.receive), ncclSuccess);
  assert_false(port_calls(other.listener));
  pair_close(&other);
}

static void test_shared_port(void **state) {
  enum { PAIRS = 40 };
  struct pair pairs[PAIRS];
  const uint64_t end = deadline();
  uint32_t accepted = 0;
  (void)state;
  memset(pairs, 0, sizeof pairs);
  for (int i = 0; i < PAIRS; i++) {
    assert_int_equal(ops->listen(0, &to_zero, &pairs[i].handle, &pairs[i].listener), ncclSuccess);
  }
  assert_true(descriptor_count() <= descriptors_before + 3);
  for (int i = PAIRS - 1; i >= 0; i--) {
    assert_int_equal(ops->connect(0, &to_one, &pairs[i].handle, &pairs[i].send), ncclSuccess);
  }
  while (accepted < PAIRS && os_time_ns() < end) {
    for (int i = 0; i < PAIRS; i++) {
      void *request;
      if (pairs[i].receive == NULL) {
        assert_int_equal(ops->accept(pairs[i].listener, &pairs[i].receive), ncclSuccess);
        accepted += pairs[i].receive != NULL;
      }
      assert_int_equal(ops->isend(pairs[i].send, NULL, 0, 0, NULL, &request), ncclSuccess);
    }
  }
  assert_int_equal(accepted, PAIRS);
  for (int i = 0; i < PAIRS; i++) pair_close(&pairs[i]);
}

static void wait_readable(void *connection, bool *woken) {
  int descriptors[4];
  struct pollfd polled[4];
  uint32_t count = 0;
  assert_int_equal(ops->wait_descriptors(connection, descriptors, 4, &count), ncclSuccess);
  assert_true(count > 0 && count <= 4);
  for (uint32_t i = 0; i < count; i++) polled[i] = (struct pollfd){descriptors[i], POLLIN, 0};
  *woken = poll(polled, count, 0) > 0;
}

/* The descriptors on which an idle proxy sleeps are readable if there is work, and only then. */
static void test_wait(void **state) {
  enum { BYTES = 48 << 20 };
  struct pair pair;
  uint8_t *source = (uint8_t *)calloc(1, BYTES), *data = (uint8_t *)calloc(1, BYTES);
  void *request = NULL, *posted = NULL;
  const uint64_t end = deadline();
  bool woken, done = false;
  (void)state;
  memset(&pair, 0, sizeof pair);
  assert_int_equal(ops->listen(0, &to_zero, &pair.handle, &pair.listener), ncclSuccess);
  wait_readable(pair.listener, &woken);
  assert_false(woken);
  const int stranger = raw_connect(&pair.handle);
  wait_readable(pair.listener, &woken);
  assert_true(woken);
  close(stranger);
  ops->close_listen(pair.listener);
  pair_open(&pair);
  wait_readable(pair.send, &woken);
  assert_false(woken);
  assert_int_equal(post(pair.receive, data, BYTES, &posted), ncclSuccess);
  wait_readable(pair.receive, &woken);
  assert_false(woken);
  wait_readable(pair.send, &woken);
  assert_true(woken);
  while (request == NULL && os_time_ns() < end) {
    assert_int_equal(ops->isend(pair.send, source, BYTES, 0, NULL, &request), ncclSuccess);
  }
  for (int i = 0; i < 100; i++) assert_int_equal(ops->test(request, &done, NULL), ncclSuccess);
  assert_false(done);
  wait_readable(pair.send, &woken);
  assert_false(woken); /* the kernel's buffers are full */
  wait_readable(pair.receive, &woken);
  assert_true(woken);
  for (int i = 0; i < 100; i++) assert_int_equal(ops->test(posted, &done, NULL), ncclSuccess);
  wait_readable(pair.send, &woken);
  assert_true(woken);
  free(source);
  pair_close(&pair);
  free(data);
}

static void test_properties(void **state) {
  struct net_properties properties;
  void *registration = NULL, *request = &properties;
  (void)state;
  assert_int_equal(ops->properties(0, &properties), ncclSuccess);
  assert_string_equal(properties.name, "lo");
  assert_string_equal(properties.pci_path, "");
  assert_int_equal(properties.max_recvs, 1);
  assert_int_equal(properties.max_message_bytes, 1 << 30);
  assert_true(properties.speed_mbps > 0);
  assert_false(properties.memory_cuda);
  assert_int_equal(ops->properties(1000, &properties), ncclInvalidArgument);
  assert_int_equal(ops->register_memory(NULL, NULL, 8, NET_MEMORY_CUDA, &registration), ncclInvalidArgument);
  assert_int_equal(ops->iflush(NULL, 1, NULL, NULL, NULL, &request), ncclSuccess);
  assert_null(request);
}

/* IPv6: skipped if no interface has an address of that family. */
static void test_six(void **state) {
  uint32_t count = 0;
  (void)state;
  unsetenv("NCCL_SOCKET_IFNAME");
  setenv("NCCL_SOCKET_FAMILY", "AF_INET6", 1);
  param_reset();
  const bool found = ops->devices(&count) == ncclSuccess && count > 0;
  if (found) {
    struct pair pair;
    pair_open(&pair);
    pair_close(&pair);
  }
  unsetenv("NCCL_SOCKET_FAMILY");
  settings(NULL, NULL);
  assert_int_equal(ops->devices(&count), ncclSuccess);
  if (!found) SKIP("no IPv6 interface here");
}

#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(test_properties),
      EACH(test_frames),
      EACH(test_cuts),
      EACH(test_one_socket),
      EACH(test_parts),
      EACH(test_parts_move),
      EACH(test_striped),
      EACH(test_striped_by_threads),
      EACH(test_two_threads),
      EACH(test_two_processes),
      EACH(test_credit_first),
      EACH(test_most_requests),
      EACH(test_close_delivers),
      EACH(test_too_long),
      EACH(test_too_long_ahead),
      EACH(test_strangers),
      EACH(test_wrong_key),
      EACH(test_wrong_secret),
      EACH(test_right_secret),
      EACH(test_nobody_listens),
      EACH(test_killed),
      EACH(test_close_under_way),
      EACH(test_close_early),
      EACH(test_no_descriptors),
      EACH(test_shared_port),
      EACH(test_untaken),
      EACH(test_guests),
      EACH(test_wait),
      EACH(test_six),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
