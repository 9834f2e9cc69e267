/* wire.c: a switch in user space between network namespaces, for kernels that cannot delay packets: packets
 * from one host to another are delayed, jittered, reordered, duplicated, lost, rate-limited or cut, each
 * direction by itself, by commands on stdin and by a seed.
 *
 *   wire [-g] [-m MTU] [-s SEED] PROCESS...   host i is the network namespace of the i-th process; it gets a
 *                                             TAP device eth0, up, without an address
 *   -g    passes frames of up to 64 KiB whole: fast, but a loss drops all of one
 *
 * Prints `ready`, then for each line of stdin `ok` or `error: ...`:
 *
 *   set FROM TO KEY=VALUE...   hosts from 1 on, `*` for all; keys: delay_us, jitter_us, reorder_ppm, dup_ppm,
 *                              loss_ppm, rate_mbit, queue_kb (of the rate; default 1024), cut (0 or 1)
 *   quit
 *
 * A reordered frame is sent without delay. Exits at the end of stdin. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"

enum {
  HOSTS_MAX = 32,
  HEADER_BYTES = 10, /* the kernel's, before each frame: struct virtio_net_hdr */
  FRAME_BYTES = HEADER_BYTES + 14 + 65536 + 64,
  WAITING_BYTES_MAX = 256 << 20, /* of all frames that are under way */
  LINE_BYTES = 1024
};

enum link_key { DELAY, JITTER, REORDER, DUP, LOSS, RATE, QUEUE, CUT, KEYS };
static const char *const key_names[KEYS] = {"delay_us", "jitter_us", "reorder_ppm", "dup_ppm",
                                            "loss_ppm", "rate_mbit", "queue_kb",    "cut"};

struct link {
  uint64_t values[KEYS];
  uint64_t free_ns; /* when the rate limit lets the next frame start */
  uint64_t last_ns; /* jitter alone does not reorder frames */
};

struct frame {
  uint64_t due_ns, number; /* sorted by these */
  uint32_t to, bytes;
  uint8_t data[];
};

static uint32_t host_count;
static int taps[HOSTS_MAX];
static struct link links[HOSTS_MAX][HOSTS_MAX];
static struct frame **heap; /* the frame that is due first is at the root */
static size_t heap_count, heap_capacity, waiting_bytes;
static uint64_t frame_number, random_state;

static void die(const char *what) {
  fprintf(stderr, "wire: %s: %s\n", what, strerror(errno));
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t random_next(void) { return hash_draw(&random_state); }

static bool chance(uint64_t ppm) { return ppm > 0 && random_next() % 1000000 < ppm; }

/* ---- frames in flight ---- */

static bool is_before(const struct frame *a, const struct frame *b) {
  return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void swap(size_t a, size_t b) {
  struct frame *kept = heap[a];
  heap[a] = heap[b];
  heap[b] = kept;
}

static void heap_add(struct frame *frame) {
  if (heap_count == heap_capacity) {
    heap_capacity = heap_capacity > 0 ? 2 * heap_capacity : 1024;
    heap = (struct frame **)realloc(heap, heap_capacity * sizeof *heap);
    if (heap == NULL) die("frames");
  }
  size_t at = heap_count++;
  heap[at] = frame;
  for (; at > 0 && is_before(heap[at], heap[(at - 1) / 2]); at = (at - 1) / 2) swap(at, (at - 1) / 2);
}

static struct frame *heap_take(void) {
  struct frame *first = heap[0];
  heap[0] = heap[--heap_count];
  for (size_t at = 0, child; (child = 2 * at + 1) < heap_count; at = child) {
    if (child + 1 < heap_count && is_before(heap[child + 1], heap[child])) child += 1;
    if (!is_before(heap[child], heap[at])) break;
    swap(at, child);
  }
  return first;
}

/* A device whose host does not read drops the frame, as a NIC would. */
static void deliver(uint32_t to, const uint8_t *data, uint32_t bytes) {
  if (write(taps[to], data, bytes) < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EIO)
    fprintf(stderr, "wire: host %u: %s\n", to + 1, strerror(errno));
}

static void delay(uint32_t to, const uint8_t *data, uint32_t bytes, uint64_t due_ns) {
  struct frame *frame;
  if (waiting_bytes + bytes > WAITING_BYTES_MAX) return;
  frame = (struct frame *)malloc(sizeof *frame + bytes);
  if (frame == NULL) die("a frame");
  frame->due_ns = due_ns;
  frame->number = frame_number++;
  frame->to = to;
  frame->bytes = bytes;
  memcpy(frame->data, data, bytes);
  waiting_bytes += bytes;
  heap_add(frame);
}

static void release(uint64_t now) {
  while (heap_count > 0 && heap[0]->due_ns <= now) {
    struct frame *frame = heap_take();
    deliver(frame->to, frame->data, frame->bytes);
    waiting_bytes -= frame->bytes;
    free(frame);
  }
}

/* ---- impairments ---- */

/* The time at which the link's rate has let the frame through; 0 if its queue is full. */
static uint64_t rate_pass(struct link *link, uint32_t bytes, uint64_t now) {
  const uint64_t rate = link->values[RATE];
  if (rate == 0) return now;
  if (link->free_ns < now) link->free_ns = now;
  const uint64_t queued_bytes = (link->free_ns - now) * rate / 8000;
  if (queued_bytes > link->values[QUEUE] * 1024) return 0;
  link->free_ns += (uint64_t)bytes * 8000 / rate;
  return link->free_ns;
}

static void carry(uint32_t from, uint32_t to, const uint8_t *data, uint32_t bytes, uint64_t now) {
  struct link *link = &links[from][to];
  const uint64_t *values = link->values;
  if (values[CUT] || chance(values[LOSS])) return;
  const uint64_t through = rate_pass(link, bytes, now);
  if (through == 0) return;
  const int copies = 1 + chance(values[DUP]);
  for (int copy = 0; copy < copies; copy++) {
    const bool overtakes = chance(values[REORDER]);
    uint64_t due = through;
    if (!overtakes) {
      due += values[DELAY] * 1000;
      if (values[JITTER] > 0) due += random_next() % (values[JITTER] * 1000);
      if (due < link->last_ns) due = link->last_ns;
      link->last_ns = due;
    }
    if (due <= now) deliver(to, data, bytes);
    else delay(to, data, bytes, due);
  }
}

/* Each host's NIC has its number in its address, so no learning is needed. */
static void forward(uint32_t from, const uint8_t *data, uint32_t bytes) {
  const uint8_t *target = data + HEADER_BYTES;
  const uint64_t now = now_ns();
  static const uint8_t ours[5] = {2, 0, 0, 0, 0};
  const bool to_one = memcmp(target, ours, sizeof ours) == 0;
  for (uint32_t to = 0; to < host_count; to++) {
    const bool meant = to_one ? target[5] == to + 1 : (target[0] & 1) != 0;
    if (to != from && meant) carry(from, to, data, bytes, now);
  }
}

static void read_host(uint32_t host) {
  enum { AT_ONCE = 64 };
  static uint8_t data[FRAME_BYTES];
  for (int i = 0; i < AT_ONCE; i++) {
    const ssize_t bytes = read(taps[host], data, sizeof data);
    if (bytes < HEADER_BYTES + 14) return;
    forward(host, data, (uint32_t)bytes);
  }
}

/* ---- commands ---- */

/* 0 for `*`, else a host; -1 for anything else. */
static int host_parse(const char *text) {
  char *end;
  if (strcmp(text, "*") == 0) return 0;
  const long number = strtol(text, &end, 10);
  return *end == '\0' && number >= 1 && number <= (long)host_count ? (int)number : -1;
}

static bool value_set(int from, int to, const char *word) {
  const char *equals = strchr(word, '=');
  char *end;
  int key = 0;
  if (equals == NULL) return false;
  while (key < KEYS && (strlen(key_names[key]) != (size_t)(equals - word) ||
                        memcmp(key_names[key], word, (size_t)(equals - word)) != 0))
    key++;
  const uint64_t value = strtoull(equals + 1, &end, 10);
  if (key == KEYS || equals[1] < '0' || equals[1] > '9' || *end != '\0') return false;
  for (uint32_t a = 0; a < host_count; a++)
    for (uint32_t b = 0; b < host_count; b++)
      if ((from == 0 || a + 1 == (uint32_t)from) && (to == 0 || b + 1 == (uint32_t)to))
        links[a][b].values[key] = value;
  return true;
}

static void command(char *line) {
  char *rest, *word = strtok_r(line, " ", &rest);
  if (word && strcmp(word, "quit") == 0) exit(0);
  const char *from = strtok_r(NULL, " ", &rest), *to = strtok_r(NULL, " ", &rest);
  if (!word || strcmp(word, "set") != 0 || !from || !to || host_parse(from) < 0 || host_parse(to) < 0) {
    printf("error: write: set FROM TO KEY=VALUE...\n");
    return;
  }
  while ((word = strtok_r(NULL, " ", &rest)) != NULL) {
    if (value_set(host_parse(from), host_parse(to), word)) continue;
    printf("error: %s\n", word);
    return;
  }
  printf("ok\n");
}

static void read_commands(void) {
  static char text[LINE_BYTES];
  static size_t used;
  const ssize_t bytes = read(STDIN_FILENO, text + used, sizeof text - used);
  if (bytes <= 0) exit(0);
  used += (size_t)bytes;
  for (char *end; (end = (char *)memchr(text, '\n', used)) != NULL;) {
    *end = '\0';
    command(text);
    used -= (size_t)(end + 1 - text);
    memmove(text, end + 1, used);
  }
  if (used == sizeof text) used = 0; /* no command is this long */
}

/* ---- devices ---- */

/* Runs in the host's namespace. */
static int tap_make(uint32_t host, int mtu, bool whole) {
  struct ifreq request;
  const int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (control < 0 || tap < 0) die("/dev/net/tun");
  memset(&request, 0, sizeof request);
  strcpy(request.ifr_name, "eth0");
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(tap, TUNSETIFF, &request) != 0) die("a TAP device");
  if (ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | (whole ? TUN_F_TSO4 | TUN_F_TSO6 : 0)) != 0) die("offload");
  request.ifr_mtu = mtu;
  if (ioctl(control, SIOCSIFMTU, &request) != 0) die("MTU");
  request.ifr_qlen = 10000;
  if (ioctl(control, SIOCSIFTXQLEN, &request) != 0) die("queue length");
  const uint8_t address[6] = {2, 0, 0, 0, 0, (uint8_t)(host + 1)};
  memset(&request.ifr_hwaddr, 0, sizeof request.ifr_hwaddr);
  request.ifr_hwaddr.sa_family = 1; /* ARPHRD_ETHER */
  memcpy(request.ifr_hwaddr.sa_data, address, sizeof address);
  if (ioctl(control, SIOCSIFHWADDR, &request) != 0) die("hardware address");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (ioctl(control, SIOCSIFFLAGS, &request) != 0) die("eth0 up");
  close(control);
  return tap;
}

static void host_join(uint32_t host, const char *process, int mtu, bool whole) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%.20s/ns/net", process);
  const int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int other = open(path, O_RDONLY | O_CLOEXEC);
  if (own < 0 || other < 0 || setns(other, CLONE_NEWNET) != 0) die(path);
  taps[host] = tap_make(host, mtu, whole);
  if (setns(own, CLONE_NEWNET) != 0) die("/proc/self/ns/net");
  close(own);
  close(other);
}

static void run(void) {
  struct pollfd waited[HOSTS_MAX + 1];
  for (uint32_t i = 0; i < host_count; i++) waited[i] = (struct pollfd){taps[i], POLLIN, 0};
  waited[host_count] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
  for (;;) {
    const uint64_t now = now_ns();
    const uint64_t left = heap_count > 0 && heap[0]->due_ns > now ? heap[0]->due_ns - now : 0;
    const struct timespec until = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
    if (ppoll(waited, host_count + 1, heap_count > 0 ? &until : NULL, NULL) < 0 && errno != EINTR)
      die("poll");
    release(now_ns());
    for (uint32_t i = 0; i < host_count; i++)
      if (waited[i].revents) read_host(i);
    if (waited[host_count].revents) read_commands();
  }
}

int main(int argc, char **argv) {
  bool whole = false;
  int mtu = 1500, option;
  while ((option = getopt(argc, argv, "gm:s:")) != -1) {
    if (option == 'g') whole = true;
    else if (option == 'm') mtu = atoi(optarg);
    else if (option == 's') random_state = strtoull(optarg, NULL, 0);
    else return 2;
  }
  host_count = (uint32_t)(argc - optind);
  if (host_count < 2 || host_count > HOSTS_MAX) {
    fprintf(stderr, "wire: 2 to %d processes\n", HOSTS_MAX);
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (uint32_t i = 0; i < host_count; i++) {
    host_join(i, argv[optind + (int)i], mtu, whole);
    for (uint32_t k = 0; k < host_count; k++) links[i][k].values[QUEUE] = 1024;
  }
  printf("ready\n");
  run();
}
