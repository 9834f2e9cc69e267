/* wake.c: an eventfd and ppoll. */
#include "base/wake.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

ncclResult_t wake_open(int *wake) {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0)
    return log_fail(ncclSystemError, "no descriptor for a thread to sleep on (%s); raise ulimit -n",
                    strerror(errno));
  *wake = fd;
  return ncclSuccess;
}

void wake_close(int wake) {
  if (wake >= 0) close(wake);
}

/* If the counter is full, the wake is already pending. */
void wake_signal(int wake) {
  const uint64_t one = 1;
  while (write(wake, &one, sizeof one) < 0 && errno == EINTR) {}
}

bool wake_wait(int wake, const int *descriptors, uint32_t count, uint64_t timeout_us) {
  struct pollfd polls[WAKE_DESCRIPTORS_MAX + 1];
  const struct timespec timeout = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000};
  uint64_t taken;
  if (count > WAKE_DESCRIPTORS_MAX) count = WAKE_DESCRIPTORS_MAX;
  polls[0] = (struct pollfd){wake, POLLIN, 0};
  for (uint32_t i = 0; i < count; i++) polls[i + 1] = (struct pollfd){descriptors[i], POLLIN, 0};
  if (ppoll(polls, count + 1, timeout_us != UINT64_MAX ? &timeout : NULL, NULL) == 0) return false;
  while (read(wake, &taken, sizeof taken) < 0 && errno == EINTR) {}
  return true;
}
