/* child.c: see child.h. The child reports an error before exec over a pipe that exec closes. */
#include "base/child.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"

uint32_t child_core_count(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  const int count = CPU_COUNT(&allowed);
  return count > 0 ? (uint32_t)count : 1;
}

/* Keeps `count` of the allowed cores, starting with the `first`-th. */
static bool cores_bind(uint32_t first, uint32_t count) {
  cpu_set_t allowed, kept;
  uint32_t index = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  CPU_ZERO(&kept);
  for (size_t core = 0; core < CPU_SETSIZE; core++) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (index >= first && index < first + count) CPU_SET(core, &kept);
    index++;
  }
  return sched_setaffinity(0, sizeof kept, &kept) == 0;
}

static bool descriptor_place(int from, int to) { return from < 0 || from == to || dup2(from, to) == to; }

static bool environment_extend(const char *const *extras) {
  for (; extras && *extras; extras++) {
    const char *equals = strchr(*extras, '=');
    char name[256];
    const size_t bytes = equals ? (size_t)(equals - *extras) : strlen(*extras);
    if (bytes == 0 || bytes >= sizeof name) {
      errno = EINVAL;
      return false;
    }
    memcpy(name, *extras, bytes);
    name[bytes] = '\0';
    if (equals ? setenv(name, equals + 1, 1) != 0 : unsetenv(name) != 0) return false;
  }
  return true;
}

/* In the child: executes the program, or reports why it cannot. */
static void child_become(const struct child_plan *plan, pid_t parent, int report) {
  bool good = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && (!plan->own_group || setpgid(0, 0) == 0);
  if (getppid() != parent) _exit(127); /* the parent ended before prctl */
  good = good && descriptor_place(plan->input, 0) && descriptor_place(plan->output, 1) &&
         descriptor_place(plan->error, 2) && environment_extend(plan->extras) &&
         (plan->core_count == 0 || cores_bind(plan->core_index, plan->core_count)) &&
         sigprocmask(SIG_SETMASK, plan->mask, NULL) == 0;
  if (good) execvp(plan->arguments[0], plan->arguments);
  const int why = errno;
  const ssize_t written = write(report, &why, sizeof why);
  _exit(written == (ssize_t)sizeof why ? 127 : 126);
}

int child_start(const struct child_plan *plan, int *pid) {
  int report[2], why = 0;
  if (pipe2(report, O_CLOEXEC) != 0) return errno;
  const pid_t parent = getpid(), child = fork();
  if (child == 0) child_become(plan, parent, report[1]);
  const int forked = child < 0 ? errno : 0;
  close(report[1]);
  ssize_t got = 0;
  if (child > 0) {
    do got = read(report[0], &why, sizeof why);
    while (got < 0 && errno == EINTR);
  }
  close(report[0]);
  if (forked != 0) return forked;
  if (got == (ssize_t)sizeof why) return why; /* the caller reaps the child as usual */
  *pid = child;
  return 0;
}

/* The loop is bounded; each round ends all current ones. */
void child_leftovers_end(const char *verb) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%ld/children", os_tid());
  for (int round = 0; round < 100; round++) {
    char *list = os_file_read(path, NULL), *rest = list;
    int ended = 0;
    for (long pid = list ? strtol(list, &rest, 10) : 0; pid > 0; pid = strtol(rest, &rest, 10)) {
      if (verb) fprintf(stderr, "tutti %s: ending process %ld, left behind by a rank\n", verb, pid);
      kill((pid_t)pid, SIGKILL);
      waitpid((pid_t)pid, NULL, 0);
      ended++;
    }
    os_free(list);
    if (ended == 0) return;
  }
}

int child_port_hold(int *fd, unsigned *port) {
  struct sockaddr_in address;
  socklen_t bytes = sizeof address;
  const int one = 1, held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (held < 0) return errno;
  /* Bound but not listening: the system gives the port to no other process, yet a socket that asks for this
   * port with the same flag can listen on it. */
  if (setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      bind(held, (const struct sockaddr *)&address, sizeof address) != 0 ||
      getsockname(held, (struct sockaddr *)&address, &bytes) != 0) {
    const int why = errno;
    close(held);
    return why;
  }
  *fd = held;
  *port = ntohs(address.sin_port);
  return 0;
}
