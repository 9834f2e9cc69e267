/* os.h: the only access to memory, clock, environment, files and threads. Only this module and the backends
 * may call the corresponding libc functions. Allocations are counted and can be made to fail, so that tests
 * can prove that a failure of any allocation gives a clear error and leaks nothing. */
#ifndef TUTTI_BASE_OS_H
#define TUTTI_BASE_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory of `bytes` (at least one), aligned to 16; NULL if memory is out. */
void *os_alloc(size_t bytes);
/* Grows or shrinks a block; new bytes are NOT zeroed. On failure NULL, and the old block stays. */
void *os_realloc(void *pointer, size_t bytes);
void os_free(void *pointer); /* NULL is allowed */
char *os_strdup(const char *text);
/* Zeroed pages, allocated when touched, for FIFO buffers and emulated device memory. NULL if there are none.
 */
void *os_pages_map(size_t bytes);
void os_pages_unmap(void *pointer, size_t bytes);
bool os_page_is_mapped(const void *pointer);
uint64_t os_alloc_failures(void); /* failed allocations since the start */
/* Size of this thread's last failed allocation; 0 if none has failed since the last call. */
size_t os_alloc_failed_bytes(void);
void os_descriptor_close(int descriptor);

/* Fault injection and accounting for tests. fail_at(k): only the k-th allocation from now on fails, counted
 * from 1; 0 turns it off. Counts os_alloc and os_pages_map. */
void os_alloc_fail_at(uint64_t k);
uint64_t os_alloc_count(void); /* allocations attempted since start */
uint64_t os_alloc_live(void);  /* blocks not yet freed */

uint64_t os_time_ns(void);          /* monotonic */
uint64_t os_entropy(void);          /* 64 unpredictable bits, for names that need not be secret */
uint32_t os_user(void);             /* whose rights this process has */
uint32_t os_descriptors_most(void); /* that this process may have */
/* The kernel's random bytes, for secrets; false: it gives none. */
bool os_random(void *data, size_t bytes);
const char *os_env(const char *name); /* getenv */
/* Sets the variable unless it is set. For code that runs while no other thread does. */
void os_env_default(const char *name, const char *value);
const char *const *os_environ(void); /* NULL-terminated "NAME=value" list */
void os_sleep_ms(unsigned ms);
void os_yield(void);
uint64_t os_thread_cpu_ns(void); /* time of a core that the calling thread has used */
/* Its sleeps end when they are due, not up to 50 us later, when a core would wake for others as well. */
void os_thread_wakes_exactly(void);
/* For each turn of a loop that waits for another core: the processor does less meanwhile. */
static inline void os_spin(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
uint32_t os_thread_count(void); /* threads of this process; 1 if unknown */
/* The same without the main thread where it waits, without a time limit, for another thread of the process,
 * as in pthread_join. */
uint32_t os_threads_at_work(void);
bool os_main_thread_joins(void); /* it is in pthread_join, for a thread that lives */
uint32_t os_core_count(void);    /* cores that this process may use, at least 1 */
/* Maximum size of a file (ulimit -f), UINT64_MAX: unlimited; growing a file beyond it raises SIGXFSZ. */
uint64_t os_file_bytes_most(void);
/* Adds threads that os_thread_count leaves out (negative: counts them again): service threads, which make no
 * progress for the program's ranks. */
void os_thread_note(int more);
/* Changes in the child of a fork, without a system call: a saved value shows later if the process is still
 * the same. */
uint32_t os_fork_count(void);
/* As atexit: runs after main has returned or exit was called. */
void os_at_exit(void (*function)(void));
/* The same; the function is told the status with which the process ends. */
void os_at_exit_status(void (*function)(int status));
/* Runs when the calling thread ends; for the thread that calls exit, before the handlers of os_at_exit. */
void os_at_thread_exit(void (*function)(void *argument), void *argument);
/* Ends the process without any further handler, when what streams hold has been written. */
_Noreturn void os_exit_now(int status);
/* As pthread_atfork. */
void os_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void));
int os_pid(void);
long os_tid(void);
/* Identifies a process, distinct from later processes with the same pid. Plain data: another process may use
 * it. */
struct os_process {
  uint64_t realm; /* pid namespace; 0: unknown */
  uint64_t born;  /* start time, ticks since boot */
  int32_t number;
};
void os_process_self(struct os_process *process);
/* True if the process has certainly ended; false also for processes that this one cannot see. */
bool os_process_gone(const struct os_process *process);
/* A signal or a debugger has stopped it. */
bool os_process_stopped(int32_t number);
struct os_activity {
  bool asleep;     /* no thread runs or could run: all sleep until something comes */
  bool reads;      /* a thread waits for a disk */
  uint64_t naps;   /* how often its threads have gone to sleep */
  uint64_t cpu_ns; /* that they have used */
};
/* What the threads of a process do; false if it cannot be seen. */
bool os_process_activity(const struct os_process *process, struct os_activity *activity);
/* Sleeps while *word, which may be in shared memory, is `value`, for at most this long. True if something
 * woke the thread, or the word differs. */
bool os_futex_wait(uint32_t *word, uint32_t value, uint64_t timeout_ms);
void os_futex_wake(uint32_t *word); /* all that sleep */
void os_host_name(char *out, size_t out_bytes);
/* The file's name without its directories. */
const char *os_base_name(const char *path);
/* Reads a whole file into a new zero-terminated os_alloc block (*bytes excludes the zero, may be NULL); NULL
 * with errno if it cannot be read. */
char *os_file_read(const char *path, size_t *bytes);
/* The same, but a file of more than `bytes_most` fails with EFBIG. */
char *os_file_read_most(const char *path, size_t bytes_most, size_t *bytes);
/* Replaces a file's contents; false with errno if it cannot be written. */
bool os_file_write(const char *path, const char *text, size_t bytes);

/* Threads: wrappers of pthreads. Returns false if a thread cannot be created. */
typedef pthread_mutex_t os_mutex;
typedef pthread_cond_t os_cond;
#define OS_MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER
void os_mutex_init(os_mutex *mutex);
void os_mutex_destroy(os_mutex *mutex);
void os_mutex_lock(os_mutex *mutex);
bool os_mutex_try_lock(os_mutex *mutex); /* false if another thread holds it */
void os_mutex_unlock(os_mutex *mutex);
void os_cond_init(os_cond *cond); /* deadlines are on the monotonic clock */
void os_cond_destroy(os_cond *cond);
void os_cond_wait(os_cond *cond, os_mutex *mutex);
bool os_cond_wait_until(os_cond *cond, os_mutex *mutex, uint64_t deadline_ns); /* false at the deadline */
void os_cond_broadcast(os_cond *cond);
typedef pthread_t os_thread;
bool os_thread_start(os_thread *thread, void *(*body)(void *), void *argument);
/* The thread bears the name, of at most 15 letters, if os_threads_name(true) was called before. */
bool os_thread_start_named(os_thread *thread, const char *name, void *(*body)(void *), void *argument);
void os_threads_name(bool named);
/* Restricts the calling thread to processors, as "0-3,8". False, with errno: EINVAL: it is no such list, or
 * the process may use none of them. */
bool os_thread_bind(const char *cpus);
void os_thread_join(os_thread thread);
void os_thread_detach(os_thread thread); /* no thread joins it */

#endif
