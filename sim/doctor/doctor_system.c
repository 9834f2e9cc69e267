/* doctor_system.c: the doctor's checks of the environment: the driver and its GPUs, the machine's limits, and
 * the settings, of this process or of the one that is inspected. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backends/emu/world.h"
#include "base/launch.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/plugin_file.h"
#include "base/share.h"
#include "base/vgpu.h"
#include "core/plan/names.h"
#include "core/plan/tune_file.h"
#include "core/settings/settings.h"
#include "doctor/doctor.h"

#ifndef TUTTI_CAPABILITY_LEAST
#define TUTTI_CAPABILITY_LEAST 80
#endif
enum { PAIRS_SHOWN = 16, FILES_LEAST = 4096, CAPABILITY_LEAST = TUTTI_CAPABILITY_LEAST };

/* ---- GPUs */

static void gpu_add(struct doctor *doctor, const char *line) {
  int index = 0, major = 0, minor = 0, used = 0;
  char mode[32] = "";
  if (sscanf(line, "gpu %d %d %d %31s %n", &index, &major, &minor, mode, &used) < 4) return;
  const int length = (int)strcspn(line + used, "\n");
  doctor->gpu_count += 1;
  if (!strcmp(mode, "prohibited"))
    doctor_add(doctor, DOCTOR_BAD, "gpu", "nvidia-smi -c DEFAULT, as root",
               "GPU %d, %.*s, lets no program in", index, length, line + used);
  else if (10 * major + minor < CAPABILITY_LEAST)
    doctor_add(doctor, DOCTOR_BAD, "gpu",
               "build with its number in GPUS= (`scons -h`), 80 or more; or hide it",
               "GPU %d, %.*s, has compute capability %d.%d; this build has code from %d.%d on", index, length,
               line + used, major, minor, CAPABILITY_LEAST / 10, CAPABILITY_LEAST % 10);
  else
    doctor_add(doctor, DOCTOR_GOOD, "gpu", NULL, "GPU %d: %.*s, compute capability %d.%d", index, length,
               line + used, major, minor);
}

static bool name_is_virtual(const char *rest) {
  char name[128];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(rest, "\n"), rest);
  return vgpu_is_named(name);
}

static void guest_add(struct doctor *doctor, const char *line) {
  const char *pipe = os_env("CUDA_MPS_PIPE_DIRECTORY"), *part = os_env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  int index = 0, used = 0;
  if (sscanf(line, "gpu %d %*d %*d %*s %n", &index, &used) == 1 && name_is_virtual(line + used))
    doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL,
               "GPU %d is a virtual GPU (vGPU): without peer access and CUDA IPC data goes through memory of "
               "the host",
               index);
  if (sscanf(line, "mps %d", &index) == 1)
    doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL,
               "GPU %d is shared by the Multi-Process Service (MPS) of %s; CUDA_MPS_ACTIVE_THREAD_PERCENTAGE "
               "%s%s",
               index, pipe ? pipe : "/tmp/nvidia-mps", part ? "is " : "is not set", part ? part : "");
}

struct pairs {
  int count, near, linked, shown;
};

static void pair_add(struct doctor *doctor, const char *line, struct pairs *pairs) {
  int a = 0, b = 0, access = 0, atomics = 0;
  if (sscanf(line, "pair %d %d %d %d", &a, &b, &access, &atomics) != 4) return;
  pairs->count += 1;
  pairs->near += access != 0;
  pairs->linked += access && atomics;
  if (!access && pairs->shown++ < PAIRS_SHOWN)
    doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL,
               "GPU %d cannot map memory of GPU %d: data goes through memory of the host", a, b);
}

static void driver_diagnose(struct doctor *doctor, const char *answer, int status) {
  char text[512];
  if (doctor_answer_find(answer, "absent", text, sizeof text))
    doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL,
               "no driver here (%s): no GPU can be used, the emulator serves", text);
  else if (doctor_answer_find(answer, "failed", text, sizeof text))
    doctor_add(doctor, DOCTOR_BAD, "gpu", "nvidia-smi tells more; in a container, pass the GPUs in",
               "a driver is installed, but does not start: %s", text);
  else if (status != 0)
    doctor_add(doctor, DOCTOR_BAD, "gpu", "run nvidia-smi; if it hangs too, the machine needs a restart",
               "the driver was asked for its GPUs and did not come back");
  else if (doctor_answer_find(answer, "driver", text, sizeof text))
    doctor_add(doctor, atol(text) >= 13000 ? DOCTOR_GOOD : DOCTOR_NOTE, "gpu", NULL,
               "the driver serves CUDA %ld.%ld", atol(text) / 1000, atol(text) % 1000 / 10);
}

void doctor_gpus(struct doctor *doctor) {
  struct pairs pairs = {0, 0, 0, 0};
  char count[32], *answer = (char *)os_alloc(DOCTOR_ANSWER);
  if (!answer) {
    doctor->out_of_memory = true;
    return;
  }
  const int status = doctor_ask_probe("gpus", answer);
  driver_diagnose(doctor, answer, status);
  for (const char *line = answer; *line;) {
    gpu_add(doctor, line);
    guest_add(doctor, line);
    pair_add(doctor, line, &pairs);
    line += strcspn(line, "\n");
    line += *line == '\n';
  }
  const char *visible = os_env("CUDA_VISIBLE_DEVICES");
  if (doctor_answer_find(answer, "count", count, sizeof count) && atol(count) == 0)
    doctor_add(
        doctor, DOCTOR_BAD, "gpu", visible ? "unset CUDA_VISIBLE_DEVICES" : "pass GPUs into the container",
        "a driver is here, and no GPU%s%s", visible ? ": CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
  if (pairs.count > 0)
    doctor_add(doctor, DOCTOR_GOOD, "gpu", NULL,
               "of %d ordered pairs of GPUs %d reach each other, %d over NVLink", pairs.count, pairs.near,
               pairs.linked);
  if (doctor->gpu_count > 0) doctor_nics(doctor, answer);
  os_free(answer);
}

/* ---- the machine */

/* A limit of the inspected process, as /proc shows it; RLIM_INFINITY for none. */
static rlim_t limit_of(const struct doctor *doctor, const char *name, int which) {
  char path[64];
  struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
  if (doctor->pid == 0) {
    getrlimit((__rlimit_resource_t)which, &limit);
    return limit.rlim_cur;
  }
  snprintf(path, sizeof path, "/proc/%d/limits", doctor->pid);
  char *text = os_file_read(path, NULL);
  const char *line = text ? strstr(text, name) : NULL;
  if (line) {
    line += strlen(name) + strspn(line + strlen(name), " ");
    if (strncmp(line, "unlimited", 9)) limit.rlim_cur = strtoull(line, NULL, 10);
  }
  os_free(text);
  return limit.rlim_cur;
}

static void limits_check(struct doctor *doctor) {
  const rlim_t files = limit_of(doctor, "Max open files", RLIMIT_NOFILE);
  const rlim_t space = limit_of(doctor, "Max address space", RLIMIT_AS);
  const rlim_t size = limit_of(doctor, "Max file size", RLIMIT_FSIZE);
  const rlim_t locked = limit_of(doctor, "Max locked memory", RLIMIT_MEMLOCK);
  if (files != RLIM_INFINITY && files < FILES_LEAST)
    doctor_add(doctor, DOCTOR_NOTE, "system", NULL,
               "%llu open files at most: enough for one host; with many processes `ulimit -n 65536`",
               (unsigned long long)files);
  if (space != RLIM_INFINITY)
    doctor_add(doctor, DOCTOR_BAD, "system", "ulimit -v unlimited",
               "address space is limited to %llu MiB; GPUs and shared memory need far more",
               (unsigned long long)(space >> 20));
  if (size != RLIM_INFINITY)
    doctor_add(doctor, DOCTOR_BAD, "system", "ulimit -f unlimited",
               "the size of files is limited to %llu KiB, and so is memory that processes share",
               (unsigned long long)(size >> 10));
  if (locked != RLIM_INFINITY)
    doctor_add(doctor, DOCTOR_NOTE, "system", NULL,
               "%llu KiB of locked memory at most: InfiniBand needs more, nothing else locks any",
               (unsigned long long)(locked >> 10));
}

/* Shares a block as ranks of two processes do, with a thread and a socket, and maps it. */
static void sharing_check(struct doctor *doctor) {
  enum { BYTES = 1 << 20 };
  struct share_ticket ticket;
  struct statvfs place;
  void *block = NULL, *mapped = NULL;
  const bool works = share_alloc(BYTES, &block, &ticket) == ncclSuccess &&
                     share_reserve(block, 0, BYTES) == ncclSuccess &&
                     share_map(&ticket, &mapped) == ncclSuccess;
  if (works)
    doctor_add(doctor, DOCTOR_GOOD, "system", NULL,
               "processes of this user can share memory (memfd, and a socket)");
  else
    doctor_add(doctor, DOCTOR_BAD, "system", "allow memfd_create and Unix sockets in the container's profile",
               "processes cannot share memory here: %s", log_last_error());
  if (mapped) share_unmap(mapped, BYTES);
  if (block) share_free(block);
  if (statvfs("/dev/shm", &place) == 0)
    doctor_add(doctor, DOCTOR_GOOD, "system", NULL,
               "/dev/shm has %llu MiB free; nothing here uses it, a small one does no harm",
               (unsigned long long)place.f_bavail * place.f_frsize >> 20);
}

/* Ranks on one host can meet if they have the same network namespace and the same user. */
static void namespaces_check(struct doctor *doctor) {
  static const char *const kinds[][2] = {
      {"net", "its ranks and those started here would take each other for other hosts and speak TCP"},
      {"pid",
       "its ranks and those started here cannot tell each other's processes apart; fine within either"},
      {"user", "its ranks and those started here are of different users to the kernel"}};
  if (doctor->pid == 0) return;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    char path[64], own[64], theirs[128] = "", ours[128] = "";
    snprintf(path, sizeof path, "/proc/%d/ns/%s", doctor->pid, kinds[i][0]);
    snprintf(own, sizeof own, "/proc/self/ns/%s", kinds[i][0]);
    if (readlink(path, theirs, sizeof theirs - 1) > 0 && readlink(own, ours, sizeof ours - 1) > 0 &&
        strcmp(theirs, ours))
      doctor_add(doctor, DOCTOR_NOTE, "system", NULL,
                 "process %d has a %s namespace of its own (a container): %s", doctor->pid, kinds[i][0],
                 kinds[i][1]);
  }
}

void doctor_system(struct doctor *doctor) {
  limits_check(doctor);
  sharing_check(doctor);
  namespaces_check(doctor);
}

/* ---- settings */

/* Valid settings that affect speed. */
static const struct {
  const char *name, *value, *text;
} telling[] = {
    {"NCCL_P2P_DISABLE", "1", "GPUs do not reach each other's memory: much slower"},
    {"NCCL_SHM_DISABLE", "1",
     "processes whose GPUs do not reach each other share no memory either: over a network, much slower"},
    {"NCCL_P2P_LEVEL", NULL, "keeps GPUs beyond that path from each other's memory"},
    {"NCCL_ALGO", NULL, "overrules the choice of algorithms"},
    {"NCCL_PROTO", NULL, "overrules the choice of protocols"},
    {"TUTTI_SUM_ORDER", "rank", "sums by direct reduce-scatters alone: more bytes between hosts"},
    {"NCCL_MAX_CTAS", NULL, "limits the multiprocessors that a collective takes"},
    {"NCCL_MAX_NCHANNELS", NULL, "limits the multiprocessors that a collective takes"},
    {"NCCL_HOSTID", NULL, "ranks that set it otherwise are on another host, and reached over a network"},
    {"NCCL_DEBUG", "TRACE", "a line a call: slow"},
    {"TUTTI_EVENTS", NULL, "the emulator writes every event to a file: slow"},
};

/* Valid, or its fault is a finding of its own. */
static void setting_known(struct doctor *doctor, const char *name, const char *value) {
  if (!strcmp(name, "TUTTI_BACKEND") && !strcmp(value, "emu"))
    doctor_add(doctor, doctor->gpu_count > 0 ? DOCTOR_BAD : DOCTOR_NOTE, "setting",
               doctor->gpu_count > 0 ? "unset TUTTI_BACKEND" : NULL,
               "TUTTI_BACKEND=emu: GPUs are left alone");
  for (size_t i = 0; i < sizeof telling / sizeof telling[0]; i++) {
    if (strcmp(telling[i].name, name) || (telling[i].value && strcmp(telling[i].value, value))) continue;
    doctor_add(doctor, DOCTOR_NOTE, "setting", NULL, "%s=%s: %s", name, value, telling[i].text);
  }
}

/* The files that settings name, and the launcher's variables. */
static void settings_read_files(struct doctor *doctor, const char *cure) {
  const char *tune = param_text_silent(PARAM_TUTTI_TUNE_FILE), *custom = param_text_silent(PARAM_CUSTOM_FILE);
  struct tune_file *rules = NULL;
  struct launch launch;
  if (*tune && tune_file_read(tune, &rules) != ncclSuccess)
    doctor_add(doctor, DOCTOR_BAD, "setting", cure, "TUTTI_TUNE_FILE: %s; no communicator can be made",
               log_own_error());
  os_free(rules);
  if (*custom && access(custom, R_OK) != 0)
    doctor_add(doctor, DOCTOR_BAD, "setting", "name a schedule that is there, or unset TUTTI_CUSTOM_FILE",
               "TUTTI_CUSTOM_FILE=%s cannot be read: %s; no communicator can be made", custom,
               strerror(errno));
  const char *trace = param_text_silent(PARAM_TUTTI_TRACE);
  const size_t length = strlen(trace);
  if (param_is_set(PARAM_TUTTI_TRACE) && trace[length - 1] == '/' && strchr(trace, '%') == NULL &&
      access(trace, W_OK | X_OK) != 0)
    doctor_add(doctor, DOCTOR_BAD, "setting", "make the folder, or name another",
               "TUTTI_TRACE=%s: nothing is "
               "recorded: %s",
               trace, strerror(errno));
  if (launch_read(&launch) != ncclSuccess)
    doctor_add(doctor, DOCTOR_BAD, "setting", "let the launcher set its variables, or unset them", "%s",
               log_own_error());
}

/* What the library itself would say of the settings, wherever they are set. */
static void settings_faults(struct doctor *doctor) {
  static const char cure[] = "`tutti help params` has each setting's values";
  char fault[DOCTOR_TEXT];
  const struct param_fault *each;
  uint32_t masks[FUNC_COUNT];
  for (size_t i = 0; (each = param_fault(i)) != NULL; i++) {
    const bool bad = each->kind != PARAM_FAULT_UNKNOWN;
    doctor_add(doctor, bad ? DOCTOR_BAD : DOCTOR_NOTE, "setting", bad ? cure : NULL, "%s%s", each->text,
               each->kind == PARAM_FAULT_REFUSED ? "; calls of the library fail" : "");
  }
  if (!emu_settings_check(fault, sizeof fault))
    doctor_add(doctor, DOCTOR_BAD, "setting", cure, "%s; calls of the library fail", fault);
  if (settings_parse_list("NCCL_ALGO", param_text_silent(PARAM_ALGO), names_algo, ALGO_COUNT, masks) !=
          ncclSuccess ||
      settings_parse_list("NCCL_PROTO", param_text_silent(PARAM_PROTO), names_proto, PROTO_COUNT, masks) !=
          ncclSuccess)
    doctor_add(doctor, DOCTOR_BAD, "setting", cure, "%s; no communicator can be made", log_own_error());
  settings_read_files(doctor, cure);
  for (size_t i = 0; param_accepted(i); i++)
    if (param_accepted_source(i))
      doctor_add(doctor, DOCTOR_NOTE, "setting", NULL, "%s is accepted and has no effect in tutti: %s",
                 param_accepted(i)->name, param_accepted(i)->why);
}

/* Replaces this process's settings by those of the inspected process. */
static void settings_adopt(int pid) {
  char path[64];
  size_t bytes = 0;
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  char *theirs = os_file_read(path, &bytes);
  clearenv();
  for (size_t at = 0; theirs && at < bytes; at += strlen(theirs + at) + 1) {
    char *equals = strchr(theirs + at, '=');
    if (!equals) continue;
    *equals = '\0';
    setenv(theirs + at, equals + 1, 1);
    *equals = '=';
  }
  os_free(theirs);
  param_reset();
}

/* Loads each kind of plugin as the library would, and begins none. */
static void plugins_check(struct doctor *doctor) {
  char from[PLUGIN_FROM_BYTES], reasons[PLUGIN_REASON_BYTES];
  for (const struct plugin_kind *kind = plugin_kinds; kind < plugin_kinds + PLUGIN_KINDS; kind++) {
    const char *name = param_text_silent(kind->param);
    int version = 0;
    if (strcasecmp(name, "none") == 0 || strchr(name, ',') != NULL) continue;
    void *library = plugin_file_open(kind, *name ? name : NULL, from, reasons);
    if (library == NULL && *name)
      doctor_add(doctor, DOCTOR_BAD, "plugin", "give a file's path, or add its folder to LD_LIBRARY_PATH",
                 "%s=%s cannot be loaded: %s", param_name(kind->param), name, reasons);
    if (library == NULL) continue;
    const bool fits = plugin_file_table(library, kind, &version) != NULL;
    if (fits)
      doctor_add(doctor, DOCTOR_NOTE, "plugin", NULL, "the %s plugin %s would be loaded: version %d",
                 kind->text, from, version);
    else
      doctor_add(doctor, DOCTOR_BAD, "plugin", "use a release of it with one of these versions",
                 "the %s plugin %s has no table of version %d to %d", kind->text, from, kind->oldest,
                 kind->newest);
    plugin_file_close(library);
  }
}

void doctor_settings(struct doctor *doctor) {
  const char *path = os_env("VLLM_NCCL_SO_PATH");
  struct doctor_file file;
  if (doctor->pid > 0) {
    settings_adopt(doctor->pid);
    path = os_env("VLLM_NCCL_SO_PATH");
  }
  settings_faults(doctor);
  plugins_check(doctor);
  for (const char *const *each = os_environ(); each && *each; each++) {
    char name[128];
    const size_t length = strcspn(*each, "=");
    if ((strncmp(*each, "NCCL_", 5) && strncmp(*each, "TUTTI_", 6)) || length >= sizeof name) continue;
    snprintf(name, sizeof name, "%.*s", (int)length, *each);
    setting_known(doctor, name, (*each)[length] ? *each + length + 1 : "");
  }
  if (!path || !*path) return;
  doctor_file_look(doctor, path, &file);
  if (!file.is_ours)
    doctor_add(doctor, DOCTOR_BAD, "setting", "unset VLLM_NCCL_SO_PATH, or let it name tutti's libnccl.so.2",
               "VLLM_NCCL_SO_PATH names another library: %s", path);
}
