/* device.c: the devices (every interface that the settings allow, with its properties from /sys) and the
 * settings of a connection. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/socket/socket.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"

#define SPEED_UNKNOWN_MBPS 10000 /* NCCL's default if the driver does not report a speed */
#define VENDOR_AWS 0x1d0f
#define VENDOR_GOOGLE 0x1ae0

static struct {
  os_mutex mutex;
  uint32_t count;
  struct sock_interface interfaces[SOCK_INTERFACES_MAX];
} devices = {OS_MUTEX_INITIALIZER, 0, {{"", {0}}}};

/* The number in /sys/class/net/NAME/WHAT; -1 if there is none. */
static long sys_number(const char *name, const char *what) {
  char path[128], *text;
  snprintf(path, sizeof path, "/sys/class/net/%s/%s", name, what);
  text = os_file_read_most(path, 256, NULL);
  const long number = text != NULL && text[0] != '\0' ? strtol(text, NULL, 0) : -1;
  os_free(text);
  return number;
}

ncclResult_t socket_devices(uint32_t *count) {
  struct sock_interface found[SOCK_INTERFACES_MAX];
  uint32_t found_count = 0;
  TRY(sock_interfaces_find(NULL, found, &found_count));
  os_mutex_lock(&devices.mutex);
  devices.count = found_count;
  memcpy(devices.interfaces, found, found_count * sizeof found[0]);
  os_mutex_unlock(&devices.mutex);
  for (uint32_t i = 0; i < found_count; i++) {
    char text[SOCK_TEXT_BYTES];
    log_info(LOG_INIT | LOG_NET, "socket net: device %u is %s, %s", i, found[i].name,
             sock_address_text(&found[i].address, text));
  }
  *count = found_count;
  return ncclSuccess;
}

ncclResult_t socket_interface(uint32_t device, struct sock_interface *out) {
  os_mutex_lock(&devices.mutex);
  const uint32_t count = devices.count;
  if (device < count) *out = devices.interfaces[device];
  os_mutex_unlock(&devices.mutex);
  if (device < count) return ncclSuccess;
  return log_fail(ncclInvalidArgument, "socket net: there is no device %u: there are %u", device, count);
}

ncclResult_t socket_properties(uint32_t device, struct net_properties *properties) {
  struct sock_interface interface;
  struct net_properties own;
  char link[128], path[PATH_MAX];
  TRY(socket_interface(device, &interface));
  memset(&own, 0, sizeof own);
  snprintf(own.name, sizeof own.name, "%s", interface.name);
  snprintf(link, sizeof link, "/sys/class/net/%s/device", interface.name);
  if (realpath(link, path) != NULL && strlen(path) < sizeof own.pci_path) {
    memcpy(own.pci_path, path, strlen(path) + 1);
  }
  const long speed = sys_number(interface.name, "speed");
  own.guid = device;
  own.speed_mbps = speed > 0 && speed <= INT_MAX ? (uint32_t)speed : SPEED_UNKNOWN_MBPS;
  own.max_comms = 65536;
  own.max_recvs = 1;
  own.max_message_bytes = MESSAGE_BYTES_MAX;
  own.global_registration = true;
  own.rail = own.plane = -1;
  *properties = own;
  return ncclSuccess;
}

/* The networks of some clouds limit a single stream, so several are faster. */
static void cloud_defaults(const char *name, uint32_t *threads, uint32_t *each) {
  const long vendor = sys_number(name, "device/vendor");
  *threads = vendor == VENDOR_AWS ? 2 : vendor == VENDOR_GOOGLE ? 4 : 0;
  *each = vendor == VENDOR_AWS ? 8 : vendor == VENDOR_GOOGLE ? 1 : 0;
}

/* One core copies 3 to 5 GB/s into a socket, so with many cores long messages are copied by several. A short
 * message would take less time than a helper needs to wake up. */
#define MANY_CORES 16u
#define MANY_CORES_THREADS 2u
#define MANY_CORES_EACH 2u
#define MANY_CORES_WHOLE_BYTES 65536u
#define MANY_CORES_TASK_BYTES 32768u

static bool cores_are_many(void) {
  const uint32_t cores = os_core_count();
  return cores >= MANY_CORES && io_threads_running() + MANY_CORES_THREADS <= cores;
}

static uint32_t bytes_param(enum param_id param) {
  const int64_t bytes = param_int(param);
  return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

void socket_settings(const char *interface_name, struct endpoint *endpoint) {
  uint32_t threads, each;
  cloud_defaults(interface_name, &threads, &each);
  const bool threads_set = param_is_set(PARAM_SOCKET_NTHREADS),
             each_set = param_is_set(PARAM_NSOCKS_PERTHREAD);
  const bool many = threads == 0 && !threads_set && !each_set && cores_are_many();
  if (many) threads = MANY_CORES_THREADS, each = MANY_CORES_EACH;
  if (threads_set) threads = (uint32_t)param_int(PARAM_SOCKET_NTHREADS);
  if (each_set) each = (uint32_t)param_int(PARAM_NSOCKS_PERTHREAD);
  if (threads_set && threads > 0 && each == 0) each = 1;
  uint32_t data_sockets = (threads > 0 ? threads : 1) * each;
  if (data_sockets > DATA_SOCKETS_MAX) {
    log_warn("%s=%u times %s=%u are more than %d sockets a connection: %d are used",
             param_name(PARAM_SOCKET_NTHREADS), threads, param_name(PARAM_NSOCKS_PERTHREAD), each,
             DATA_SOCKETS_MAX, DATA_SOCKETS_MAX);
    data_sockets = DATA_SOCKETS_MAX;
  }
  endpoint->data_sockets = data_sockets;
  endpoint->threads = threads < data_sockets ? threads : data_sockets;
  endpoint->inline_bytes = bytes_param(PARAM_SOCKET_INLINE);
  endpoint->task_bytes = bytes_param(PARAM_SOCKET_MIN_TASKSIZE);
  endpoint->whole_bytes = endpoint->inline_bytes;
  if (!many) return;
  if (endpoint->whole_bytes < MANY_CORES_WHOLE_BYTES) endpoint->whole_bytes = MANY_CORES_WHOLE_BYTES;
  if (!param_is_set(PARAM_SOCKET_MIN_TASKSIZE)) endpoint->task_bytes = MANY_CORES_TASK_BYTES;
}
