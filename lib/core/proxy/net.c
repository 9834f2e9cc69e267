/* net.c: selects the network, once per process: plugins, then verbs, then sockets; but the emulator's network
 * if it is requested, which may change when the emulator restarts. Each rejected network logs why. Knows
 * nothing of how a network works. */
#include "core/proxy/net.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "backends/backend.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"

#define DEVICES_MOST 1024 /* a higher count is an error of a plugin */
#define NAMES_BYTES 512

static os_mutex choice_mutex = OS_MUTEX_INITIALIZER;
static const struct net_ops *chosen_ops; /* guarded by the mutex, as all of these */
static uint32_t chosen_count;
static uint32_t emulated_count; /* as last logged */

/* Names of the available networks, for the message that none of them matches. */
struct names {
  char text[NAMES_BYTES];
  size_t used;
};

static void names_add(struct names *names, const char *name) {
  if (names->used >= sizeof names->text) return;
  const int added = snprintf(names->text + names->used, sizeof names->text - names->used, "%s%s",
                             names->used > 0 ? ", " : "", name);
  names->used += added > 0 ? (size_t)added : 0;
}

static void names_add_devices(struct names *names, const struct net_ops *ops, uint32_t count) {
  struct net_properties properties;
  for (uint32_t device = 0; device < count; device++)
    if (ops->properties(device, &properties) == ncclSuccess) names_add(names, properties.name);
}

static void choice_log(const struct net_ops *ops, uint32_t count, const char *why) {
  struct names names;
  memset(&names, 0, sizeof names);
  names_add_devices(&names, ops, count);
  log_info(LOG_INIT | LOG_NET, "Network %s, %u device%s (%s): %s", ops->name, count, count == 1 ? "" : "s",
           names.text, why);
}

/* True if this network can be used: it matches the requested name, and has devices. */
static bool candidate_fits(const struct net_ops *ops, const char *wanted, struct names *names,
                           uint32_t *count) {
  names_add(names, ops->name);
  if (*wanted != '\0' && strcasecmp(wanted, ops->name) != 0) {
    log_info(LOG_NET, "Network %s is left out: NCCL_NET names %s", ops->name, wanted);
    return false;
  }
  *count = 0;
  const ncclResult_t result = ops->devices(count);
  if (result == ncclSuccess && *count > 0 && *count <= DEVICES_MOST) return true;
  if (result != ncclSuccess)
    log_info(LOG_NET, "Network %s is left out: it fails with '%s'", ops->name, err_text(result));
  else log_info(LOG_NET, "Network %s is left out: it has %u devices", ops->name, *count);
  return false;
}

/* The emulator's network reaches emulated nodes only. */
static const struct net_ops *emulated(void) {
  const struct backend *devices = backend_ops();
  return devices != NULL && strcmp(devices->name, "emu") == 0 ? emu_net_ops() : NULL;
}

static const struct net_ops *choose(const char *wanted, struct names *names, uint32_t *count) {
  const char *by_name = "NCCL_NET names it";
  const struct net_ops *ops;
  while ((ops = plugin_net_next()) != NULL) {
    if (!candidate_fits(ops, wanted, names, count)) continue;
    choice_log(ops, *count, *wanted != '\0' ? by_name : "a plugin comes before our own networks");
    return ops;
  }
  const struct net_ops *const own[] = {ibv_net_ops(), socket_net_ops()};
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
    if (!candidate_fits(own[i], wanted, names, count)) continue;
    choice_log(own[i], *count, *wanted != '\0' ? by_name : "the default, as no plugin is in use");
    return own[i];
  }
  return NULL;
}

/* `asker`: what names the network. */
static ncclResult_t choice_fail(const char *asker, const char *wanted, const struct names *names) {
  const char *known = names->used > 0 ? names->text : "none";
  if (*wanted != '\0')
    return log_fail(ncclInvalidUsage,
                    "%s=%s: no network of this name can be used here; there is: %s; unset %s, or "
                    "name the plugin that has it in NCCL_NET_PLUGIN",
                    asker, wanted, known, asker);
  return log_fail(ncclSystemError,
                  "no network can be used (tried: %s); see which interfaces are up (ip addr) and what "
                  "NCCL_SOCKET_IFNAME allows; NCCL_DEBUG=INFO says more",
                  known);
}

/* Its devices are those of the emulator's present configuration. */
static const struct net_ops *choose_emulated(const char *wanted, struct names *names, uint32_t *count) {
  const struct net_ops *ops = emulated();
  if (ops == NULL || !candidate_fits(ops, wanted, names, count)) return NULL;
  if (*count != emulated_count)
    choice_log(ops, *count, *wanted != '\0' ? "NCCL_NET names it" : "TUTTI_EMU asks for it");
  emulated_count = *count;
  return ops;
}

static ncclResult_t choose_locked(const char *asker, const char *wanted, const struct net_ops **ops,
                                  uint32_t *device_count) {
  struct names names;
  memset(&names, 0, sizeof names);
  *ops = choose_emulated(wanted, &names, device_count);
  if (*ops != NULL) return ncclSuccess;
  if (chosen_ops == NULL) chosen_ops = choose(wanted, &names, &chosen_count);
  if (chosen_ops == NULL) return choice_fail(asker, wanted, &names);
  *ops = chosen_ops;
  *device_count = chosen_count;
  return ncclSuccess;
}

ncclResult_t net_choose(const struct net_ops **ops, uint32_t *device_count) {
  os_mutex_lock(&choice_mutex);
  const ncclResult_t result = choose_locked("NCCL_NET", param_text(PARAM_NET), ops, device_count);
  os_mutex_unlock(&choice_mutex);
  return result;
}

/* The first name counts, as a process has one network; NCCL_NET comes before it, and so does the network of
 * emulated nodes, which no other reaches. */
ncclResult_t net_require(const char *call, const char *name) {
  const struct net_ops *ops = NULL;
  uint32_t device_count = 0;
  if (*param_text(PARAM_NET) != '\0' || *name == '\0') return ncclSuccess;
  os_mutex_lock(&choice_mutex);
  const char *wanted = emulated() != NULL ? "" : name;
  const ncclResult_t result = choose_locked("config.netName", wanted, &ops, &device_count);
  os_mutex_unlock(&choice_mutex);
  TRY(result);
  if (strcasecmp(ops->name, name) == 0) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: config.netName is %s, and this process already uses network %s for all communicators; set "
      "NCCL_NET=%s, or leave config.netName at NCCL_CONFIG_UNDEF_PTR",
      call, name, ops->name, name);
}

/* Devices are assigned to the backend's nodes in order, and each node has the same network devices. */
uint32_t net_device_of(uint32_t device_count, uint32_t device_index, uint32_t channel_index) {
  const struct backend *ops = backend_ops();
  uint32_t nodes = 0, devices = 0;
  if (device_count <= 1) return 0;
  if (ops != NULL && ops->device->nodes(&nodes) == ncclSuccess && nodes > 1 &&
      ops->device->count(&devices) == ncclSuccess && devices >= nodes)
    device_index %= devices / nodes;
  return (device_index + channel_index) % device_count;
}

void net_thread_bind(void) {
  const char *cpus = param_text(PARAM_PROXY_CPUSET);
  if (*cpus == '\0' || os_thread_bind(cpus)) return;
  log_warn(
      "NCCL_PROXY_CPUSET=%s: %s, so that the threads of networks run on all processors of the process; give "
      "numbers and ranges, such as 0-3,8, of processors that it may use",
      cpus, strerror(errno));
}
