/* options.c: the emulator's settings, where they come from, and its trace and counters. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/emu/cudart/cudart.h"
#include "backends/emu/fault_injection.h"
#include "backends/emu/scheduler_gate.h"
#include "backends/fault.h"
#include "base/launch.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/text.h"
#include "trace/trace.h"
#include "tutti.h"

#define EMU_DEVICES_DEFAULT 8
#define EMU_DEVICES_MAX 4096
#define EMU_SPAN_LINES PRIM_LL_LINES
#define EMU_NICS_MAX 64
#define EMU_NET_DELAY 4
#define FAULT_BYTES 1024

static struct emu_options options;
static int options_loaded;              /* atomic */
static int options_result;              /* atomic: of the last reading of the environment */
static char options_fault[FAULT_BYTES]; /* its sentence */
static os_mutex options_lock = OS_MUTEX_INITIALIZER;

static struct trace_writer *trace_file;
struct emu_meter emu_meter;
static void (*trace_watcher)(const struct trace_record *record);

enum option_id {
  OPTION_MODE,
  OPTION_RULE,
  OPTION_DEVICES,
  OPTION_NODES,
  OPTION_SLOTS,
  OPTION_CHUNK,
  OPTION_CHANNELS,
  OPTION_FLAG_BITS,
  OPTION_DEPTH,
  OPTION_LAG,
  OPTION_SPAN,
  OPTION_DIRECT,
  OPTION_WEAK,
  OPTION_TEAR,
  OPTION_WEAKEN,
  OPTION_NET,
  OPTION_NICS,
  OPTION_NET_DELAY,
  OPTION_FAULT,
  OPTION_FAULT_AT,
  OPTION_ENDS,
  OPTION_ORDER,
  OPTION_INPUTS,
  OPTION_COUNT
};

static const char *const mode_names[] = {"guarded", "threads", NULL};
static const char *const rule_names[] = {"random", "priority", "round_robin", NULL};

/* The keys of TUTTI_EMU with their bounds, and names of values if a key has them. */
static const struct option_row {
  const char *name;
  uint32_t lowest, highest, usual;
  const char *const *words; /* words[i] means value i; ends with NULL */
} option_rows[OPTION_COUNT] = {
    {"mode", 0, 1, 0, mode_names},
    {"rule", 0, 2, 0, rule_names},
    {"devices", 1, EMU_DEVICES_MAX, EMU_DEVICES_DEFAULT, NULL},
    {"nodes", 1, EMU_DEVICES_MAX, 1, NULL},
    {"slots", 1, FIFO_SLOTS_MAX, 0, NULL},
    {"chunk", 1, 1u << 30, 0, NULL},
    {"channels", 1, PLAN_CHANNELS_MAX, 0, NULL},
    {"flag_bits", 5, 32, 0, NULL},
    {"depth", 1, PRIM_DEPTH, 1, NULL},
    {"lag", 0, 100, 0, NULL},
    {"span", 1, EMU_SPAN_LINES, EMU_SPAN_LINES, NULL},
    {"direct", 0, 1, 1, NULL},
    {"weak", 0, 1, 0, NULL},
    {"tear", 0, 1, 0, NULL},
    {"weaken", 0, WEAKEN_COUNT - 1, WEAKEN_NOTHING, emu_weaken_names},
    {"net", 0, 1, 0, NULL},
    {"nics", 1, EMU_NICS_MAX, 0, NULL},
    {"net_delay", 0, 1000, EMU_NET_DELAY, NULL},
    {"fault", 0, FAULT_COUNT - 1, FAULT_NOTHING, fault_names},
    {"fault_at", 1, 1u << 30, 0, NULL},
    {"ends", 1, 2, 1, NULL},
    {"order", 0, 1, 1, NULL},
    {"inputs", 0, 2, 1, NULL},
};

static void option_store(struct emu_options *o, enum option_id id, uint32_t value) {
  switch (id) {
    case OPTION_MODE: o->mode = value == 0 ? EMU_GUARDED : EMU_THREADS; break;
    case OPTION_RULE: o->rule = (enum emu_rule)value; break;
    case OPTION_DEVICES: o->device_count = value; break;
    case OPTION_NODES: o->node_count = value; break;
    case OPTION_SLOTS: o->slots = value; break;
    case OPTION_CHUNK: o->chunk_bytes = value; break;
    case OPTION_CHANNELS: o->channel_count = value; break;
    case OPTION_FLAG_BITS: o->flag_bits = value; break;
    case OPTION_DEPTH: o->depth = value; break;
    case OPTION_LAG: o->lag = value; break;
    case OPTION_SPAN: o->span_lines = value; break;
    case OPTION_DIRECT: o->direct = value != 0; break;
    case OPTION_WEAK: o->weak = value != 0; break;
    case OPTION_TEAR: o->tear = value != 0; break;
    case OPTION_WEAKEN: o->weaken = value; break;
    case OPTION_NET: o->net = value != 0; break;
    case OPTION_NICS: o->nic_count = value; break;
    case OPTION_NET_DELAY: o->net_delay = value; break;
    case OPTION_FAULT: o->fault = value; break;
    case OPTION_FAULT_AT: o->fault_at = value; break;
    case OPTION_ENDS: o->both_ends = value == 2; break;
    case OPTION_ORDER: o->order = value != 0; break;
    case OPTION_INPUTS: o->inputs = value; break;
    case OPTION_COUNT: break;
  }
}

static uint32_t option_load(const struct emu_options *o, enum option_id id) {
  switch (id) {
    case OPTION_MODE: return o->mode;
    case OPTION_RULE: return o->rule;
    case OPTION_DEVICES: return o->device_count;
    case OPTION_NODES: return o->node_count;
    case OPTION_SLOTS: return o->slots;
    case OPTION_CHUNK: return o->chunk_bytes;
    case OPTION_CHANNELS: return o->channel_count;
    case OPTION_FLAG_BITS: return o->flag_bits;
    case OPTION_DEPTH: return o->depth;
    case OPTION_LAG: return o->lag;
    case OPTION_SPAN: return o->span_lines;
    case OPTION_DIRECT: return o->direct;
    case OPTION_WEAK: return o->weak;
    case OPTION_TEAR: return o->tear;
    case OPTION_WEAKEN: return o->weaken;
    case OPTION_NET: return o->net;
    case OPTION_NICS: return o->nic_count;
    case OPTION_NET_DELAY: return o->net_delay;
    case OPTION_FAULT: return o->fault;
    case OPTION_FAULT_AT: return o->fault_at;
    case OPTION_ENDS: return o->both_ends ? 2 : 1;
    case OPTION_ORDER: return o->order;
    case OPTION_INPUTS: return o->inputs;
    case OPTION_COUNT: break;
  }
  return 0;
}

void emu_options_text(char *out, size_t out_bytes) {
  size_t used = 0;
  for (uint32_t id = 0; id < OPTION_COUNT && used < out_bytes; id++) {
    const struct option_row *row = &option_rows[id];
    const uint32_t value = option_load(&options, (enum option_id)id);
    const char *comma = id > 0 ? "," : "";
    if (id != OPTION_MODE && value == row->usual) continue;
    used +=
        (size_t)(row->words != NULL
                     ? snprintf(out + used, out_bytes - used, "%s%s=%s", comma, row->name, row->words[value])
                     : snprintf(out + used, out_bytes - used, "%s%s=%" PRIu32, comma, row->name, value));
  }
}

static bool option_value(const struct option_row *row, const char *text, uint32_t *value) {
  for (uint32_t word = 0; row->words != NULL && row->words[word] != NULL; word++) {
    if (strcmp(text, row->words[word]) != 0) continue;
    *value = word;
    return true;
  }
  char *end;
  const unsigned long long number = strtoull(text, &end, 10);
  const unsigned long long scale = *end == 'K' || *end == 'k'   ? 1024
                                   : *end == 'M' || *end == 'm' ? 1048576
                                                                : 1;
  if (scale > 1) end += 1;
  if (row->words != NULL || end == text || *end != '\0' || number > UINT32_MAX ||
      number * scale > row->highest || number * scale < row->lowest)
    return false;
  *value = (uint32_t)(number * scale);
  return true;
}

/* Appends the nearest name to `name`, then all names of a key's values or, without a row, of the keys. */
static void option_names(char *out, size_t out_bytes, const struct option_row *row, const char *name) {
  const char *names[OPTION_COUNT + WEAKEN_COUNT + FAULT_COUNT];
  size_t count = 0;
  for (uint32_t i = 0; row == NULL ? i < OPTION_COUNT : row->words[i] != NULL; i++)
    names[count++] = row == NULL ? option_rows[i].name : row->words[i];
  const char *nearest = text_nearest(name, names, count);
  if (nearest != NULL) text_append(out, out_bytes, "; did you mean %s?", nearest);
  text_append(out, out_bytes, " (%s ", row == NULL ? "the keys are" : "it takes");
  for (size_t i = 0; i < count; i++) text_append(out, out_bytes, "%s%s", i > 0 ? ", " : "", names[i]);
  text_append(out, out_bytes, ")");
}

/* Appends a sentence; `fault` may have earlier ones. */
static void option_complain(const struct option_row *row, const char *name, const char *value, char *fault,
                            size_t fault_bytes) {
  text_append(fault, fault_bytes, "%s", fault[0] == '\0' ? "TUTTI_EMU: " : "; ");
  if (row == NULL) text_append(fault, fault_bytes, "there is no key %.60s", name);
  else if (value == NULL) text_append(fault, fault_bytes, "%s has no value", name);
  else text_append(fault, fault_bytes, "%s cannot be \"%.60s\"", name, value);
  if (row == NULL) option_names(fault, fault_bytes, row, name);
  else if (row->words != NULL) option_names(fault, fault_bytes, row, value != NULL ? value : "");
  else text_append(fault, fault_bytes, " (it takes a number from %u to %u)", row->lowest, row->highest);
}

/* Reads one key=value of TUTTI_EMU; false with a sentence added to `fault` if it is wrong. */
static bool option_parse(struct emu_options *o, char *item, char *fault, size_t fault_bytes) {
  const struct option_row *row = NULL;
  uint32_t value;
  char *equals = strchr(item, '=');
  if (equals != NULL) *equals = '\0';
  for (uint32_t id = 0; id < OPTION_COUNT && row == NULL; id++)
    if (strcmp(item, option_rows[id].name) == 0) row = &option_rows[id];
  if (row != NULL && equals != NULL && option_value(row, equals + 1, &value)) {
    option_store(o, (enum option_id)(row - option_rows), value);
    return true;
  }
  option_complain(row, item, equals != NULL ? equals + 1 : NULL, fault, fault_bytes);
  return false;
}

/* Reads TUTTI_EMU; false with a sentence for each fault. */
static bool options_parse(struct emu_options *o, char *fault, size_t fault_bytes) {
  char *list = os_strdup(param_text(PARAM_TUTTI_EMU)), *rest = NULL;
  bool good = list != NULL;
  fault[0] = '\0';
  if (list == NULL) snprintf(fault, fault_bytes, "TUTTI_EMU" LOG_OUT_OF_MEMORY);
  for (char *item = good ? strtok_r(list, ",", &rest) : NULL; item != NULL; item = strtok_r(NULL, ",", &rest))
    good = option_parse(o, item, fault, fault_bytes) && good;
  os_free(list);
  return good;
}

bool emu_settings_check(char *fault, size_t fault_bytes) {
  struct emu_options unused;
  return options_parse(&unused, fault, fault_bytes);
}

/* The default number of devices: each process of a launch uses its own, so one for each process on this host.
 * Wrong variables of another launcher may be none of this program's business. */
static ncclResult_t devices_usual(uint32_t *count) {
  struct launch launch = {0, 1, 0, 1, "none"};
  const ncclResult_t result = launch_read(&launch);
  const bool ours = param_is_set(PARAM_TUTTI_RANK) || param_is_set(PARAM_TUTTI_SIZE);
  if (result != ncclSuccess && ours) {
    log_visible("%s", log_own_error());
    return result;
  }
  *count = launch.local_count <= EMU_DEVICES_DEFAULT ? EMU_DEVICES_DEFAULT
           : launch.local_count < EMU_DEVICES_MAX    ? (uint32_t)launch.local_count
                                                     : EMU_DEVICES_MAX;
  return ncclSuccess;
}

static ncclResult_t options_of_environment(struct emu_options *o) {
  char fault[FAULT_BYTES];
  memset(o, 0, sizeof *o); /* guarded, random, production sizes */
  o->device_count = EMU_DEVICES_DEFAULT;
  o->node_count = 1;
  o->depth = 1;
  o->span_lines = EMU_SPAN_LINES;
  o->net_delay = EMU_NET_DELAY;
  o->direct = o->order = true;
  o->inputs = 1;
  o->seed = strtoull(param_text(PARAM_TUTTI_SEED), NULL, 0);
  o->stall_seconds = (uint64_t)param_int(PARAM_TUTTI_STALL_SECONDS);
  TRY(param_check());
  TRY(devices_usual(&o->device_count));
  if (options_parse(o, fault, sizeof fault)) return ncclSuccess;
  log_visible("%s", fault);
  return ncclInvalidUsage;
}

#define PATH_BYTES 4096

/* Each process of a launch writes its own file: rank 0 FILE, rank 3 FILE.3. */
static ncclResult_t trace_open(const char *path) {
  struct trace_header header;
  struct launch launch;
  char own[PATH_BYTES];
  if (launch_read(&launch) == ncclSuccess && launch.rank > 0 &&
      snprintf(own, sizeof own, "%s.%d", path, launch.rank) < (int)sizeof own)
    path = own;
  memset(&header, 0, sizeof header);
  memcpy(header.magic, TRACE_MAGIC, sizeof header.magic);
  header.version = TRACE_VERSION;
  header.record_bytes = sizeof(struct trace_record);
  header.seed = options.seed;
  header.slots = options.slots;
  header.flag_bits = options.flag_bits;
  TRY(trace_writer_open(path, &header, &trace_file));
  emu_meter.tracing = true;
  return ncclSuccess;
}

static ncclResult_t trace_close(void) {
  const ncclResult_t result = trace_writer_close(trace_file);
  trace_file = NULL;
  emu_meter.tracing = trace_watcher != NULL;
  return result;
}

void emu_trace_watch(void (*watcher)(const struct trace_record *record)) {
  trace_watcher = watcher;
  emu_meter.tracing = trace_file != NULL || watcher != NULL;
}

/* What TUTTI_EVENTS names; "" if nothing. */
static const char *trace_path_of_environment(void) {
  const char *events = param_text(PARAM_TUTTI_EVENTS);
  return events[0] != '\0' ? events : param_text(PARAM_TUTTI_MOVES);
}

static void options_apply(const struct emu_options *fresh) {
  options = *fresh;
  emu_weak_on = fresh->weak && fresh->mode == EMU_GUARDED;
  emu_meter.trace_hash = emu_meter.steps_done = 0;
  emu_world_restart(options.seed);
  emu_services_restart();
  emu_network_restart(&options);
  emu_fault_restart(&options);
}

static void options_load(void) {
  os_mutex_lock(&options_lock);
  if (!options_loaded) {
    struct emu_options fresh;
    options_result = options_of_environment(&fresh);
    options_apply(&fresh);
    __atomic_store_n(&options_loaded, 1, __ATOMIC_RELEASE);
    const char *path = trace_path_of_environment();
    if (path[0] != '\0' && options.mode == EMU_GUARDED && options_result == ncclSuccess)
      options_result = trace_open(path);
    if (options_result != ncclSuccess) snprintf(options_fault, sizeof options_fault, "%s", log_own_error());
  }
  os_mutex_unlock(&options_lock);
}

const struct emu_options *emu_options(void) {
  if (!__atomic_load_n(&options_loaded, __ATOMIC_ACQUIRE)) options_load();
  return &options;
}

ncclResult_t emu_settings_read(void) {
  emu_options();
  const ncclResult_t result = (ncclResult_t)__atomic_load_n(&options_result, __ATOMIC_RELAXED);
  return result == ncclSuccess ? ncclSuccess : log_fail(result, "%s", options_fault);
}

cudaError_t tutti_cudart_refusal(void) {
  return emu_settings_read() == ncclSuccess ? cudaSuccess : cudaErrorInitializationError;
}

/* ---- exported functions ---- */

struct config_check {
  uint32_t value;
  enum option_id id;
  const char *name;
};

static ncclResult_t config_check(const tutti_emu_config_t *config) {
  const struct config_check rows[] = {
      {config->device_count, OPTION_DEVICES, "device_count"},
      {config->slots, OPTION_SLOTS, "slots"},
      {config->chunk_bytes, OPTION_CHUNK, "chunk_bytes"},
      {config->channel_count, OPTION_CHANNELS, "channel_count"},
      {config->flag_bits, OPTION_FLAG_BITS, "flag_bits"},
      {config->depth, OPTION_DEPTH, "depth"},
      {config->lag_percent, OPTION_LAG, "lag_percent"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const struct option_row *row = &option_rows[rows[i].id];
    if (rows[i].value != 0 && (rows[i].value < row->lowest || rows[i].value > row->highest))
      return log_fail(ncclInvalidArgument, "tutti_emu_configure: %s is %u; it takes %u to %u", rows[i].name,
                      rows[i].value, row->lowest, row->highest);
  }
  if (config->threads != 0 && config->threads != 1)
    return log_fail(ncclInvalidArgument, "tutti_emu_configure: threads is %d; it takes 0 (guarded) or 1",
                    config->threads);
  return ncclSuccess;
}

static struct emu_options config_merge(const tutti_emu_config_t *config, struct emu_options o) {
  if (config->seed != 0) o.seed = config->seed;
  if (config->threads) o.mode = EMU_THREADS;
  if (config->device_count) o.device_count = config->device_count;
  if (config->slots) o.slots = config->slots;
  if (config->chunk_bytes) o.chunk_bytes = config->chunk_bytes;
  if (config->channel_count) o.channel_count = config->channel_count;
  if (config->flag_bits) o.flag_bits = config->flag_bits;
  if (config->depth) o.depth = config->depth;
  if (config->lag_percent) o.lag = config->lag_percent;
  return o;
}

bool emu_is_wanted(const char **how) {
  void *runtime = dlopen("libtutti-cudart.so", RTLD_LAZY | RTLD_NOLOAD);
  if (runtime != NULL) dlclose(runtime);
  if (runtime != NULL || __atomic_load_n(&options_loaded, __ATOMIC_ACQUIRE))
    *how = "the program uses the emulated CUDA runtime";
  else if (param_is_set(PARAM_TUTTI_EMU)) *how = "TUTTI_EMU is set";
  else return false;
  return true;
}

/* If nothing of the world is in use, restarts the streams and returns true. */
static bool world_vacated(void *argument) {
  (void)argument;
  return emu_comms == NULL && emu_world_idle() && emu_streams_restart();
}

/* A stream's thread may still be finishing its last operation, so the caller waits this long; or, in guarded
 * mode, lets what is left of streams that were destroyed after a failure end. */
#define VACATE_MS 1000
#define VACATE_EVENTS 100000

static ncclResult_t configure_locked(const struct emu_options *fresh, const char *trace_path) {
  const bool threads = emu_options()->mode == EMU_THREADS;
  if (!threads && emu_comms == NULL && !emu_world_idle()) emu_world_settle(VACATE_EVENTS);
  if (!world_vacated(NULL) &&
      !(threads && emu_comms == NULL && emu_wait(world_vacated, NULL, VACATE_MS) == ncclSuccess))
    return log_fail(ncclInvalidUsage,
                    "tutti_emu_configure: communicators or streams are in use; destroy them first");
  const ncclResult_t closed = trace_close();
  options_apply(fresh);
  TRY(closed);
  const char *path = trace_path != NULL ? trace_path : trace_path_of_environment();
  return path[0] != '\0' && fresh->mode == EMU_GUARDED ? trace_open(path) : ncclSuccess;
}

ncclResult_t tutti_emu_configure(const tutti_emu_config_t *config) {
  if (config == NULL || config->size != sizeof *config)
    return log_fail(
        ncclInvalidArgument,
        "tutti_emu_configure: config is NULL or its size member is not sizeof(tutti_emu_config_t)");
  TRY(config_check(config));
  struct emu_options fresh;
  emu_options(); /* reads the environment and opens its trace, before both are replaced */
  TRY(options_of_environment(&fresh));
  fresh = config_merge(config, fresh);
  emu_lock();
  const ncclResult_t result = configure_locked(&fresh, config->trace_path);
  if (result == ncclSuccess) __atomic_store_n(&options_result, ncclSuccess, __ATOMIC_RELAXED);
  emu_unlock();
  return result;
}

ncclResult_t tutti_emu_stats(tutti_emu_stats_t *stats) {
  if (stats == NULL || stats->size != sizeof *stats)
    return log_fail(ncclInvalidArgument,
                    "tutti_emu_stats: stats is NULL or its size member is not sizeof(tutti_emu_stats_t)");
  emu_lock();
  stats->events = emu_event_count();
  stats->steps = emu_meter.steps_done;
  stats->trace_hash = emu_meter.trace_hash;
  emu_unlock();
  return ncclSuccess;
}

ncclResult_t tutti_emu_callers(uint32_t count) {
  emu_world_callers(count);
  return ncclSuccess;
}

ncclResult_t tutti_emu_take_turns(int on) {
  emu_world_take_turns(on != 0);
  return ncclSuccess;
}

struct word {
  const uint32_t *place;
  uint32_t value;
};

static bool word_has_changed(void *argument) {
  const struct word *word = (const struct word *)argument;
  return __atomic_load_n(word->place, __ATOMIC_ACQUIRE) != word->value;
}

ncclResult_t tutti_emu_wait(const uint32_t *word, uint32_t value) {
  struct word wanted = {word, value};
  if (word == NULL) return log_fail(ncclInvalidArgument, "tutti_emu_wait: word is NULL");
  emu_lock();
  const ncclResult_t result = emu_wait(word_has_changed, &wanted, 0);
  emu_unlock();
  return result;
}

/* As many events as a query of a stream lasts. */
#define POLL_EVENTS 64

ncclResult_t tutti_emu_poll(const uint32_t *word, uint32_t value) {
  struct word wanted = {word, value};
  if (word == NULL) return log_fail(ncclInvalidArgument, "tutti_emu_poll: word is NULL");
  emu_lock();
  emu_poll(word_has_changed, &wanted, POLL_EVENTS);
  emu_unlock();
  return ncclSuccess;
}

ncclResult_t tutti_emu_wake(void) {
  emu_lock();
  emu_changed();
  emu_unlock();
  return ncclSuccess;
}

ncclResult_t tutti_emu_trace_close(void) {
  emu_lock();
  const ncclResult_t result = trace_close();
  emu_unlock();
  return result;
}

/* Completes a trace that the program did not close. */
__attribute__((destructor)) static void trace_end(void) { trace_close(); }

/* ---- called at every event that is traced ---- */

void emu_trace_actor(const struct emu_actor *actor, uint8_t operation) {
  static struct device_comm nobody;
  emu_trace_hash(actor->key, operation, 0);
  if (emu_meter.tracing)
    emu_trace_write(TRACE_STREAM, operation, &nobody, 0, 0, emu_key_device(actor->key), actor->key);
}

void emu_trace_write(uint8_t kind, uint8_t action, const struct device_comm *comm, uint32_t channel,
                     uint32_t lane, uint32_t chunk, uint64_t value) {
  const struct trace_record record = {emu_event_count(),        kind,          action,
                                      (uint8_t)channel,         (uint8_t)lane, comm->config.rank,
                                      (uint32_t)comm->trace_id, chunk,         value};
  if (trace_watcher != NULL) trace_watcher(&record);
  if (trace_file != NULL) trace_writer_put(trace_file, &record);
}
