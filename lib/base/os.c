/* os.c: memory, clock, environment, files and threads over libc and Linux. Promises that every allocation is
 * counted, and that one chosen allocation can be made to fail, from any thread. Logs nothing and returns no
 * ncclResult_t, since the log is built on it. */
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"

extern char **environ;

#define NS_PER_SECOND 1000000000ull

/* The n-th allocation of the process fails if n equals alloc_fail_index; 0 disables this. */
static atomic_uint_fast64_t alloc_count;
static atomic_uint_fast64_t alloc_live;
static atomic_uint_fast64_t alloc_fail_index;

static _Thread_local size_t failed_bytes;
static atomic_uint_fast64_t alloc_failures;

static void alloc_note_failure(size_t bytes) {
  failed_bytes = bytes;
  atomic_fetch_add(&alloc_failures, 1);
}

uint64_t os_alloc_failures(void) { return atomic_load(&alloc_failures); }

size_t os_alloc_failed_bytes(void) {
  const size_t bytes = failed_bytes;
  failed_bytes = 0;
  return bytes;
}

/* Takes the next allocation's number; false if a test wants this one to fail. */
static bool alloc_admit(void) {
  uint64_t index = atomic_fetch_add(&alloc_count, 1) + 1;
  if (index != atomic_load(&alloc_fail_index)) return true;
  errno = ENOMEM;
  return false;
}

void *os_alloc(size_t bytes) {
  void *pointer = alloc_admit() ? calloc(1, bytes > 0 ? bytes : 1) : NULL;
  if (pointer) atomic_fetch_add(&alloc_live, 1);
  else alloc_note_failure(bytes);
  return pointer;
}

void *os_realloc(void *pointer, size_t bytes) {
  void *grown = alloc_admit() ? realloc(pointer, bytes > 0 ? bytes : 1) : NULL;
  if (!grown) alloc_note_failure(bytes);
  else if (!pointer) atomic_fetch_add(&alloc_live, 1);
  return grown;
}

void os_free(void *pointer) {
  if (!pointer) return;
  atomic_fetch_sub(&alloc_live, 1);
  free(pointer);
}

char *os_strdup(const char *text) {
  size_t bytes = strlen(text) + 1;
  char *copy = (char *)os_alloc(bytes);
  if (copy) memcpy(copy, text, bytes);
  return copy;
}

/* mmap rejects a length of 0; map and unmap must use the same replacement. */
static size_t pages_bytes(size_t bytes) { return bytes > 0 ? bytes : 1; }

void *os_pages_map(size_t bytes) {
  void *pointer = MAP_FAILED;
  if (alloc_admit())
    pointer = mmap(NULL, pages_bytes(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pointer == MAP_FAILED) {
    failed_bytes = bytes;
    return NULL;
  }
  atomic_fetch_add(&alloc_live, 1);
  return pointer;
}

void os_descriptor_close(int descriptor) { close(descriptor); }

void os_pages_unmap(void *pointer, size_t bytes) {
  if (!pointer) return;
  munmap(pointer, pages_bytes(bytes));
  atomic_fetch_sub(&alloc_live, 1);
}

bool os_page_is_mapped(const void *pointer) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  unsigned char state;
  return mincore((void *)((uintptr_t)pointer / page * page), 1, &state) == 0;
}

void os_alloc_fail_at(uint64_t k) {
  atomic_store(&alloc_fail_index, k == 0 ? 0 : atomic_load(&alloc_count) + k);
}

uint64_t os_alloc_count(void) { return atomic_load(&alloc_count); }

uint64_t os_alloc_live(void) { return atomic_load(&alloc_live); }

uint64_t os_time_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

/* getrandom fails only on kernels that lack it; two calls must differ even there. */
uint64_t os_entropy(void) {
  static atomic_uint_fast64_t fallback_count;
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) == (ssize_t)sizeof bits) return bits;
  uint64_t mixed = os_time_ns() ^ ((uint64_t)os_pid() << 40) ^ (uint64_t)(uintptr_t)&bits;
  mixed += (atomic_fetch_add(&fallback_count, 1) + 1) * HASH_STEP;
  return hash_scramble(mixed);
}

uint32_t os_user(void) { return (uint32_t)geteuid(); }

uint32_t os_descriptors_most(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return limit.rlim_cur > UINT32_MAX ? UINT32_MAX : (uint32_t)limit.rlim_cur;
}

bool os_random(void *data, size_t bytes) {
  uint8_t *at = (uint8_t *)data;
  while (bytes > 0) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= (size_t)got;
  }
  return true;
}

const char *os_env(const char *name) { return getenv(name); }
void os_env_default(const char *name, const char *value) { setenv(name, value, 0); }

const char *const *os_environ(void) { return (const char *const *)environ; }

void os_sleep_ms(unsigned ms) {
  struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

void os_yield(void) { sched_yield(); }

uint64_t os_thread_cpu_ns(void) {
  struct timespec used = {0, 0};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (uint64_t)used.tv_sec * NS_PER_SECOND + (uint64_t)used.tv_nsec;
}

void os_thread_wakes_exactly(void) { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

uint64_t os_file_bytes_most(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                                 : UINT64_MAX;
}

uint32_t os_core_count(void) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores > 1 ? (uint32_t)cores : 1;
}

int os_pid(void) { return (int)getpid(); }

long os_tid(void) { return (long)syscall(SYS_gettid); }

#define STAT_BYTES 1024

/* What the kernel says of a process behind its name, which may contain anything: ") S 1 ..."; NULL: it does
 * not exist. */
static const char *process_stat(int number, char text[STAT_BYTES]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", number);
  FILE *file = fopen(path, "re");
  const size_t bytes = file != NULL ? fread(text, 1, STAT_BYTES - 1, file) : 0;
  if (file != NULL) fclose(file);
  text[bytes] = '\0';
  return strrchr(text, ')');
}

/* Start time of a process in ticks since boot; 0: it does not exist, or is a zombie. */
static uint64_t process_born(int number) {
  char text[STAT_BYTES], state = '\0';
  unsigned long long born = 0;
  const char *behind = process_stat(number, text);
  if (behind == NULL ||
      sscanf(behind, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
             &state, &born) != 2)
    born = 0;
  return state == 'Z' || state == 'X' ? 0 : born;
}

static uint64_t process_realm(void) {
  struct stat realm;
  return stat("/proc/self/ns/pid", &realm) == 0 ? (uint64_t)realm.st_ino : 0;
}

void os_process_self(struct os_process *process) {
  process->number = (int32_t)getpid();
  process->born = process_born(process->number);
  process->realm = process->born != 0 ? process_realm() : 0;
}

bool os_process_gone(const struct os_process *process) {
  if (process->realm == 0 || process->realm != process_realm()) return false;
  return process_born(process->number) != process->born;
}

/* Adds what the kernel says of a thread; one that has ended counts as asleep. */
static void thread_activity(const char *path, struct os_activity *activity) {
  char line[128], state = 'S';
  unsigned long long switches = 0;
  FILE *file = fopen(path, "re");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    (void)sscanf(line, "State: %c", &state);
    (void)sscanf(line, "voluntary_ctxt_switches: %llu", &switches);
  }
  if (file != NULL) fclose(file);
  activity->asleep &= state == 'S' || state == 'T' || state == 't';
  activity->reads |= state == 'D';
  activity->naps += switches;
}

bool os_process_activity(const struct os_process *process, struct os_activity *activity) {
  char path[320];
  clockid_t clock;
  struct timespec used;
  const bool seen = process->realm != 0 && process->realm == process_realm();
  snprintf(path, sizeof path, "/proc/%d/task", process->number);
  *activity = (struct os_activity){.asleep = true};
  if (!seen || clock_getcpuclockid(process->number, &clock) != 0 || clock_gettime(clock, &used) != 0)
    return false;
  activity->cpu_ns = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
  DIR *folder = opendir(path);
  if (folder == NULL) return false;
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/%d/task/%s/status", process->number, entry->d_name);
    thread_activity(path, activity);
  }
  closedir(folder);
  return true;
}

bool os_process_stopped(int32_t number) {
  char text[STAT_BYTES];
  const char *behind = process_stat(number, text);
  return behind != NULL && (strncmp(behind, ") T", 3) == 0 || strncmp(behind, ") t", 3) == 0);
}

bool os_futex_wait(uint32_t *word, uint32_t value, uint64_t timeout_ms) {
  const struct timespec timeout = {(time_t)(timeout_ms / 1000), (long)(timeout_ms % 1000 * 1000000)};
  return syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0) == 0 || errno != ETIMEDOUT;
}

void os_futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

void os_host_name(char *out, size_t out_bytes) {
  if (out_bytes == 0) return;
  if (gethostname(out, out_bytes) != 0 || out[0] == '\0') snprintf(out, out_bytes, "unknown");
  out[out_bytes - 1] = '\0'; /* gethostname may not terminate a truncated name */
}

/* Reads to the end of the file: files under /proc and pipes have no size, and other files may grow. */
static char *file_read_all(FILE *file, size_t bytes_most, size_t *bytes) {
  struct stat about;
  size_t used = 0, capacity = 4096;
  if (fstat(fileno(file), &about) == 0 && about.st_size > 0 && (uint64_t)about.st_size <= bytes_most)
    capacity += (size_t)about.st_size;
  char *text = (char *)os_realloc(NULL, capacity);
  while (text) {
    used += fread(text + used, 1, capacity - 1 - used, file);
    if (used < capacity - 1 || used > bytes_most) break;
    char *grown = (char *)os_realloc(text, capacity * 2);
    if (!grown) os_free(text);
    text = grown;
    capacity *= 2;
  }
  if (text && (ferror(file) || used > bytes_most)) {
    if (!ferror(file)) errno = EFBIG;
    os_free(text);
    return NULL;
  }
  if (!text) return NULL;
  text[used] = '\0';
  if (bytes) *bytes = used;
  return text;
}

const char *os_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

char *os_file_read_most(const char *path, size_t bytes_most, size_t *bytes) {
  FILE *file = fopen(path, "re");
  if (!file) return NULL;
  char *text = file_read_all(file, bytes_most, bytes);
  int cause = errno;
  fclose(file);
  errno = cause;
  return text;
}

char *os_file_read(const char *path, size_t *bytes) { return os_file_read_most(path, SIZE_MAX, bytes); }

bool os_file_write(const char *path, const char *text, size_t bytes) {
  FILE *file = fopen(path, "we");
  struct stat about;
  if (!file) return false;
  const bool regular = fstat(fileno(file), &about) == 0 && S_ISREG(about.st_mode);
  const bool whole = fwrite(text, 1, bytes, file) == bytes;
  int cause = errno;
  if (fclose(file) == 0 && whole) return true;
  if (whole) cause = errno;
  if (regular) remove(path); /* a partial file is worse than none */
  errno = cause;
  return false;
}

void os_mutex_init(os_mutex *mutex) { pthread_mutex_init(mutex, NULL); }

void os_mutex_destroy(os_mutex *mutex) { pthread_mutex_destroy(mutex); }

void os_mutex_lock(os_mutex *mutex) { pthread_mutex_lock(mutex); }

bool os_mutex_try_lock(os_mutex *mutex) { return pthread_mutex_trylock(mutex) == 0; }
void os_mutex_unlock(os_mutex *mutex) { pthread_mutex_unlock(mutex); }

void os_cond_init(os_cond *cond) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attributes);
  pthread_condattr_destroy(&attributes);
}

void os_cond_destroy(os_cond *cond) { pthread_cond_destroy(cond); }

void os_cond_wait(os_cond *cond, os_mutex *mutex) { pthread_cond_wait(cond, mutex); }

bool os_cond_wait_until(os_cond *cond, os_mutex *mutex, uint64_t deadline_ns) {
  struct timespec deadline;
  deadline.tv_sec = (time_t)(deadline_ns / NS_PER_SECOND);
  deadline.tv_nsec = (long)(deadline_ns % NS_PER_SECOND);
  return pthread_cond_timedwait(cond, mutex, &deadline) != ETIMEDOUT;
}

void os_cond_broadcast(os_cond *cond) { pthread_cond_broadcast(cond); }

static atomic_bool threads_named;

/* The library's threads block signals, so that a program's handlers run on the program's threads. Signals
 * that an instruction raises stay unblocked: if a thread blocks them, the process ends before a handler can
 * report the cause. */
bool os_thread_start_named(os_thread *thread, const char *name, void *(*body)(void *), void *argument) {
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  sigset_t others, before;
  sigfillset(&others);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&others, own[i]);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  int failed = pthread_create(thread, NULL, body, argument);
  if (failed == 0 && name != NULL && atomic_load(&threads_named)) pthread_setname_np(*thread, name);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed == 0;
}

bool os_thread_start(os_thread *thread, void *(*body)(void *), void *argument) {
  return os_thread_start_named(thread, NULL, body, argument);
}

void os_threads_name(bool named) { atomic_store(&threads_named, named); }

/* "0-3,8"; false: it is no such list. */
static bool cpus_read(const char *text, cpu_set_t *set) {
  CPU_ZERO(set);
  do {
    char *end = NULL;
    const unsigned long first = strtoul(text, &end, 10);
    unsigned long last = first;
    if (end == text || *text < '0' || *text > '9') return false;
    if (*end == '-') {
      text = end + 1;
      last = strtoul(text, &end, 10);
      if (end == text || *text < '0' || *text > '9') return false;
    }
    if (last < first || last >= CPU_SETSIZE) return false;
    for (unsigned long cpu = first; cpu <= last; cpu++) CPU_SET(cpu, set);
    text = end + 1;
    if (*end == '\0') return true;
    if (*end != ',') return false;
  } while (true);
}

bool os_thread_bind(const char *cpus) {
  cpu_set_t set;
  if (!cpus_read(cpus, &set)) {
    errno = EINVAL;
    return false;
  }
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

void os_thread_join(os_thread thread) { pthread_join(thread, NULL); }
void os_thread_detach(os_thread thread) { pthread_detach(thread); }

static atomic_int threads_noted;

void os_thread_note(int more) { atomic_fetch_add(&threads_noted, more); }

void os_at_exit(void (*function)(void)) { atexit(function); }

static void call_with_status(int status, void *function) {
  ((void (*)(int status))(uintptr_t)function)(status);
}

void os_at_exit_status(void (*function)(int status)) {
  on_exit(call_with_status, (void *)(uintptr_t)function);
}

/* glibc's, as C++ compilers call it for the destructors of thread_local objects. */
extern int __cxa_thread_atexit_impl(void (*function)(void *argument), void *argument, void *library);
extern void *__dso_handle;

void os_at_thread_exit(void (*function)(void *argument), void *argument) {
  __cxa_thread_atexit_impl(function, argument, &__dso_handle);
}

void os_exit_now(int status) {
  fflush(NULL);
  _exit(status);
}

void os_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
  pthread_atfork(before, parent, child);
}

static atomic_uint forks;

static void fork_note(void) { atomic_fetch_add(&forks, 1); }

static atomic_bool fork_watched;

static void fork_watch(void) {
  pthread_atfork(NULL, NULL, fork_note);
  atomic_store_explicit(&fork_watched, true, memory_order_release);
}

uint32_t os_fork_count(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (!atomic_load_explicit(&fork_watched, memory_order_acquire)) pthread_once(&once, fork_watch);
  return atomic_load_explicit(&forks, memory_order_relaxed);
}

uint32_t os_thread_count(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/task");
  if (folder == NULL) return 1;
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
  closedir(folder);
  const uint32_t noted = (uint32_t)atomic_load(&threads_noted);
  return count > noted ? count - noted : 1;
}

/* The futex that the main thread sleeps on without a time limit, which only other threads of the process
 * wake; false if it does not. The kernel names the call that a thread is blocked in: its number and
 * arguments. */
static bool main_thread_futex(unsigned long long *operation, unsigned long long *value) {
  char path[64], text[256];
  unsigned long long address, limit;
  long call = -1;
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", os_pid());
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  text[bytes > 0 ? bytes : 0] = '\0';
  const int found = sscanf(text, "%ld %llx %llx %llx %llx", &call, &address, operation, value, &limit);
  return found == 5 && call == SYS_futex && limit == 0 && (*operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
}

static bool main_thread_waits(void) {
  unsigned long long operation, value;
  return main_thread_futex(&operation, &value);
}

/* The kernel itself wakes those that join a thread, so that futex is not a private one; its value is the
 * thread's number. */
bool os_main_thread_joins(void) {
  unsigned long long operation, value;
  char path[64];
  if (!main_thread_futex(&operation, &value) || (operation & FUTEX_PRIVATE_FLAG) != 0) return false;
  snprintf(path, sizeof path, "/proc/self/task/%llu", value);
  return access(path, F_OK) == 0;
}

/* Counts first: a thread that ends wakes those that join it before it is gone from the count. */
uint32_t os_threads_at_work(void) {
  const uint32_t count = os_thread_count();
  return count > 1 && main_thread_waits() ? count - 1 : count;
}
